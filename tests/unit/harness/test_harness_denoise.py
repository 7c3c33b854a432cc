"""One step of a denoising loop, compared with the loops that it represents."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from stagespan.harness.standalone.fit import ReplayError

torch = pytest.importorskip("torch")

from stagespan.harness.standalone.denoise import DenoiseStep  # noqa: E402


class FlowScheduler:
    """A scheduler like those of TeleFuser: a shift, no dictionaries, tensors in and out."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, float | None]] = []

    def set_timesteps(self, num_inference_steps: int, shift: float | None = None) -> None:
        self.calls.append((num_inference_steps, shift))
        self.timesteps = torch.linspace(1000.0, 500.0, num_inference_steps)

    def step(self, noise: Any, timestep: Any, sample: Any) -> Any:
        return sample - 0.5 * noise


class Dit(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(6, 6)
        self.seen: list[dict[str, Any]] = []

    def forward(self, x: Any, timestep: Any, context: Any, clip_feature: Any = None) -> Any:
        self.seen.append({"x": x, "timestep": timestep, "context": context, "clip": clip_feature})
        return self.layer(x) + context.mean()


@pytest.fixture
def stage() -> Any:
    torch.manual_seed(0)
    return SimpleNamespace(dit=Dit(), scheduler=FlowScheduler())


def inputs(**more: Any) -> dict[str, Any]:
    made = {
        "latents": torch.randn(1, 6),
        "prompt_emb_posi": torch.randn(1, 4),
        "prompt_emb_nega": torch.randn(1, 4),
        "cfg_scale": 5.0,
        "sigma_shift": 8.0,
        "num_inference_steps": 40,
    }
    return {**made, **more}


def test_a_stage_with_dit_runs_as_telefuser_says(stage: Any) -> None:
    # GIVEN the inputs of TeleFuser's page
    given = inputs()

    step = DenoiseStep(stage, given)
    result = step()

    # THEN the scheduler was set to two steps with the shift, its first timestep was taken, the
    # model ran with both prompts, and one step of the scheduler followed
    assert step.scheduler.calls[-1] == (2, 8.0)
    first, second = stage.dit.seen
    assert torch.equal(first["context"], given["prompt_emb_posi"])
    assert torch.equal(second["context"], given["prompt_emb_nega"])
    assert first["timestep"].tolist() == [1000.0]
    positive, negative = (
        stage.dit.layer(given["latents"]) + given[name].mean()
        for name in ("prompt_emb_posi", "prompt_emb_nega")
    )
    expected = given["latents"] - 0.5 * (negative + 5.0 * (positive - negative))
    torch.testing.assert_close(result, expected.detach())
    assert not result.requires_grad


def test_without_guidance_the_model_runs_once(stage: Any) -> None:
    DenoiseStep(stage, inputs(cfg_scale=1.0))()
    DenoiseStep(stage, inputs(prompt_emb_nega=None))()

    assert len(stage.dit.seen) == 2


def test_other_arguments_of_forward_are_passed_by_name(stage: Any) -> None:
    feature = torch.ones(1)

    DenoiseStep(stage, inputs(clip_feature=feature))()

    assert stage.dit.seen[0]["clip"] is feature


def test_reference_latents_are_joined_along_the_channels(stage: Any) -> None:
    stage.dit.layer = torch.nn.Linear(12, 6)

    DenoiseStep(stage, inputs(ref_latent=torch.randn(1, 6)))()

    assert stage.dit.seen[0]["x"].shape == (1, 12)


def test_prompts_joined_into_one_batch_are_split(stage: Any) -> None:
    # GIVEN both prompts in one tensor, as in Stable Diffusion
    given = inputs(prompt_emb_posi=torch.randn(2, 4), prompt_emb_nega=None)

    result = DenoiseStep(stage, given)()

    # THEN the model got the latents twice, and the result is for one
    assert stage.dit.seen[0]["x"].shape == (2, 6)
    assert result.shape == (1, 6)


def test_the_stages_own_prediction_is_used_if_it_has_one(stage: Any) -> None:
    seen = {}

    def predict_noise_with_cfg(
        latents: Any, timestep: Any, prompt_emb_posi: Any, cfg_scale: float, sparse: Any = None
    ) -> Any:
        seen.update(timestep=timestep, cfg_scale=cfg_scale)
        return torch.ones_like(latents)

    stage.predict_noise_with_cfg = predict_noise_with_cfg
    given = inputs()

    result = DenoiseStep(stage, given)()

    torch.testing.assert_close(result, given["latents"] - 0.5)
    assert (seen["timestep"].shape, seen["cfg_scale"]) == ((1,), 5.0)


def test_the_stages_scheduler_is_not_changed(stage: Any) -> None:
    stage.scheduler.set_timesteps(40, 3.0)

    DenoiseStep(stage, inputs())()

    assert stage.scheduler.calls == [(40, 3.0)]
    assert len(stage.scheduler.timesteps) == 40


def test_an_input_that_the_model_needs_is_named(stage: Any) -> None:
    given = {"latents": torch.randn(1, 6), "num_inference_steps": 3}

    with pytest.raises(ReplayError) as caught:
        DenoiseStep(stage, given)

    assert "needs 'context'" in str(caught.value)


@pytest.fixture(scope="module")
def wan() -> Any:
    diffusers = pytest.importorskip("diffusers")
    torch.manual_seed(0)
    return diffusers.WanTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=16,
        in_channels=4,
        out_channels=4,
        text_dim=8,
        freq_dim=16,
        ffn_dim=32,
        num_layers=1,
        rope_max_seq_len=16,
    ).eval()


