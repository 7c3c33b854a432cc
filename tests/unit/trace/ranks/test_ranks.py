"""Clocks, waiting and stragglers of planted ranks, to the nanosecond; and of real ones."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path

import pytest
from planted_ranks import US, codes_in, finding_in, ranks_in, together, write_rank

from stagespan.trace import read_trace
from stagespan.trace.analyses import verdict
from stagespan.trace.ranks import report as words
from stagespan.trace.ranks.waits import BEFORE, REASONS


def test_clocks_are_aligned_by_ends_of_collectives(tmp_path: Path) -> None:
    # GIVEN four ranks whose clocks are 0, 300, -120 and 50 µs ahead
    clocks = (0, 300, -120, 50)
    arrivals = [[100 + 1_000 * n + 10 * rank for n in range(6)] for rank in range(4)]
    for rank, calls in enumerate(together(arrivals)):
        write_rank(tmp_path, rank, calls, world=4, clock=clocks[rank])
    # WHEN they are read together
    found = ranks_in(tmp_path)
    # THEN the clocks are known, but for the middle one, which is taken as 0
    assert (found.clocks.offset_ns - found.clocks.offset_ns[0]).tolist() == [
        clock * US for clock in clocks
    ]
    assert found.clocks.error_ns.tolist() == [0, 0, 0, 0]
    assert set(found.clocks.how) == {"collectives"}
    # AND the last to come is known although its clock says otherwise: 30 µs behind the first
    assert found.waits.last.tolist() == [0, 0, 0, 6]
    assert found.waits.waited_ns.tolist() == [6 * 30 * US, 6 * 20 * US, 6 * 10 * US, 0]


def test_some_ends_are_late(tmp_path: Path) -> None:
    # GIVEN two of seven collectives that end 400 µs late on one rank
    arrivals = [[100 + 1_000 * n for n in range(7)] for _ in range(3)]
    calls = together(arrivals)
    for at in (2, 5):
        op, begin, end = calls[1][at]
        calls[1][at] = (op, begin, end + 400)
    for rank, each in enumerate(calls):
        write_rank(tmp_path, rank, each, world=3, clock=70 * rank)
    # WHEN the clocks are aligned
    found = ranks_in(tmp_path)
    # THEN those do not move them
    assert found.clocks.offset_ns.tolist() == [-70 * US, 0, 70 * US]


def test_one_host_has_one_clock(tmp_path: Path) -> None:
    # GIVEN two ranks of one host, on one of which every collective ends 40 µs later
    calls = together([[100, 1_100, 2_100]] * 2)
    late = [(op, begin, end + 40) for op, begin, end in calls[1]]
    for rank, each in enumerate((calls[0], late)):
        write_rank(tmp_path, rank, each, world=2, host="node1")
    # WHEN they are read together
    found = ranks_in(tmp_path)
    # THEN the clock is not to blame
    assert found.clocks.offset_ns.tolist() == [0, 0]
    assert set(found.clocks.how) == {"host"}


def test_clocks_with_unknown_offsets(tmp_path: Path) -> None:
    # GIVEN two hosts whose clocks are 3 ms apart, and broadcasts alone, for which nobody waited
    for rank in range(2):
        calls = [("Broadcast", 5_000.0 * n, 5_000.0 * n + 20) for n in range(1, 21)]
        write_rank(tmp_path, rank, calls, world=2, clock=3_000 * rank, host=f"node{rank}")
    # WHEN they are read together
    found = ranks_in(tmp_path)
    # THEN the waiting is unknown, and a remark says so
    assert set(found.clocks.how) == {"unknown"}
    assert found.findings() == []
    written = found.to_dict()
    assert (written["matched_collectives"], written["waited_us"], written["lost_us"]) == (
        20,
        None,
        None,
    )
    for row in written["ranks"]:
        assert (row["matched_collectives"], row["last_in"], row["lost_us"]) == (20, None, None)
        assert row["computed_us"] == 0
    (remark,) = found.remarks
    assert remark.startswith("The offset of the clocks of ranks 0, 1 is unknown")
    assert "It is unknown which rank waited" in found.tables()[0].note


def test_one_clock_with_an_unknown_offset(tmp_path: Path) -> None:
    # GIVEN three ranks of which the third takes part in broadcasts alone, 3 ms ahead
    arrivals = [[1_000.0 * n + 200 * rank for n in range(1, 11)] for rank in range(2)]
    for rank, calls in enumerate(together(arrivals)):
        both = [*calls, ("Broadcast", 50_000.0, 50_020.0), ("Broadcast", 60_000.0, 60_020.0)]
        groups = ["a"] * 10 + ["b"] * 2
        write_rank(tmp_path, rank, both, world=3, groups=groups, host=f"node{rank}")
    calls = [("Broadcast", 50_000.0, 50_020.0), ("Broadcast", 60_000.0, 60_020.0)]
    write_rank(tmp_path, 2, calls, world=3, clock=3_000, groups=["b", "b"], host="node2")
    # WHEN they are read together
    found = ranks_in(tmp_path)
    # THEN the two are compared, and the waiting of the third is unknown
    assert found.waits.waited_ns.tolist() == [10 * 200 * US, 0, 0]
    assert found.waits.last.tolist() == [0, 10, 0]
    assert [row["last_in"] for row in found.to_dict()["ranks"]] == [0, 10, None]
    (remark,) = found.remarks
    assert "clocks of ranks 2 is unknown" in remark


def test_a_straggler(tmp_path: Path) -> None:
    # GIVEN eight ranks of which rank 5 comes 200 µs late to nine of ten collectives
    arrivals = [
        [1_000.0 * n + 10 * rank + (200 if rank == 5 and n != 4 else 0) for n in range(10)]
        for rank in range(8)
    ]
    for rank, calls in enumerate(together(arrivals)):
        write_rank(tmp_path, rank, calls, world=8)
    # WHEN they are read together
    found = ranks_in(tmp_path)
    # THEN rank 5 is last nine times, 180 µs behind rank 7, which is last once, 10 behind rank 6
    assert found.waits.last.tolist() == [0, 0, 0, 0, 0, 9, 0, 1]
    assert found.waits.caused_ns.tolist() == [0, 0, 0, 0, 0, 9 * 180 * US, 0, 10 * US]
    # AND rank 0 waited 250 µs nine times and 70 once
    assert found.waits.waited_ns[0] == (9 * 250 + 70) * US
    assert found.lost_ns == sum(each.waited_ns for each in found.waits.instances)
    # AND both are reported, with the worst as evidence
    waiting, straggler = finding_in(found, "ranks.waiting"), finding_in(found, "ranks.late")
    assert waiting.severity == "medium"
    assert "for 13.960 ms" in waiting.sentence
    assert straggler.severity == "high"
    assert "waited 13.680 ms for rank 5 (98.0 % of all waiting)" in straggler.sentence
    assert "arrived last at 9 of 10 collectives" in straggler.sentence
    assert found.waits.waited_for_ns.tolist() == [0, 0, 0, 0, 0, 13_680 * US, 0, 280 * US]
    assert straggler.evidence[0].figure == 180 * US
    assert "rank 5 last" in straggler.evidence[0].event


@pytest.mark.parametrize(("of", "ranks"), [(1, 2), (10, 2), (60, 8), (4_000, 3), (30_000, 2)])
def test_chances_are_those_of_exact_fractions(of: int, ranks: int) -> None:
    # GIVEN how often a rank can be last, by chance or more than that
    for times in sorted({-(-of // ranks), of // ranks + of // 20 + 1, of}):
        # WHEN the chance is computed, and summed up in whole numbers
        ways, exact = math.comb(of, times), 0
        for n in range(times, of + 1):
            exact += ways * (ranks - 1) ** (of - n)
            ways = ways * (of - n) // (n + 1)
            if n - times > 2_000:
                break
        # THEN they are the same, however many collectives there are
        expected = float(Fraction(exact, ranks**of))
        assert words._by_chance(times, of, ranks) == pytest.approx(expected, rel=1e-8, abs=1e-300)


def test_ranks_that_come_last_in_turn_are_no_stragglers(tmp_path: Path) -> None:
    # GIVEN two ranks each of which comes late to half of the collectives
    arrivals = [
        [1_000.0 * n + (300 if n % 2 == rank else 0) for n in range(10)] for rank in range(2)
    ]
    for rank, calls in enumerate(together(arrivals)):
        write_rank(tmp_path, rank, calls, world=2)
    # WHEN they are read together
    found = ranks_in(tmp_path)
    # THEN waiting is reported, but no rank is blamed
    assert found.waits.last.tolist() == [5, 5]
    assert "ranks.waiting" in codes_in(found)
    assert "ranks.late" not in codes_in(found)


def test_ranks_that_come_together_have_no_finding(tmp_path: Path) -> None:
    # GIVEN ranks that compute alike and come at the same time
    for rank, calls in enumerate(together([[100, 1_100, 2_100, 3_100]] * 4)):
        write_rank(tmp_path, rank, calls, world=4, computing=[(200, 1_000), (1_200, 2_000)])
    # WHEN they are read together
    found = ranks_in(tmp_path)
    # THEN there is nothing to say
    assert found.findings() == []
    assert found.remarks == ()
    assert found.waits.last.tolist() == [0, 0, 0, 0]
    assert found.lost_ns == 0


def test_windows_that_begin_at_another_collective(tmp_path: Path) -> None:
    # GIVEN a rank whose trace misses the first three of ten collectives, clocks 40 µs apart
    arrivals = [[100.0 + 1_000 * n + (n % 3) * 50 * rank for n in range(10)] for rank in range(2)]
    first, second = together(arrivals)
    write_rank(tmp_path, 0, first, world=2)
    write_rank(tmp_path, 1, second[3:], world=2, clock=40, begin=3_000)
    # WHEN they are read together
    found = ranks_in(tmp_path)
    # THEN the seven that both hold are matched, each with itself
    assert found.matched.count == 7
    assert (found.clocks.offset_ns[1] - found.clocks.offset_ns[0]) == 40 * US
    assert [each.late_ns for each in found.waits.instances] == [
        50 * US * (n % 3) for n in range(3, 10)
    ]


def test_groups_are_matched_apart(tmp_path: Path) -> None:
    # GIVEN four ranks in two groups of two, and one of all, in an order that differs by group
    for rank in range(4):
        own = f"tp{rank // 2}"
        late = 30 if rank == 3 else 0
        calls = [
            ("AllGather", 100 + late, 140),
            ("AllReduce_Sum_f32", 500, 520),
            ("AllGather", 900 + late, 940),
            ("AllReduce_Sum_f32", 1_500, 1_520),
        ]
        if rank < 2:
            # The other group gathers once more.
            calls.insert(3, ("AllGather", 1_200, 1_240))
        groups = ["world" if op.startswith("AllReduce") else own for op, _, _ in calls]
        write_rank(tmp_path, rank, calls, world=4, groups=groups)
    # WHEN they are read together
    found = ranks_in(tmp_path)
    # THEN each group's calls are matched within it
    counts = {(each.op, each.group): each.ranks for each in found.waits.instances}
    assert counts == {
        ("all_gather", "tp0"): 2,
        ("all_gather", "tp1"): 2,
        ("all_reduce", "world"): 4,
    }
    assert found.matched.count == 3 + 2 + 2
    assert found.waits.last.tolist() == [0, 0, 0, 2]
    assert found.waits.waited_ns.tolist() == [0, 0, 60 * US, 0]
    # AND shares are of the time from the first collective of any group to the last
    assert found.waits.common_ns.tolist() == [1_420 * US] * 3 + [1_390 * US]


def test_sends_between_two_ranks_are_left_out(tmp_path: Path) -> None:
    # GIVEN collectives and a send
    calls = together([[100, 1_100]] * 2)
    write_rank(tmp_path, 0, [*calls[0], ("Send", 2_000, 2_100)], world=2)
    write_rank(tmp_path, 1, [*calls[1], ("Recv", 2_050, 2_100)], world=2)
    # WHEN they are read together
    found = ranks_in(tmp_path)
    # THEN they are not matched, and the result says so
    assert found.matched.count == 2
    assert found.matched.alone == 2
    assert any("2 sends and receives" in remark for remark in found.remarks)


def test_collectives_that_do_not_agree_are_not_matched(tmp_path: Path) -> None:
    # GIVEN ranks that run different collectives
    write_rank(tmp_path, 0, [("AllReduce", 100 * n, 100 * n + 10) for n in range(6)], world=2)
    write_rank(tmp_path, 1, [("AllGather", 100 * n, 100 * n + 10) for n in range(6)], world=2)
    # WHEN they are read together
    found = ranks_in(tmp_path)
    # THEN nothing is made up, and the result says only that they only communicate
    assert found.matched.count == 0
    assert codes_in(found) == ["ranks.exposed_communication"]
    assert any("do not match those of the others" in remark for remark in found.remarks)
    assert found.to_dict()["waited_us"] is None
    assert found.to_dict()["ranks"][0]["waited_us"] is None


def test_waiting_beside_computing_is_not_lost(tmp_path: Path) -> None:
    # GIVEN a rank that waits 100 µs for the other in each of four collectives, and computes for 60
    first, second = together(
        [[100 + 1_000 * n for n in range(4)], [200 + 1_000 * n for n in range(4)]]
    )
    write_rank(
        tmp_path, 0, first, world=2,
        computing=[(120 + 1_000 * n, 180 + 1_000 * n) for n in range(4)],
    )  # fmt: skip
    write_rank(
        tmp_path, 1, second, world=2,
        computing=[(320 + 1_000 * n, 380 + 1_000 * n) for n in range(4)],
    )  # fmt: skip
    # WHEN they are read together
    found = ranks_in(tmp_path)
    # THEN 40 µs of each are lost, and rank 1 is to blame for no more
    assert found.waits.waited_ns.tolist() == [400 * US, 0]
    assert found.waits.lost_ns.tolist() == [160 * US, 0]
    assert found.waits.caused_ns.tolist() == [0, 160 * US]
    assert "another 240.000 µs during which they also computed" in found.tables()[0].note


def test_imbalance_of_computing(tmp_path: Path) -> None:
    # GIVEN three ranks that compute 400, 400 and 700 µs between their first and last collectives
    calls = together([[100, 1_100, 2_100]] * 3)
    for rank, us in enumerate((200, 200, 350)):
        computing = [(20, 20 + us / 5), *((n + 150, n + 150 + us) for n in (0, 1_000, 2_000))]
        write_rank(tmp_path, rank, calls[rank], world=3, computing=computing)
    # WHEN they are read together
    found = ranks_in(tmp_path)
    # THEN that is known, and what rank 2 computes beyond the mean
    assert found.waits.computed_ns.tolist() == [400 * US, 400 * US, 700 * US]
    assert found.imbalance is not None
    assert (found.imbalance.ranks, found.imbalance.percent) == ([2], pytest.approx(40.0))
    finding = finding_in(found, "ranks.imbalance")
    assert "40.0 % longer than the mean" in finding.sentence
    assert [each.figure for each in finding.evidence] == [700 * US, 400 * US]


@pytest.mark.parametrize(
    ("op", "gigabytes"),
    # 4,000 bytes in 10 µs are 0.4 GB/s; of 4 ranks each link carries 3/4 of all, twice to reduce.
    [("AllReduce", 0.6), ("AllGather", 1.2), ("ReduceScatter", 0.3), ("Broadcast", 0.4)],
)
def test_bandwidth_of_the_bus(op: str, gigabytes: float, tmp_path: Path) -> None:
    # GIVEN collectives that carry 2,000 elements of 2 bytes, to which one rank comes 50 µs late
    for rank in range(4):
        calls = [(op, 1_000.0 * n + (50 if rank else 0), 1_000.0 * n + 60) for n in range(3)]
        write_rank(tmp_path, rank, calls, world=4, message=(2_000, "BFloat16", 4), host="node1")
    # WHEN they are read together
    found = ranks_in(tmp_path)
    # THEN the bandwidth is that of the 10 µs that all were there
    (group,) = found.to_dict()["collectives"]
    assert group["bus_gb_per_s"] == pytest.approx(gigabytes)


def test_eight_real_ranks(traces: Path) -> None:
    # GIVEN eight ranks of one job on one machine
    # WHEN they are read together
    found = ranks_in(traces / "nccl_dlrm_8rank")
    # THEN all are there, and their clocks are one to a few us
    assert found.numbers == list(range(8))
    assert (found.world_size, found.missing, found.matched.count) == (8, [], 8)
    assert abs(found.clocks.offset_ns).max() < 2 * US
    # AND rank 7 came last to five: to the first 505 µs behind rank 6, as their begins say
    assert found.waits.last.tolist() == [0, 0, 0, 0, 1, 2, 0, 5]
    first = found.waits.instances[0]
    assert (first.op, first.last) == ("send_recv", 7)
    assert first.late_ns == pytest.approx(505 * US, abs=2 * US)
    # AND the waiting is what the begins and durations in the files say: 7,624 µs of rank 1 there
    assert first.waited_ns == pytest.approx(
        sum((2_135, 7_624, 508, 0, 4_872, 4_669, 505)) * US + _third(found), abs=10 * US
    )
    # AND the share of all waiting is as in docs/ranks.md
    waiting = finding_in(found, "ranks.waiting")
    assert "45.183 ms (48.2 % of the time between" in waiting.sentence
    # AND most of the waiting for rank 7 came from before the traces: ranks begin their steps up to
    # 7.5 ms apart, and from there rank 7 takes 3.2 ms to the first collective, as the others do
    assert found.waits.waited_for_ns[7] == found.waits.reasons_ns[7].sum()
    begun_later = found.waits.reasons_ns[7, list(REASONS).index(BEFORE)]
    assert (begun_later, found.waits.waited_for_ns[7]) == (33_279_188, 35_156_750)
    late = finding_in(found, "ranks.late")
    assert late.severity == "low"
    assert "its step began later" in late.sentence
    # AND its parts and verdict are those of each rank's own trace
    for at, row in enumerate(found.to_dict()["ranks"]):
        trace = read_trace(traces / "nccl_dlrm_8rank" / f"rank{at}.json.gz")
        assert row["verdict"] == verdict.analyze(trace).to_dict()["verdict"]


def test_some_of_the_real_ranks(traces: Path, tmp_path: Path) -> None:
    # GIVEN the first three of eight real ranks
    for rank in range(3):
        name = f"rank{rank}.json.gz"
        (tmp_path / name).symlink_to(traces / "nccl_dlrm_8rank" / name)
    # WHEN they are read together
    found = ranks_in(tmp_path)
    # THEN nobody knows who was last of all: rank 2 is named with little weight
    assert found.missing == [3, 4, 5, 6, 7]
    late = finding_in(found, "ranks.late")
    assert (late.severity, "rank 2" in late.sentence) == ("low", True)
    assert "missing" in late.sentence


def test_two_real_ranks_of_an_npu(traces: Path) -> None:
    # GIVEN the result folders of two ranks
    # WHEN they are read together
    found = ranks_in(traces / "ascend_level1")
    # THEN their four all-reduces are matched; rank 1 came 5.6 ms late to the first
    assert [each.backend for each in found.summaries] == ["npu", "npu"]
    assert [(each.op, each.group) for each in found.waits.instances] == [("all_reduce", "586")] * 4
    first = found.waits.instances[0]
    assert (first.last, first.late_ns) == (1, pytest.approx(5_608 * US, abs=20 * US))
    assert abs(found.clocks.offset_ns).max() < 5 * US
    # AND communication_matrix.json shows that the group has eight ranks
    assert (found.world_size, found.missing) == (8, [2, 3, 4, 5, 6, 7])
    assert found.world_size_from == "communication_matrix.json"
    # AND after both had come to the first no data moved for 73.2 of its 73.5 ms: they waited for
    # the ranks that are missing, and so in the last
    assert [each.still_ns for each in found.waits.instances] == [
        pytest.approx(time * US, abs=10) for time in (73_229.943, 977.8405, 242.745, 22_058.321)
    ]
    # AND that is one finding, with the shares of the stages by step_trace_time.csv: 101.963 of
    # 136.581 ms and 96.359 of 131.9125
    (finding,) = found.findings()
    assert (finding.code, finding.severity) == ("ranks.exposed_communication", "high")
    for figure in ("198.322 ms", "268.494 ms", "73.9 %", "74.7 % on rank 0", "73.0 % on rank 1"):
        assert figure in finding.sentence
    assert "73.230 ms" in finding.sentence
    assert "missing (2, 3, 4, 5, 6, 7)" in finding.sentence
    assert [each.figure for each in finding.evidence] == [
        pytest.approx(time * US, abs=50) for time in (101_963.203, 96_359.047, 73_229.943, 22_058.3)
    ]
    # AND the job's verdict is that of both ranks
    assert found.verdict()[0] == "communication-bound"
    assert [found.verdict_of(at) for at in range(2)] == ["communication-bound"] * 2


def _third(found: object) -> int:
    """Of rank 3, which the sum above leaves out, from its own begin."""
    from planted_ranks import Ranks

    assert isinstance(found, Ranks)
    block = found.matched.blocks[0]
    return int(block.begin_ns[7, 0] - block.begin_ns[3, 0])
