"""Merged timelines: every event of every rank, on one clock, without shared ids."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from planted_ranks import BASE_NS, US, Ranks, ranks_in, together, write_rank

from stagespan.errors import StagespanError
from stagespan.trace import device_use, read_trace
from stagespan.trace.derived.device import launch_of
from stagespan.trace.ranks.merge import merge


def merged(found: Ranks, target: Path) -> list[dict[str, Any]]:
    count = merge(found, target)
    data = target.read_bytes()
    whole = json.loads(gzip.decompress(data) if target.suffix == ".gz" else data)
    # The names and the order of processes are added.
    added = [e for e in whole["traceEvents"] if e["ph"] == "M" and e["name"] != "made up"]
    assert count == len(whole["traceEvents"]) >= len(added)
    return list(whole["traceEvents"])


def test_every_event_on_one_clock(tmp_path: Path) -> None:
    clocks = (0, 500, -200)
    calls = together([[100, 1_100, 2_100]] * 3)
    for rank in range(3):
        write_rank(
            tmp_path, rank, calls[rank], world=3, clock=clocks[rank], computing=[(200.5, 300.625)]
        )
    found = ranks_in(tmp_path)
    merge(found, tmp_path / "out" / "merged.json.gz")
    trace = read_trace(tmp_path / "out" / "merged.json.gz")
    kernels = trace.rows_of(["kernel"])
    begins = Counter((trace.events.begin_ns[kernels] - BASE_NS).tolist())
    assert begins == Counter({int(at * US): 3 for at in (100, 1_100, 2_100, 200.5)})
    assert sorted(set(trace.events.dur_ns[kernels].tolist())) == [10 * US, 100_125]
    # THEN each kernel still belongs to the call that launched it, in its own rank
    gemm = trace.events.name == trace.names.index("gemm")
    launched = launch_of(trace, np.flatnonzero(gemm))
    assert len(set(launched.tolist())) == 3
    assert min(launched) >= 0


def test_no_id_is_shared(tmp_path: Path) -> None:
    # GIVEN two ranks with the same ids of every kind
    events = [
        {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": "python"}},
        {"ph": "M", "name": "process_sort_index", "pid": 1, "tid": 0, "args": {"sort_index": 9}},
        {"ph": "M", "name": "process_labels", "pid": 1, "tid": 0, "args": {"labels": "CPU"}},
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 5, "args": {"name": "main"}},
        {"ph": "X", "name": "op", "cat": "cpu_op", "pid": 1, "tid": 5, "ts": 1, "dur": 9.5,
         "args": {"External id": 3, "Input Dims": [[2, 2]], "Python parent id": None}},
        {"ph": "X", "name": "call", "cat": "cuda_runtime", "pid": 1, "tid": 5, "ts": 2, "dur": 1,
         "args": {"correlation": 7, "External id": 3}},
        {"ph": "X", "name": "k", "cat": "kernel", "pid": 0, "tid": 7, "ts": 4, "dur": 5,
         "args": {"correlation": 7, "External id": 3, "stream": 7, "device": 0}},
        {"ph": "s", "name": "ac2g", "cat": "ac2g", "id": 7, "pid": 1, "tid": 5, "ts": 2},
        {"ph": "f", "name": "ac2g", "cat": "ac2g", "id": 7, "pid": 0, "tid": 7, "ts": 4, "bp": "e"},
        {"ph": "s", "name": "big", "cat": "fwdbwd", "id": 2**63 + 5, "pid": 1, "tid": 5, "ts": 3},
        {"ph": "b", "name": "span", "cat": "x", "id": "0x7", "pid": "Spans", "tid": "a", "ts": 3},
        {"ph": "i", "name": "end", "s": "g", "pid": "", "tid": "", "ts": 20},
        {"ph": "C", "name": "memory", "pid": 1, "ts": 5, "args": {"bytes": 12}},
    ]  # fmt: skip
    for rank in range(2):
        top = {"distributedInfo": {"rank": rank, "world_size": 2}, "traceEvents": events}
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(top))
    entries = merged(ranks_in(tmp_path), tmp_path / "merged.json")
    half = [e for e in entries if not (e["ph"] == "M" and e["name"] == "process_sort_index")]
    assert len(entries) > 2 * len(events) - 2
    by_rank: list[dict[str, set[Any]]] = [{}, {}]
    pids = [e["pid"] for e in entries if e["name"] == "process_name"]
    assert len(pids) == len(set(pids))
    of_rank = {
        e["pid"]: int(e["args"]["name"].split()[1].rstrip(":"))
        for e in entries
        if e["name"] == "process_name"
    }
    for entry in half:
        mine = by_rank[of_rank[entry["pid"]]]
        mine.setdefault("pid", set()).add(entry["pid"])
        if "tid" in entry and not entry["name"].startswith("process_"):
            mine.setdefault("tid", set()).add(entry["tid"])
        if "id" in entry:
            mine.setdefault("id", set()).add(entry["id"])
        for key in ("correlation", "External id"):
            if key in entry.get("args", {}):
                mine.setdefault(key, set()).add(entry["args"][key])
    for kind in ("pid", "tid", "id", "correlation", "External id"):
        assert by_rank[0][kind].isdisjoint(by_rank[1][kind]), kind
        assert len(by_rank[0][kind]) == len(by_rank[1][kind])
    # THEN within a rank the links are kept: a flow has both its ends, a kernel its call
    arrows = Counter(e["id"] for e in entries if e.get("cat") == "ac2g")
    assert set(arrows.values()) == {2}
    correlations = Counter(
        e["args"]["correlation"] for e in entries if "correlation" in e.get("args", {})
    )
    assert set(correlations.values()) == {2}
    # AND everything else is unchanged
    first = next(e for e in entries if e["name"] == "op")
    assert first["args"]["Input Dims"] == [[2, 2]]
    assert first["args"]["Python parent id"] is None
    assert first["dur"] == 9.5
    assert {e["args"]["labels"] for e in entries if e["name"] == "process_labels"} == {"CPU"}


def test_processes_are_named_and_sorted_by_rank(tmp_path: Path) -> None:
    for rank, calls in enumerate(together([[100, 1_100]] * 2)):
        write_rank(tmp_path, rank, calls, world=2, computing=[(200, 300)])
    entries = merged(ranks_in(tmp_path), tmp_path / "merged.json.gz")
    name = {e["pid"]: e["args"]["name"] for e in entries if e["name"] == "process_name"}
    order = {
        e["pid"]: e["args"]["sort_index"] for e in entries if e["name"] == "process_sort_index"
    }
    assert sorted(name.values()) == ["rank 0: 0", "rank 0: 77", "rank 1: 0", "rank 1: 77"]
    assert [name[pid].split(":")[0] for pid in sorted(order, key=lambda pid: order[pid])] == [
        "rank 0", "rank 0", "rank 1", "rank 1",
    ]  # fmt: skip


def test_real_ranks_keep_all_their_events(traces: Path, tmp_path: Path) -> None:
    folder = traces / "nccl_dlrm_8rank"
    merge(ranks_in(folder), tmp_path / "merged.json.gz")
    whole = read_trace(tmp_path / "merged.json.gz")
    parts = [read_trace(path) for path in sorted(folder.iterdir())]
    assert len(whole.events) == sum(len(part.events) for part in parts)
    assert len(whole.flows) == sum(len(part.flows) for part in parts)
    use, uses = device_use(whole), [device_use(part) for part in parts]
    assert use.device_events == sum((Counter(each.device_events) for each in uses), Counter())
    assert use.kernel_sum_ns == sum(each.kernel_sum_ns or 0 for each in uses)
    assert use.without_launch == sum(each.without_launch for each in uses)
    assert whole.left_out.keys() == {"metadata entry"}


def test_a_truncated_or_not_quite_valid_trace(tmp_path: Path) -> None:
    for rank, calls in enumerate(together([[100, 1_100]] * 3)):
        write_rank(tmp_path, rank, calls, world=3, name=f"rank{rank}.json")
    cut = (tmp_path / "rank1.json").read_bytes()
    (tmp_path / "rank1.json").write_bytes(cut[: cut.rindex(b"ncclDevKernel")])
    odd = (tmp_path / "rank2.json").read_text()
    odd = odd.replace('"traceEvents": [', '"traceEvents": [{"ph": "X", "name": "a", "ts": 5,'
                      ' "dur": 1, "pid": 1, "tid": 1, "args": {"x": NaN}}, 7, ')  # fmt: skip
    (tmp_path / "rank2.json").write_text(odd)
    entries = merged(ranks_in(tmp_path), tmp_path / "merged.json")
    kinds = Counter(e["name"] for e in entries)
    assert kinds["ncclDevKernel_AllReduce_Sum_f32_RING"] == 5
    assert kinds["a"] == 1


def test_times_and_sort_indices_out_of_bounds(tmp_path: Path) -> None:
    # GIVEN a rank with times and a sort index that do not fit into 64 bits
    for rank, calls in enumerate(together([[100, 1_100]] * 2)):
        write_rank(tmp_path, rank, calls, world=2, name=f"rank{rank}.json")
    odd = [
        '{"ph": "X", "name": "far", "cat": "cpu_op", "pid": 1, "tid": 1, "dur": 1, "ts": 1e400}',
        '{"ph": "X", "name": "far", "cat": "cpu_op", "pid": 1, "tid": 1, "dur": 1, "ts": '
        + "9" * 400
        + "}",
        '{"ph": "M", "name": "process_sort_index", "pid": 1, "args": {"sort_index": 1e999}}',
        '{"ph": "M", "name": "process_sort_index", "pid": 2, "args": {"sort_index": "x"}}',
    ]
    path = tmp_path / "rank1.json"
    path.write_text(
        path.read_text().replace('"traceEvents": [', '"traceEvents": [' + ", ".join(odd) + ", ")
    )
    entries = merged(ranks_in(tmp_path), tmp_path / "merged.json")
    # THEN such times are unchanged, and everything else is there
    kinds = Counter(e["name"] for e in entries)
    assert kinds["ncclDevKernel_AllReduce_Sum_f32_RING"] == 4
    assert [e["ts"] for e in entries if e["name"] == "far"] == [float("inf"), 10**400 - 1]


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    for rank, calls in enumerate(together([[100, 1_100]] * 2)):
        write_rank(tmp_path, rank, calls, world=2)
    found = ranks_in(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(StagespanError, match="cannot be written"):
        merge(found, tmp_path / "file" / "merged.json.gz")
    # THEN if a trace has disappeared in the meantime, no file is left either
    (tmp_path / "rank1.json.gz").unlink()
    with pytest.raises(StagespanError, match="There is no file"):
        merge(found, tmp_path / "merged.json.gz")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file", "rank0.json.gz"]
