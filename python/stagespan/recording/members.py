"""The stages of the processes that a command has started, from their recordings."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from stagespan.errors import StagespanError
from stagespan.process.command import FIGURES
from stagespan.recording.reading import Recording
from stagespan.report import merged

if TYPE_CHECKING:
    from stagespan.report.merged import Stages


class Members(NamedTuple):
    """The stages of each process, except for the command's own."""

    recorded: list[Stages]
    """Those that are in recordings."""
    handed_over: list[Stages]
    """Those of processes without a recording that could be read, which have written reports."""


def read(folder: Path) -> Members:
    """Read the recordings and figures in the folder of a command, alive or not."""
    found = Members([], [])
    for path in sorted(folder.iterdir()):
        if path.name.startswith(f"{os.getpid()}-"):
            continue
        try:
            if path.suffix == ".stagespan":
                copy = Recording(str(path), everything=False)
                found.recorded.append(copy.snapshot().stages())
            elif path.suffix == FIGURES:
                found.handed_over.append(merged.decoded(path.read_bytes()))
        except (StagespanError, OSError, ValueError):  # it was cut off, or is damaged
            continue
    return found
