"""One step of the stage's own loop: between two returns of its scheduler."""

from __future__ import annotations

import queue
import runpy
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from stagespan.errors import HarnessError

torch = pytest.importorskip("torch")

from harness_stages import LATENTS, Denoiser, Scheduler, harness, products, signature_of  # noqa: E402


class Wrapped:
    """Holds the denoiser in another object, and calls it by another name."""

    def __init__(self) -> None:
        self.parts = {"inner": Denoiser()}

    def run(self, **named: Any) -> Any:
        return self.parts["inner"].process(**named)


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
def test_the_chosen_step_is_timed_and_profiled(
    tmp_path: Path, step: Any, number: int, of: int
) -> None:
    stage = Denoiser()
    signature = signature_of("denoise", latents=LATENTS, num_inference_steps=8)

    result = harness(stage, signature, tmp_path, step=step).profile()

    assert products(result) == number
    assert result.adapter == "loop"
    assert (result.step["number"], result.step["of"]) == (number, of)
    assert stage.last_begun == number
    assert f"step {number} of {of} of Denoiser.process" in result.iteration
    # THEN the first run is reported separately, even if the warm-up came after it
    assert result.warmup["first_ms"] > 0
    assert result.step["run_with"] == ({} if of == 8 else {"num_inference_steps": 5})
    assert ("num_inference_steps=5" in result.iteration) == (of == 5)


def test_following_steps_are_profiled_together(tmp_path: Path) -> None:
    stage = Denoiser()
    signature = signature_of("denoise", latents=LATENTS, num_inference_steps=3)
    two = harness(stage, signature, tmp_path, profile_steps=2).profile()
    five = harness(stage, signature, tmp_path, profile_steps=5).profile()

    assert (products(two), two.breakdown["profile_steps"]) == (2 + 3, 2)
    assert (products(five), five.breakdown["profile_steps"]) == (1 + 2 + 3, 3)


def test_the_scheduler_is_not_changed(tmp_path: Path) -> None:
    # GIVEN a scheduler in the middle of the program's own loop
    stage = Denoiser()
    stage.scheduler.set_timesteps(40)
    stage.scheduler.history.append(7)
    original = Scheduler.step

    harness(stage, signature_of("denoise", latents=LATENTS), tmp_path).profile()

    assert stage.scheduler.history == [7]
    assert len(stage.scheduler.timesteps) == 40
    assert Scheduler.step is original
    assert "step" not in vars(stage.scheduler)


def make_local_scheduler(latents: Any, steps: int = 4) -> Any:
    scheduler = Scheduler()
    scheduler.set_timesteps(steps)
    for timestep in scheduler.timesteps:
        latents = scheduler.step(latents @ latents, timestep, latents)


def test_schedulers_are_found_anywhere_in_the_stage(tmp_path: Path) -> None:
    # GIVEN schedulers deep in the stage, created in the function, held by a closure, or replaced on
    # the instance by a compiled step
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

    for stage in (Wrapped().run, make_local_scheduler, closure, swallows, replaced):
        result = harness(stage, signature_of("s", latents=LATENTS), tmp_path).profile()
        assert result.adapter == "loop", stage
        assert result.step["number"] == 2


def test_a_loop_of_one_step_is_run_as_a_whole(tmp_path: Path) -> None:
    signature = signature_of("s", latents=LATENTS, num_inference_steps=1)
    result = harness(Denoiser(), signature, tmp_path).profile()

    assert (result.step["number"], result.step["of"], products(result)) == (1, 1, 1)


def test_a_stage_that_never_calls_its_scheduler_is_called_as_a_whole(tmp_path: Path) -> None:
    # GIVEN a method outside the loop
    class Pipe(Denoiser):
        def decode(self, latents: Any) -> Any:
            return latents @ latents

    result = harness(Pipe().decode, signature_of("decode", latents=LATENTS), tmp_path).profile()

    assert result.adapter == "call"
    assert products(result) == 1
    assert result.step is None
    said = {answer.adapter: answer for answer in result.answers}
    assert not said["loop"].fits
    assert "Scheduler.step" in said["loop"].reason
    assert said["call"].fits


