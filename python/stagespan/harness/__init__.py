"""Replaying one stage alone on mock inputs. Importing this package imports no torch."""

from __future__ import annotations

from stagespan.harness.adapters import (
    ScriptStep,
    StepAdapter,
    register_adapter,
    unregister_adapter,
)
from stagespan.harness.bench import StageBenchHarness
from stagespan.harness.config import HarnessConfig, HarnessResult

__all__ = [
    "HarnessConfig",
    "HarnessResult",
    "ScriptStep",
    "StageBenchHarness",
    "StepAdapter",
    "register_adapter",
    "unregister_adapter",
]
