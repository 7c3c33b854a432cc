"""Which step a stage gets: one of a denoising loop, a whole call, or the user's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from stagespan.errors import HarnessError
from stagespan.harness import HarnessConfig, StepAdapter, register_adapter, unregister_adapter
from stagespan.harness.adapters import adapter_for

torch = pytest.importorskip("torch")

LOOP = {"latents": torch.zeros(1, 4), "num_inference_steps": 8}


class Scheduler:
    def set_timesteps(self, count: int) -> None:
        self.timesteps = torch.arange(count)

    def step(self, noise: Any, t: Any, sample: Any) -> Any:
        return sample


class Pipe:
    """Holds a model and a scheduler, and methods that do and do not loop over them."""

    def __init__(self, model: str) -> None:
        setattr(self, model, torch.nn.Identity())
        self.scheduler = Scheduler()

    def denoise(self, latents: Any, num_inference_steps: int) -> Any: ...

    def decode(self, latents: Any) -> Any: ...

    def __call__(self, prompt: str) -> Any: ...


def name_of(stage: Any, inputs: dict[str, Any]) -> str:
    return adapter_for(stage, inputs, "s").name


@pytest.mark.parametrize("model", ["dit", "transformer", "unet"])
def test_a_model_with_a_scheduler_is_run_one_step_at_a_time(model: str) -> None:
    # GIVEN a stage that holds both, its method, and an object that holds both without a loop
    pipe = Pipe(model)
    parts = SimpleNamespace(**{model: torch.nn.Identity()}, scheduler=Scheduler())

    # WHEN / THEN
    assert name_of(pipe, LOOP) == "loop"
    assert name_of(pipe.denoise, LOOP) == "loop"
    assert name_of(parts, LOOP) == "denoise"


def test_what_holds_no_scheduler_is_called_whole() -> None:
    # GIVEN / WHEN / THEN
    assert name_of(SimpleNamespace(transformer=None, process=len), LOOP) == "call"


def test_process_comes_before_forward_and_call() -> None:
    # GIVEN stages with several entrances
    class Stage:
        def process(self, x: Any) -> Any:
            return ("process", x)

        def __call__(self, x: Any) -> Any:
            return ("call", x)

    class Forward:
        def forward(self, x: Any) -> Any:
            return ("forward", x)

    def build(stage: Any) -> Any:
        return adapter_for(stage, {"x": 1}, "s").build(stage, {"x": 1}, HarnessConfig())()

    # WHEN / THEN
    assert build(Stage()) == ("process", 1)
    assert build(Stage().__call__) == ("call", 1)
    assert build(Forward()) == ("forward", 1)
    assert build(lambda x: ("function", x)) == ("function", 1)


def test_a_module_is_called_with_its_hooks() -> None:
    # GIVEN a module with a hook
    module = torch.nn.Linear(3, 2)
    seen = []
    module.register_forward_hook(lambda *args: seen.append(1))
    inputs = {"input": torch.zeros(1, 3)}

    result = adapter_for(module, inputs, "s").build(module, inputs, HarnessConfig())()

    assert result.shape == (1, 2)
    assert seen == [1]


def test_coroutines_and_generators_run_to_their_end() -> None:
    # GIVEN stages that do nothing until somebody runs them
    done = []

    async def coroutine(x: int) -> int:
        done.append("coroutine")
        return x

    def generator(x: int) -> Any:
        yield x
        done.append("generator")

    async def both(x: int) -> Any:
        yield x
        done.append("both")

    for stage in (coroutine, generator, both):
        adapter_for(stage, {"x": 1}, "s").build(stage, {"x": 1}, HarnessConfig())()

    assert done == ["coroutine", "generator", "both"]


def test_a_stage_without_a_step_is_told_in_one_sentence() -> None:
    # GIVEN something that cannot be run
    with pytest.raises(HarnessError) as caught:
        adapter_for(SimpleNamespace(model=1), {}, "denoise")

    assert "Stage 'denoise' has no step to run" in str(caught.value)
    assert "HarnessConfig(step_fn=" in str(caught.value)


def test_other_kinds_of_stages_can_join() -> None:
    # GIVEN an adapter of the user's
    class Custom(StepAdapter):
        name = "custom"

        def matches(self, stage: Any, inputs: Any) -> bool:
            return hasattr(stage, "engine")

        def build(self, stage: Any, inputs: Any, config: Any) -> Any:
            return lambda: stage.engine(**inputs)

    adapter = Custom()
    stage = SimpleNamespace(engine=lambda x: x + 1, process=len)

    # WHEN it is registered
    register_adapter(adapter)
    try:
        name, result = name_of(stage, {}), adapter.build(stage, {"x": 1}, None)()
    finally:
        unregister_adapter(adapter)

    # THEN it comes before the others, until it is taken out
    assert (name, result) == ("custom", 2)
    assert name_of(stage, {}) == "call"
