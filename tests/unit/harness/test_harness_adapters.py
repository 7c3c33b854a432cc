"""The step that is chosen for a stage: one of a denoising loop, a whole call, or the user's."""

from __future__ import annotations

import functools
import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stagespan.errors import HarnessError
from stagespan.harness import HarnessConfig, StepAdapter, register_adapter, unregister_adapter
from stagespan.harness.adapters import adapter_for

torch = pytest.importorskip("torch")

from harness_stages import harness, signature_of  # noqa: E402

LOOP = {"latents": torch.zeros(1, 4), "num_inference_steps": 8}


class Scheduler:
    def set_timesteps(self, count: int) -> None:
        self.timesteps = torch.arange(count)

    def step(self, noise: Any, t: Any, sample: Any) -> Any:
        return sample


class Pipe:
    """Has a model and a scheduler, and methods with and without a loop over them."""

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
    # GIVEN a stage that has both, its method, and an object that has both without a loop
    pipe = Pipe(model)
    parts = SimpleNamespace(**{model: torch.nn.Identity()}, scheduler=Scheduler())

    assert name_of(pipe, LOOP) == "loop"
    assert name_of(pipe.denoise, LOOP) == "loop"
    assert name_of(parts, LOOP) == "denoise"


def test_stages_without_a_scheduler_are_called_as_a_whole() -> None:
    assert name_of(SimpleNamespace(transformer=None, process=len), LOOP) == "call"


def test_process_comes_before_forward_and_call() -> None:
    # GIVEN stages with several entry points
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

    assert build(Stage()) == ("process", 1)
    assert build(Stage().__call__) == ("call", 1)
    assert build(Forward()) == ("forward", 1)
    assert build(lambda x: ("function", x)) == ("function", 1)


def test_a_module_is_called_with_its_hooks() -> None:
    module = torch.nn.Linear(3, 2)
    seen = []
    module.register_forward_hook(lambda *args: seen.append(1))
    inputs = {"input": torch.zeros(1, 3)}

    result = adapter_for(module, inputs, "s").build(module, inputs, HarnessConfig())()

    assert result.shape == (1, 2)
    assert seen == [1]


def test_coroutines_and_generators_run_to_their_end() -> None:
    # GIVEN stages that do nothing until they are awaited or consumed
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


def test_a_stage_without_a_step_is_reported_in_one_sentence() -> None:
    with pytest.raises(HarnessError) as caught:
        adapter_for(SimpleNamespace(model=1), {}, "denoise")

    assert "Stage 'denoise' has no step to run" in str(caught.value)
    assert "HarnessConfig(step_fn=" in str(caught.value)


def test_adapters_for_other_stages_can_be_registered() -> None:
    class Custom(StepAdapter):
        name = "custom"

        def matches(self, stage: Any, inputs: Any) -> bool:
            return hasattr(stage, "engine")

        def build(self, stage: Any, inputs: Any, config: Any) -> Any:
            return lambda: stage.engine(**inputs)

    adapter = Custom()
    stage = SimpleNamespace(engine=lambda x: x + 1, process=len)

    register_adapter(adapter)
    try:
        name, result = name_of(stage, {}), adapter.build(stage, {"x": 1}, None)()
    finally:
        unregister_adapter(adapter)

    assert (name, result) == ("custom", 2)
    assert name_of(stage, {}) == "call"


def apply_times(net: Any, x: Any, times: int, scale: float = 1.0) -> Any:
    for _ in range(times):
        x = net(x) * scale
    return x


@pytest.mark.parametrize("by_name", [False, True])
def test_arguments_bound_by_a_partial_are_not_created(tmp_path: Path, by_name: bool) -> None:
    net = torch.nn.Linear(32, 32)
    stage = functools.partial(apply_times, **({"net": net} if by_name else {"scale": 1.0}))
    stage = stage if by_name else functools.partial(stage, net)
    signature = signature_of("s", net=net, x=torch.randn(2, 32), times=3, scale=2.0)

    result = harness(stage, signature, tmp_path).profile()

    counts = {row["name"]: row["count"] for row in result.breakdown["top_kernels"]}
    assert (counts["aten::addmm"], counts["aten::mul"]) == (3, 3)
    assert result.iteration == "one whole call of apply_times"
    script = runpy.run_path(str(result.script_path))["profile_stage"]
    assert script(stage, timing_steps=2, output_dir=tmp_path)["timing_ms"]["iterations"] == 2
    # THEN without the partial, the module has to be passed in
    with pytest.raises(HarnessError, match="'net'"):
        harness(apply_times, signature, tmp_path).setup()
