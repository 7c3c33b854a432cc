"""Makes each call that TeleFuser's code and documentation make, and prints the results.

Runs as a separate program, because importing the drop-in changes the behaviour of a process's
stages.
"""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from stagespan.compat.telefuser import memory_snapshot, platforms, profiler
from stagespan.compat.telefuser.stage_bench_harness import HarnessConfig, StageBenchHarness

CALLS: dict[str, Callable[[], Any]] = {}
FOLDER = Path(tempfile.mkdtemp())


def call(function: Callable[[], Any]) -> Callable[[], Any]:
    CALLS[function.__name__] = function
    return function


def logged(function: Callable[[], None]) -> str:
    """Return what a function logs, and check that it returns nothing."""
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    logger = logging.getLogger("stagespan")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        assert function() is None
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    return text.getvalue()


class Decode:
    def __init__(self) -> None:
        self.layer = torch.nn.Linear(8, 8)

    @profiler.ProfilingContext4Debug("vae decode")
    @torch.inference_mode()
    def process(self, latents: Any, scale: float = 2.0, masks: Any = None) -> Any:
        return self.layer(latents) * scale


STAGE = Decode()
SIGNATURES = FOLDER / "timing_io_signature.json"
REPORT = FOLDER / "timing.json"


def harness(**options: Any) -> StageBenchHarness:
    config = HarnessConfig(output_dir=str(FOLDER / "replay"), **options)
    return StageBenchHarness.from_signature_file(str(SIGNATURES), "vae decode", STAGE, config)


# --- contexts -----------------------------------------------------------------------------------


@call
def a_block_gives_the_context() -> Any:
    with profiler.ProfilingContext("block") as context:
        return isinstance(context, profiler.ProfilingContext) and context.name == "block"


@call
def an_async_block() -> Any:
    async def work() -> bool:
        async with profiler.ProfilingContext("async block") as context:
            await asyncio.sleep(0)
            return context.name == "async block"

    return asyncio.run(work())


@call
def a_decorated_function_keeps_its_name() -> Any:
    @profiler.ProfilingContext("decorated", reset_peak_memory=False, capture_memory=True)
    def work(count: int) -> int:
        """Doubles."""
        return count * 2

    return [work(4), work.__name__, work.__doc__]


@call
def a_decorated_coroutine() -> Any:
    @profiler.ProfilingContext("coroutine")
    async def work() -> int:
        return 3

    return [asyncio.iscoroutinefunction(work), asyncio.run(work())]


@call
def an_error_passes_through() -> Any:
    try:
        with profiler.ProfilingContext("failing"):
            raise KeyError("mine")
    except KeyError as error:
        return [str(error), profiler.get_timing_report()["stages"]["failing"]["errors"]]


@call
def a_debug_method() -> Any:
    profiler.reset_timing_registry("calls", {"model": "small"})
    masks = [torch.ones(2), torch.ones(2)]
    return list(STAGE.process(torch.randn(2, 8), scale=3.0, masks=masks).shape)


# --- the report ---------------------------------------------------------------------------------


@call
def get_timing_report() -> Any:
    report = profiler.get_timing_report()
    wanted = {"request_id", "timestamp", "wall_clock_ms", "total_stages_ms", "num_stages"}
    stage = report["stages"]["vae decode"]
    return [
        wanted | {"stages", "metadata"} <= report.keys(),
        report["request_id"],
        report["metadata"],
        stage["duration_ms"] > 0 and stage["percentage"] == 100.0,
    ]


@call
def dump_timing_report() -> Any:
    profiler.dump_timing_report(str(REPORT))
    return "vae decode" in json.loads(REPORT.read_text())["stages"]


@call
def set_timing_metadata() -> Any:
    profiler.set_timing_metadata("commit", "1a2b")
    return profiler.get_timing_report()["metadata"]["commit"]


@call
def reset_gives_the_registry() -> Any:
    registry = profiler.reset_timing_registry("r1")
    return [
        registry is profiler.GlobalTimingRegistry.get_instance(),
        registry.get_report()["request_id"],
        registry.get_report()["num_stages"],
    ]


@call
def reset_makes_a_request_id() -> Any:
    return profiler.reset_timing_registry().get_report()["request_id"].startswith("req_2")


@call
def registry_record() -> Any:
    registry = profiler.reset_timing_registry()
    registry.record("by hand", 12.5)
    # Its ticks are not whole ns, and the rate of the clock is measured anew (some ppm).
    return round(registry.get_report()["stages"]["by hand"]["duration_ms"], 3)


@call
def registry_record_with_memory() -> Any:
    registry = profiler.GlobalTimingRegistry.get_instance()
    registry.record("with memory", 1.0, profiler.capture_memory_snapshot())
    return "with memory" in registry.get_report()["stages"]


@call
def registry_record_parallel_stage() -> Any:
    registry = profiler.reset_timing_registry()
    ranks = {
        1: {"duration_ms": 7.0, "peak_memory_gb": 2.0},
        0: {"duration_ms": 5.0, "peak_memory_gb": 1.0},
    }
    registry.record_parallel_stage("dit", ranks)
    stage = registry.get_report()["stages"]["dit"]
    return [round(stage["duration_ms"], 3), stage["parallel_info"]]


