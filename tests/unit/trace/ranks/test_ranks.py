"""Clocks, waiting and stragglers of synthetic ranks, exact to the nanosecond; and of real ones."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path

import pytest
from planted_ranks import US, codes_in, finding_in, ranks_in, together, write_rank

from stagespan.pages.amounts import in_words
from stagespan.pages.result import Gain
from stagespan.trace import read_trace
from stagespan.trace.analyses import verdict
from stagespan.trace.ranks.combined import chance_of_being_last
from stagespan.trace.ranks.waits import BEFORE, REASONS
from stagespan.trace.rates.collectives import bus_bytes


def test_clocks_are_aligned_by_ends_of_collectives(tmp_path: Path) -> None:
    clocks = (0, 300, -120, 50)
    arrivals = [[100 + 1_000 * n + 10 * rank for n in range(6)] for rank in range(4)]
    for rank, calls in enumerate(together(arrivals)):
        write_rank(tmp_path, rank, calls, world=4, clock=clocks[rank])
    found = ranks_in(tmp_path)
    # THEN the clocks are known relative to the median one, which counts as 0
    assert (found.clocks.offset_ns - found.clocks.offset_ns[0]).tolist() == [
        clock * US for clock in clocks
    ]
    assert found.clocks.error_ns.tolist() == [0, 0, 0, 0]
    assert set(found.clocks.how) == {"collectives"}
    # AND the last to arrive is known although its clock says otherwise: 30 µs after the first
    assert found.waits.last.tolist() == [0, 0, 0, 6]
    assert found.waits.waited_ns.tolist() == [6 * 30 * US, 6 * 20 * US, 6 * 10 * US, 0]


def test_some_ends_are_late(tmp_path: Path) -> None:
    arrivals = [[100 + 1_000 * n for n in range(7)] for _ in range(3)]
    calls = together(arrivals)
    for at in (2, 5):
        op, begin, end = calls[1][at]
        calls[1][at] = (op, begin, end + 400)
    for rank, each in enumerate(calls):
        write_rank(tmp_path, rank, each, world=3, clock=70 * rank)
    found = ranks_in(tmp_path)
    assert found.clocks.offset_ns.tolist() == [-70 * US, 0, 70 * US]


def test_one_host_has_one_clock(tmp_path: Path) -> None:
    calls = together([[100, 1_100, 2_100]] * 2)
    late = [(op, begin, end + 40) for op, begin, end in calls[1]]
    for rank, each in enumerate((calls[0], late)):
        write_rank(tmp_path, rank, each, world=2, host="node1")
    found = ranks_in(tmp_path)
    assert found.clocks.offset_ns.tolist() == [0, 0]
    assert set(found.clocks.how) == {"host"}


def test_clocks_with_unknown_offsets(tmp_path: Path) -> None:
    for rank in range(2):
        calls = [("Broadcast", 5_000.0 * n, 5_000.0 * n + 20) for n in range(1, 21)]
        write_rank(tmp_path, rank, calls, world=2, clock=3_000 * rank, host=f"node{rank}")
    found = ranks_in(tmp_path)
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
    assert "0, 1" in remark


def test_one_clock_with_an_unknown_offset(tmp_path: Path) -> None:
    # GIVEN three ranks, of which the third only takes part in broadcasts, 3 ms ahead
    arrivals = [[1_000.0 * n + 200 * rank for n in range(1, 11)] for rank in range(2)]
    for rank, calls in enumerate(together(arrivals)):
        both = [*calls, ("Broadcast", 50_000.0, 50_020.0), ("Broadcast", 60_000.0, 60_020.0)]
        groups = ["a"] * 10 + ["b"] * 2
        write_rank(tmp_path, rank, both, world=3, groups=groups, host=f"node{rank}")
    calls = [("Broadcast", 50_000.0, 50_020.0), ("Broadcast", 60_000.0, 60_020.0)]
    write_rank(tmp_path, 2, calls, world=3, clock=3_000, groups=["b", "b"], host="node2")
    found = ranks_in(tmp_path)
    assert found.waits.waited_ns.tolist() == [10 * 200 * US, 0, 0]
    assert found.waits.last.tolist() == [0, 10, 0]
    assert [row["last_in"] for row in found.to_dict()["ranks"]] == [0, 10, None]
    assert found.clocks.how == ("collectives", "collectives", "unknown")
    (remark,) = found.remarks
    assert "ranks 2" in remark


def test_a_straggler(tmp_path: Path) -> None:
    # GIVEN eight ranks, of which rank 5 arrives 200 µs late at nine of ten collectives
    arrivals = [
        [1_000.0 * n + 10 * rank + (200 if rank == 5 and n != 4 else 0) for n in range(10)]
        for rank in range(8)
    ]
    for rank, calls in enumerate(together(arrivals)):
        write_rank(tmp_path, rank, calls, world=8)
    found = ranks_in(tmp_path)
    # THEN rank 5 is last nine times, 180 µs after rank 7, which is last once, 10 after rank 6
    assert found.waits.last.tolist() == [0, 0, 0, 0, 0, 9, 0, 1]
    assert found.waits.caused_ns.tolist() == [0, 0, 0, 0, 0, 9 * 180 * US, 0, 10 * US]
    assert found.waits.waited_ns[0] == (9 * 250 + 70) * US
    assert found.lost_ns == sum(each.waited_ns for each in found.waits.instances)
    # AND both are reported, with the worst case as evidence
    waiting, straggler = finding_in(found, "ranks.waiting"), finding_in(found, "ranks.late")
    assert waiting.severity == "medium"
    assert waiting.numbers["time_ns"] == 13_960 * US
    assert straggler.severity == "high"
    assert straggler.numbers == {
        "rank": 5,
        "waited_ns": 13_680 * US,
        "waited_percent": pytest.approx(100 * 13_680 / 13_960),
        "late_ns": 9 * 180 * US,
        "late_percent": pytest.approx(100 * 9 * 180 * US / found.waits.common_ns[5]),
        "last": 9,
        "of": 10,
        "reason_ns": 13_680 * US,
    }
    # AND each gain is exact: a rank's part of all waiting, and what rank 5 is later than rank 7
    assert waiting.gain == Gain(13_960 * US // 8, True, "all ranks arrive when they do on average")
    assert straggler.gain is not None
    assert (straggler.gain.time_ns, straggler.gain.at_most) == (9 * 180 * US, True)
    assert found.waits.waited_for_ns.tolist() == [0, 0, 0, 0, 0, 13_680 * US, 0, 280 * US]
    assert straggler.evidence[0].figure == 180 * US


@pytest.mark.parametrize(("of", "ranks"), [(1, 2), (10, 2), (60, 8), (4_000, 3), (30_000, 2)])
def test_chances_are_those_of_exact_fractions(of: int, ranks: int) -> None:
    for times in sorted({-(-of // ranks), of // ranks + of // 20 + 1, of}):
        ways, exact = math.comb(of, times), 0
        for n in range(times, of + 1):
            exact += ways * (ranks - 1) ** (of - n)
            ways = ways * (of - n) // (n + 1)
            if n - times > 2_000:
                break
        expected = float(Fraction(exact, ranks**of))
        assert chance_of_being_last(times, of, ranks) == pytest.approx(
            expected, rel=1e-8, abs=1e-300
        )


@pytest.mark.parametrize(("of", "ranks"), [(30, 2), (400, 2), (4_000, 2), (30_000, 8)])
def test_being_last_less_often_than_the_others_is_chance(of: int, ranks: int) -> None:
    times = of // ranks // 3
    probability = chance_of_being_last(times, of, ranks)
    assert probability == pytest.approx(1.0, abs=0.05)


def test_ranks_that_arrive_last_in_turn_are_not_stragglers(tmp_path: Path) -> None:
    arrivals = [
        [1_000.0 * n + (300 if n % 2 == rank else 0) for n in range(10)] for rank in range(2)
    ]
    for rank, calls in enumerate(together(arrivals)):
        write_rank(tmp_path, rank, calls, world=2)
    found = ranks_in(tmp_path)
    assert found.waits.last.tolist() == [5, 5]
    assert "ranks.waiting" in codes_in(found)
    assert "ranks.late" not in codes_in(found)


def test_ranks_that_arrive_together_have_no_finding(tmp_path: Path) -> None:
    for rank, calls in enumerate(together([[100, 1_100, 2_100, 3_100]] * 4)):
        write_rank(tmp_path, rank, calls, world=4, computing=[(200, 1_000), (1_200, 2_000)])
    found = ranks_in(tmp_path)
    assert found.findings() == []
    assert found.remarks == ()
    assert found.waits.last.tolist() == [0, 0, 0, 0]
    assert found.lost_ns == 0


def test_windows_that_begin_at_another_collective(tmp_path: Path) -> None:
    # GIVEN a rank whose trace lacks the first three of ten collectives, with clocks 40 µs apart
    arrivals = [[100.0 + 1_000 * n + (n % 3) * 50 * rank for n in range(10)] for rank in range(2)]
    first, second = together(arrivals)
    write_rank(tmp_path, 0, first, world=2)
    write_rank(tmp_path, 1, second[3:], world=2, clock=40, begin=3_000)
    found = ranks_in(tmp_path)
    assert found.matched.count == 7
    assert (found.clocks.offset_ns[1] - found.clocks.offset_ns[0]) == 40 * US
    assert [each.late_ns for each in found.waits.instances] == [
        50 * US * (n % 3) for n in range(3, 10)
    ]


def test_groups_are_matched_separately(tmp_path: Path) -> None:
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
            # The other group gathers one more time.
            calls.insert(3, ("AllGather", 1_200, 1_240))
        groups = ["world" if op.startswith("AllReduce") else own for op, _, _ in calls]
        write_rank(tmp_path, rank, calls, world=4, groups=groups)
    found = ranks_in(tmp_path)
    counts = {(each.op, each.group): each.ranks for each in found.waits.instances}
    assert counts == {
        ("all_gather", "tp0"): 2,
        ("all_gather", "tp1"): 2,
        ("all_reduce", "world"): 4,
    }
    assert found.matched.count == 3 + 2 + 2
    assert found.waits.last.tolist() == [0, 0, 0, 2]
    assert found.waits.waited_ns.tolist() == [0, 0, 60 * US, 0]
    # THEN shares are of the time from the first collective of any group to the last
    assert found.waits.common_ns.tolist() == [1_420 * US] * 3 + [1_390 * US]


def test_collectives_with_the_longest_waits_come_first(tmp_path: Path) -> None:
    # GIVEN two ranks and two groups; rank 1 is 20 µs late in the first, and 300 in the second
    arrivals = [[100.0, 1_100, 2_100, 3_100], [120.0, 1_400, 2_120, 3_400]]
    for rank, calls in enumerate(together(arrivals)):
        write_rank(tmp_path, rank, calls, world=2, groups=["a", "b"] * 2)
    rows = ranks_in(tmp_path).to_dict()["collectives"]
    assert [(row["group"], row["lost_us"]) for row in rows] == [("b", 600), ("a", 40)]


def test_a_collective_on_one_known_clock_is_not_compared(tmp_path: Path) -> None:
    late = together([[1_000.0 * n + 200 * rank for n in range(1, 11)] for rank in range(2)])
    sends = [("Broadcast", 5_000.0 * n, 5_000.0 * n + 20) for n in range(10, 13)]
    for rank in range(2):
        # The trace of rank 1 begins after the first broadcast.
        calls = [*late[rank], *sends[rank:]]
        groups = ["a"] * 10 + ["b"] * (3 - rank)
        write_rank(tmp_path, rank, calls, world=3, groups=groups, host=f"node{rank}")
    write_rank(tmp_path, 2, sends, world=3, clock=3_000, groups=["b"] * 3, host="node2")
    found = ranks_in(tmp_path)
    assert list(found.clocks.how)[2] == "unknown"
    assert found.waits.compared.tolist() == [12, 12, 0]
    assert found.waits.last.tolist() == [0, 10, 0]


@pytest.mark.parametrize(
    ("op", "bytes_in", "members", "expected"),
    [
        ("all_reduce", 800, 4, 1_200),
        ("reduce_scatter", 800, 4, 600),
        ("all_to_all", 800, 4, 600),
        ("all_gather", 800, 4, 2_400),
        ("broadcast", 800, 4, 800),
        ("reduce", 800, 4, 800),
        ("all_reduce", 800, 2, 800),
        ("all_reduce", 0, 2, 0),
        ("all_reduce", -1, 2, None),
        ("all_reduce", 800, 1, None),
        ("barrier", 800, 4, None),
    ],
)
def test_bytes_over_each_link(op: str, bytes_in: int, members: int, expected: float | None) -> None:
    assert bus_bytes(op, bytes_in, members) == expected


def test_sends_between_two_ranks_are_left_out(tmp_path: Path) -> None:
    calls = together([[100, 1_100]] * 2)
    write_rank(tmp_path, 0, [*calls[0], ("Send", 2_000, 2_100)], world=2)
    write_rank(tmp_path, 1, [*calls[1], ("Recv", 2_050, 2_100)], world=2)
    found = ranks_in(tmp_path)
    assert found.matched.count == 2
    assert found.matched.alone == 2
    (remark,) = found.remarks
    assert str(found.matched.alone) in remark


def test_collectives_that_do_not_agree_are_not_matched(tmp_path: Path) -> None:
    write_rank(tmp_path, 0, [("AllReduce", 100 * n, 100 * n + 10) for n in range(6)], world=2)
    write_rank(tmp_path, 1, [("AllGather", 100 * n, 100 * n + 10) for n in range(6)], world=2)
    found = ranks_in(tmp_path)
    # THEN nothing is invented, and the result only says that they do nothing but communicate
    assert found.matched.count == 0
    assert codes_in(found) == ["ranks.exposed_communication"]
    assert found.waits.took_part.tolist() == [0, 0]
    assert len(found.remarks) == 1
    assert found.to_dict()["waited_us"] is None
    assert found.to_dict()["ranks"][0]["waited_us"] is None


def test_waiting_while_computing_is_not_lost(tmp_path: Path) -> None:
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
    found = ranks_in(tmp_path)
    # THEN 40 µs of each are lost, and rank 1 is blamed only for these
    assert found.waits.waited_ns.tolist() == [400 * US, 0]
    assert found.waits.lost_ns.tolist() == [160 * US, 0]
    assert found.waits.caused_ns.tolist() == [0, 160 * US]
    assert in_words((400 - 160) * US, "ns") in found.tables()[0].note


def test_imbalance_of_computing(tmp_path: Path) -> None:
    calls = together([[100, 1_100, 2_100]] * 3)
    for rank, us in enumerate((200, 200, 350)):
        computing = [(20, 20 + us / 5), *((n + 150, n + 150 + us) for n in (0, 1_000, 2_000))]
        write_rank(tmp_path, rank, calls[rank], world=3, computing=computing)
    found = ranks_in(tmp_path)
    assert found.waits.computed_ns.tolist() == [400 * US, 400 * US, 700 * US]
    assert found.imbalance is not None
    assert (found.imbalance.ranks, found.imbalance.percent) == ([2], pytest.approx(40.0))
    finding = finding_in(found, "ranks.imbalance")
    assert finding.numbers == {"computing_ns": 700 * US, "percent": pytest.approx(40)}
    # THEN a gain: the slowest rank computes for 200 µs more than the mean
    assert finding.gain is not None
    assert (finding.gain.time_ns, finding.gain.at_most) == (200 * US, True)
    assert [each.figure for each in finding.evidence] == [700 * US, 400 * US]


@pytest.mark.parametrize(
    ("computing", "gain", "how"),
    [
        (
            (200, 600),
            500,
            "400 µs of computation of a rank hide a part of it, and the rest takes no time",
        ),
        ((600, 700), 500, "computation hides all of it"),
    ],
)
def test_exposed_communication_wins_its_time(
    computing: tuple[int, int], gain: int, how: str, tmp_path: Path
) -> None:
    for rank, us in enumerate(computing):
        calls = [("AllReduce_Sum_f32", 1_000.0, 1_500.0), ("AllReduce_Sum_f32", 2_000.0, 2_000.0)]
        write_rank(tmp_path, rank, calls, world=2, computing=[(10, 10 + us)], host="node1")
    finding = finding_in(ranks_in(tmp_path), "ranks.exposed_communication")
    assert finding.gain == Gain(gain * US, True, how)


@pytest.mark.parametrize(
    ("op", "gigabytes"),
    # 4,000 bytes in 10 µs are 0.4 GB/s; with 4 ranks each link carries 3/4 of all, twice to reduce.
    [("AllReduce", 0.6), ("AllGather", 1.2), ("ReduceScatter", 0.3), ("Broadcast", 0.4)],
)
def test_bandwidth_of_the_bus(op: str, gigabytes: float, tmp_path: Path) -> None:
    # GIVEN collectives with 2,000 elements of 2 bytes, at which one rank arrives 50 µs late
    for rank in range(4):
        calls = [(op, 1_000.0 * n + (50 if rank else 0), 1_000.0 * n + 60) for n in range(3)]
        write_rank(tmp_path, rank, calls, world=4, message=(2_000, "BFloat16", 4), host="node1")
    found = ranks_in(tmp_path)
    # THEN the bandwidth is that of the 10 µs in which all ranks were there
    (group,) = found.to_dict()["collectives"]
    assert group["bus_gb_per_s"] == pytest.approx(gigabytes)


def test_eight_real_ranks(traces: Path) -> None:
    found = ranks_in(traces / "nccl_dlrm_8rank")
    assert found.numbers == list(range(8))
    assert (found.world_size, found.missing, found.matched.count) == (8, [], 8)
    assert abs(found.clocks.offset_ns).max() < 2 * US
    # THEN rank 7 arrived last at five: at the first 505 µs after rank 6, according to their starts
    assert found.waits.last.tolist() == [0, 0, 0, 0, 1, 2, 0, 5]
    first = found.waits.instances[0]
    assert (first.op, first.last) == ("all_to_all", 7)
    assert first.late_ns == pytest.approx(505 * US, abs=2 * US)
    # AND the waiting follows from the starts and durations in the files: 7,624 µs for rank 1
    assert first.waited_ns == pytest.approx(
        sum((2_135, 7_624, 508, 0, 4_872, 4_669, 505)) * US + _third(found), abs=10 * US
    )
    waiting = finding_in(found, "ranks.waiting")
    assert waiting.numbers["time_ns"] == pytest.approx(45_183 * US, abs=US)
    assert waiting.numbers["percent"] == pytest.approx(48.2, abs=0.05)
    # AND most of the waiting for rank 7 is from before the traces: ranks begin their steps up to
    # 7.5 ms apart, and from there rank 7 takes 3.2 ms to the first collective, like the others
    assert found.waits.waited_for_ns[7] == found.waits.reasons_ns[7].sum()
    begun_later = found.waits.reasons_ns[7, list(REASONS).index(BEFORE)]
    assert (begun_later, found.waits.waited_for_ns[7]) == (33_279_188, 35_156_750)
    late = finding_in(found, "ranks.late")
    assert (late.severity, late.numbers["rank"]) == ("low", 7)
    assert (late.numbers["waited_ns"], late.numbers["reason_ns"]) == (35_156_750, begun_later)
    for at, row in enumerate(found.to_dict()["ranks"]):
        trace = read_trace(traces / "nccl_dlrm_8rank" / f"rank{at}.json.gz")
        assert row["verdict"] == verdict.analyze(trace).to_dict()["verdict"]


def test_some_of_the_real_ranks(traces: Path, tmp_path: Path) -> None:
    for rank in range(3):
        name = f"rank{rank}.json.gz"
        (tmp_path / name).symlink_to(traces / "nccl_dlrm_8rank" / name)
    found = ranks_in(tmp_path)
    # THEN it is unknown who was last: rank 2 is named with little weight
    assert found.missing == [3, 4, 5, 6, 7]
    late = finding_in(found, "ranks.late")
    assert (late.severity, late.numbers["rank"]) == ("low", 2)


def test_two_real_ranks_of_an_npu(traces: Path) -> None:
    found = ranks_in(traces / "ascend_level1")
    # THEN their four all-reduces are matched; rank 1 arrived 5.6 ms late at the first
    assert [each.backend for each in found.summaries] == ["npu", "npu"]
    assert [(each.op, each.group) for each in found.waits.instances] == [("all_reduce", "586")] * 4
    first = found.waits.instances[0]
    assert (first.last, first.late_ns) == (1, pytest.approx(5_608 * US, abs=20 * US))
    assert abs(found.clocks.offset_ns).max() < 5 * US
    assert (found.world_size, found.missing) == (8, [2, 3, 4, 5, 6, 7])
    assert found.world_size_from == "communication_matrix.json"
    # AND after both had arrived at the first, no data moved for 73.2 of its 73.5 ms: they waited
    # for the missing ranks, and also in the last
    assert [each.still_ns for each in found.waits.instances] == [
        pytest.approx(time * US, abs=10) for time in (73_229.943, 977.8405, 242.745, 22_058.321)
    ]
    # AND this is one finding, with the shares of the stages from step_trace_time.csv: 101.963 of
    # 136.581 ms and 96.359 of 131.9125
    (finding,) = found.findings()
    assert (finding.code, finding.severity) == ("ranks.exposed_communication", "high")
    exposed, whole = 101_963.203 + 96_359.047, 136_581 + 131_912.5
    assert finding.numbers["time_ns"] == pytest.approx(exposed * US, rel=1e-5)
    assert finding.numbers["whole_ns"] == pytest.approx(whole * US, rel=1e-5)
    assert finding.numbers["percent"] == pytest.approx(73.9, abs=0.05)
    assert finding.numbers["most_percent"] == pytest.approx(74.7, abs=0.05)
    assert finding.numbers["least_percent"] == pytest.approx(73.0, abs=0.05)
    assert "2, 3, 4, 5, 6, 7" in finding.text
    assert [each.figure for each in finding.evidence] == [
        pytest.approx(time * US, abs=50) for time in (101_963.203, 96_359.047, 73_229.943, 22_058.3)
    ]
    assert found.title()[0] == "communication-bound"
    assert [found.verdict_of(at) for at in range(2)] == ["communication-bound"] * 2


def _third(found: object) -> int:
    """Of rank 3, which the sum above leaves out, from its own begin."""
    from planted_ranks import Ranks

    assert isinstance(found, Ranks)
    first = [int(each.collectives.begin_ns[0]) for each in found.summaries]
    return first[7] - first[3]


def test_collectives_have_the_names_of_the_annotations(tmp_path: Path) -> None:
    # GIVEN kernels that send and receive, launched by all-to-alls of the program
    arrivals = [[1_000.0 * n + 10 * rank for n in range(1, 5)] for rank in range(3)]
    for rank, calls in enumerate(together(arrivals)):
        own = [("SendRecv", begin, end) for _, begin, end in calls]
        write_rank(tmp_path, rank, own, world=3, mark="nccl:all_to_all")
    assert [each.op for each in ranks_in(tmp_path).groups] == ["all_to_all"]


def test_computing_in_another_time_than_that_of_the_table_names_that_time(tmp_path: Path) -> None:
    # GIVEN ranks that also compute before their first common collective, one of them for longer
    for rank in range(4):
        begins = [4_000.0 * number for number in range(5)]
        calls = [("AllReduce_Sum_f32", at + 3_000, at + 3_500) for at in begins]
        computing = [(at + 10, at + (2_510 if rank == 2 else 1_510)) for at in begins]
        write_rank(tmp_path, rank, calls, world=4, computing=computing, host="node1")
    found = ranks_in(tmp_path)
    # THEN the table has all of it, and the finding what lies between the collectives
    assert found.summaries[2].usage.computing_ns == 12_500 * US
    finding = finding_in(found, "ranks.imbalance")
    between = "Between the first and last common collective, rank 2 computed for 10.0 ms"
    assert finding.sentence.startswith(between)
