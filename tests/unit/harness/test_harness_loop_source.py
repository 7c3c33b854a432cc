"""The script shows the loop of the stage, with the lines of one iteration marked."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from stagespan.harness import HarnessConfig, StageBenchHarness
from stagespan.signature import StageSignature, capture

torch = pytest.importorskip("torch")

STAGES = '''
import torch


class Scheduler:
    def set_timesteps(self, count):
        self.timesteps = torch.linspace(1000, 1, count)

    def step(self, noise, timestep, sample):
        return sample - noise


class Stage:
    def __init__(self):
        self.dit, self.scheduler = torch.nn.Linear(4, 4), Scheduler()


class Plain(Stage):
    @torch.inference_mode()
    def process(self, latents, num_inference_steps=6):
        self.scheduler.set_timesteps(num_inference_steps)
        for timestep in self.scheduler.timesteps:
            noise = self.dit(latents)  # plain
            latents = self.scheduler.step(noise, timestep, latents)
        return latents


class Helpers(Stage):
    """Its loop is in one method, and the call of the scheduler in another one."""

    def process(self, latents, num_inference_steps=6):
        for _ in range(1):
            latents = self.denoise(latents, num_inference_steps)
        return latents

    def denoise(self, latents, count):
        self.scheduler.set_timesteps(count)
        steps = iter(self.scheduler.timesteps)
        while (timestep := next(steps, None)) is not None:
            noise = self.dit(latents)  # helpers
            latents = self.advance(noise, timestep, latents)
        return latents

    def advance(self, noise, timestep, latents):
        return self.scheduler.step(noise, timestep, latents)


class Long(Stage):
    def process(self, latents, num_inference_steps=6):
        self.scheduler.set_timesteps(num_inference_steps)
        for timestep in self.scheduler.timesteps:
            latents = self.scheduler.step(self.dit(latents.to(torch.float32)), timestep.to(torch.float32), latents)
        return latents


class Generated(Stage):
    """Its method comes from no file."""

    exec("""
def process(self, latents, num_inference_steps=6):
    self.scheduler.set_timesteps(num_inference_steps)
    for timestep in self.scheduler.timesteps:
        latents = self.scheduler.step(self.dit(latents), timestep, latents)
    return latents
""")


class Whole:
    def process(self, latents, num_inference_steps=6):
        for _ in range(2):
            latents = latents + 1
        return latents
'''  # noqa: E501


@pytest.fixture
def stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "loops_of_stages.py").write_text(STAGES)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("loops_of_stages")
    sys.modules.pop("loops_of_stages", None)


def comment_of(stage: Any, folder: Path) -> list[str]:
    """Return the comment above `make_step` in the script of a stage."""
    given = {"latents": capture(torch.zeros(2, 4)), "num_inference_steps": 6}
    config = HarnessConfig(warmup=1, timing_steps=1, output_dir=folder)
    result = StageBenchHarness(StageSignature("denoise", given), stage, config).profile()
    lines = result.script_path.read_text().splitlines()
    end = begin = lines.index("def make_step(")
    while lines[begin - 1].startswith("#"):
        begin -= 1
    return lines[begin:end]


def numbers_of(*texts: str) -> list[int]:
    """Return the numbers of the lines of `STAGES` that contain these texts."""
    rows = STAGES.splitlines()
    return [next(at for at, row in enumerate(rows, 1) if text in row) for text in texts]


@pytest.mark.parametrize(
    ("name", "where", "header", "body"),
    [
        ("Plain", "process", "for timestep in", ("# plain", "self.scheduler.step(noise")),
        ("Helpers", "denoise", "while (timestep", ("# helpers", "self.advance(")),
    ],
)
def test_the_loop_that_ran_is_shown(
    stages: ModuleType, tmp_path: Path, name: str, where: str, header: str, body: tuple[str, ...]
) -> None:
    title, blank, *rows = comment_of(getattr(stages, name)(), tmp_path / "out")

    first, *others = numbers_of(header, *body)
    assert f"{where} in loops_of_stages.py, lines {first} to {others[-1]}:" in title
    assert blank == "#"
    found = [re.fullmatch(r"# ([> ]) +(\d+)  (.*)", row) for row in rows]
    assert [(row[1], int(row[2])) for row in found if row] == [
        (" ", first),
        *((">", number) for number in others),
    ]
    for row in found:
        assert row is not None
        assert row[3].strip() == STAGES.splitlines()[int(row[2]) - 1].strip()


def test_a_long_line_is_shown_whole(stages: ModuleType, tmp_path: Path) -> None:
    (number,) = numbers_of("timestep.to(torch.float32)")
    _, _, _, *rows = comment_of(stages.Long(), tmp_path)
    assert rows[0].startswith(f"# > {number}  ")
    assert len(rows) > 1
    assert all(len(row) <= 100 and row.startswith("# >") for row in rows)
    words = " ".join(row.removeprefix("# >") for row in rows).split()
    assert words[1:] == STAGES.splitlines()[number - 1].split()


def test_a_model_and_a_scheduler_without_source(stages: ModuleType, tmp_path: Path) -> None:
    marked = [row for row in comment_of(stages.Generated(), tmp_path) if row.startswith("# > ")]
    assert marked[-1].startswith("# > latents = scheduler.step(dit(latents, timestep")


def test_a_whole_call_has_no_loop_to_show(stages: ModuleType, tmp_path: Path) -> None:
    # GIVEN a stage without a scheduler, in a program that is itself in a loop
    for _ in range(1):
        assert comment_of(stages.Whole(), tmp_path) == []