@pytest.mark.parametrize("step", ["last", 3])
def test_a_missing_step_is_reported_in_one_sentence(tmp_path: Path, step: Any) -> None:
    # GIVEN a stage that never calls its scheduler, one without a scheduler, and a shorter loop
    class Pipe(Denoiser):
        def decode(self, latents: Any) -> Any:
            return latents

    signature = signature_of("s", latents=LATENTS)

    with pytest.raises(HarnessError, match=r"calls Scheduler\.step nowhere"):
        harness(Pipe().decode, signature, tmp_path, step=step).profile()
    with pytest.raises(HarnessError, match="has no loop, so it has no step"):
        harness(lambda latents: latents, signature, tmp_path, step=step).profile()
    with pytest.raises(HarnessError, match="ended after 8 step"):
        harness(Denoiser(), signature, tmp_path, step=9).profile()
    with pytest.raises(HarnessError, match="step='third'"):
        harness(Denoiser(), signature, tmp_path, step="third")


def test_the_whole_call_can_be_requested(tmp_path: Path) -> None:
    signature = signature_of("s", latents=LATENTS, num_inference_steps=2)
    result = harness(Denoiser(), signature, tmp_path, step="whole").profile()

    assert (result.adapter, products(result)) == ("call", 1 + 1 + 2)


