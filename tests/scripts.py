"""Runs the text of a generated script in this process."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

from stagespan.harness.bundle import replay_module
from stagespan.harness.output import write_replay_module


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory()


def names_of(text: str) -> dict[str, Any]:
    """Run a script beside the module that it imports, but not as a program; return its names."""
    names: dict[str, Any] = {"__name__": "script"}
    write_replay_module(Path(_folder().name), replay_module(text))
    names["__file__"] = str(Path(_folder().name, "profile_s.py"))
    exec(compile(text.encode("utf-8"), "profile_s.py", "exec"), names)
    return names
