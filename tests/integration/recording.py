"""Reads what was recorded, and runs separate programs."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import stagespan
from running import ran
from stagespan import _core


@dataclass(frozen=True)
class Recorded:
    """One span, with names instead of numbers."""

    stage: str
    thread: int
    begin_ns: int
    end_ns: int
    id: int
    parent: int
    request: int
    suspended_ns: int
    depth: int
    flags: int

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.begin_ns

    @property
    def failed(self) -> bool:
        return bool(self.flags & _core.FLAG_ERROR)


def work(name: str) -> None:
    """Time one span."""
    with stagespan.span(name):
        pass


def recorded(stage: str | None = None) -> list[Recorded]:
    """Return the spans in the rings, ordered by begin; only those of one stage if given."""
    names = _core.stage_names()
    rows = _core.spans()[["stage", *(field.name for field in fields(Recorded)[1:])]]
    found = [Recorded(names[row[0]], *row[1:]) for row in rows.tolist()]
    return [span for span in found if stage is None or span.stage == stage]


def only(stage: str) -> Recorded:
    """Return the only span of a stage."""
    (span,) = recorded(stage)
    return span


def parents() -> dict[str, set[str | None]]:
    """Return the parent stages of each stage, by the ids in the records; None is the top level."""
    spans = recorded()
    by_id = {span.id: span.stage for span in spans}
    assert len(by_id) == len(spans), "ids are unique"
    result: dict[str, set[str | None]] = {}
    for span in spans:
        parent = by_id[span.parent] if span.parent else None
        result.setdefault(span.stage, set()).add(parent)
    return result


def count(stage: str) -> int:
    """Return the number of spans of a stage in the statistics."""
    found = _core.snapshot().stages().get(stage)
    return 0 if found is None else found.count


def counts(*stages: str) -> list[int]:
    """Return the number of spans of each stage in the statistics."""
    return [count(stage) for stage in stages]


def lost() -> dict[str, int]:
    """Return what was lost, by cause, without the causes that lost nothing."""
    return {cause: n for cause, n in _core.lost().items() if n}


def assert_closed() -> None:
    """Check that the times of children and edges add up to each stage's time."""
    for name, stage in _core.snapshot().stages().items():
        assert 0 <= stage.children_ns <= stage.total_ns, name
        assert sum(count for count, _ in stage.parents.values()) == stage.count, name
        # Each edge is converted to nanoseconds separately.
        edges_ns = sum(total_ns for _, total_ns in stage.parents.values())
        assert abs(edges_ns - stage.total_ns) <= len(stage.parents), name
        assert 0 <= stage.suspended_ns <= stage.total_ns, name


def script_of(code: str | Sequence[str | Path], folder: Path) -> Sequence[str | Path]:
    """Return the file and the arguments of a program; write its text to a file if it is one."""
    if not isinstance(code, str):
        return code
    (folder / "script.py").write_text(textwrap.dedent(code))
    return [folder / "script.py"]


def python(
    code: str | Sequence[str | Path],
    cwd: Path,
    *options: str,
    returncode: int = 0,
    timeout_s: float = 120,
    start: Sequence[str] = (sys.executable,),
    **variables: str,
) -> subprocess.CompletedProcess[str]:
    """Run a separate script; output on stderr counts as a failure too.

    Args:
        code: Its text, or its file and arguments.
        cwd: Its folder.
        options: Of the interpreter.
        returncode: The exit status that it has to have.
        timeout_s: After this time, in seconds, it is ended and the test fails.
        start: The beginning of the command, such as `preloaded.python()`.
        variables: Added to the environment.
    """
    command = [*start, *options, *script_of(code, cwd)]
    done = ran(command, cwd=cwd, timeout_s=timeout_s, **variables)
    assert (done.returncode, done.stderr) == (returncode, ""), done.stdout + done.stderr
    return done


def in_child(code: str | Sequence[str | Path], tmp_path: Path, *options: str) -> list[str]:
    """Run a program; return what it prints, line by line."""
    return python(code, tmp_path, *options).stdout.splitlines()


def printed(done: subprocess.CompletedProcess[str]) -> list[Any]:
    """Return what the program printed as JSON, one object per line."""
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]
