"""Adapters, which find out what one iteration of a stage is. Users can register their own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from stagespan.errors import HarnessError
from stagespan.harness.config import Fit, HarnessConfig
from stagespan.harness.loop_source import shown_loop, step_calls, usual_loop
from stagespan.harness.standalone.steps import CallStep, function_of

Step = Callable[[], Any]
WHOLE = "whole"
"""The value of `HarnessConfig.step` for the whole call."""


@dataclass(frozen=True)
class ScriptStep:
    """How the generated script makes the same step, without stagespan."""

    expression: str
    """Python expression for the step, for example ``DenoiseStep(stage, inputs)``."""
    modules: tuple[ModuleType, ...] = ()
    """Modules with what the expression needs in addition to `stagespan.harness.standalone`. Their
    source goes into the file beside the script, so they import only that, torch and the standard
    library."""
    what: str = ""
    """What one iteration is, for the script's docstring: ``the whole call of the stage``."""
    loop: str = ""
    """The loop that has the iteration, as lines of comments, see `loop_source`."""


class StepAdapter(ABC):
    """One kind of stage. The first registered adapter that matches makes the step."""

    name: str

    @abstractmethod
    def matches(self, stage: Any, inputs: Mapping[str, Any]) -> bool:
        """Whether this adapter knows how to run one iteration of the stage on such inputs."""

    def answer(self, stage: Any, inputs: Mapping[str, Any], config: HarnessConfig) -> Fit:
        """Return `matches` with a reason, for ``stagespan bench --explain``."""
        fits = self.matches(stage, inputs)
        return Fit(self.name, fits, "it matches" if fits else "it does not match")

    @abstractmethod
    def build(self, stage: Any, inputs: dict[str, Any], config: HarnessConfig) -> Step:
        """Return a callable that runs one iteration.

        A callable with state has a method ``reset()``, which is called before each run, outside the
        timed region. If only a part of the call is measured, it has a method ``run_between(begin,
        end, count)``, which calls ``begin`` and ``end`` around that part and returns the number of
        iterations in it. Raises ReplayError if the inputs do not fit the stage.
        """

    def script(self, stage: Any, inputs: Mapping[str, Any]) -> ScriptStep | None:
        """Return the step for the generated script; None if its user must pass a step function."""
        return None


class LoopAdapter(StepAdapter):
    """Runs one step of the stage's own loop, between two returns of its scheduler's ``step``."""

    name = "loop"

    def matches(self, stage: Any, inputs: Mapping[str, Any]) -> bool:
        """Whether the stage can be called and may contain such a loop."""
        return self.answer(stage, inputs, HarnessConfig()).fits

    def answer(self, stage: Any, inputs: Mapping[str, Any], config: HarnessConfig) -> Fit:
        """Return `matches` with a reason; False if the whole call is wanted."""
        from stagespan.harness.standalone import own_loop

        if config.step == WHOLE:
            return Fit(self.name, False, "the whole call was asked for")
        function = function_of(stage)
        if function is None:
            return Fit(self.name, False, "the stage cannot be called")
        watched = own_loop.SchedulerReturns(stage, function)
        if not watched:
            return Fit(self.name, False, "the stage has no scheduler with a step method")
        return Fit(self.name, True, f"the stage may call {watched.title}")

    def build(self, stage: Any, inputs: dict[str, Any], config: HarnessConfig) -> Step:
        """Return a callable that runs the stage up to the end of the wanted step."""
        from stagespan.harness.standalone import own_loop

        make = own_loop.loop_step if self.name == "loop" else own_loop.generate_step
        return make(stage, inputs, config.step, config.optional)

    def script(self, stage: Any, inputs: Mapping[str, Any]) -> ScriptStep:
        """Return the source of the same step."""
        return ScriptStep(
            f"{self.name}_step(stage, inputs, step, OPTIONAL)",
            what="one step of the stage's own loop",
            loop=shown_loop(step_calls(stage)) or _usual_loop_of(stage),
        )


class GenerateAdapter(LoopAdapter):
    """Runs the prefill or one decode step of ``generate`` of language models."""

    name = "generate"

    def answer(self, stage: Any, inputs: Mapping[str, Any], config: HarnessConfig) -> Fit:
        """Return `matches` with a reason; methods with other names match if a step is wanted."""
        from stagespan.harness.standalone import own_loop

        if config.step == WHOLE:
            return Fit(self.name, False, "the whole call was asked for")
        function = function_of(stage)
        if "generate" not in str(getattr(function, "__name__", "")) and config.step is None:
            return Fit(self.name, False, "the called method is not named generate")
        if function is None or (function is stage and hasattr(stage, "_modules")):
            return Fit(self.name, False, "the stage is the forward of a model")
        watched = own_loop.ForwardReturns(stage, function)
        if not watched:
            return Fit(self.name, False, "the stage has no torch module")
        return Fit(self.name, True, f"the stage may call {watched.title} in a loop")


