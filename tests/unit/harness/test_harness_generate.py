"""One step of a loop without a scheduler: between two returns of the model that it calls most."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from harness_stages import Scheduler, harness, signature_of  # noqa: E402


class Model(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.calls = 0

    def forward(self, x: Any) -> Any:
        self.calls += 1
        return self.layer(x)

    def generate(self, x: Any, max_new_tokens: int = 6) -> Any:
        for number in range(max_new_tokens):
            x = self(x if number else torch.cat([x] * 10))[:1].sigmoid()
        return x


class Engine:
    """A loop over a model that another object holds, with an encoder that is called once."""

    def __init__(self) -> None:
        self.encoder, self.llm = torch.nn.Linear(4, 4), Model()

    def generate(self, x: Any) -> Any:
        return self.llm.generate(self.encoder(x))


@pytest.mark.parametrize("stage", [Model().generate, Engine().generate, Engine()])
@pytest.mark.parametrize(("step", "rows"), [("first", 10), (None, 1), ("last", 1)])
def test_generate_is_run_one_token_at_a_time(
    tmp_path: Path, stage: Any, step: Any, rows: int
) -> None:
    # GIVEN a loop over a model, the model's own or another object's
    function = stage.generate if isinstance(stage, Engine) else stage

    result = harness(
        function, signature_of("generate", x=torch.zeros(1, 4)), tmp_path, step=step
    ).profile()

    counts = {row["name"]: row["count"] for row in result.breakdown["top_kernels"]}
    assert result.adapter == "generate"
    assert counts["aten::addmm"] == (2 if step == "first" and "Engine" in result.iteration else 1)
    assert "Model.forward" in result.iteration
    assert ("prefill" in result.iteration) == (step == "first")
    assert ("aten::cat" in counts) == (rows == 10)


def test_transformers_generate_is_run_one_token_at_a_time(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, vocab_size=50, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    signature = signature_of(
        "generate", input_ids=torch.ones(1, 70, dtype=torch.long), max_new_tokens=5
    )

    prefill = harness(model.generate, signature, tmp_path, step="first").profile()
    decode = harness(model.generate, signature, tmp_path).profile()

    for result in (prefill, decode):
        counts = {row["name"]: row["count"] for row in result.breakdown["top_kernels"]}
        assert counts["aten::scaled_dot_product_attention"] == 2
    assert "prefill" in prefill.iteration
    assert "decode step" in decode.iteration


class WithFallback:
    """Calls another model if the first one raises an exception."""

    def __init__(self) -> None:
        self.fast, self.slow = torch.nn.Bilinear(4, 4, 4), torch.nn.Linear(4, 4)

    def generate(self, x: Any) -> Any:
        for _ in range(6):
            try:
                x = self.fast(x)  # without its second argument
            except TypeError:
                x = self.slow(x)
        return x


@pytest.mark.parametrize("step", [None, 3])
def test_a_model_that_raises_does_not_hide_the_model_of_the_loop(tmp_path: Path, step: Any) -> None:
    signature = signature_of("generate", x=torch.zeros(1, 4))

    result = harness(WithFallback().generate, signature, tmp_path, step=step).profile()

    assert "between two returns of Linear.forward" in result.iteration


class WithUnusedScheduler(Engine):
    def __init__(self) -> None:
        super().__init__()
        self.scheduler = Scheduler()


@pytest.mark.parametrize("step", [None, 2, "last"])
def test_a_scheduler_that_is_not_called_does_not_hide_the_model(tmp_path: Path, step: Any) -> None:
    signature = signature_of("generate", x=torch.zeros(1, 4))

    result = harness(WithUnusedScheduler().generate, signature, tmp_path, step=step).profile()

    assert result.adapter == "generate"
    assert "Model.forward" in result.iteration
    assert any("calls Scheduler.step nowhere" in answer.reason for answer in result.answers)


class Guided:
    """Calls its encoder for two prompts before the loop, and no scheduler."""

    def __init__(self) -> None:
        self.encoder, self.model = torch.nn.Linear(4, 4), torch.nn.Linear(4, 8)
        self.decoder = torch.nn.Linear(8, 2)

    def generate_image(self, x: Any, num_steps: int = 4) -> Any:
        x = self.encoder(x) - self.encoder(-x)
        for _ in range(num_steps):
            x = x - self.model(x)[:, :4].sigmoid()
        return self.decoder(torch.cat([x, x], 1))


class Captioner(torch.nn.Module):
    """Has its own generate, in which another model calls itself for every token."""

    def __init__(self) -> None:
        super().__init__()
        self.vision, self.language_model = torch.nn.Linear(4, 4), Model()

    def prepare_inputs_for_generation(self) -> None:
        raise AssertionError("never called")

    def forward(self, x: Any) -> Any:
        return self.language_model(self.vision(x))

    def generate(self, x: Any) -> Any:
        return self.language_model.generate(self.vision(x))


@pytest.mark.parametrize(("steps", "step"), [(4, None), (4, 3), (20, "last")])
def test_the_model_of_the_loop_is_the_one_with_the_most_calls(
    tmp_path: Path, steps: int, step: Any
) -> None:
    signature = signature_of("image", x=torch.zeros(1, 4), num_steps=steps)

    result = harness(Guided().generate_image, signature, tmp_path, step=step).profile()

    counts = {row["name"]: row["count"] for row in result.breakdown["top_kernels"]}
    assert (counts["aten::addmm"], counts["aten::sigmoid"]) == (1, 1)
    assert result.step["number"] == {None: 2, 3: 3, "last": 5}[step]
    assert "decode step" not in result.iteration


def test_a_generate_that_calls_another_model_is_run_one_token_at_a_time(tmp_path: Path) -> None:
    signature = signature_of("caption", x=torch.zeros(1, 4))
    result = harness(Captioner().eval().generate, signature, tmp_path).profile()

    counts = {row["name"]: row["count"] for row in result.breakdown["top_kernels"]}
    assert result.adapter == "generate"
    assert counts["aten::addmm"] == 1
    assert "Model.forward" in result.iteration


class Compiled:
    """Its models are a scripted, a traced and a plain module."""

    def __init__(self) -> None:
        self.scripted = torch.jit.script(torch.nn.ReLU())
        self.traced = torch.jit.trace(torch.nn.ReLU(), torch.ones(2))
        self.plain = torch.nn.ReLU()

    def generate(self, x: Any) -> Any:
        for _ in range(4):
            x = self.plain(self.traced(self.scripted(x)))
        return x


class OnlyScripted(Compiled):
    def __init__(self) -> None:
        super().__init__()
        self.plain = self.scripted


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize(("kind", "adapter"), [(Compiled, "generate"), (OnlyScripted, "call")])
def test_scripted_and_traced_models_are_replayed(tmp_path: Path, kind: Any, adapter: str) -> None:
    # GIVEN modules of torch.jit, which do not support hooks of Python
    signature = signature_of("s", x=torch.ones(2))

    result = harness(kind().generate, signature, tmp_path, timing_steps=2).profile()

    # THEN the loop is that of the plain module, if there is one
    assert result.adapter == adapter
    assert result.step is None or result.step["number"] == 2
