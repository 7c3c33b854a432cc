"""Stages in which a rank is slower than the others, and what share of its time it is late."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planted import Program
from planted_ranks import US, finding_in, ranks_in, together, write_rank

from stagespan.trace.ranks.stages import StageRuns, slower_stages, stage_findings


def write_host(folder: Path, rank: int, augment: list[int], others: int = 50) -> None:
    """A rank on a CPU: each step augments, computes, and waits until all ranks have arrived."""
    program = Program()
    longest = 20_000
    for us in augment:
        with program.within("augment", "user_annotation"):
            program.work(us)
        with program.within("forward", "user_annotation"), program.within("aten::mm"):
            program.work(others)
        with program.within("gloo:all_reduce", "user_annotation"):
            program.work(longest - us)
    content = {"traceEvents": program.events, "host_name": "node1"}
    (folder / f"rank{rank}.json").write_text(json.dumps(content))


@pytest.mark.parametrize("slow", [0, 2])
def test_the_late_rank_s_stage_is_named(slow: int, tmp_path: Path) -> None:
    # GIVEN three ranks, of which one spends 15 times as long in a stage before each collective
    for rank in range(3):
        write_host(tmp_path, rank, [15_000 if rank == slow else 1_000] * 6)
    found = ranks_in(tmp_path)
    # THEN the finding about the late rank names the stage and how much longer it took
    late = finding_in(found, "ranks.late")
    assert late.numbers["rank"] == slow
    assert "It spent 15x as long in `augment` as the other ranks" in late.text
    assert "neither computed nor communicated" not in late.text
    stage = finding_in(found, "ranks.stage")
    assert stage.sentence.startswith(f"Rank {slow} spent 15x as long in `augment`")
    assert stage.numbers["more_ns"] == 6 * 14_000 * US
    assert stage.gain is not None
    assert (stage.gain.time_ns, stage.gain.at_most) == (6 * 14_000 * US, True)
    (table,) = [each for each in found.tables() if each.title == "Stages by rank"]
    row = next(each for each in table.rows if each[0] == "augment")
    assert row[1 + slow] == 6 * 15_000 * US


def test_ranks_that_are_alike_have_no_finding(tmp_path: Path) -> None:
    for rank in range(3):
        write_host(tmp_path, rank, [1_000 + 20 * rank] * 6)
    assert "ranks.stage" not in [each.code for each in ranks_in(tmp_path).findings()]


@pytest.mark.parametrize("groups", [("a",), ("a", "b")])
def test_a_rank_is_not_late_for_more_than_its_time(groups: tuple[str, ...], tmp_path: Path) -> None:
    # GIVEN a rank whose first collective is much later than the others', in one or two groups at
    # once, and whose collectives take little time after that
    late = [50_000.0 + 100 * number for number in range(4)]
    early = [100.0 * number for number in range(4)]
    for rank, calls in enumerate(together([early, late, early])):
        several = [call for call in calls for _ in groups]
        names = [group for _ in calls for group in groups]
        write_rank(
            tmp_path, rank, several, groups=names, world=3, host="n", computing=[(90_000, 90_001)]
        )
    found = ranks_in(tmp_path)
    finding = finding_in(found, "ranks.late")
    assert 50 < finding.numbers["late_percent"] <= 100


def test_only_stages_of_several_ranks_are_compared() -> None:
    times = [
        {"load": StageRuns(10, 1_000), "only here": StageRuns(1, 10**9)},
        {"load": StageRuns(5, 5_000)},
        {"load": StageRuns(10, 1_200)},
    ]
    (found,) = slower_stages(times)
    assert (found.rank, found.stage) == (1, "load")
    assert (found.run_ns, found.others_ns, found.more_ns) == (1_000, 120, 5 * 880)
    assert found.times() == "8.3x as long"
    assert stage_findings(times, ["a", "b", "c"], [10**6] * 3) == []
    (finding,) = stage_findings(times, ["a", "b", "c"], [10_000] * 3)
    assert finding.numbers["percent"] == pytest.approx(44.0)


# --- who waits for whom ---

STEP_NS = 1_000_000


def synchronous(
    slow: int, ranks: int, order: list[str], extra: float, waits_in: str
) -> list[dict[str, StageRuns]]:
    """Return the stages of ranks that all wait in one stage for a rank that is slow in another."""
    times = []
    for rank in range(ranks):
        own = {stage: STEP_NS * (1 + order.index(stage)) for stage in order}
        more = round(STEP_NS * extra)
        own[order[0] if rank == slow else waits_in] += more
        times.append({stage: StageRuns(20, 20 * time) for stage, time in own.items()})
    return times


@given(
    ranks=st.integers(2, 9),
    slow=st.integers(0, 8),
    extra=st.floats(0.8, 50),
    # The names say nothing: the slow stage may be called as those in which ranks usually wait.
    order=st.permutations(["all_reduce", "load", "forward"]),
    waits_in=st.integers(1, 2),
    is_known=st.booleans(),
)
def test_nobody_who_waits_is_accused(
    ranks: int, slow: int, extra: float, order: list[str], waits_in: int, is_known: bool
) -> None:
    slow %= ranks
    place = order[waits_in]
    times = synchronous(slow, ranks, order, extra, place)
    found = slower_stages(
        times, (lambda rank, stage: stage == place) if is_known else (lambda rank, stage: None)
    )
    for each in found:
        if each.is_cause:
            assert (each.rank, each.stage) == (slow, order[0])
            assert each.waiting is not None
            assert each.waiting.stage == place
        else:
            assert ranks == 2
            assert not is_known
    if extra >= 1 and (ranks > 2 or is_known):
        assert [each.rank for each in found] == [slow]


def test_the_time_in_collectives_is_not_a_rank_s_own(tmp_path: Path) -> None:
    # GIVEN two ranks, of which one loads for longer, while the other waits inside its backward pass
    for rank, load_us in enumerate((500, 9_500)):
        program = Program()
        for _ in range(6):
            with program.within("load", "user_annotation"):
                program.work(load_us)
            with program.within("backward", "user_annotation"):
                with program.within("aten::mm"):
                    program.work(300)
                with program.within("gloo:all_reduce", "user_annotation"):
                    program.work(10_000 - load_us)
        content = {"traceEvents": program.events, "host_name": "node1"}
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(content))
    found = ranks_in(tmp_path)
    stages = [each for each in found.findings() if each.code == "ranks.stage"]
    assert [each.sentence.split(" in `")[0] for each in stages] == ["Rank 1 spent 19x as long"]
    assert "rank 0 waits about 9.00 ms for it in `backward`" in stages[0].sentence
