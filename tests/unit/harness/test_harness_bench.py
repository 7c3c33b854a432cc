"""The harness as users run it: files, log lines, consistent figures."""

from __future__ import annotations

import asyncio
import functools
import gzip
import json
import logging
import os
import random
import runpy
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import preloaded
import stagespan
from running import in_threads, ran
from stagespan.device.environment import machine
from stagespan.errors import HarnessError
from stagespan.harness import HarnessConfig, StageBenchHarness
from stagespan.harness.bundle import replay_file_of
from stagespan.harness.host_peaks import measured_peaks
from stagespan.signature import SignatureFile, StageSignature

torch = pytest.importorskip("torch")

from harness_stages import Mlp, harness, signature_of  # noqa: E402

from shared_core import on_a_shared_core  # noqa: E402
from stagespan.harness.standalone import replay  # noqa: E402
from stagespan.harness.standalone.figures import idle, profiled_line, spread  # noqa: E402
from stagespan.harness.standalone.torch_state import random_state_kept, seed_all  # noqa: E402


def test_products_that_the_processor_cannot_compute_have_no_rate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # GIVEN a processor and a torch without products in bf16
    multiply = torch.mm

    def without_bf16(left: Any, right: Any, *, out: Any) -> Any:
        if left.dtype == torch.bfloat16:
            raise RuntimeError("could not create a primitive descriptor")
        return multiply(left, right, out=out)

    monkeypatch.setattr(torch, "mm", without_bf16)

    assert measured_peaks().keys() == {"fp32", "memory_tb_s"}


