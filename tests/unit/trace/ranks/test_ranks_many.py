"""Many ranks: small summaries, by worker processes or any backend of joblib."""

from __future__ import annotations

import gc
import pickle
import re
import sys
import weakref
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from planted_ranks import US, finding_in, ranks_in, together, write_rank

from stagespan import analyze
from stagespan.cli import command
from stagespan.errors import StagespanError
from stagespan.trace.ranks.collectives import most_collectives
from stagespan.trace.ranks.find import traces_in
from stagespan.trace.ranks.folder import ranks_of
from stagespan.trace.ranks.summary import (
    RankSummary,
    UnreadableFile,
    summarise,
    summarise_trace,
)
from stagespan.trace.ranks.workers import summarise_all
from stagespan.trace.read.reader import read_trace


def test_many_ranks(tmp_path: Path) -> None:
    # GIVEN 200 ranks, of which rank 177 arrives 500 µs late at each of five collectives
    arrivals = [
        [1_000.0 * n + rank % 7 + (500 if rank == 177 else 0) for n in range(5)]
        for rank in range(200)
    ]
    for rank, calls in enumerate(together(arrivals)):
        write_rank(tmp_path, rank, calls, world=200, clock=float(rank % 11))
    found = ranks_in(tmp_path, jobs=None)
    assert found.numbers == list(range(200))
    assert found.waits.last[177] == found.waits.last.sum() == 5
    ahead = found.clocks.offset_ns - found.clocks.offset_ns[0]
    assert ahead.tolist() == [rank % 11 * US for rank in range(200)]
    late = finding_in(found, "ranks.late")
    assert (late.numbers["rank"], late.numbers["waited_percent"]) == (177, 100)
    # THEN its page says how much is left out
    assert len(found.tables()[0].rows) == 50
    assert "150" in found.tables()[0].note


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for rank, calls in enumerate(together([[1_000.0 * n for n in range(4)]] * 6)):
        write_rank(tmp_path, rank, calls, world=6)
    return tmp_path