@pytest.mark.parametrize(
    "name",
    [
        "FlowMatchEulerDiscreteScheduler",
        "UniPCMultistepScheduler",
        "DPMSolverMultistepScheduler",
        "EulerDiscreteScheduler",
        "EulerAncestralDiscreteScheduler",
        "DDIMScheduler",
        "DDPMScheduler",
        "PNDMScheduler",
        "LCMScheduler",
        "HeunDiscreteScheduler",
        "FlowMatchHeunDiscreteScheduler",
    ],
)
def test_diffusers_schedulers_run_and_every_iteration_is_the_same(wan: Any, name: str) -> None:
    import diffusers

    holder = SimpleNamespace(transformer=wan, scheduler=getattr(diffusers, name)())
    given = {
        "latents": torch.randn(1, 4, 2, 4, 4),
        "prompt_embeds": torch.randn(1, 5, 8),
        "negative_prompt_embeds": torch.randn(1, 5, 8),
        "guidance_scale": 4.0,
    }
    step = DenoiseStep(holder, given)

    results = []
    for _ in range(2):
        torch.manual_seed(0)
        step.reset()
        results.append(step())

    assert results[0].shape == given["latents"].shape
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], given["latents"])
    assert torch.isfinite(results[0]).all()


def test_one_step_equals_the_first_of_wans_own_pipeline(wan: Any) -> None:
    import diffusers

    pipeline = diffusers.WanPipeline(
        tokenizer=None,
        text_encoder=None,
        vae=None,
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0),
        transformer=wan,
    )
    pipeline.set_progress_bar_config(disable=True)
    given = {
        "latents": torch.randn(1, 4, 2, 4, 4),
        "prompt_embeds": torch.randn(1, 5, 8),
        "negative_prompt_embeds": torch.randn(1, 5, 8),
        "guidance_scale": 4.0,
    }
    after_first = []

    def keep(pipe: Any, index: int, timestep: Any, values: dict[str, Any]) -> dict[str, Any]:
        if index == 0:
            after_first.append(values["latents"].clone())
        return {}

    pipeline(
        **given,
        num_inference_steps=2,
        num_frames=5,
        height=32,
        width=32,
        output_type="latent",
        callback_on_step_end=keep,
    )

    result = DenoiseStep(pipeline, given)()

    torch.testing.assert_close(result, after_first[0])


def test_unet_pipelines_run_too() -> None:
    diffusers = pytest.importorskip("diffusers")
    unet = diffusers.UNet2DConditionModel(
        sample_size=8,
        block_out_channels=(8, 16),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=8,
        attention_head_dim=2,
        norm_num_groups=2,
    ).eval()
    holder = SimpleNamespace(unet=unet, scheduler=diffusers.EulerDiscreteScheduler())
    given = {
        "latents": torch.randn(1, 4, 8, 8),
        "prompt_embeds": torch.randn(2, 5, 8),
        "guidance_scale": 7.5,
    }

    result = DenoiseStep(holder, given)()

    assert result.shape == (1, 4, 8, 8)