@pytest.fixture(autouse=True)
def one_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Profile once, also if another program disturbs it, so that iterations can be counted."""
    monkeypatch.setattr(replay, "MOST_PROFILED", 1)


def test_a_stage_of_a_file_is_profiled_and_its_files_are_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "timing_io_signature.json"
    stage = signature_of(x=torch.zeros(8, 32), scale=0.5)
    SignatureFile({"mlp": stage}).write(path)

    with caplog.at_level(logging.INFO, logger="stagespan"):
        bench = StageBenchHarness.from_signature_file(
            signature_path=str(path),
            stage_name="mlp",
            stage_instance=Mlp(),
            config=HarnessConfig(warmup=2, profile_steps=3, output_dir=str(tmp_path)),
        )
        bench.setup()
        results = bench.profile()

    # THEN the log has TeleFuser's lines
    trace, table = tmp_path / "mlp_trace.json.gz", tmp_path / "mlp_breakdown.json"
    script, result = tmp_path / "profile_mlp.py", tmp_path / "mlp_bench.json"
    assert caplog.messages == [
        "[Harness] Setup complete for stage 'mlp'",
        "[Harness] Running 2 warmup iteration(s)...",
        "[Harness] Running 3 profile iteration(s)...",
        "[Profiler] torch.profiler records CPU",
        f"[Harness] Chrome trace saved to: {trace}",
        f"[Harness] Kernel breakdown saved to: {table}",
        f"[Harness] Test script saved to: {script}",
        f"[Harness] Result saved to: {result}",
        f"[Harness] Average iteration time: {results['timing_ms']['mean']:.2f} ms",
        f"[Harness] Median iteration time: {spread(results['timing_ms'])}",
    ]
    # AND the files are there and complete, and their figures add up
    beside = tmp_path / (replay_file_of(script.read_text()) or "")
    assert sorted(p.name for p in tmp_path.iterdir() if p != path) == sorted(
        p.name for p in (trace, table, script, beside, result)
    )
    content = json.loads(table.read_text())
    # AND an iteration has two products, in percent of what this machine was measured to compute
    assert content["rates"]["tflop"] == 2 * (2 * 8 * 32 * 64) / 1e12
    assert content["rates"]["mfu_percent"] > 0
    assert json.loads(gzip.decompress(trace.read_bytes()))["stagespan_peaks"]["fp32"] > 0
    assert content == results.breakdown
    assert content["name"] == "mlp"
    counts = {row["name"]: row["count"] for row in content["top_kernels"]}
    assert counts["aten::addmm"] == 2 * 3
    assert "aten::randn" not in counts
    assert results.trace_bytes == trace.stat().st_size < 10_000_000
    timing = results.timing_ms
    assert 0 < timing["min"] <= timing["p50"] <= timing["max"]
    assert 3 <= timing["iterations"] <= 1000
    assert timing["p25"] <= timing["p50"] <= timing["p75"]
    assert timing["cpu"]["p50"] > 0
    assert results.warmup["first_ms"] > 0
    assert results.warmup["iterations"] == 2
    assert len(results.times_ms) == timing["iterations"]
    assert dict(results)["adapter"] == "call"
    assert json.loads(result.read_text()) == results.to_json()


def test_the_result_file_describes_the_measurement_and_the_machine(tmp_path: Path) -> None:
    path = tmp_path / "timing_io_signature.json"
    stage = signature_of(x=torch.zeros(8, 32), scale=0.5)
    stage.key = "aa"
    small = signature_of(x=torch.zeros(2, 32), scale=0.5)
    small.key, small.count = "bb", 7
    stage.variants = [small]
    SignatureFile({"mlp": stage}).write(path)
    config = HarnessConfig(warmup=1, timing_steps=4, seed=5, dtype="float64", output_dir=tmp_path)
    model = Mlp().double()

    bench = StageBenchHarness.from_signature_file(path, "mlp", model, config, variant="bb")
    bench.profile()

    found = json.loads((tmp_path / "mlp_bench.json").read_text())
    assert found["schema_version"] == 1
    assert found["signature"] == {"key": "bb", "variant": "bb", "count": 7}
    threads = torch.get_num_threads()
    assert found["settings"] == {"dtype": "float64", "seed": 5, "threads": threads}
    assert len(found["times_ms"]) == len(found["cpu_times_ms"]) == 4
    for times, figures in (
        (found["times_ms"], found["timing_ms"]),
        (found["cpu_times_ms"], found["timing_ms"]["cpu"]),
    ):
        quartiles = [figures[name] for name in ("p25", "p50", "p75")]
        assert quartiles == pytest.approx(list(np.quantile(times, (0.25, 0.5, 0.75))))
    assert "busy" in found["timing_ms"]
    assert found["environment"] == machine()
    assert (found["adapter"], found["step"]) == ("call", None)
    assert "ratio" in found["fidelity"]


def test_files_can_be_named(tmp_path: Path) -> None:
    names = {"trace": "t.json.gz", "breakdown": "b.json", "script": "my script.py", "bench": None}
    config = {"file_names": names}

    bench = harness(lambda x: x, signature_of("s", x=1), tmp_path, **config)
    results = bench.profile()

    beside = replay_file_of(results.script_path.read_text())
    written = {p.name for p in tmp_path.iterdir()} - {beside}
    assert sorted(written) == ["b.json", "my script.py", "t.json.gz"]
    assert results.bench_path is None
    assert results.trace_path == bench.output_path("trace") == tmp_path / "t.json.gz"
    assert bench.output_path("compile_trace") == tmp_path / "s_compile_trace.json.gz"
    assert 'run_path("my script.py")' in results.script_path.read_text()


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        ({"traces": "t"}, "has no file 'traces': name one of trace, breakdown, bench, script,"),
        ({"trace": "a/b"}, "must be the name of a file in the output folder, without a folder."),
        ({"trace": None}, "must be the name of a file in the output folder"),
        ({"breakdown": ".."}, "must be the name of a file in the output folder"),
        ({"script": 'a".py'}, "must end in .py and have only letters"),
        ({"script": "a"}, "must end in .py and"),
    ],
)
def test_names_that_cannot_be_used_are_refused(names: Any, sentence: str) -> None:
    with pytest.raises(HarnessError) as caught:
        HarnessConfig(file_names=names)
    assert sentence in str(caught.value)


def test_the_profiler_is_not_attached_while_times_are_taken(tmp_path: Path) -> None:
    # GIVEN a step that checks whether a profiler is running
    watched = []

    def step(stage: Any, inputs: dict[str, Any]) -> None:
        watched.append(torch.autograd.profiler._is_profiler_enabled)

    harness(None, signature_of(x=1), tmp_path, step_fn=step, warmup=2, profile_steps=2).profile()

    assert watched == [False] * (2 + 3) + [True] * 2


def test_the_overhead_of_the_profiler_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a clock on which an iteration takes 4 ms, and 5 ms under the profiler
    now_ns = [0]

    def step(stage: Any, inputs: dict[str, Any]) -> None:
        now_ns[0] += 5_000_000 if torch.autograd.profiler._is_profiler_enabled else 4_000_000

    clocks = SimpleNamespace(
        perf_counter=time.perf_counter,
        perf_counter_ns=lambda: now_ns[0],
        thread_time_ns=lambda: now_ns[0],
        process_time_ns=lambda: now_ns[0],
    )
    for name in ("replay", "machine"):
        monkeypatch.setattr(f"stagespan.harness.standalone.{name}.time", clocks)

    signature = signature_of(x=1)
    result = harness(None, signature, tmp_path, step_fn=step, profile_steps=2).profile()

    content = json.loads(result.breakdown_path.read_text())
    assert (content["profiled_ms"], content["profiled_ratio"]) == (5.0, 1.25)
    assert "1.25 x" in str(profiled_line(content))


@pytest.mark.parametrize(
    ("profiled_ms", "kept", "ratio"),
    [
        ([5], 1, 1.25),
        ([5.9], 1, 1.475),
        ([40, 5], 2, 1.25),
        ([40, 9, 20, 7, 30], 4, 1.75),
        ([40, 36, 90, 80, 99], 2, 9.0),
    ],
)
def test_a_disturbed_profiled_run_is_repeated_and_the_nearest_is_kept(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    profiled_ms: list[float],
    kept: int,
    ratio: float,
) -> None:
    monkeypatch.setattr(replay, "MOST_PROFILED", 5)
    # GIVEN an iteration of 4 ms that takes longer under the profiler, at first much longer
    now_ns = [0]
    left_ms = iter(profiled_ms)

    def step(stage: Any, inputs: dict[str, Any]) -> None:
        is_profiled = torch.autograd.profiler._is_profiler_enabled
        now_ns[0] += round(1e6 * (next(left_ms) if is_profiled else 4))
        if is_profiled:
            with torch.profiler.record_function(f"run of {now_ns[0]}"):
                torch.ones(3)

    clocks = SimpleNamespace(
        perf_counter=time.perf_counter,
        **dict.fromkeys(
            ("perf_counter_ns", "thread_time_ns", "process_time_ns"), lambda: now_ns[0]
        ),
    )
    for name in ("replay", "machine"):
        monkeypatch.setattr(f"stagespan.harness.standalone.{name}.time", clocks)

    with caplog.at_level("INFO"):
        result = harness(None, signature_of(x=1), tmp_path, step_fn=step).profile()

    # THEN it is repeated while it takes more than 1.5 x the median, at most five times
    assert next(left_ms, None) is None
    content = json.loads(result.breakdown_path.read_text())
    assert content["profiled_runs_ms"] == pytest.approx(profiled_ms)
    assert (content["profiled_run"], content["profiled_ratio"]) == (kept, pytest.approx(ratio))
    from stagespan.trace import read_trace
    from stagespan.trace.analysis import analyze

    trace = read_trace(result.trace_path)
    assert sum(name.startswith("run of ") for name in trace.names) == 1
    assert trace.profiled_ratio == pytest.approx(ratio)
    # AND pages tell first if it is far from the median
    from stagespan.pages.markdown import markdown

    lines = markdown(analyze(trace)).splitlines()
    told = [at for at, line in enumerate(lines) if "its median time without the profiler" in line]
    assert bool(told) == (ratio > 2)
    assert not told or told[0] == 4  # below the title and the line about the file
    assert caplog.text.count("[Harness] Running 1 profile iteration(s)...") == 1


@pytest.mark.parametrize("kind", range(7))
def test_every_iteration_has_the_same_inputs(tmp_path: Path, kind: int) -> None:
    seen = []
    writes: list[Callable[..., Any]] = [
        lambda latents, extra, own, array: latents.add_(1),
        lambda latents, extra, own, array: extra["a"].zero_(),
        lambda latents, extra, own, array: extra["list"].append(1),
        lambda latents, extra, own, array: extra.update(n=5),
        lambda latents, extra, own, array: torch.rand(1, generator=own),
        lambda latents, extra, own, array: array.fill(7),
        lambda latents, extra, own, array: None,
    ]
    write = writes[kind]

    class Stage:
        def process(self, latents: Any, extra: Any, own: Any, array: Any) -> Any:
            tensors = latents.sum().item(), extra["a"].sum().item(), array.sum()
            seen.append((*tensors, str(extra), own.get_state().sum().item()))
            seen[-1] += torch.rand(1).item(), random.random(), np.random.rand()
            write(latents, extra, own, array)

    signature = signature_of(
        latents=torch.zeros(40),
        extra={"a": torch.ones(30), "list": [0], "n": 1},
        own=torch.Generator(),
        array=np.arange(100),
    )

    harness(Stage(), signature, tmp_path, profile_steps=2).profile()

    assert len(seen) == 1 + 3 + 2
    assert len(set(seen)) == 1


@pytest.mark.parametrize("timing_steps", [None, 5])
def test_a_short_step_also_runs_directly_before_a_measured_run(
    tmp_path: Path, timing_steps: int | None
) -> None:
    # GIVEN a step of some microseconds that draws random numbers and keeps its inputs
    drawn = []

    def step(stage: Any, inputs: dict[str, Any]) -> None:
        drawn.append((torch.rand(1).item(), random.random(), np.random.rand()))

    config = {"warmup": timing_steps, "timing_steps": timing_steps}
    result = harness(None, signature_of(x=1), tmp_path, step_fn=step, **config).profile()

    runs = result.timing_ms["iterations"] + result.warmup["iterations"] + 1
    assert (len(drawn) > runs) == (timing_steps is None)
    # THEN all runs drew the same numbers
    assert len(set(drawn)) == 1


def test_a_short_step_that_writes_to_its_inputs_runs_with_new_ones_each_time(
    tmp_path: Path,
) -> None:
    seen = []

    def step(stage: Any, inputs: dict[str, Any]) -> None:
        seen.append(len(inputs["items"]))
        inputs["items"].append(1)

    config = {"warmup": None, "timing_steps": None}
    stage = harness(None, signature_of(items=[0, 1]), tmp_path, step_fn=step, **config)
    result = stage.profile()
    assert set(seen) == {2}
    assert len(seen) > result.timing_ms["iterations"] + result.warmup["iterations"] + 1


def test_the_programs_random_state_and_own_inputs_are_kept(tmp_path: Path) -> None:
    mine = torch.zeros(4)
    torch.manual_seed(7)
    random.seed(7)
    expected = torch.rand(1).item(), random.random()
    torch.manual_seed(7)
    random.seed(7)

    harness(lambda x: x.add_(torch.rand(1)), signature_of(), tmp_path, inputs={"x": mine}).profile()

    assert (torch.rand(1).item(), random.random()) == expected
    assert mine.sum() == 0


def test_the_random_state_of_every_accelerator_in_use_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    states = {0: torch.tensor([3]), 1: torch.tensor([4])}
    xpu = torch.xpu
    monkeypatch.setattr(xpu, "is_initialized", lambda: True)
    monkeypatch.setattr(xpu, "device_count", lambda: 2)
    monkeypatch.setattr(xpu, "get_rng_state", lambda device: states[device].clone())
    monkeypatch.setattr(xpu, "set_rng_state", lambda state, device: states.update({device: state}))
    monkeypatch.setattr(
        xpu,
        "manual_seed_all",
        lambda seed: states.update(dict.fromkeys((0, 1), torch.tensor(seed))),
    )

    with random_state_kept():
        seed_all(9, again=True)
        during = [int(state) for state in states.values()]

    assert during == [9, 9]
    assert [int(state) for state in states.values()] == [3, 4]


def test_the_stage_runs_with_the_captured_torch_settings(tmp_path: Path) -> None:
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

    for context in contexts:
        signature = signature_of(x=1)
        signature.context = context
        harness(stage, signature, tmp_path, warmup=0, timing_steps=1).profile()

    # THEN each ran like that, when timed and when profiled
    assert (
        seen[0::2]
        == seen[1::2]
        == [(True, False, False), (False, True, True), (False, False, False)]
    )


def test_replays_do_not_enter_the_figures_of_the_pipeline(tmp_path: Path) -> None:
    # GIVEN a stage that times itself, and has run once
    seen = []

    class Stage:
        @stagespan.ProfilingContext("harness_own_stage")
        def process(self, x: Any) -> None:
            with stagespan.span("harness_inner"):
                seen.append(x)

    stage = Stage()
    stage.process(1)

    harness(stage, signature_of(x=1), tmp_path).profile()

    assert len(seen) == 1 + 5
    assert stagespan.stats()["harness_own_stage"].count == 1
    assert stagespan.stats()["harness_inner"].count == 1
    assert stagespan.is_enabled()


def test_one_step_of_wans_pipeline_is_replayed(tmp_path: Path) -> None:
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

    results = harness(stage, signature, tmp_path).profile()

    # THEN one guided step was profiled: two layers, self and cross attention, two prompts
    counts = {row["name"]: row["count"] for row in results.breakdown["top_kernels"]}
    assert results.adapter == "denoise"
    assert counts["aten::scaled_dot_product_attention"] == 2 * 2 * 2


def test_users_can_choose_inputs_dtype_and_device(tmp_path: Path) -> None:
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

    harness(
        stage,
        signature,
        tmp_path,
        device=torch.device("cpu"),
        dtype=torch.float64,
        inputs={"engine": "mine"},
    ).profile()

    assert (seen["x"].device.type, seen["x"].dtype) == ("cpu", torch.float64)
    assert seen["engine"] == "mine"


def test_metadata_that_the_stage_does_not_take_is_left_out(tmp_path: Path) -> None:
    signature = StageSignature("s", {"x": 1}, metadata={"gone": 3, "y": 2})
    seen = []

    harness(lambda x, y: seen.append((x, y)), signature, tmp_path).profile()

    assert set(seen) == {(1, 2)}


@pytest.mark.parametrize("is_set", [True, False])
def test_shapes_and_stacks_are_in_the_trace_if_wanted(tmp_path: Path, is_set: bool) -> None:
    signature = signature_of(x=torch.zeros(1, 32))

    results = harness(
        Mlp(), signature, tmp_path, record_shapes=is_set, with_stack=not is_set, timing_steps=1
    ).profile()

    page = json.loads(gzip.decompress(results.trace_path.read_bytes()))
    assert any("Input Dims" in e.get("args", {}) for e in page["traceEvents"]) == is_set
    assert bool(page.get("with_stack")) != is_set


def test_progress_is_logged(tmp_path: Path) -> None:
    told: list[tuple[str, int, int | None]] = []

    harness(
        Mlp(),
        signature_of(x=torch.zeros(1, 32)),
        tmp_path,
        progress=lambda *a, **k: told.append((*a, *k.values())),
    ).profile()

    assert [part for part, *_ in told] == ["warm-up", "timing", "timing", "timing", "profile"]


def test_ranks_write_separate_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")

    results = harness(lambda x: x, signature_of("s", x=1), tmp_path).profile()

    assert results.trace_path.name == "s_rank1_trace.json.gz"
    assert results.script_path.name == "profile_s_rank1.py"


WORKER = """
import json, multiprocessing, os, stagespan

