"""Replaying one stage alone on mock inputs. Importing this package imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagespan.process.imports import OnFirstUse

# Lower packages import modules of standalone/, for which the harness must not be loaded.
with OnFirstUse(globals()) as _lazy:
    from stagespan.harness.adapters import (
        ScriptStep as ScriptStep,
        StepAdapter as StepAdapter,
        register_adapter as register_adapter,
        unregister_adapter as unregister_adapter,
    )
    from stagespan.harness.bench import StageBenchHarness as StageBenchHarness
    from stagespan.harness.config import (
        HarnessConfig as HarnessConfig,
        HarnessResult as HarnessResult,
    )

__all__ = sorted(_lazy)  # noqa: PLE0605
if not TYPE_CHECKING:
    __getattr__ = _lazy
