"""Replaying one stage alone on mock inputs. Importing this package imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagespan.process import imports

if TYPE_CHECKING:
    from stagespan.harness.adapters import (
        ScriptStep,
        StepAdapter,
        register_adapter,
        unregister_adapter,
    )
    from stagespan.harness.bench import StageBenchHarness
    from stagespan.harness.config import HarnessConfig, HarnessResult

_LAZY = {
    "HarnessConfig": "config",
    "HarnessResult": "config",
    "ScriptStep": "adapters",
    "StageBenchHarness": "bench",
    "StepAdapter": "adapters",
    "register_adapter": "adapters",
    "unregister_adapter": "adapters",
}

__all__ = [
    "HarnessConfig",
    "HarnessResult",
    "ScriptStep",
    "StageBenchHarness",
    "StepAdapter",
    "register_adapter",
    "unregister_adapter",
]


def __getattr__(name: str) -> object:
    # Lower packages import modules of standalone/, for which the harness must not be loaded.
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(imports.load(f"{__name__}.{_LAZY[name]}"), name)
