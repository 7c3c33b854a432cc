"""The harness as a user has it: files, log lines, figures, and what it says when it cannot."""

from __future__ import annotations

import asyncio
import json
import logging
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import stagespan
from stagespan.errors import HarnessError, SignatureError
from stagespan.harness import HarnessConfig, StageBenchHarness
from stagespan.signature import SignatureFile, StageSignature, capture

torch = pytest.importorskip("torch")


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
    settings = {"timing_steps": 3, "output_dir": folder, **config}
    return StageBenchHarness(signature, stage, HarnessConfig(**settings))


def test_a_stage_of_a_file_is_profiled_and_its_files_are_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # GIVEN a signature file and a loaded stage
    path = tmp_path / "timing_io_signature.json"
    stage = signature_of(x=torch.zeros(8, 32), scale=0.5)
    SignatureFile({"mlp": stage}).write(path)

    # WHEN it is set up and profiled as the seed has it
    with caplog.at_level(logging.INFO, logger="stagespan"):
        bench = StageBenchHarness.from_signature_file(
            signature_path=str(path),
            stage_name="mlp",
            stage_instance=Mlp(),
            config=HarnessConfig(warmup=2, profile_steps=3, output_dir=str(tmp_path)),
        )
        bench.setup()
        results = bench.profile()

    # THEN the log has the seed's lines
    trace, table = tmp_path / "mlp_trace.json.gz", tmp_path / "mlp_breakdown.json"
    script = tmp_path / "profile_mlp.py"
    assert caplog.messages == [
        "[Harness] Setup complete for stage 'mlp'",
        "[Harness] Running 2 warmup iteration(s)...",
        "[Harness] Running 3 profile iteration(s)...",
        f"[Harness] Chrome trace saved to: {trace}",
        f"[Harness] Kernel breakdown saved to: {table}",
        f"[Harness] Test script saved to: {script}",
        f"[Harness] Average iteration time: {results['timing_ms']['mean']:.2f} ms",
    ]
    # AND the files are there, whole, with figures that close
    assert sorted(p.name for p in tmp_path.iterdir() if p != path) == sorted(
        p.name for p in (trace, table, script)
    )
    content = json.loads(table.read_text())
    assert content == results.breakdown
    assert content["name"] == "mlp"
    counts = {row["name"]: row["count"] for row in content["top_kernels"]}
    assert counts["aten::addmm"] == 2 * 3
    assert "aten::randn" not in counts
    assert results.trace_bytes == trace.stat().st_size < 10_000_000
    timing = results.timing_ms
    assert 0 < timing["min"] <= timing["p50"] <= timing["max"]
    assert 3 <= timing["iterations"] <= 20
    assert len(results.times_ms) == timing["iterations"]
    assert dict(results)["adapter"] == "call"


def test_the_profiler_is_not_attached_while_times_are_taken(tmp_path: Path) -> None:
    # GIVEN a step that looks whether it is watched
    watched = []

    def step(stage: Any, inputs: dict[str, Any]) -> None:
        watched.append(torch.autograd.profiler._is_profiler_enabled)

    # WHEN
    harness(None, signature_of(x=1), tmp_path, step_fn=step, warmup=2, profile_steps=2).profile()

    # THEN only the last two runs were
    assert watched == [False] * (2 + 3) + [True] * 2


def test_every_iteration_is_alike(tmp_path: Path) -> None:
    # GIVEN a stage that draws random numbers and writes to its inputs
    seen = []

    class Stage:
        def process(self, latents: Any, extra: Any) -> Any:
            seen.append((latents.sum().item(), torch.rand(1).item(), random.random()))
            latents.add_(1)
            extra["a"].zero_()
            return latents

    signature = signature_of(latents=torch.zeros(40), extra={"a": torch.ones(30)})

    # WHEN
    harness(Stage(), signature, tmp_path, profile_steps=2).profile()

    # THEN all runs had the same
    assert len(seen) == 1 + 3 + 2
    assert len(set(seen)) == 1


def test_the_programs_random_state_and_own_inputs_stay(tmp_path: Path) -> None:
    # GIVEN a program with random state, and a tensor of its own that the stage writes to
    mine = torch.zeros(4)
    torch.manual_seed(7)
    random.seed(7)
    expected = torch.rand(1).item(), random.random()
    torch.manual_seed(7)
    random.seed(7)

    # WHEN
    harness(lambda x: x.add_(torch.rand(1)), signature_of(), tmp_path, inputs={"x": mine}).profile()

    # THEN
    assert (torch.rand(1).item(), random.random()) == expected
    assert mine.sum() == 0


