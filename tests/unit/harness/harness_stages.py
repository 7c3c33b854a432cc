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
