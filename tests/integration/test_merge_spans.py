"""Adding the spans of a recording to a trace that torch.profiler has written."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import preloaded
from running import PROGRAMS, ending, ready, start_command
from stagespan import recording
from stagespan.cli import command
from stagespan.trace import read_trace

pytest.importorskip("torch")

PROGRAM = PROGRAMS / "traced_and_recorded.py"


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, int]]:
    """A trace, and the process that wrote it and still runs."""
    folder = tmp_path_factory.mktemp("traced")
    with ending():
        process = start_command([*preloaded.python(), PROGRAM, "trace.json"], cwd=folder)
        yield folder / "trace.json", int(ready(process))


def run(*arguments: str | Path) -> Any:
    return CliRunner().invoke(command, ["dump", "--into", *map(str, arguments)])


def test_spans_of_the_trace_s_process_are_added_by_the_clock(traced: tuple[Path, int]) -> None:
    path, pid = traced
    live = recording.open(pid)
    names = live.stage_names()
    recorded = {names[row["stage"]]: row for row in live.spans()}

    done = run(path)

    assert done.exit_code == 0, done.output
    merged_path = path.with_name("trace_spans.json.gz")
    assert done.output == f"Added 3 spans of process {pid}: {merged_path}\n"
    before, after = read_trace(path), read_trace(merged_path)
    assert after.incomplete is None
    assert len(after.events) == len(before.events) + 3
    entries = json.loads(gzip.decompress(merged_path.read_bytes()))["traceEvents"]
    drawn = {e["name"]: e for e in entries if e["pid"] == "stagespan" and e["ph"] == "X"}
    assert set(drawn) == {"open", "here", "there"}
    assert drawn["open"]["args"]["unfinished"] is True
    # THEN they have their own times (each copy of a recording reads the clock again) and threads
    rows = {after.names[code]: row for row, code in enumerate(after.events.name)}
    for name in ("here", "there"):
        row, span = rows[name], recorded[name]
        assert after.events.begin_ns[row] == pytest.approx(span["begin_ns"], abs=100_000, rel=0)
        assert after.events.end_ns[row] == pytest.approx(span["end_ns"], abs=100_000, rel=0)
        assert after.events.tid[row] == span["thread"]
    tracks = {
        e["args"]["name"] for e in entries if e["name"] == "thread_name" and e["pid"] == "stagespan"
    }
    assert {f"MainThread {pid}", f"other {recorded['there']['thread']}"} <= tracks
    products = [
        row for row, code in enumerate(after.events.name) if after.names[code] == "aten::mm"
    ]
    begin_ns, end_ns = after.events.begin_ns, after.events.end_ns
    here = rows["here"]
    assert any(begin_ns[here] <= begin_ns[row] and end_ns[row] <= end_ns[here] for row in products)


def test_the_recording_and_the_file_can_be_named(traced: tuple[Path, int], tmp_path: Path) -> None:
    path, pid = traced
    packed = tmp_path / "t.json.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))

    done = run(packed, str(pid), "-o", tmp_path / "merged.json")

    assert done.exit_code == 0, done.output
    entries = json.loads((tmp_path / "merged.json").read_text())["traceEvents"]
    assert {e["name"] for e in entries if e["pid"] == "stagespan" and e["ph"] == "X"} == {
        *("open", "here", "there"),
    }
    done = run(tmp_path / "merged.json", str(pid))
    assert done.exit_code == 2
    assert "already contains the spans of stagespan." in done.output


def test_what_cannot_be_merged_is_refused(traced: tuple[Path, int], tmp_path: Path) -> None:
    path, pid = traced
    content = json.loads(path.read_text())

    def refusal(content: dict[str, Any], *arguments: str) -> str:
        (tmp_path / "t.json").write_text(json.dumps(content))
        done = run(tmp_path / "t.json", *arguments)
        assert done.exit_code == 2
        assert sorted(os.listdir(tmp_path)) == ["t.json"]
        return str(done.output)

    late = {**content, "baseTimeNanoseconds": content["baseTimeNanoseconds"] - 10**15}
    assert f"No span of process {pid} overlaps" in refusal(late, str(pid))
    assert "contains no events" in refusal({**content, "traceEvents": []})
    nobody = [{**event, "pid": "x"} for event in content["traceEvents"]]
    assert "does not contain a process id" in refusal({**content, "traceEvents": nobody})
    assert run(tmp_path / "none.json").exit_code == 2
    assert run(path, str(tmp_path / "none")).exit_code == 2
