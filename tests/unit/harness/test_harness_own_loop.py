"""One step of the stage's own loop: between two returns of its scheduler, or of its model."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from stagespan.errors import HarnessError

torch = pytest.importorskip("torch")

from harness_stages import harness, signature_of  # noqa: E402


class Scheduler:
    def __init__(self) -> None:
        self.timesteps = torch.zeros(0)
        self.history: list[int] = []

    def set_timesteps(self, count: int) -> None:
        self.timesteps = torch.linspace(1000, 1, count)

    def step(self, noise: Any, timestep: Any, sample: Any) -> Any:
        self.history.append(len(self.history))
        return sample - noise


class Denoiser:
    """Does one matrix product before its loop, and as many as the step's number within it."""

    def __init__(self) -> None:
        self.scheduler = Scheduler()
        self.begun: list[int] = []

    def process(self, latents: Any, num_inference_steps: int = 8) -> Any:
        latents = latents @ latents
        self.scheduler.set_timesteps(num_inference_steps)
        for number, timestep in enumerate(self.scheduler.timesteps, start=1):
            self.begun.append(number)
            noise = latents
            for _ in range(number):
                noise = noise @ latents
            latents = self.scheduler.step(noise, timestep, latents)
        return latents


class Wrapped:
    """Holds the denoiser within something else, and calls it by another name."""

    def __init__(self) -> None:
        self.parts = {"inner": Denoiser()}

    def run(self, **named: Any) -> Any:
        return self.parts["inner"].process(**named)


def products(result: Any) -> int:
    """Matrix products in the profiled interval."""
    counts = {row["name"]: row["count"] for row in result["breakdown"]["top_kernels"]}
    return int(counts.get("aten::mm", 0))


LATENTS = torch.zeros(4, 4)


@pytest.mark.parametrize(
    ("step", "number", "of"),
    [
        (None, 2, 8),
        ("second", 2, 8),
        (5, 5, 8),
        ("7", 7, 8),
        ("first", 1, 8),
        ("middle", 3, 5),
        ("last", 5, 5),
    ],
)
def test_the_wanted_step_is_timed_and_profiled(
    tmp_path: Path, step: Any, number: int, of: int
) -> None:
    # GIVEN a stage whose steps can be told apart by what they run
    stage = Denoiser()
    signature = signature_of("denoise", latents=LATENTS, num_inference_steps=8)

    # WHEN
    result = harness(stage, signature, tmp_path, step=step).profile()

    # THEN the profile holds this very step, and the loop was left behind it
    assert products(result) == number
    assert result.adapter == "loop"
    assert (result.step["number"], result.step["of"]) == (number, of)
    assert stage.begun[-1] == number
    assert f"step {number} of {of} of Denoiser.process's own loop" in result.iteration
    # AND the very first run is told apart, also where the warm-up came after it
    assert result.warmup["first_ms"] > 0
    # AND fewer steps were run for one that is far away, which is said
    assert result.step["run_with"] == ({} if of == 8 else {"num_inference_steps": 5})
    assert ("num_inference_steps=5 instead of 8" in result.iteration) == (of == 5)


def test_following_steps_are_profiled_together(tmp_path: Path) -> None:
    # GIVEN / WHEN
    stage = Denoiser()
    signature = signature_of("denoise", latents=LATENTS, num_inference_steps=3)
    two = harness(stage, signature, tmp_path, profile_steps=2).profile()
    five = harness(stage, signature, tmp_path, profile_steps=5).profile()

    # THEN steps 2 and 3, and all that there are
    assert (products(two), two.breakdown["profile_steps"]) == (2 + 3, 2)
    assert (products(five), five.breakdown["profile_steps"]) == (1 + 2 + 3, 3)


def test_the_scheduler_is_left_as_it_was(tmp_path: Path) -> None:
    # GIVEN a scheduler in the middle of a loop of the program's own
    stage = Denoiser()
    stage.scheduler.set_timesteps(40)
    stage.scheduler.history.append(7)
    original = Scheduler.step

    # WHEN
    harness(stage, signature_of("denoise", latents=LATENTS), tmp_path).profile()

    # THEN
    assert stage.scheduler.history == [7]
    assert len(stage.scheduler.timesteps) == 40
    assert Scheduler.step is original
    assert "step" not in vars(stage.scheduler)