def test_the_script_runs_the_same_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "loop_stage.py").write_text(
        f"import torch\nfrom typing import Any\n{_source(Scheduler)}\n{_source(Denoiser)}"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("loop_stage", None)
    path = harness(Denoiser(), signature_of("s", latents=LATENTS), tmp_path, step=3).profile()
    capsys.readouterr()

    for arguments, number, of in (((), 3, 8), (("--step", "last"), 8, 8)):
        argv = [str(path.script_path), "--factory", "loop_stage:Denoiser", "--timing-steps", "2"]
        monkeypatch.setattr(sys, "argv", [*argv, *arguments])
        with pytest.raises(SystemExit) as left:
            runpy.run_path(str(path.script_path), run_name="__main__")
        told = capsys.readouterr().out

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

    result = harness(pipe, signature, tmp_path).profile()

    # THEN the transformer ran once: one attention of its one layer
    counts = {row["name"]: row["count"] for row in result.breakdown["top_kernels"]}
    assert counts["aten::scaled_dot_product_attention"] == 1
    assert (result.adapter, result.step["number"], result.step["of"]) == ("loop", 2, 4)
    assert "StableDiffusion3Pipeline.__call__" in result.iteration


class WithSlots:
    """A scheduler whose objects have no dictionary."""

    __slots__ = ("timesteps",)
    set_timesteps = Scheduler.set_timesteps

    def __init__(self) -> None:
        self.timesteps = torch.zeros(0)

    def step(self, noise: Any, timestep: Any, sample: Any) -> Any:
        return sample - noise


class WithoutSelf(Scheduler):
    @staticmethod
    def step(noise: Any, timestep: Any, sample: Any) -> Any:
        return sample - noise


class InheritsStep(WithoutSelf):
    pass


class WithoutCount(Scheduler):
    """Has a property that cannot be read."""

    @property
    def timesteps(self) -> Any:
        raise ValueError("the timesteps are not set")

    @timesteps.setter
    def timesteps(self, values: Any) -> None:
        self.values = values


@pytest.mark.parametrize(
    ("scheduler", "adapter"),
    [(WithSlots, "loop"), (InheritsStep, "call"), (WithoutCount, "loop")],
    ids=["slots", "static", "property"],
)
def test_schedulers_of_any_class_are_replayed(tmp_path: Path, scheduler: Any, adapter: str) -> None:
    class Stage:
        def __init__(self) -> None:
            self.scheduler = scheduler()

        def process(self, latents: Any) -> Any:
            self.scheduler.set_timesteps(4)
            for number in range(4):
                latents = self.scheduler.step(latents @ latents, number, latents)
            return latents

    result = harness(Stage(), signature_of("s", latents=LATENTS), tmp_path).profile()
    assert result.adapter == adapter


class OtherScheduler(Scheduler):
    def step(self, noise: Any, timestep: Any, sample: Any) -> Any:
        return sample


class SchedulerModule(torch.nn.Module):
    set_timesteps, step = Scheduler.set_timesteps, OtherScheduler.step


class Slots:
    __slots__ = ("__weakref__", "other", "parts")

    def __init__(self, scheduler: Any) -> None:
        class Part:
            pass

        self.other = OtherScheduler()
        self.parts = Part()
        self.parts.inner = Part()
        self.parts.inner.loop = Part()
        self.parts.inner.loop.scheduler = scheduler

    def process(self, latents: Any) -> Any:
        scheduler = self.parts.inner.loop.scheduler
        for _ in range(2):  # as with two tiles
            scheduler.set_timesteps(3)
            for timestep in scheduler.timesteps:
                latents = scheduler.step(latents @ latents, timestep, latents)
        return latents


@pytest.mark.parametrize("scheduler", [Scheduler(), SchedulerModule()])
def test_the_step_names_the_scheduler_that_ended_it(tmp_path: Path, scheduler: Any) -> None:
    # GIVEN a stage with two schedulers, one of which is not called, and a loop that runs twice
    title = f"{type(scheduler).__name__}.step"
    signature = signature_of("s", latents=LATENTS)

    second = harness(Slots(scheduler), signature, tmp_path).profile()
    later = harness(Slots(scheduler), signature, tmp_path, step=5).profile()

    assert (products(second), products(later)) == (1, 1)
    assert second.iteration.endswith(f"between two returns of {title}")
    assert "step 2 of 3 of" in second.iteration
    assert (later.step["number"], later.step["of"]) == (5, None)
    assert "step 5 of Slots.process's own loop" in later.iteration


def test_the_steps_of_a_loop_are_counted_before_those_that_are_measured(tmp_path: Path) -> None:
    # GIVEN a scheduler that computes its timesteps each time somebody reads them
    running: list[bool] = []
    read_in_step: list[int] = []

    class Slow(Scheduler):
        @property
        def timesteps(self) -> Any:
            if running:
                read_in_step.append(Stage.last_begun)
            return self.values

        @timesteps.setter
        def timesteps(self, values: Any) -> None:
            self.values = values

    class Stage(Denoiser):
        def process(self, latents: Any, num_inference_steps: int = 8) -> Any:
            type(self).last_begun = 0
            running.append(True)
            try:
                return super().process(latents, num_inference_steps)
            finally:
                running.clear()

    stage = Stage()
    stage.scheduler = Slow()

    signature = signature_of(latents=torch.eye(4), num_inference_steps=6)
    result = harness(stage, signature, tmp_path, step=4).profile()

    assert result.step is not None
    assert result.step["of"] == 6
    assert set(read_in_step) == {0, 1}


class InThreads:
    """Runs its loop in another thread, and waits until this thread says that it has ended."""

    def __init__(self, model: Any = None, scheduler: Any = None) -> None:
        self.model, self.scheduler = model, scheduler

    def generate_stream(self, latents: Any) -> Any:
        return self.result_of(lambda: [self.model(latents) for _ in range(10)])

    def process(self, latents: Any) -> Any:
        self.scheduler.set_timesteps(3)
        steps = self.scheduler.timesteps
        return self.result_of(lambda: [self.scheduler.step(latents, t, latents) for t in steps])

    def result_of(self, work: Any) -> Any:
        ended: queue.Queue[Any] = queue.Queue()
        thread = threading.Thread(target=lambda: ended.put(work()))
        thread.start()
        found = ended.get(timeout=60)
        thread.join()
        return found


@pytest.mark.parametrize(
    "stage",
    [InThreads(torch.nn.Linear(4, 4)).generate_stream, InThreads(scheduler=Scheduler()).process],
    ids=["generate", "loop"],
)
def test_a_loop_in_another_thread_is_run_as_a_whole(tmp_path: Path, stage: Any) -> None:
    result = harness(stage, signature_of(latents=LATENTS), tmp_path).profile()
    with pytest.raises(HarnessError, match="in another thread"):
        harness(stage, signature_of(latents=LATENTS), tmp_path, step=2).profile()

    assert result.adapter == "call"
    assert any("in another thread" in answer.reason for answer in result.answers)