@call
def registry_set_metadata_and_finalize() -> Any:
    registry = profiler.GlobalTimingRegistry.get_instance()
    registry.set_metadata("a", 1)
    registry.finalize()
    return registry.get_report()["metadata"]


@call
def registry_dump() -> Any:
    profiler.GlobalTimingRegistry.get_instance().dump(str(FOLDER / "new" / "timing.json"))
    return (FOLDER / "new" / "timing.json").is_file()


@call
def registry_summary() -> Any:
    text = profiler.GlobalTimingRegistry.get_instance().summary()
    return ["Pipeline Timing Summary" in text, "rank  1:      7.0 ms" in text]


@call
def print_timing_summary() -> Any:
    text = logged(profiler.print_timing_summary)
    return [text.count("Pipeline Timing Summary"), "rank  1:      7.0 ms" in text]


@call
def compare_timing_reports() -> Any:
    slow = FOLDER / "slow.json"
    slow.write_text(json.dumps({"total_stages_ms": 300, "stages": {"dit": {"duration_ms": 300}}}))
    fast = FOLDER / "fast.json"
    fast.write_text(json.dumps({"total_stages_ms": 200, "stages": {"dit": {"duration_ms": 200}}}))
    return profiler.compare_timing_reports(str(slow), str(fast))


# --- signatures ---------------------------------------------------------------------------------


@call
def get_io_signatures() -> Any:
    profiler.reset_timing_registry("signed")
    STAGE.process(torch.randn(2, 8), scale=3.0, masks=[torch.ones(2), torch.ones(2)])
    found = profiler.get_io_signatures()["vae decode"]
    latents = found.input_signatures["latents"]
    return [
        isinstance(found, profiler.StageIOSignature),
        isinstance(latents, profiler.TensorSignature),
        latents.shape == (2, 8),
        [mask.to_dict() for mask in found.input_signatures["masks"]],
        found.input_signatures["scale"],
        found.metadata,
        found.output_signature.dtype,
    ]


@call
def signature_to_dict() -> Any:
    entry = profiler.get_io_signatures()["vae decode"].to_dict()
    return [sorted(entry), entry["input_signatures"]["latents"]]


@call
def tensor_signature_from_tensor() -> Any:
    return profiler.TensorSignature.from_tensor(torch.zeros(1, 2, dtype=torch.bfloat16)).to_dict()


@call
def registry_signatures() -> Any:
    registry = profiler.GlobalTimingRegistry.get_instance()
    tensor = profiler.TensorSignature((1, 4), "float32", "cpu")
    registry.record_signature(profiler.StageIOSignature("made", {"x": tensor, "n": 2}))
    registry.dump_io_signatures(str(SIGNATURES))
    return sorted(registry.get_io_signatures())


@call
def dump_io_signatures() -> Any:
    profiler.dump_io_signatures(str(SIGNATURES))
    return sorted(json.loads(SIGNATURES.read_text())["stages"])


@call
def contexts_capture_signatures_too() -> Any:
    @profiler.ProfilingContext("always")
    def work(tensor: Any) -> Any:
        return tensor

    work(torch.zeros(3))
    return profiler.get_io_signatures()["always"].to_dict()["input_signatures"]["tensor"]["shape"]


# --- memory -------------------------------------------------------------------------------------


@call
def capture_memory_snapshot() -> Any:
    snapshot = profiler.capture_memory_snapshot()
    return [
        isinstance(snapshot, profiler.MemorySnapshot),
        snapshot.to_dict(),
        snapshot == memory_snapshot.capture_memory_snapshot("cpu"),
    ]


@call
def memory_snapshot_class() -> Any:
    made = profiler.MemorySnapshot(1024.0, 2048.0, 1536.0, 4096.0)
    return [made.allocated_gb, made.peak_reserved_gb, made.pool_overhead_mb, made.pool_overhead_pct]


@call
def record_memory_snapshot() -> Any:
    profiler.reset_memory_registry()
    profiler.record_memory_snapshot("before")
    return list(profiler.get_memory_snapshots())


@call
def set_memory_baseline() -> Any:
    return profiler.set_memory_baseline().reserved_mb


@call
def get_memory_analysis() -> Any:
    found = profiler.get_memory_analysis()
    return [
        found["peak_reserved_gb"],
        found["pool_overhead_pct"],
        found["memory_increase_mb"],
        list(found["snapshots"]),
        profiler.get_timing_report()["memory"] == found,
    ]


@call
def print_memory_analysis() -> Any:
    text = logged(profiler.print_memory_analysis)
    return [line for line in text.splitlines() if "Increase" in line or "Allocated" in line]


@call
def reset_peak_memory_stats() -> Any:
    return profiler.reset_peak_memory_stats()


@call
def reset_memory_registry() -> Any:
    profiler.reset_memory_registry()
    return profiler.get_memory_analysis()


