"""Each run of a step of the stage's own loop begins with the original state of the stage."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from harness_stages import LATENTS, Denoiser, Scheduler, harness, products, signature_of  # noqa: E402


class Features:
    """Content that a cache of features keeps between steps."""

    def __init__(self) -> None:
        self.count = 0
        self.kept: Any = None


class CachedDenoiser:
    """Calls its model in every second step of a request, and keeps the result for the next."""

    def __init__(self) -> None:
        self.scheduler = Scheduler()
        self.model = torch.nn.Module()
        self.model.features = {}  # by request, as in the hooks of diffusers
        self.table: Any = None
        self.requests: list[int] = []

    def process(self, latents: Any, num_inference_steps: int = 7) -> Any:
        if self.table is None:  # created once, for any number of requests
            self.table = latents @ latents @ latents @ latents
        self.requests.append(num_inference_steps)
        features = self.model.features.setdefault("cond", Features())
        self.scheduler.set_timesteps(num_inference_steps)
        for timestep in self.scheduler.timesteps:
            if features.count % 2 == 0:
                features.kept = latents @ self.table
            features.count += 1
            latents = self.scheduler.step(features.kept, timestep, latents)
        self.model.features.clear()
        return latents


@pytest.mark.parametrize(("step", "expected"), [(2, 0), (3, 1), (4, 0), (5, 1)])
@pytest.mark.parametrize("timing_steps", [1, 2])
def test_every_run_begins_with_the_original_state_of_the_stage(
    tmp_path: Path, step: int, expected: int, timing_steps: int
) -> None:
    # GIVEN a stage that has run once, and counts its steps until a request has ended
    stage = CachedDenoiser()
    stage.process(LATENTS)
    table = stage.table

    signature = signature_of("denoise", latents=LATENTS)
    result = harness(stage, signature, tmp_path, step=step, timing_steps=timing_steps).profile()

    assert products(result) == expected
    assert stage.model.features == {}
    assert stage.requests == [7]
    assert stage.table is table
    script = runpy.run_path(str(result.script_path))["profile_stage"]
    script(stage, timing_steps=timing_steps, output_dir=tmp_path)
    assert stage.model.features == {}


class CountsBlocks(Denoiser):
    """Counts the steps of its many blocks, and never resets them."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = [0] * 100

    def process(self, latents: Any, num_inference_steps: int = 8) -> Any:
        self.counts[:] = [count + 1 for count in self.counts]
        return super().process(latents, num_inference_steps)


def test_a_long_list_of_a_stage_is_restored_by_harness_and_script(tmp_path: Path) -> None:
    stage = CountsBlocks()

    result = harness(stage, signature_of("denoise", latents=LATENTS), tmp_path).profile()
    by_harness = set(stage.counts)
    script = runpy.run_path(str(result.script_path))["profile_stage"]
    script(stage, timing_steps=2, output_dir=tmp_path)

    assert by_harness == {0}
    assert set(stage.counts) == {0}


def test_objects_that_a_stage_creates_once_are_not_created_in_each_run(tmp_path: Path) -> None:
    stage = CachedDenoiser()

    signature = signature_of("denoise", latents=LATENTS)
    result = harness(stage, signature, tmp_path, step="first").profile()

    assert stage.table is not None
    assert products(result) == 1


class Unbound:
    """A proxy without an object, such as that of a web request outside of a request."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(f"there is no request, and so no {name}")


class Immutable(dict):  # type: ignore[type-arg]
    """Refuses changes after it has been made, like the configuration of diffusers."""

    def __setitem__(self, key: Any, value: Any) -> None:
        raise TypeError("the configuration cannot be changed")


class Service(CachedDenoiser):
    """Refers to objects that cannot be examined or restored, and counts what it has run."""

    def __init__(self) -> None:
        super().__init__()
        self.request = Unbound()
        self.config = Immutable()
        self.counters = Features()

    def process(self, latents: Any, num_inference_steps: int = 7) -> Any:
        dict.__setitem__(self.config, "runs", self.config.get("runs", 0) + 1)
        self.counters.count += 1
        counters, self.counters = self.counters, Features()
        self.counters.count = counters.count
        return super().process(latents, num_inference_steps)


def test_objects_that_cannot_be_examined_or_restored_do_not_matter(tmp_path: Path) -> None:
    stage = Service()
    result = harness(stage, signature_of("s", latents=LATENTS), tmp_path, step=3).profile()
    assert products(result) == 1
    assert result.adapter == "loop"
    assert stage.requests == []


def test_an_object_that_is_changed_and_then_replaced_is_restored(tmp_path: Path) -> None:
    stage = Service()
    seen = []
    signature = signature_of("s", latents=LATENTS)

    made = harness(stage, signature, tmp_path, step=3, timing_steps=1)
    made.config.progress = lambda *_: seen.append(stage.counters.count)
    made.profile()
    later = len(seen)
    again = harness(stage, signature, tmp_path, step=3, timing_steps=8)
    again.config.progress = made.config.progress
    again.profile()

    assert len(set(seen[later + 3 :])) == 1
