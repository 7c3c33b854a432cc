"""The rank that others wait for, and why: by time, position in the step, and earlier work."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from planted import Program
from planted_ranks import US, Call, codes_in, finding_in, ranks_in, together, write_rank
from rich.console import Console

from properties import examples
from stagespan.pages.html.data import charts
from stagespan.pages.markdown import markdown
from stagespan.pages.terminal import print_page
from stagespan.trace.evidence import window_of
from stagespan.trace.paths import analyze_ranks
from stagespan.trace.ranks.report import Ranks
from stagespan.trace.ranks.summary import usage_of
from stagespan.trace.ranks.waits import (
    BEFORE,
    COMPUTING,
    HOST,
    NOT_KNOWN,
    OTHER_COLLECTIVES,
    REASONS,
)

STEP = 100_000.0


def reasons_of(found: Ranks, at: int) -> dict[str, int]:
    return dict(zip(REASONS, found.waits.reasons_ns[at].tolist(), strict=True))


def write_job(folder: Path, arrivals: list[list[float]], steps: int = 6, took: float = 10) -> None:
    """Ranks that arrive at eight collectives in each of their steps, which begin together."""
    for rank, calls in enumerate(together(arrivals, took)):
        marks = [(STEP * step, STEP * (step + 1) - 1) for step in range(steps)]
        write_rank(folder, rank, calls, world=len(arrivals), steps=marks, host="node1")


def test_a_rank_that_sleeps_once_a_step_is_named_despite_many_short_races(tmp_path: Path) -> None:
    # GIVEN six steps of eight collectives. Rank 1 sleeps 30 ms before the first collective of each
    # step except the first one. Rank 0 arrives 5 µs late at all others, and once, in the first
    # step, 47 ms.
    arrivals: list[list[float]] = [[], []]
    for step in range(6):
        for number in range(8):
            at = STEP * step + 1_000 + 5_000 * number
            slept = 30_000.0 if step and number == 0 else 0.0
            late = 47_000.0 if (step, number) == (0, 7) else 5.0 if number else 0.0
            # The other collectives of the step are delayed by the sleep.
            follows = 30_000.0 if step and number else 0.0
            arrivals[0].append(at + late + follows)
            arrivals[1].append(at + slept + follows)
    write_job(tmp_path, arrivals)
    found = ranks_in(tmp_path)
    # THEN rank 0 was last most often, and rank 1 is the one that is waited for
    assert found.waits.last.tolist() == [42, 5]
    assert found.waits.waited_for_ns.tolist() == [(41 * 5 + 47_000) * US, 150_000 * US]
    late = finding_in(found, "ranks.late")
    assert late.severity == "high"
    assert late.numbers["rank"] == 1
    assert late.numbers["waited_ns"] == 150_000 * US
    assert late.numbers["waited_percent"] == pytest.approx(100 * 150 / (150 + 47.205))
    assert late.numbers["collective_of_step"] == 1
    assert (late.numbers["last"], late.numbers["of"]) == (5, 6)
    assert reasons_of(found, 1) == {
        BEFORE: 0, COMPUTING: 0, OTHER_COLLECTIVES: 0, HOST: 150_000 * US, NOT_KNOWN: 0,
    }  # fmt: skip
    (group,) = found.to_dict()["collectives"]
    assert (group["most_often_last"], group["most_waited_for"]) == (0, 1)
    assert group["most_waited_for_us"] == 150_000
    table = next(each for each in found.tables() if "place in the step" in each.title)
    assert table.rows[0] == (
        "all_reduce", 1, 6, 150_000 * US, "rank 1 (100 %, 5 times)",
    )  # fmt: skip


def test_ranks_that_are_late_in_turn_at_a_position_are_not_blamed(tmp_path: Path) -> None:
    arrivals: list[list[float]] = [[], []]
    for step in range(6):
        for number in range(8):
            at = STEP * step + 1_000 + 5_000 * number + (30_000 if number else 0)
            for rank in range(2):
                arrivals[rank].append(at + (30_000 if not number and step % 2 == rank else 0))
    write_job(tmp_path, arrivals)
    found = ranks_in(tmp_path)
    assert "ranks.waiting" in codes_in(found)
    assert "ranks.late" not in codes_in(found)


def test_one_slow_rank_is_one_finding_and_the_headline(tmp_path: Path) -> None:
    # GIVEN four ranks of which rank 2 computes twice as long before each of ten collectives
    arrivals = [[2_000.0 * n + (1_600 if rank == 2 else 800) for n in range(10)]
                for rank in range(4)]  # fmt: skip
    for rank, calls in enumerate(together(arrivals)):
        computing = [(2_000.0 * n + 10, calls[n][1]) for n in range(10)]
        write_rank(tmp_path, rank, calls, world=4, computing=computing, host="node1")
    found = analyze_ranks(tmp_path, jobs=1)
    codes = [each.code for each in found.findings()]
    assert "ranks.late" in codes
    assert not {"ranks.waiting", "ranks.imbalance"} & set(codes)
    assert {"ranks.waiting", "ranks.imbalance"} <= set(codes_in(ranks_in(tmp_path)))
    _, sentence = found.results["ranks"].title()
    assert sentence.endswith("100 % of the waiting is for rank 2.")
    assert found.summary() == "4 ranks"
    # THEN every form of the page has the same findings
    shown = StringIO()
    print_page(found, Console(file=shown, width=80))
    for text in (shown.getvalue(), markdown(found)):
        assert "waited" in text
        assert "longer than the mean of all ranks" not in text
        assert text.count("Gain: ") == len(codes)


def test_a_rank_that_is_late_for_its_loader_is_one_finding_and_the_headline(tmp_path: Path) -> None:
    # GIVEN two hosts, of which rank 1 loads data for 60 ms in each step, and rank 0 waits
    for rank, (load, wait) in enumerate([(1_000, 64_000), (60_000, 5_000)]):
        program = Program()
        for step in range(5):
            with program.within(f"ProfilerStep#{step}", "user_annotation"):
                with program.within("enumerate(DataLoader)#x.__next__", "user_annotation"):
                    program.work(load)
                with program.within("aten::mm"):
                    program.work(20_000)
                with program.within("gloo:all_reduce", "user_annotation"):
                    program.work(wait)
        about = {"rank": rank, "world_size": 2, "backend": "gloo"}
        text = json.dumps({"distributedInfo": about, "traceEvents": program.events})
        (tmp_path / f"rank{rank}.json").write_text(text)
    found = analyze_ranks(tmp_path, jobs=1)
    word, sentence = found.results["ranks"].title()
    assert word in ("data-bound", "communication-bound")
    assert " 0 of " not in sentence
    assert "100 % of the waiting is for rank 1" in sentence
    codes = [each.code for each in found.findings()]
    assert "ranks.late" in codes
    assert not {"ranks.stage", "ranks.waiting"} & set(codes)
    assert "ranks.stage" in codes_in(ranks_in(tmp_path))


def test_a_rank_that_computes_longer(tmp_path: Path) -> None:
    # GIVEN three ranks of which rank 2 computes 200 µs longer before each of ten collectives
    arrivals = [[1_000.0 * n + (200 if rank == 2 else 0) + 600 for n in range(10)]
                for rank in range(3)]  # fmt: skip
    for rank, calls in enumerate(together(arrivals)):
        computing = [(1_000.0 * n + 100, calls[n][1]) for n in range(10)]
        write_rank(tmp_path, rank, calls, world=3, computing=computing, host="node1")
    found = ranks_in(tmp_path)
    assert found.waits.waited_for_ns.tolist() == [0, 0, 10 * 2 * 200 * US]
    why = reasons_of(found, 2)
    assert why[COMPUTING] == pytest.approx(10 * 2 * 200 * US, abs=20)
    assert sum(why.values()) == found.waits.waited_for_ns[2]
    numbers = finding_in(found, "ranks.late").numbers
    assert (numbers["rank"], numbers["reason_ns"]) == (2, why[COMPUTING])


def test_computing_while_a_rank_waits_does_not_count_before_the_next(tmp_path: Path) -> None:
    # GIVEN two ranks, of which rank 1 computes 100 µs longer before each of ten collectives and
    # then does nothing for 100 µs, while rank 0 computes for 150 of these 200 µs in the collective
    arrivals = [[1_000.0 * n + 600 + 200 * rank for n in range(10)] for rank in range(2)]
    for rank, calls in enumerate(together(arrivals)):
        computing = [(1_000.0 * n + 100, calls[n][1] - 100 * rank) for n in range(10)]
        if rank == 0:
            computing += [(calls[n][1] + 20, calls[n][1] + 170) for n in range(10)]
        write_rank(tmp_path, rank, calls, world=2, computing=computing, host="node1")
    found = ranks_in(tmp_path)
    assert found.waits.waited_ns.tolist() == [10 * 200 * US, 0]
    assert found.waits.waited_for_ns.tolist() == [0, 10 * 50 * US]
    why = reasons_of(found, 1)
    assert (why[COMPUTING], why[HOST]) == (10 * 25 * US, 10 * 25 * US)


def test_a_rank_that_is_delayed_by_another_collective(tmp_path: Path) -> None:
    calls = together([[1_000.0 * n + 400 + (300 if rank == 2 else 0) for n in range(10)]
                      for rank in range(3)])  # fmt: skip
    for rank, mine in enumerate(calls):
        groups = ["world"] * len(mine)
        own: list[Call] = [("AllGather", 1_000.0 * n + 100, 1_000.0 * n + 400) for n in range(10)]
        if rank == 2:
            mine = [*mine, *[(op, begin, end + 300) for op, begin, end in own]]
            groups += ["other"] * 10
        write_rank(tmp_path, rank, mine, world=3, groups=groups, host="node1")
    found = ranks_in(tmp_path)
    why = reasons_of(found, 2)
    assert why[OTHER_COLLECTIVES] > 0.85 * found.waits.waited_for_ns[2]
    assert sum(why.values()) == found.waits.waited_for_ns[2]


@pytest.mark.parametrize("clock", [0, 400])
def test_a_rank_whose_step_begins_later(clock: int, tmp_path: Path) -> None:
    # GIVEN one step of three collectives, which rank 3 begins 5 ms later and runs equally fast, on
    # a host whose clock may be ahead
    for rank, calls in enumerate(
        together([[(5_000.0 if rank == 3 else 0) + at for at in (1_000, 2_000, 3_000)]
                  for rank in range(4)])
    ):  # fmt: skip
        begin = 5_000.0 if rank == 3 else 0.0
        steps = [(begin, begin + 6_000)]
        write_rank(
            tmp_path, rank, calls, world=4, steps=steps, begin=begin, host=f"node{rank}",
            clock=clock if rank == 3 else 0,
        )  # fmt: skip
    found = ranks_in(tmp_path)
    assert found.waits.waited_for_ns[3] == reasons_of(found, 3)[BEFORE] > 0
    late = finding_in(found, "ranks.late")
    assert late.severity == "low"
    assert late.numbers["reason_ns"] == found.waits.waited_for_ns[3]
    waiting = finding_in(found, "ranks.waiting")
    assert waiting.severity == "medium"
    assert waiting.numbers["began_later_ns"] == waiting.numbers["time_ns"]


def test_later_steps_are_compared_from_the_collective_before(tmp_path: Path) -> None:
    # GIVEN two ranks, of which rank 1 begins its first step 20 ms later, and then loses 5 ms in
    # each of three more, in which all arrived together at the previous collective
    for rank, calls in enumerate(together([
        [1_000, *(STEP * step + 1_000 for step in range(1, 4))],
        [21_000, *(STEP * step + 6_000 for step in range(1, 4))],
    ])):  # fmt: skip
        steps = [(STEP * step + (20_000 if rank and not step else 0), STEP * (step + 1) - 1)
                 for step in range(4)]  # fmt: skip
        write_rank(tmp_path, rank, calls, world=2, steps=steps, begin=20_000.0 * rank, host="n")
    found = ranks_in(tmp_path)
    why = reasons_of(found, 1)
    assert (why[BEFORE], why[HOST]) == (20_000 * US, 15_000 * US)
    # THEN only waiting that is not from before the traces counts for the severity: 15 of 285 ms,
    # while 35 would be high
    assert finding_in(found, "ranks.late").severity == "medium"


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_reasons_sum_to_the_waiting(data: st.DataObject, tmp_path: Path) -> None:
    for old in tmp_path.iterdir():
        old.unlink()
    ranks, steps = data.draw(st.integers(2, 4)), data.draw(st.integers(0, 3))
    times = st.lists(st.integers(0, 400), min_size=6, max_size=6)
    late = [data.draw(times) for _ in range(ranks)]
    computes = [data.draw(times) for _ in range(ranks)]
    begins = [data.draw(st.integers(0, 300)) for _ in range(ranks)]
    arrivals = [[1_000.0 * n + 500 + each for n, each in enumerate(mine)] for mine in late]
    for rank, calls in enumerate(together(arrivals)):
        write_rank(
            tmp_path, rank, calls, world=ranks,
            computing=[(1_000.0 * n, 1_000.0 * n + us) for n, us in enumerate(computes[rank])],
            steps=[(2_000.0 * n + begins[rank], 2_000.0 * n + 1_999) for n in range(steps)],
        )  # fmt: skip
    found = ranks_in(tmp_path)
    # THEN the reasons of each rank sum to what the others lost because of it, and none is negative
    assert found.waits.reasons_ns.sum(axis=1).tolist() == found.waits.waited_for_ns.tolist()
    assert found.waits.reasons_ns.min() >= 0
    for at, summary in enumerate(found.summaries):
        parts = found.usage(at)
        assert sum(parts.values()) == summary.usage.time_ns
        assert min(parts.values()) >= 0


def test_the_chart_equals_the_table(tmp_path: Path) -> None:
    calls = together([[1_000.0 * n + 400 + 100 * rank for n in range(5)] for rank in range(3)], 200)
    for rank, mine in enumerate(calls):
        computing = [(1_000.0 * n + 5, 1_000.0 * n + 450) for n in range(5)]
        steps = [(1_000.0 * n, 1_000.0 * n + 999) for n in range(5)]
        write_rank(tmp_path, rank, mine, world=3, computing=computing, steps=steps, host="node1")
    analysis = analyze_ranks(tmp_path, 1)
    found = ranks_in(tmp_path)
    (picture,) = charts(analysis)
    drawn = {key: times for _, key, times in picture["parts"]}
    table = found.tables()[0]
    columns = [name for name, _ in table.columns]
    rows = {str(row[0]): dict(zip(columns, row, strict=True)) for row in table.rows}
    for at, rank in enumerate(picture["ranks"]):
        row = rows[str(rank)]
        for key, column in (
            ("computing", "computing"),
            ("waiting", "waiting"),
            ("communicating", "other communication"),
            ("idle", "idle"),
        ):
            assert drawn[key][at] == row[column], (rank, key)
        assert sum(times[at] for times in drawn.values()) == row["time"] == 4_999 * US
        # 400 to 800 µs in each, 450 of each step is computing; each rank comes 100 µs later
        exposed = drawn["waiting"][at] + drawn["communicating"][at]
        assert exposed == 5 * (350, 300, 200)[at] * US
    # THEN waiting that computing hides is counted once, as computing
    assert drawn["waiting"][0] == found.waits.lost_ns[0] < found.waits.waited_ns[0]


def test_ranks_that_compute_equally_long_are_named_together(tmp_path: Path) -> None:
    # GIVEN four ranks, of which 2 and 3 compute 1.75 times as long between the same collectives
    for rank, calls in enumerate(together([[100, 1_100, 2_100]] * 4)):
        us = 350 + rank if rank > 1 else 200 + rank
        computing = [(n + 150, n + 150 + us) for n in (0, 1_000, 2_000)]
        write_rank(tmp_path, rank, calls, world=4, computing=computing)
    found = ranks_in(tmp_path)
    written = found.to_dict()["imbalance"]
    assert (written["rank"], written["ranks"]) == (3, [2, 3])
    assert written["times_the_others"] == pytest.approx((352 + 353) / (200 + 201), rel=0.01)
    finding = finding_in(found, "ranks.imbalance")
    assert finding.numbers["times"] == written["times_the_others"]
    assert len(finding.evidence) == 4


def test_communication_of_other_libraries_is_matched(tmp_path: Path) -> None:
    # GIVEN ranks whose collectives are an inference server's own kernels
    for rank, calls in enumerate(together([[100, 1_100, 2_100], [150, 1_150, 2_150]])):
        path = write_rank(tmp_path, rank, calls, world=2, host="node1", name=f"rank{rank}.json")
        name = "void vllm::cross_device_reduce_1stage<__half, 2>(...)"
        whole = json.loads(path.read_text())
        for event in whole["traceEvents"]:
            if event["name"].startswith("nccl"):
                event["name"] = name
        path.write_text(json.dumps(whole))
    found = ranks_in(tmp_path)
    assert found.matched.count == 3
    assert found.waits.waited_ns.tolist() == [150 * US, 0]
    assert found.to_dict()["ranks"][0]["exposed_comm_us"] == 3 * 60
    assert found.usage(0)["computing"] == 0


@pytest.mark.parametrize("library", ["gloo", "xccl"])
def test_operators_of_collectives_do_not_compute(library: str, tmp_path: Path) -> None:
    program = Program()
    for _ in range(3):
        with program.within("aten::mm"):
            program.work(100)
        with program.within(f"{library}:all_reduce"):
            program.work(40)
    trace = program.trace(tmp_path)
    found = usage_of(trace, window_of(trace) or (0, 0))
    assert (found.computing_ns, found.communicating_ns) == (300 * US, 120 * US)