def test_the_stage_runs_as_torch_was_set_when_it_was_captured(tmp_path: Path) -> None:
    # GIVEN stages captured with and without gradients, under autocast, and by TeleFuser
    seen = []

    def stage(x: Any) -> None:
        seen.append(
            (
                torch.is_grad_enabled(),
                torch.is_inference_mode_enabled(),
                torch.is_autocast_enabled("cpu"),
            )
        )

    contexts = (
        {"grad": True, "inference": False},
        {"grad": False, "inference": True, "autocast": {"cpu": "bfloat16"}},
        {},
    )

    # WHEN
    for context in contexts:
        signature = signature_of(x=1)
        signature.context = context
        harness(stage, signature, tmp_path, warmup=0, timing_steps=1).profile()

    # THEN each ran so, in time and in the profile
    assert (
        seen[0::2]
        == seen[1::2]
        == [(True, False, False), (False, True, True), (False, False, False)]
    )


def test_replays_do_not_enter_the_figures_of_the_pipeline(tmp_path: Path) -> None:
    # GIVEN a stage that is timed by itself, and that has run once
    seen = []

    class Stage:
        @stagespan.ProfilingContext("harness_own_stage")
        def process(self, x: Any) -> None:
            with stagespan.span("harness_inner"):
                seen.append(x)

    stage = Stage()
    stage.process(1)

    # WHEN it is replayed
    harness(stage, signature_of(x=1), tmp_path).profile()

    # THEN its figures are those of the one run, and the recorder is on again
    assert len(seen) == 1 + 5
    assert stagespan.stats()["harness_own_stage"].count == 1
    assert stagespan.stats()["harness_inner"].count == 1
    assert stagespan.is_enabled()


def test_wans_pipeline_is_replayed_one_step(tmp_path: Path) -> None:
    # GIVEN the captured denoising stage of a pipeline with transformer and scheduler
    diffusers = pytest.importorskip("diffusers")
    transformer = diffusers.WanTransformer3DModel(
        num_attention_heads=2, attention_head_dim=16, in_channels=4, out_channels=4, text_dim=8,
        freq_dim=16, ffn_dim=32, num_layers=2, rope_max_seq_len=16,
    ).eval()  # fmt: skip
    stage = SimpleNamespace(
        transformer=transformer, scheduler=diffusers.FlowMatchEulerDiscreteScheduler()
    )
    signature = signature_of(
        "denoise",
        latents=torch.zeros(1, 4, 2, 8, 8),
        prompt_embeds=torch.zeros(1, 6, 8),
        negative_prompt_embeds=torch.zeros(1, 6, 8),
        num_inference_steps=40,
        guidance_scale=5.0,
    )

    # WHEN
    results = harness(stage, signature, tmp_path).profile()

    # THEN one guided step was profiled: two layers, self and cross attention, two prompts
    counts = {row["name"]: row["count"] for row in results.breakdown["top_kernels"]}
    assert results.adapter == "denoise"
    assert counts["aten::scaled_dot_product_attention"] == 2 * 2 * 2


def test_inputs_and_dtype_and_device_are_the_users_to_choose(tmp_path: Path) -> None:
    # GIVEN a signature of a machine with a GPU, and an argument that cannot be replayed
    signature = StageSignature(
        "s",
        {
            "x": {"shape": [4], "dtype": "float16", "device": "cuda:0"},
            "engine": {"unreplayable": "pkg.Engine"},
        },
    )
    seen = {}

    def stage(x: Any, engine: Any) -> None:
        seen.update(x=x, engine=engine)

    # WHEN
    harness(
        stage,
        signature,
        tmp_path,
        device=torch.device("cpu"),
        dtype=torch.float64,
        inputs={"engine": "mine"},
    ).profile()

    # THEN
    assert (seen["x"].device.type, seen["x"].dtype) == ("cpu", torch.float64)
    assert seen["engine"] == "mine"


def test_metadata_that_the_stage_does_not_take_is_left_out(tmp_path: Path) -> None:
    # GIVEN a file in which only the metadata tells of an argument that the stage no longer has
    signature = StageSignature("s", {"x": 1}, metadata={"gone": 3, "y": 2})
    seen = []

    # WHEN
    harness(lambda x, y: seen.append((x, y)), signature, tmp_path).profile()

    # THEN
    assert set(seen) == {(1, 2)}


def test_progress_is_told(tmp_path: Path) -> None:
    # GIVEN
    told: list[tuple[str, int, int | None]] = []

    # WHEN
    harness(
        Mlp(),
        signature_of(x=torch.zeros(1, 32)),
        tmp_path,
        progress=lambda *a, **k: told.append((*a, *k.values())),
    ).profile()

    # THEN
    assert [part for part, *_ in told] == ["warm-up", "timing", "timing", "timing", "profile"]


