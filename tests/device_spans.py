"""Spans with the times of the device."""

from __future__ import annotations

from typing import Any

import stagespan


def spans_of(stage: str) -> Any:
    """Return the stage's spans after their device work is done."""
    assert stagespan.flush(30)
    spans = stagespan.spans()
    return spans[spans["stage"] == stagespan.stage_names().index(stage)]
