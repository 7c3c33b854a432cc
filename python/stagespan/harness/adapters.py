"""What one iteration of a stage is: adapters, one for each kind of stage, that others can join."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

from stagespan.errors import HarnessError

if TYPE_CHECKING:
    from stagespan.harness.config import HarnessConfig

Step = Callable[[], Any]
WHOLE = "whole"
"""In place of a step: the whole call."""


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

    def answer(self, stage: Any, inputs: Mapping[str, Any], config: HarnessConfig) -> Answer:
        """The same with a reason, for ``stagespan bench --explain``."""
        fits = self.matches(stage, inputs)
        return Answer(self.name, fits, "it matches" if fits else "it does not match")

    @abstractmethod
    def build(self, stage: Any, inputs: dict[str, Any], config: HarnessConfig) -> Step:
        """A callable that runs one iteration.

        One that keeps state has a ``reset()``, which is called before each run, outside the clock.
        One of which only a part is to be measured has a ``run_between(begin, end, count)``, which
        calls ``begin`` and ``end`` around that part and returns how many iterations were in it.
        Raises ReplayError (one sentence) when the inputs do not fit the stage.
        """

    def script(self, stage: Any, inputs: Mapping[str, Any]) -> ScriptStep | None:
        """The same for the generated script; None: the script has to be given a step function."""
        return None


@dataclass(frozen=True)
class Answer:
    """What an adapter said when it was asked for a stage."""

    adapter: str
    fits: bool
    reason: str


class LoopAdapter(StepAdapter):
    """Stages with a scheduler: one step of their own loop, between two returns of its ``step``."""

    name = "loop"

    def matches(self, stage: Any, inputs: Mapping[str, Any]) -> bool:
        """There is something to call, and a scheduler that it may use."""
        from stagespan.harness import own_loop
        from stagespan.harness.steps import function_of

        function = function_of(stage)
        return function is not None and bool(own_loop.SchedulerReturns(stage, function))

    def answer(self, stage: Any, inputs: Mapping[str, Any], config: HarnessConfig) -> Answer:
        """No adapter of loops matches if the whole stage is wanted."""
        from stagespan.harness import own_loop
        from stagespan.harness.steps import function_of

        if config.step == WHOLE:
            return Answer(self.name, False, "the whole call was asked for")
        function = function_of(stage)
        if function is None:
            return Answer(self.name, False, "the stage has nothing to call whose loop could be run")
        watched = own_loop.SchedulerReturns(stage, function)
        if not watched:
            return Answer(self.name, False, "the stage holds no scheduler with a step method")
        return Answer(self.name, True, f"the stage may call {watched.title}")

    def build(self, stage: Any, inputs: dict[str, Any], config: HarnessConfig) -> Step:
        """The stage, left after the wanted step."""
        from stagespan.harness.own_loop import loop_step

        return loop_step(stage, inputs, self.name, config.step, config.optional)

    def script(self, stage: Any, inputs: Mapping[str, Any]) -> ScriptStep:
        """The same, by its own text."""
        from stagespan.harness import own_loop, steps
        from stagespan.signature import fit

        return ScriptStep(
            (fit, steps, own_loop), f'loop_step(stage, inputs, "{self.name}", step, OPTIONAL)'
        )


class GenerateAdapter(LoopAdapter):
    """``generate`` of language models: the prefill, or one decode step, between two forwards."""

    name = "generate"

    def matches(self, stage: Any, inputs: Mapping[str, Any]) -> bool:
        """A method of this name that may call a model."""
        from stagespan.harness import own_loop
        from stagespan.harness.steps import function_of

        function = function_of(stage)
        return _is_generate(function) and bool(own_loop.ForwardReturns(stage, function))

    def answer(self, stage: Any, inputs: Mapping[str, Any], config: HarnessConfig) -> Answer:
        """Other methods with a loop over a model match if a step is asked for."""
        from stagespan.harness import own_loop
        from stagespan.harness.steps import function_of

        if config.step == WHOLE:
            return Answer(self.name, False, "the whole call was asked for")
        function = function_of(stage)
        if not _is_generate(function) and config.step is None:
            return Answer(self.name, False, "what is called is not named generate")
        if function is None or (function is stage and hasattr(stage, "_modules")):
            return Answer(self.name, False, "what is called is the model's forward itself")
        watched = own_loop.ForwardReturns(stage, function)
        if not watched:
            return Answer(self.name, False, "the stage holds no torch module")
        return Answer(self.name, True, f"the stage may call {watched.title} in a loop")


class DenoiseAdapter(StepAdapter):
    """Stages with ``dit``, ``transformer`` or ``unet`` and a ``scheduler``: one step of a loop."""

    name = "denoise"

    def answer(self, stage: Any, inputs: Mapping[str, Any], config: HarnessConfig) -> Answer:
        """Only for stages without a loop of their own: the model's arguments are guessed."""
        from stagespan.harness.steps import function_of

        if config.step is not None:
            return Answer(self.name, False, "only the stage's own loop has steps to choose from")
        if function_of(stage) is not None:
            return Answer(self.name, False, "the stage can be called, so nothing is guessed")
        if not self.matches(stage, inputs):
            reason = "the stage holds no model with a scheduler, or the inputs no latents"
            return Answer(self.name, False, reason)
        return Answer(self.name, True, "model and scheduler without a loop: arguments are guessed")

    def matches(self, stage: Any, inputs: Mapping[str, Any]) -> bool:
        """Model, scheduler and something to denoise are there; for a method, a loop's arguments."""
        from stagespan.harness import denoise

        found = denoise.denoiser_of(stage)
        if found is None or denoise.first_name(denoise.SAMPLES, inputs) is None:
            return False
        if found[0] is stage:
            return True
        # A method outside of the loop, such as `decode(latents)`, is called as it is.
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
        from stagespan.harness.steps import function_of

        return function_of(stage) is not None

    def answer(self, stage: Any, inputs: Mapping[str, Any], config: HarnessConfig) -> Answer:
        """A step of a loop cannot be had by a whole call."""
        if config.step not in (None, WHOLE):
            return Answer(self.name, False, f"step {config.step} of a loop was asked for")
        if not self.matches(stage, inputs):
            return Answer(self.name, False, "there is no process, no forward, nothing to call")
        return Answer(self.name, True, "the stage can be called whole")

    def build(self, stage: Any, inputs: dict[str, Any], config: HarnessConfig) -> Step:
        """One whole call."""
        from stagespan.harness.steps import CallStep, function_of

        return CallStep(function_of(stage), inputs, optional=config.optional)

    def script(self, stage: Any, inputs: Mapping[str, Any]) -> ScriptStep:
        """The same call."""
        from stagespan.harness import steps
        from stagespan.signature import fit

        return ScriptStep((fit, steps), "CallStep(function_of(stage), inputs, optional=OPTIONAL)")


