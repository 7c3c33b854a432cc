"""Contexts of each kind, and the figures of a stage."""

from __future__ import annotations

import sys

from stagespan import _core

BEFORE_3_12 = sys.version_info < (3, 12)


def always(name: str) -> _core.Span:
    return _core.ProfilingContext(name)


def compile_safe(name: str) -> _core.Span:
    return _core.ProfilingContext(name, compile_safe=True)


def debug(name: str) -> _core.Span:
    return _core.ProfilingContext4Debug(name)


def runs(stage: str) -> int:
    stages = _core.snapshot().stages()
    return stages[stage].count if stage in stages else 0


def errors(stage: str) -> int:
    return _core.snapshot().stages()[stage].errors
