"""Contexts of each kind, and the figures of a stage."""

from __future__ import annotations

import sys

from stagespan import _core

INTERCEPTS_CALLS = sys.version_info[:2] != (3, 11)


def plain(name: str) -> _core.Span:
    return _core.span(name)


def always(name: str) -> _core.Span:
    return _core.ProfilingContext(name)


def debug(name: str) -> _core.Span:
    return _core.ProfilingContext4Debug(name)


def runs(stage: str) -> int:
    stages = _core.snapshot().stages()
    return stages[stage].count if stage in stages else 0


def errors(stage: str) -> int:
    return _core.snapshot().stages()[stage].errors
