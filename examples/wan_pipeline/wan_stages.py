"""The stages of a Wan text-to-video pipeline, each timed in debug mode.

The stages also work where stagespan is not installed: then they are simply not timed.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from diffusers import WanPipeline
from wan_models import build_pipeline

try:
    from stagespan import ProfilingContext4Debug
except ImportError:

    class ProfilingContext4Debug(contextlib.ContextDecorator):  # type: ignore[no-redef]
        """A replacement for stagespan's context that does nothing."""

        def __init__(self, name: str) -> None:
            self.name = name

        def __enter__(self) -> None:
            return None

        def __exit__(self, *error: object) -> None:
            return None


class TextEncodingStage:
    """Prompts to embeddings."""

    def __init__(self, pipeline: WanPipeline) -> None:
        self.tokenizer = pipeline.tokenizer
        self.text_encoder = pipeline.text_encoder

    @ProfilingContext4Debug("text_encoding")
    @torch.inference_mode()
    def process(self, prompts: list[str], max_sequence_length: int = 64) -> torch.Tensor:
        """Embed each prompt, padded with zeros to the longest length: [prompts, tokens, width]."""
        with ProfilingContext4Debug("tokenization"):
            tokens = self.tokenizer(
                prompts,
                padding="max_length",
                max_length=max_sequence_length,
                truncation=True,
                return_tensors="pt",
            ).to(self.text_encoder.device)
        with ProfilingContext4Debug("embedding"):
            mask = tokens.attention_mask
            embeddings = self.text_encoder(tokens.input_ids, mask).last_hidden_state
            return embeddings * mask.unsqueeze(-1)


class DenoiseStage:
    """Noise to latents, in the pipeline's own loop with a pair of transformer calls per step."""

    def __init__(self, pipeline: WanPipeline) -> None:
        self.pipeline = pipeline
        # A stage with `transformer` and `scheduler` can be replayed one step at a time.
        self.transformer = pipeline.transformer
        self.scheduler = pipeline.scheduler

    @ProfilingContext4Debug("denoise")
    @torch.inference_mode()
    def process(
        self,
        latents: torch.Tensor,
        prompt_embeds: torch.Tensor,
        negative_prompt_embeds: torch.Tensor,
        num_inference_steps: int = 8,
        guidance_scale: float = 5.0,
    ) -> torch.Tensor:
        """Run all steps; latents are [batch, channels, frames, height, width]."""
        spatial = self.pipeline.vae_scale_factor_spatial
        temporal = self.pipeline.vae_scale_factor_temporal
        return self.pipeline(
            latents=latents,
            prompt_embeds=prompt_embeds,
            negative_prompt_embeds=negative_prompt_embeds,
            num_frames=(latents.shape[2] - 1) * temporal + 1,
            height=latents.shape[3] * spatial,
            width=latents.shape[4] * spatial,
            num_inference_steps=num_inference_steps,
            guidance_scale=guidance_scale,
            output_type="latent",
        ).frames


class VAEDecodeStage:
    """Latents to frames."""

    def __init__(self, pipeline: WanPipeline) -> None:
        self.vae = pipeline.vae
        self.video_processor = pipeline.video_processor

    @ProfilingContext4Debug("vae_decode")
    @torch.inference_mode()
    def process(self, latents: torch.Tensor) -> torch.Tensor:
        """Decode to frames between 0 and 1: [batch, frames, 3, height, width]."""
        shape = (1, self.vae.config.z_dim, 1, 1, 1)
        mean, deviation = (
            torch.tensor(values, device=latents.device).view(shape)
            for values in (self.vae.config.latents_mean, self.vae.config.latents_std)
        )
        video = self.vae.decode(latents * deviation + mean, return_dict=False)[0]
        return self.video_processor.postprocess_video(video, output_type="pt")


class WanStages:
    """The whole pipeline: text to video."""

    def __init__(self, seed: int = 0) -> None:
        self.pipeline = build_pipeline(seed)
        self.text_encoding_stage = TextEncodingStage(self.pipeline)
        self.denoise_stage = DenoiseStage(self.pipeline)
        self.vae_decode_stage = VAEDecodeStage(self.pipeline)

    def __call__(
        self,
        prompt: str,
        negative_prompt: str = "",
        frames: int = 9,
        height: int = 128,
        width: int = 128,
        num_inference_steps: int = 8,
        guidance_scale: float = 5.0,
        seed: int = 0,
    ) -> torch.Tensor:
        """Make a video: [1, frames, 3, height, width], values between 0 and 1."""
        latents = self.pipeline.prepare_latents(
            batch_size=1,
            num_channels_latents=self.pipeline.transformer.config.in_channels,
            height=height,
            width=width,
            num_frames=frames,
            dtype=torch.float32,
            device=self.pipeline.transformer.device,
            generator=torch.Generator().manual_seed(seed),
        )
        embeddings = self.text_encoding_stage.process([prompt, negative_prompt])
        latents = self.denoise_stage.process(
            latents,
            prompt_embeds=embeddings[:1],
            negative_prompt_embeds=embeddings[1:],
            num_inference_steps=num_inference_steps,
            guidance_scale=guidance_scale,
        )
        return self.vae_decode_stage.process(latents)


def get_pipeline() -> WanStages:
    """The pipeline, for commands that load it by name."""
    return WanStages()


def get_denoise_stage() -> Any:
    """The denoising stage alone, as `--factory wan_stages:get_denoise_stage` loads it."""
    return get_pipeline().denoise_stage
