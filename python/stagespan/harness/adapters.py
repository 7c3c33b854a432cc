"""What one iteration of a stage is: adapters, one for each kind of stage, that others can join."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

from stagespan.errors import HarnessError

if TYPE_CHECKING:
    from stagespan.harness.config import HarnessConfig

Step = Callable[[], Any]


@dataclass(frozen=True)
class ScriptStep:
    """How the generated script makes the same step, without stagespan."""

    modules: tuple[ModuleType, ...]
    """Whose text the script holds; they import nothing but torch and the standard library."""
    expression: str
    """Python that gives the step, for example ``DenoiseStep(stage, inputs)``."""


class StepAdapter(ABC):
    """One kind of stage. The first registered adapter that matches makes the step."""

    name: str

    @abstractmethod
    def matches(self, stage: Any, inputs: Mapping[str, Any]) -> bool:
        """Whether this adapter knows how to run one iteration of the stage on such inputs."""

    @abstractmethod
    def build(self, stage: Any, inputs: dict[str, Any], config: HarnessConfig) -> Step:
        """A callable that runs one iteration.

        One that keeps state has a ``reset()``, which is called before each run, outside the clock.
        Raises ReplayError (one sentence) when the inputs do not fit the stage.
        """

    def script(self, stage: Any, inputs: Mapping[str, Any]) -> ScriptStep | None:
        """The same for the generated script; None: the script has to be given a step function."""
        return None


class DenoiseAdapter(StepAdapter):
    """Stages with ``dit``, ``transformer`` or ``unet`` and a ``scheduler``: one step of a loop."""

    name = "denoise"

    def matches(self, stage: Any, inputs: Mapping[str, Any]) -> bool:
        """Model, scheduler and something to denoise are there; for a method, a loop's arguments."""
        from stagespan.harness import denoise

        found = denoise.denoiser_of(stage)
        if found is None or denoise.first_name(denoise.SAMPLES, inputs) is None:
            return False
        if found[0] is stage:
            return True
        # A method beside the loop, such as `decode(latents)`, is to be called as it is.
        loop = (
            "num_inference_steps",
            "timesteps",
            "num_steps",
            *denoise.SHIFTS,
            *denoise.GUIDANCES,
        )
        return any(name in inputs for name in (*loop, *denoise.PROMPTS))

    def build(self, stage: Any, inputs: dict[str, Any], config: HarnessConfig) -> Step:
        """One step of a loop of two."""
        from stagespan.harness.denoise import DenoiseStep

        return DenoiseStep(stage, inputs)

    def script(self, stage: Any, inputs: Mapping[str, Any]) -> ScriptStep:
        """The step's own text."""
        from stagespan.harness import denoise
        from stagespan.signature import fit

        return ScriptStep((fit, denoise), "DenoiseStep(stage, inputs)")


class CallAdapter(StepAdapter):
    """Stages that are called whole: their ``process``, their ``forward``, or they themselves."""

    name = "call"

    def matches(self, stage: Any, inputs: Mapping[str, Any]) -> bool:
        """Anything with something to call."""
        return _entrance(stage) is not None

    def build(self, stage: Any, inputs: dict[str, Any], config: HarnessConfig) -> Step:
        """One whole call."""
        from stagespan.harness.steps import CallStep

        entrance = _entrance(stage)
        function = getattr(stage, entrance) if entrance else stage
        return CallStep(function, inputs, optional=config.optional)

    def script(self, stage: Any, inputs: Mapping[str, Any]) -> ScriptStep:
        """The same call."""
        from stagespan.harness import steps
        from stagespan.signature import fit

        entrance = _entrance(stage)
        function = f"stage.{entrance}" if entrance else "stage"
        return ScriptStep((fit, steps), f"CallStep({function}, inputs, optional=OPTIONAL)")


def _entrance(stage: Any) -> str | None:
    """Name of the method to call, an empty one for the stage itself, None if there is none."""
    if inspect.isroutine(stage) or isinstance(stage, type):
        return ""
    if callable(getattr(stage, "process", None)):
        return "process"
    if callable(stage):  # a torch module too: its hooks belong to the call
        return ""
    return "forward" if callable(getattr(stage, "forward", None)) else None


_adapters: list[StepAdapter] = [DenoiseAdapter(), CallAdapter()]


def register_adapter(adapter: StepAdapter) -> None:
    """Add a kind of stage, asked before those already there."""
    _adapters.insert(0, adapter)


def unregister_adapter(adapter: StepAdapter) -> None:
    """Take an adapter out again; raises ValueError if it is not there."""
    _adapters.remove(adapter)


def adapter_for(stage: Any, inputs: Mapping[str, Any], stage_name: str) -> StepAdapter:
    """The adapter of a stage; raises HarnessError for one without a step to run."""
    for adapter in _adapters:
        if adapter.matches(stage, inputs):
            return adapter
    kind = type(stage).__qualname__
    raise HarnessError(
        f"Stage {stage_name!r} has no step to run: a {kind} has no 'dit', 'transformer' or 'unet' "
        f"with a 'scheduler', no 'process', no 'forward', and cannot be called; pass the stage's "
        f"object or method, or give the step with HarnessConfig(step_fn=lambda stage, inputs: ...)."
    )