def make_local_scheduler(latents: Any, steps: int = 4) -> Any:
    scheduler = Scheduler()
    scheduler.set_timesteps(steps)
    for timestep in scheduler.timesteps:
        latents = scheduler.step(latents @ latents, timestep, latents)


def test_schedulers_are_found_where_the_stage_has_them(tmp_path: Path) -> None:
    # GIVEN schedulers deep in the stage, made in the function, held by a closure, replaced on the
    # instance by a compiled step
    inner = Denoiser()
    replaced = Denoiser()
    replaced.scheduler.step = Scheduler().step  # type: ignore[method-assign]

    def closure(latents: Any) -> Any:
        return inner.process(latents)

    def swallows(latents: Any) -> Any:
        try:
            return inner.process(latents)
        except BaseException:
            return None

    # WHEN / THEN
    for stage in (Wrapped().run, make_local_scheduler, closure, swallows, replaced):
        result = harness(stage, signature_of("s", latents=LATENTS), tmp_path).profile()
        assert result.adapter == "loop", stage
        assert result.step["number"] == 2


def test_a_loop_of_one_step_is_run_whole(tmp_path: Path) -> None:
    # GIVEN / WHEN
    signature = signature_of("s", latents=LATENTS, num_inference_steps=1)
    result = harness(Denoiser(), signature, tmp_path).profile()

    # THEN
    assert (result.step["number"], result.step["of"], products(result)) == (1, 1, 1)


def test_a_stage_that_never_calls_its_scheduler_is_called_whole(tmp_path: Path) -> None:
    # GIVEN a method beside the loop
    class Pipe(Denoiser):
        def decode(self, latents: Any) -> Any:
            return latents @ latents

    # WHEN
    result = harness(Pipe().decode, signature_of("decode", latents=LATENTS), tmp_path).profile()

    # THEN the whole call is run, and said to be
    assert result.adapter == "call"
    assert products(result) == 1
    assert result.iteration.startswith("one whole call of ")
    said = {answer.adapter: answer for answer in result.answers}
    assert not said["loop"].fits
    assert "never called Scheduler.step" in said["loop"].reason
    assert said["call"].fits


@pytest.mark.parametrize("step", ["last", 3])
def test_a_step_that_there_is_not_is_told_in_one_sentence(tmp_path: Path, step: Any) -> None:
    # GIVEN a stage that never calls its scheduler, one without a scheduler, and a shorter loop
    class Pipe(Denoiser):
        def decode(self, latents: Any) -> Any:
            return latents

    signature = signature_of("s", latents=LATENTS)

    # WHEN / THEN
    with pytest.raises(HarnessError, match=r"never called Scheduler\.step"):
        harness(Pipe().decode, signature, tmp_path, step=step).profile()
    with pytest.raises(HarnessError, match="has no loop to take step"):
        harness(lambda latents: latents, signature, tmp_path, step=step).profile()
    with pytest.raises(HarnessError, match="ended after 8 step"):
        harness(Denoiser(), signature, tmp_path, step=9).profile()
    with pytest.raises(HarnessError, match="step='third'"):
        harness(Denoiser(), signature, tmp_path, step="third")


def test_the_whole_call_can_be_asked_for(tmp_path: Path) -> None:
    # GIVEN / WHEN
    signature = signature_of("s", latents=LATENTS, num_inference_steps=2)
    result = harness(Denoiser(), signature, tmp_path, step="whole").profile()

    # THEN
    assert (result.adapter, products(result)) == ("call", 1 + 1 + 2)


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

    # WHEN
    result = harness(
        function, signature_of("generate", x=torch.zeros(1, 4)), tmp_path, step=step
    ).profile()

    # THEN one forward was profiled
    counts = {row["name"]: row["count"] for row in result.breakdown["top_kernels"]}
    assert result.adapter == "generate"
    assert counts["aten::addmm"] == (2 if step == "first" and "Engine" in result.iteration else 1)
    assert "Model.forward" in result.iteration
    assert ("prefill" in result.iteration) == (step == "first")
    assert ("aten::cat" in counts) == (rows == 10)