def test_ranks_write_files_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN rank 1 of 2
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")

    # WHEN
    results = harness(lambda x: x, signature_of("s", x=1), tmp_path).profile()

    # THEN
    assert results.trace_path.name == "s_rank1_trace.json.gz"
    assert results.script_path.name == "profile_s_rank1.py"


@pytest.mark.parametrize(
    "name", ["../../evil", "a/b", "a\\b", "..", "", "x\ny", 'q"""', "'; import os; '", "\0", "名"]
)
def test_no_stage_name_leads_out_of_the_folder(tmp_path: Path, name: str) -> None:
    # GIVEN a stage of any name
    folder = tmp_path / "out"

    # WHEN
    results = harness(lambda x: x, signature_of(name, x=1), folder).profile()

    # THEN all files lie in the folder, and the script is Python that knows the name
    assert all(p.parent == folder for p in (results.trace_path, results.script_path))
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    names: dict[str, Any] = {"__name__": "script"}
    exec(compile(results.script_path.read_text(encoding="utf-8"), "script", "exec"), names)
    assert names["STAGE"] == name


def test_a_stage_that_raises_is_told_and_its_exception_kept(tmp_path: Path) -> None:
    # GIVEN
    def stage(x: Any) -> None:
        raise KeyError("weights")

    # WHEN
    with pytest.raises(HarnessError) as caught:
        harness(stage, signature_of("s", x=1), tmp_path).profile()

    # THEN
    assert "Stage 's' raised in its single step: KeyError: 'weights'" in str(caught.value)
    assert isinstance(caught.value.__cause__, KeyError)
    assert list(tmp_path.iterdir()) == []


def test_arguments_that_do_not_fit_are_told(tmp_path: Path) -> None:
    # GIVEN a stage with another parameter
    with pytest.raises(HarnessError) as caught:
        harness(lambda y: y, signature_of("s", x=1), tmp_path).setup()

    # THEN
    assert "it needs 'y'" in str(caught.value)
    assert "HarnessConfig(inputs={...})" in str(caught.value)


def test_an_output_folder_that_cannot_be_written_is_told_first(tmp_path: Path) -> None:
    # GIVEN a file where the folder should be
    (tmp_path / "file").write_text("")
    runs = []

    # WHEN
    with pytest.raises(HarnessError, match=r"output folder .* cannot be written"):
        harness(runs.append, signature_of(x=1), tmp_path / "file" / "out").profile()

    # THEN nothing ran
    assert runs == []


@pytest.mark.parametrize("room", [0, 200, 3000])
def test_a_full_disk_is_told_and_leaves_nothing(tmp_path: Path, room: int) -> None:
    # GIVEN a stage that is set up, and a system that lets no file grow beyond some bytes
    resource = pytest.importorskip("resource")
    bench = harness(Mlp(), signature_of("s", x=torch.zeros(2, 32)), tmp_path)
    bench.setup()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))

    # WHEN
    try:
        with pytest.raises(HarnessError) as caught:
            bench.profile()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    # THEN the sentence says so and no part of a file is there
    assert "cannot be written" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_what_is_missing_is_told(tmp_path: Path) -> None:
    # GIVEN no stage; a wrong path; an unknown stage
    # WHEN / THEN
    with pytest.raises(HarnessError, match="has no instance to run"):
        harness(None, signature_of(x=1), tmp_path).setup()
    with pytest.raises(SignatureError, match="no signature file"):
        StageBenchHarness.from_signature_file(tmp_path / "no.json", "s")
    with pytest.raises(HarnessError, match=r"call setup\(\) first"):
        _ = harness(len, signature_of(x=1), tmp_path).inputs


@pytest.mark.parametrize(
    "wrong",
    [
        {"warmup": -1},
        {"warmup": 1.5},
        {"profile_steps": 0},
        {"timing_steps": 0},
        {"seed": -1},
        {"seed": "x"},
        {"step_fn": 3},
        {"inputs": [1]},
    ],
)
def test_settings_that_cannot_be_used_are_told(wrong: dict[str, Any]) -> None:
    # GIVEN / WHEN / THEN
    with pytest.raises(HarnessError, match=next(iter(wrong))):
        HarnessConfig(**wrong)


def test_a_profiler_of_the_applications_own_is_told(tmp_path: Path) -> None:
    # GIVEN a profiler that is running
    bench = harness(lambda x: x, signature_of("s", x=1), tmp_path)

    # WHEN / THEN
    with torch.profiler.profile(), pytest.raises(HarnessError, match="not profiled"):
        bench.profile()


def test_a_coroutine_is_run_to_its_end(tmp_path: Path) -> None:
    # GIVEN
    ends = []

    class Stage:
        async def process(self, x: int) -> None:
            await asyncio.sleep(0)
            ends.append(x)

    # WHEN
    harness(Stage(), signature_of(x=5), tmp_path).profile()

    # THEN
    assert ends == [5] * 5
