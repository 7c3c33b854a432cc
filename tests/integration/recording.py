"""Reading what was recorded, and running programs of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path

from stagespan import _core


@dataclass(frozen=True)
class Recorded:
    """One span, with names in place of numbers."""

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


def recorded(stage: str | None = None) -> list[Recorded]:
    """The spans that the rings hold, by begin; those of one stage if asked."""
    names = _core.stage_names()
    rows = _core.spans()[["stage", *(field.name for field in fields(Recorded)[1:])]]
    found = [Recorded(names[row[0]], *row[1:]) for row in rows.tolist()]
    return [span for span in found if stage is None or span.stage == stage]


def only(stage: str) -> Recorded:
    """The one span of a stage."""
    (span,) = recorded(stage)
    return span


def parents() -> dict[str, set[str | None]]:
    """The stages of each stage's parents, by the ids in the records; None is top level."""
    spans = recorded()
    by_id = {span.id: span.stage for span in spans}
    assert len(by_id) == len(spans), "ids are unique"
    result: dict[str, set[str | None]] = {}
    for span in spans:
        parent = by_id[span.parent] if span.parent else None
        result.setdefault(span.stage, set()).add(parent)
    return result


def count(stage: str) -> int:
    """How many spans of a stage the statistics know."""
    found = _core.snapshot().stages().get(stage)
    return 0 if found is None else found.count


def counts(*stages: str) -> list[int]:
    """How many spans of each stage the statistics know."""
    return [count(stage) for stage in stages]


def lost() -> dict[str, int]:
    """What was lost, by cause, without the causes that lost nothing."""
    return {cause: n for cause, n in _core.lost().items() if n}


def assert_closed() -> None:
    """Every stage's time is its children's and its own, and its edges make up the whole."""
    for name, stage in _core.snapshot().stages().items():
        assert 0 <= stage.children_ns <= stage.total_ns, name
        assert sum(count for count, _ in stage.parents.values()) == stage.count, name
        # Each edge is turned into nanoseconds by itself.
        edges_ns = sum(total_ns for _, total_ns in stage.parents.values())
        assert abs(edges_ns - stage.total_ns) <= len(stage.parents), name
        assert 0 <= stage.suspended_ns <= stage.total_ns, name


def eventually(condition: Callable[[], bool], timeout_s: float = 20.0) -> bool:
    """Wait for what another thread is about to do; False if it never does."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True


def python(
    code: str,
    cwd: Path,
    *options: str,
    returncode: int = 0,
    timeout_s: float = 120,
    **variables: str,
) -> subprocess.CompletedProcess[str]:
    """Run code as a script of its own; what it says on stderr is a failure too."""
    script = cwd / "script.py"
    script.write_text(textwrap.dedent(code))
    done = subprocess.run(
        [sys.executable, *options, str(script)],
        env={**os.environ, **variables},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    assert (done.returncode, done.stderr) == (returncode, ""), done.stdout + done.stderr
    return done


def in_child(code: str, tmp_path: Path, *options: str) -> list[str]:
    """Run a program; what it prints, line by line."""
    return python(textwrap.dedent(code), tmp_path, *options).stdout.splitlines()