def test_the_memory_of_a_rank_is_free_before_the_next_one(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    # GIVEN no garbage collector, which would look for cycles now and then
    request.addfinalizer(gc.enable)
    gc.disable()
    write_rank(tmp_path, 0, together([[1_000.0 * n for n in range(4)]] * 2)[0], world=2)
    (path,) = traces_in(tmp_path)
    trace = read_trace(path)
    column = weakref.ref(trace.events.begin_ns)
    # WHEN the trace has been summarised
    summary = summarise_trace(trace, path)
    del trace
    assert isinstance(summary, RankSummary)
    assert column() is None


def test_worker_processes_give_the_same(folder: Path) -> None:
    pytest.importorskip("joblib")
    paths = traces_in(folder)
    results = [ranks_of(folder, summarise_all(paths, jobs)).to_dict() for jobs in (1, 2)]
    assert results[0] == results[1]


def test_the_backend_of_joblib_is_used(folder: Path) -> None:
    joblib = pytest.importorskip("joblib")
    from joblib import parallel

    taken: list[int] = []

    class Cluster(parallel.ThreadingBackend):  # type: ignore[misc, name-defined]
        def configure(self, *args: Any, **named: Any) -> int:
            taken.append(1)
            return int(super().configure(*args, **named))

    joblib.register_parallel_backend("cluster", Cluster)
    with joblib.parallel_config(backend="cluster", n_jobs=2):
        found = summarise_all(traces_in(folder))
    assert taken
    assert [each.rank for each in found if isinstance(each, RankSummary)] == list(range(6))


@pytest.mark.slow
def test_a_dask_cluster_reads_the_traces(folder: Path) -> None:
    distributed = pytest.importorskip("distributed")
    (folder / "rank5.json.gz").write_bytes(b"no trace")
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    done: list[tuple[int, int]] = []
    with distributed.LocalCluster(host="127.0.0.1", **options) as cluster:
        analysis = analyze(
            folder,
            cluster=cluster.scheduler_address,
            progress=lambda *numbers: done.append(numbers),
        )
        printed = CliRunner().invoke(
            command, ["analyze", str(folder), "--cluster", cluster.scheduler_address]
        )
    ranks = analysis.results["ranks"]
    assert ranks.to_dict() == analyze(folder, jobs=1).results["ranks"].to_dict()
    assert ranks.to_dict()["found"] == list(range(5))
    assert done == [(number, 6) for number in range(1, 7)]
    # THEN the page says why a trace was left out
    assert printed.exit_code == 0
    (remark,) = [each for each in ranks.to_dict()["remarks"] if each.startswith("Skipped")]
    assert "rank5.json.gz" in remark


@pytest.mark.slow
def test_a_ray_cluster_reads_the_traces(folder: Path) -> None:
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100_000_000)
    try:
        found = analyze(folder, cluster="ray").results["ranks"]
    finally:
        ray.shutdown()
    assert found.to_dict() == analyze(folder, jobs=1).results["ranks"].to_dict()


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:9", "nonsense://x"])
def test_a_cluster_that_does_not_answer(
    address: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr("stagespan.trace.ranks.workers._CONNECT_S", 0.2)
    with pytest.raises(StagespanError, match=re.escape(repr(address))):
        analyze(folder, cluster=address)


def test_a_cluster_without_its_package(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(StagespanError, match="pip install 'ray'"):
        analyze(folder, cluster="ray://127.0.0.1:10001")


def test_a_killed_worker_costs_only_its_trace(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN workers, of which one is killed whenever it reads rank 3
    joblib = pytest.importorskip("joblib")

    def read(path: str, where: str | None, most: int) -> Any:
        if "rank3" in path:
            raise BrokenProcessPool("killed")
        return summarise(path, where, most)

    monkeypatch.setattr("stagespan.trace.ranks.workers.summarise", read)
    with joblib.parallel_config(backend="threading", n_jobs=2):
        found = summarise_all(traces_in(folder))
    assert [each.rank for each in found if isinstance(each, RankSummary)] == [0, 1, 2, 4, 5]
    assert isinstance(found[3], UnreadableFile)
    assert "its worker was killed" in found[3].reason
    assert len(ranks_of(folder, found).to_dict()["unreadable"]) == 1


@pytest.mark.full
def test_a_thousand_ranks_need_the_memory_of_one(tmp_path: Path) -> None:
    arrivals = [[1_000.0 * n + rank % 7 for n in range(5)] for rank in range(1_000)]
    computing = [(20.0 + 4 * n, 22.0 + 4 * n) for n in range(200)]
    for rank, calls in enumerate(together(arrivals)):
        write_rank(tmp_path, rank, calls, world=1_000, computing=computing)
    paths = traces_in(tmp_path)
    summaries = summarise_all(paths, 1)
    # THEN what is kept of each rank is small and does not depend on their number
    sizes = [len(pickle.dumps(each)) for each in summaries]
    assert max(sizes) < 4_000
    assert len(pickle.dumps(summaries)) < 1_000 * 4_000
    # AND the result covers all of them
    assert ranks_of(tmp_path, summaries).to_dict()["found"] == list(range(1_000))


def test_without_joblib_ranks_are_read_one_after_another(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "joblib", None)
    assert len(summarise_all(traces_in(folder), 4)) == 6


def test_workers_return_little_data(tmp_path: Path) -> None:
    # GIVEN a trace with many events, and 100 collectives
    calls = [("AllReduce", 1_000.0 * n, 1_000.0 * n + 10) for n in range(100)]
    computing = [(20.0 + 4 * n, 22.0 + 4 * n) for n in range(20_000)]
    path = write_rank(tmp_path, 0, calls, world=2, computing=computing)
    found = summarise(path)
    # THEN the size of its summary depends on the collectives, not on the trace
    assert isinstance(found, RankSummary)
    assert len(pickle.dumps(found)) < 64 * len(calls) + 4_000


def test_memory_is_bounded_for_any_number_of_ranks(tmp_path: Path) -> None:
    kept = {ranks: most_collectives(ranks) for ranks in (1, 8, 1_000, 10_000, 100_000)}
    # THEN there are fewer for many ranks, but enough to see who is late
    assert kept == {1: 5_000, 8: 5_000, 1_000: 4_000, 10_000: 400, 100_000: 200}
    calls = [("AllReduce", 1_000.0 * n, 1_000.0 * n + 10) for n in range(5)]
    found = summarise(write_rank(tmp_path, 0, calls, world=2), most=3)
    assert isinstance(found, RankSummary)
    assert (len(found.collectives), found.collectives.left_out) == (3, 2)


def test_parts_of_many_ranks_give_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    late = {3: 4, 7: 1, 11: 2}
    arrivals = [
        [1_000.0 * n + 90 * (late.get(n) == rank) + rank for n in range(15)] for rank in range(5)
    ]
    computing = [(1_000.0 * n + 200, 1_000.0 * n + 500) for n in range(15)]
    steps = [(3_000.0 * n, 3_000.0 * n + 2_990) for n in range(5)]
    for rank, calls in enumerate(together(arrivals)):
        write_rank(tmp_path, rank, calls, world=5, computing=computing, steps=steps)
    whole = ranks_in(tmp_path).to_dict()
    # WHEN they are compared in parts of one, two or four collectives THEN nothing changes
    for elements in (1, 10, 20):
        monkeypatch.setattr("stagespan.trace.ranks.match.AT_ONCE", elements)
        monkeypatch.setattr("stagespan.trace.ranks.waits.AT_ONCE", elements)
        assert ranks_in(tmp_path).to_dict() == whole


def test_very_many_collectives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stagespan.trace.ranks.collectives.MOST_COLLECTIVES", 3)
    for rank, calls in enumerate(together([[1_000.0 * n for n in range(5)]] * 2)):
        write_rank(tmp_path, rank, calls, world=2)
    found = ranks_in(tmp_path)
    assert found.matched.count == 3
    assert sum(each.collectives.left_out for each in found.summaries) == 4
    (remark,) = found.remarks
    assert remark.startswith("4 ")


def test_summaries_do_not_keep_the_trace(folder: Path) -> None:
    found = summarise(folder / "rank0.json.gz")
    assert isinstance(found, RankSummary)
    assert found.collectives.begin_ns.base is None or isinstance(
        found.collectives.begin_ns.base, np.ndarray
    )
    assert len(found.collectives) == 4