class DenoiseAdapter(StepAdapter):
    """Runs one denoising step of a stage that has a model and a scheduler, but no loop.

    The model is the attribute ``dit``, ``transformer`` or ``unet``, the scheduler is ``scheduler``.
    """

    name = "denoise"

    def answer(self, stage: Any, inputs: Mapping[str, Any], config: HarnessConfig) -> Fit:
        """Return `matches` with a reason; False if the stage can be called, which is better."""
        if config.step is not None:
            return Fit(self.name, False, "only the stage's own loop has steps to choose from")
        if function_of(stage) is not None:
            return Fit(self.name, False, "the stage can be called, so nothing is guessed")
        if not self.matches(stage, inputs):
            reason = "the stage has no model with a scheduler, or the inputs contain no latents"
            return Fit(self.name, False, reason)
        return Fit(self.name, True, "model and scheduler without a loop: arguments are guessed")

    def matches(self, stage: Any, inputs: Mapping[str, Any]) -> bool:
        """Whether there are a model, a scheduler and latents; for a method, also loop arguments."""
        from stagespan.harness.standalone import denoise

        denoiser = denoise.denoiser_of(stage)
        if denoiser is None or denoise.first_name(denoise.SAMPLES, inputs) is None:
            return False
        if denoiser[0] is stage:
            return True
        # Methods outside of the loop, such as `decode(latents)`, do not take a loop's arguments.
        loop = (
            "num_inference_steps",
            "timesteps",
            "num_steps",
            *denoise.SHIFTS,
            *denoise.GUIDANCES,
        )
        return any(name in inputs for name in (*loop, *denoise.PROMPTS))

    def build(self, stage: Any, inputs: dict[str, Any], config: HarnessConfig) -> Step:
        """Return the first step of a loop of two."""
        from stagespan.harness.standalone.denoise import DenoiseStep

        return DenoiseStep(stage, inputs)

    def script(self, stage: Any, inputs: Mapping[str, Any]) -> ScriptStep:
        """Return the source of the same step."""
        return ScriptStep(
            "DenoiseStep(stage, inputs)",
            what="the model and the scheduler's step once",
            loop=usual_loop(),
        )


def _usual_loop_of(stage: Any) -> str:
    from stagespan.harness.standalone import denoise

    return "" if denoise.denoiser_of(stage) is None else usual_loop()


class CallAdapter(StepAdapter):
    """Calls the whole stage: its ``process``, the stage itself, or its ``forward``."""

    name = "call"

    def matches(self, stage: Any, inputs: Mapping[str, Any]) -> bool:
        """Whether the stage can be called."""
        return function_of(stage) is not None

    def answer(self, stage: Any, inputs: Mapping[str, Any], config: HarnessConfig) -> Fit:
        """Return `matches` with a reason; False if a step of a loop is wanted."""
        if config.step not in (None, WHOLE):
            return Fit(self.name, False, f"step {config.step} of a loop was asked for")
        if not self.matches(stage, inputs):
            return Fit(
                self.name, False, "the stage has no process or forward, and cannot be called"
            )
        return Fit(self.name, True, "the stage can be called")

    def build(self, stage: Any, inputs: dict[str, Any], config: HarnessConfig) -> Step:
        """Return a callable that calls the whole stage."""
        return CallStep(function_of(stage), inputs, optional=config.optional)

    def script(self, stage: Any, inputs: Mapping[str, Any]) -> ScriptStep:
        """Return the source of the same call."""
        return ScriptStep(
            "CallStep(function_of(stage), inputs, optional=OPTIONAL)",
            what="the whole call of the stage",
        )


_BUILT_IN: list[StepAdapter] = [LoopAdapter(), GenerateAdapter(), DenoiseAdapter(), CallAdapter()]
_adapters: list[StepAdapter] = [*_BUILT_IN]


def register_adapter(adapter: StepAdapter) -> None:
    """Add an adapter. It is asked before those that are already registered."""
    _adapters.insert(0, adapter)


def unregister_adapter(adapter: StepAdapter) -> None:
    """Remove an adapter. Raises ValueError if it is not registered."""
    _adapters.remove(adapter)


def ask_adapters(
    stage: Any, inputs: Mapping[str, Any], config: HarnessConfig, refused: Mapping[str, str]
) -> tuple[StepAdapter | None, list[Fit]]:
    """Return the adapter that matches, and the answers of the adapters up to it.

    ``refused`` contains the reasons of adapters that matched but then found nothing to run, by
    name.
    """
    answers: list[Fit] = []
    for adapter in _adapters:
        if adapter.name in refused:
            answers.append(Fit(adapter.name, False, refused[adapter.name]))
            continue
        answer = adapter.answer(stage, inputs, config)
        answers.append(answer)
        if answer.fits:
            return adapter, answers
    return None, answers


def adapter_for(
    stage: Any,
    inputs: Mapping[str, Any],
    stage_name: str,
    config: HarnessConfig | None = None,
    refused: Mapping[str, str] | None = None,
) -> StepAdapter:
    """Return the adapter of a stage. Raises HarnessError if no adapter can run it."""
    config = config or HarnessConfig()
    adapter, answers = ask_adapters(stage, inputs, config, refused or {})
    if adapter is not None:
        return adapter
    kind = type(stage).__qualname__
    if config.step not in (None, WHOLE):
        why = "; ".join(f"{answer.adapter}: {answer.reason}" for answer in answers)
        raise HarnessError(
            f"Stage {stage_name!r} has no loop, so it has no step {config.step} ({why}); leave "
            f"step out to replay the whole call, or give the step with HarnessConfig(step_fn=...)."
        )
    raise HarnessError(
        f"Stage {stage_name!r} has no step to run: a {kind} has no 'dit', 'transformer' or 'unet' "
        f"with a 'scheduler', no 'process', no 'forward', and cannot be called; pass its object or "
        f"method, or give the step with HarnessConfig(step_fn=lambda stage, inputs: ...)."
    )
