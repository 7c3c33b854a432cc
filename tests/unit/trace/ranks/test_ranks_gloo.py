"""A real run of two processes with gloo: the one that sleeps is the straggler."""

from __future__ import annotations

from pathlib import Path

import gloo_rank
import pytest
from planted_ranks import finding_in, ranks_in

import preloaded
from running import ended, ending, start_command
from stagespan.trace import read_trace
from stagespan.trace.analysis import analyze
from stagespan.trace.ranks.merge import merge
from stagespan.trace.ranks.waits import COMPUTING, HOST, OTHER_COLLECTIVES, REASONS

SLEPT_NS = gloo_rank.ROUNDS * int(gloo_rank.SLEEP_S * 1e9)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch = pytest.importorskip("torch")
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("this torch has no gloo")
    folder = tmp_path_factory.mktemp("gloo")
    command = [*preloaded.python(), gloo_rank.__file__]
    with ending():
        for process in [start_command([*command, str(rank), str(folder)]) for rank in range(2)]:
            ended(process, 0, timeout_s=300)
    return folder


@pytest.mark.slow
def test_the_sleeping_rank_is_the_straggler(recorded: Path) -> None:
    # GIVEN traces of two processes, of which rank 1 slept before each all-reduce
    found = ranks_in(recorded)
    assert (found.numbers, found.world_size) == ([0, 1], 2)
    assert found.matched.count >= gloo_rank.ROUNDS
    assert {each.op for each in found.waits.instances} == {"all_reduce"}
    # THEN rank 1 arrived last, and rank 0 waited for about as long as it slept
    assert found.waits.last[1] >= gloo_rank.ROUNDS - 2
    assert found.waits.waited_ns[0] > 0.5 * SLEPT_NS
    straggler = finding_in(found, "ranks.late")
    assert (straggler.severity, straggler.numbers["rank"]) == ("high", 1)
    reasons = dict(zip(REASONS, found.waits.reasons_ns[1].tolist(), strict=True))
    assert reasons[HOST] > 0.5 * SLEPT_NS
    assert reasons[COMPUTING] + reasons[OTHER_COLLECTIVES] < reasons[HOST]
    # AND most of the job's time is waiting or idle, not computing
    verdict = found.to_dict()["verdict"]["verdict"]
    assert verdict in ("communication-bound", "cannot tell", "outside operators")


@pytest.mark.slow
def test_the_communication_of_the_waiting_rank_is_exposed(recorded: Path) -> None:
    trace = read_trace(recorded / "rank0_trace.json")
    findings = analyze(trace, ["host"]).findings()
    (finding,) = [each for each in findings if each.code == "host.communication"]
    assert all("all_reduce" in each.event for each in finding.evidence)


@pytest.mark.slow
def test_the_real_timelines_are_merged(recorded: Path, tmp_path: Path) -> None:
    merge(ranks_in(recorded), tmp_path / "merged.json.gz")
    whole = read_trace(tmp_path / "merged.json.gz")
    parts = [read_trace(recorded / f"rank{rank}_trace.json") for rank in range(2)]
    assert len(whole.events) == sum(len(part.events) for part in parts)
    begins = sorted(int(at) for part in parts for at in part.events.begin_ns)
    assert sorted(whole.events.begin_ns.tolist()) == begins