def replay():
    config = stagespan.HarnessConfig(warmup=1, timing_steps=1)
    harness = stagespan.StageBenchHarness.from_signature_file(
        "signatures.json", "s", str.upper, config
    )
    results = harness.profile()
    print(os.getpid(), results.trace_path.name, results.script_path.name, flush=True)

if __name__ == "__main__":
    stagespan.get_profiler_output_dir()  # the folder of the run, which workers share
    worker = multiprocessing.get_context("fork").Process(target=replay)
    worker.start()
    worker.join()
    replay()
"""


def test_workers_write_separate_files(tmp_path: Path) -> None:
    signatures = {"stages": {"s": {"stage_name": "s", "input_signatures": {"self": "abc"}}}}
    (tmp_path / "signatures.json").write_text(json.dumps(signatures))
    (tmp_path / "program.py").write_text(WORKER)

    done = ran([*preloaded.python(), "program.py"], cwd=tmp_path, status=0)

    workers, own = (line.split() for line in done.stdout.splitlines())
    assert workers[1:] == [f"s_pid{workers[0]}_trace.json.gz", f"profile_s_pid{workers[0]}.py"]
    assert own[1:] == ["s_trace.json.gz", "profile_s.py"]


def test_a_coroutine_is_run_to_its_end(tmp_path: Path) -> None:
    ends = []

    class Stage:
        async def process(self, x: int) -> None:
            await asyncio.sleep(0)
            ends.append(x)

    harness(Stage(), signature_of(x=5), tmp_path).profile()

    assert ends == [5] * 5

    async def cell() -> bool:
        harness(Stage(), signature_of(x=6), tmp_path).profile()
        await asyncio.sleep(0)
        return asyncio.get_running_loop().is_running()

    assert asyncio.run(cell())
    assert ends == [5] * 5 + [6] * 5


def test_the_result_of_a_coroutine_is_not_formatted(tmp_path: Path) -> None:
    class Stage:
        async def process(self, x: Any) -> Any:
            await asyncio.sleep(0)
            return x.neg()

    result = harness(Stage(), signature_of(x=torch.zeros(100)), tmp_path).profile()

    assert {row["name"] for row in result.breakdown["top_kernels"]} == {"aten::neg"}


def test_a_stage_that_waits_for_another_thread_is_reported(tmp_path: Path, capsys: Any) -> None:
    class Stage:
        def process(self, x: int) -> None:
            in_threads(functools.partial(time.sleep, 0.05))

    stage = Stage()
    result = harness(stage, signature_of(x=5), tmp_path).profile()
    if result.timing_ms["waited_ms"] is None:
        pytest.skip("this kernel does not say how long a thread waits for a core")

    assert "idle" in str(idle(result.timing_ms))
    capsys.readouterr()
    runpy.run_path(str(result.script_path))["profile_stage"](stage, timing_steps=3)
    assert "The thread was idle" in capsys.readouterr().out


@pytest.mark.full
def test_a_thread_waits_for_a_core_for_a_part_of_its_runs_only(tmp_path: Path) -> None:
    config: dict[str, Any] = {"warmup": 1, "timing_steps": 2000}
    bench = harness(None, signature_of(x=1), tmp_path, step_fn=lambda *_: sum(range(100)), **config)

    timing = on_a_shared_core(bench.profile).timing_ms

    if timing["waited_ms"] is None:
        pytest.skip("this kernel does not say how long a thread waits for a core")
    # THEN it waited for less time than the runs took, because it also ran
    assert timing["waited_ms"] < timing["mean"] * timing["iterations"]


def test_a_thread_that_runs_or_waits_for_a_core_is_not_idle() -> None:
    timing = {"mean": 10.0, "iterations": 4, "waited_ms": 16.0, "cpu": {"mean": 4.0}}

    assert idle(timing) is None
    assert "50%" in str(idle({**timing, "waited_ms": 4.0}))
    assert idle({**timing, "waited_ms": 4.0}, "cuda:0") is None
    assert idle({**timing, "waited_ms": None}) is None
    assert idle({"mean": None, "iterations": 0, "waited_ms": None}) is None


@pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2,
    reason="this process may use only one core: allow it a second one (taskset, cpuset)",
)
@pytest.mark.parametrize(
    ("wanted", "captured", "omp", "used"),
    [
        ("captured", 2, None, 2),
        ("captured", 1 << 20, None, 1),
        ("captured", None, None, 1),
        ("captured", 2, "1", 1),
        ("machine", 2, None, 1),
        (None, 2, None, 1),
        ("2", 1, None, 2),
    ],
)
def test_the_number_of_threads_is_that_of_the_live_runs_if_wanted(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    wanted: str | None,
    captured: int | None,
    omp: str | None,
    used: int,
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if omp is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", omp)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    seen = set()

    def step(stage: Any, inputs: dict[str, Any]) -> None:
        seen.add(torch.get_num_threads())

    try:
        signature = replace(signature_of(x=1), context={"threads": captured})
        result = harness(None, signature, tmp_path, step_fn=step, threads=wanted).profile()
        after = torch.get_num_threads()
    finally:
        torch.set_num_threads(before)

    # THEN the replay has that many, and the process has one again
    assert (seen, after) == ({used}, 1)
    assert result.settings["threads"] == used
    # AND a sentence says so, also if it cannot have as many
    differs = used != 1 or (captured or 0) > 2
    assert (result.threads is not None) == differs


def test_a_stage_that_does_not_end_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stagespan.harness.bench.ADVICE_AFTER_S", 0.01)

    def advice() -> list[str]:
        return [line for line in caplog.messages if "may never end" in line]

    class Stage:
        def process(self, x: int) -> None:
            deadline = time.monotonic() + 60
            while not advice() and time.monotonic() < deadline:
                time.sleep(0.01)

    with caplog.at_level(logging.INFO, logger="stagespan"):
        harness(Stage(), signature_of(x=5), tmp_path).profile()

    assert len(advice()) == 1