@call
def get_memory_info() -> Any:
    return sorted(memory_snapshot.get_memory_info())


# --- settings -----------------------------------------------------------------------------------


@call
def enable_profiler_for_names() -> Any:
    profiler.set_profiler_output_dir(str(FOLDER / "traces"))
    profiler.enable_profiler_for_names("first,named stage")
    profiler.enable_profiler_for_names("named stage")
    for name in ("first", "named stage"):
        with profiler.ProfilingContext(name):
            torch.zeros(4) + 1
    profiler.enable_profiler_for_names("")
    with profiler.ProfilingContext("named stage"):
        torch.zeros(4) + 1
    written = sorted(path.name for path in (FOLDER / "traces").iterdir())
    return [os.environ["ENABLE_PROFILER_NAMES"], written]


@call
def set_profiler_output_dir() -> Any:
    profiler.set_profiler_output_dir(str(FOLDER / "out"))
    named = os.environ["TELEFUSER_PROFILER_OUTPUT_DIR"] == str(FOLDER / "out")
    return [named, profiler.get_profiler_output_dir() == FOLDER / "out"]


@call
def set_pipeline_name() -> Any:
    profiler.set_pipeline_name("wan21")
    return os.environ["TELEFUSER_PIPELINE_NAME"]


# --- the harness --------------------------------------------------------------------------------


@call
def harness_config() -> Any:
    return [HarnessConfig().output_dir == str(FOLDER / "out"), HarnessConfig().capture_output]


@call
def harness_by_its_signature() -> Any:
    made = StageBenchHarness(
        stage_name="made",
        io_signature=profiler.get_io_signatures()["made"],
        stage_instance=None,
        config=HarnessConfig(output_dir=str(FOLDER)),
    )
    made.setup()
    return [made.io_signature.stage_name, made.stage_instance]


@call
def harness_of_an_unknown_stage() -> Any:
    try:
        StageBenchHarness.from_signature_file(str(SIGNATURES), "decod")
    except ValueError as error:
        return "vae decode" in str(error)


@call
def harness_run_single_step() -> Any:
    made = harness()
    made.setup()
    return [
        list(made.run_single_step().shape),
        list(made.run_single_step({"latents": torch.zeros(3, 8), "scale": 1.0}).shape),
    ]


@call
def harness_single_step_without_a_stage() -> Any:
    made = StageBenchHarness.from_signature_file(str(SIGNATURES), "made")
    made.setup()
    try:
        made.run_single_step()
    except RuntimeError:
        return "RuntimeError"


@call
def harness_profile() -> Any:
    results = harness().profile(warmup=0, profile_steps=3, output_suffix="_b")
    json.dumps(results)
    return [
        results["stage_name"],
        results["warmup"],
        results["profile_steps"],
        len(results["timing_ms"]),
        sum(results["timing_ms"]) > 0,
        sorted(results["kernel_breakdown"].keys() & {"name", "num_kernels", "top_kernels"}),
        sorted(path.name for path in (FOLDER / "replay").glob("*vae*")),
    ]


@call
def harness_generate_test_script() -> Any:
    compile(harness().generate_test_script(), "script", "exec")
    return "vae decode" in harness().generate_test_script()


# --- platforms and ncu --------------------------------------------------------------------------


@call
def current_platform() -> Any:
    here = platforms.current_platform
    here.set_device("cpu")
    here.synchronize()
    here.empty_cache()
    here.ipc_collect()
    here.reset_peak_memory_stats()
    return [
        isinstance(here, platforms.CpuPlatform),
        isinstance(here, platforms.CudaPlatform),
        here.device_type,
        here.dist_backend,
        here.full_dist_backend,
        here.dispatch_key,
        here.device_control_env_var,
        here.is_accelerator_available(),
        here.max_memory_allocated(),
        here.get_device_total_memory(),
        here.get_device_properties(),
        str(here.default_device()),
        here.get_device_name(),
    ]


@call
def analyze_ncu_report() -> Any:
    (FOLDER / "ncu").write_text(
        "#!/bin/sh\ncat <<'END'\n"
        '"ID","Kernel Name","gpu__time_duration.avg",'
        '"dram__throughput.avg.pct_of_peak_sustained_elapsed",'
        '"sm__throughput.avg.pct_of_peak_sustained_elapsed"\n'
        '"","","ns","%","%"\n'
        '"0","gemm","1000","90","40"\n'
        "END\n"
    )
    (FOLDER / "ncu").chmod(0o755)
    os.environ["PATH"] = f"{FOLDER}:{os.environ['PATH']}"
    found = profiler.analyze_ncu_report("kernels.ncu-rep")
    return [found["bottleneck"], found["dram_throughput_pct"], sorted(found)]


@call
def ncu_key_metrics() -> Any:
    return len(profiler.NCU_KEY_METRICS)


def outcome(function: Callable[[], Any]) -> dict[str, Any]:
    try:
        return {"value": function()}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    json.dump({name: outcome(function) for name, function in CALLS.items()}, sys.stdout)