def test_the_script_runs_the_same_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a script of a step of a loop
    (tmp_path / "loop_stage.py").write_text(
        f"import torch\nfrom typing import Any\n{_source(Scheduler)}\n{_source(Denoiser)}"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("loop_stage", None)
    path = harness(Denoiser(), signature_of("s", latents=LATENTS), tmp_path, step=3).profile()
    capsys.readouterr()

    # WHEN it runs as it is, and with another step
    for arguments, number, of in (((), 3, 8), (("--step", "last"), 8, 8)):
        argv = [str(path.script_path), "--factory", "loop_stage:Denoiser", "--timing-steps", "2"]
        monkeypatch.setattr(sys, "argv", [*argv, *arguments])
        with pytest.raises(SystemExit) as left:
            runpy.run_path(str(path.script_path), run_name="__main__")
        told = capsys.readouterr().out

        # THEN
        assert left.value.code == 0
        assert f" step {number} of {of} of Denoiser.process" in told
        rows = [line.split() for line in told.splitlines() if line.endswith("aten::mm")]
        assert [int(row[2]) for row in rows] == [number]


def _source(kind: type) -> str:
    import inspect

    return inspect.getsource(kind)


def tiny_sd3() -> Any:
    diffusers = pytest.importorskip("diffusers")
    transformer = diffusers.SD3Transformer2DModel(
        sample_size=8, patch_size=2, in_channels=4, num_layers=1, attention_head_dim=8,
        num_attention_heads=2, joint_attention_dim=8, caption_projection_dim=16,
        pooled_projection_dim=8, out_channels=4,
    ).eval()  # fmt: skip
    pipe = diffusers.StableDiffusion3Pipeline(
        transformer=transformer, scheduler=diffusers.FlowMatchEulerDiscreteScheduler(), vae=None,
        text_encoder=None, tokenizer=None, text_encoder_2=None, tokenizer_2=None,
        text_encoder_3=None, tokenizer_3=None,
    )  # fmt: skip
    pipe.set_progress_bar_config(disable=True)
    return pipe


def test_a_guided_pipeline_of_diffusers_is_run_as_its_own_loop_runs(tmp_path: Path) -> None:
    # GIVEN a pipeline that joins both prompts into one batch, called without latents
    pipe = tiny_sd3()
    signature = signature_of(
        "pipe",
        prompt_embeds=torch.zeros(1, 5, 8), negative_prompt_embeds=torch.zeros(1, 5, 8),
        pooled_prompt_embeds=torch.zeros(1, 8), negative_pooled_prompt_embeds=torch.zeros(1, 8),
        height=64, width=64, num_inference_steps=4, guidance_scale=5.0, output_type="pt",
    )  # fmt: skip

    # WHEN
    result = harness(pipe, signature, tmp_path).profile()

    # THEN the transformer ran once: one attention of its one layer
    counts = {row["name"]: row["count"] for row in result.breakdown["top_kernels"]}
    assert counts["aten::scaled_dot_product_attention"] == 1
    assert (result.adapter, result.step["number"], result.step["of"]) == ("loop", 2, 4)
    assert "StableDiffusion3Pipeline.__call__" in result.iteration


def test_transformers_generate_is_run_one_token_at_a_time(tmp_path: Path) -> None:
    # GIVEN a language model of two layers
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, vocab_size=50, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    signature = signature_of(
        "generate", input_ids=torch.ones(1, 70, dtype=torch.long), max_new_tokens=5
    )

    # WHEN
    prefill = harness(model.generate, signature, tmp_path, step="first").profile()
    decode = harness(model.generate, signature, tmp_path).profile()

    # THEN both run each layer's attention once
    for result in (prefill, decode):
        counts = {row["name"]: row["count"] for row in result.breakdown["top_kernels"]}
        assert counts["aten::scaled_dot_product_attention"] == 2
    assert "prefill" in prefill.iteration
    assert "decode step" in decode.iteration
