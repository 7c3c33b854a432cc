"""Small stages, and harnesses for them, for the tests in this folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from stagespan.harness import HarnessConfig, StageBenchHarness
from stagespan.signature import StageSignature, capture


class Mlp(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(32, 64)
        self.second = torch.nn.Linear(64, 32)

    def forward(self, x: Any, scale: float = 1.0) -> Any:
        return self.second(torch.relu(self.first(x))) * scale


def signature_of(name: str = "mlp", **inputs: Any) -> StageSignature:
    return StageSignature(name, {key: capture(value) for key, value in inputs.items()})


def harness(
    stage: Any, signature: StageSignature, folder: Path, **config: Any
) -> StageBenchHarness:
    settings = {"warmup": 1, "timing_steps": 3, "output_dir": folder, **config}
    return StageBenchHarness(signature, stage, HarnessConfig(**settings))


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
    """Does one matrix product before its loop, and as many as the step's number in each step."""

    last_begun = 0  # of the class, because a replay restores what runs change in the stage

    def __init__(self) -> None:
        self.scheduler = Scheduler()

    def process(self, latents: Any, num_inference_steps: int = 8) -> Any:
        latents = latents @ latents
        self.scheduler.set_timesteps(num_inference_steps)
        for number, timestep in enumerate(self.scheduler.timesteps, start=1):
            type(self).last_begun = number
            noise = latents
            for _ in range(number):
                noise = noise @ latents
            latents = self.scheduler.step(noise, timestep, latents)
        return latents


def products(result: Any) -> int:
    """Return the number of matrix products in the profiled interval."""
    counts = {row["name"]: row["count"] for row in result["breakdown"]["top_kernels"]}
    return int(counts.get("aten::mm", 0))


LATENTS = torch.zeros(4, 4)