def _is_generate(function: Any) -> bool:
    return "generate" in str(getattr(function, "__name__", ""))


_BUILT_IN: list[StepAdapter] = [LoopAdapter(), GenerateAdapter(), DenoiseAdapter(), CallAdapter()]
_adapters: list[StepAdapter] = [*_BUILT_IN]


def register_adapter(adapter: StepAdapter) -> None:
    """Add a kind of stage, asked before those already there."""
    _adapters.insert(0, adapter)


def unregister_adapter(adapter: StepAdapter) -> None:
    """Take an adapter out again; raises ValueError if it is not there."""
    _adapters.remove(adapter)


def ask_adapters(
    stage: Any, inputs: Mapping[str, Any], config: HarnessConfig, refused: Mapping[str, str]
) -> tuple[StepAdapter | None, list[Answer]]:
    """Return the adapter that matches, and the answers of the adapters up to it.

    ``refused`` contains the adapters that matched but found nothing to run, with the reason.
    """
    answers: list[Answer] = []
    for adapter in _adapters:
        if adapter.name in refused:
            answers.append(Answer(adapter.name, False, refused[adapter.name]))
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
    """The adapter of a stage; raises HarnessError for one without a step to run."""
    from stagespan.harness.config import HarnessConfig

    config = config or HarnessConfig()
    adapter, answers = ask_adapters(stage, inputs, config, refused or {})
    if adapter is not None:
        return adapter
    kind = type(stage).__qualname__
    if config.step not in (None, WHOLE):
        why = "; ".join(f"{answer.adapter}: {answer.reason}" for answer in answers)
        raise HarnessError(
            f"Stage {stage_name!r} has no loop to take step {config.step} of ({why}); leave step "
            f"out to replay the whole call, or give the step with HarnessConfig(step_fn=...)."
        )
    raise HarnessError(
        f"Stage {stage_name!r} has no step to run: a {kind} has no 'dit', 'transformer' or 'unet' "
        f"with a 'scheduler', no 'process', no 'forward', and cannot be called; pass the stage's "
        f"object or method, or give the step with HarnessConfig(step_fn=lambda stage, inputs: ...)."
    )
