"""Programs that use stagespan as TeleFuser does."""

from __future__ import annotations

import gzip
import json
import logging
import os
import sys
import types


def one_stage() -> None:
    import torch

    from stagespan.compat.telefuser.profiler import ProfilingContext

    @ProfilingContext("decode")
    def decode(latents):
        return latents + 1

    decode(torch.zeros(2))


def uses_loguru() -> None:
    from loguru import logger

    logger.remove()
    logger.add(sys.stdout, format="{level} <{message}>")
    import logging

    from stagespan.compat.telefuser.profiler import ProfilingContext

    with ProfilingContext("{braces} 100%"):
        pass
    logging.getLogger("stagespan").warning("a %s", "warning")


def parts_of_a_trace() -> None:
    import torch

    from stagespan.compat.telefuser.profiler import ProfilingContext, get_profiler_output_dir

    with ProfilingContext("decode"):
        torch.zeros(3, 3) @ torch.zeros(3, 3)
    with gzip.open(get_profiler_output_dir() / "decode_rank0.trace.json.gz") as file:
        trace = json.load(file)
    names = {event["name"] for event in trace["traceEvents"]}
    shapes = any("Input Dims" in event.get("args", {}) for event in trace["traceEvents"])
    print(shapes, "[memory]" in names, bool(trace.get("with_stack")))


def named_later() -> None:
    from stagespan.compat.telefuser.profiler import ProfilingContext

    context = ProfilingContext("decode")
    os.environ["ENABLE_PROFILER_NAMES"] = "decode"
    with context:
        print(context._profiler is not None)
    print(context._profiler)


def imports_the_package() -> None:
    import stagespan.compat.telefuser

    print(logging.getLogger("stagespan").handlers)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    with stagespan.ProfilingContext("decode"):
        pass


def imports_platforms() -> None:
    from stagespan.compat.telefuser import platforms

    package = sys.modules["telefuser"] = types.ModuleType("telefuser")
    package.__path__ = []
    sys.modules["telefuser.platforms"] = platforms

    from telefuser.platforms.cpu import CpuPlatform
    from telefuser.platforms.cuda import CudaPlatform
    from telefuser.platforms.interface import BasePlatform
    from telefuser.platforms.npu import NPUPlatform
    from telefuser.platforms.rocm import RocmPlatform

    print(CudaPlatform is platforms.CudaPlatform, issubclass(NPUPlatform, BasePlatform))
    print(isinstance(platforms.current_platform, CpuPlatform), RocmPlatform.__name__)


def steps() -> None:
    import torch

    from stagespan.compat.telefuser.profiler import ProfilingContext, dump_io_signatures
    from stagespan.compat.telefuser.stage_bench_harness import HarnessConfig, StageBenchHarness

    logging.basicConfig(level=logging.INFO)

    class Scheduler:
        def set_timesteps(self, count):
            self.timesteps = list(range(count))

        def step(self, noise):
            return noise

    class Stage:
        scheduler = Scheduler()

        @ProfilingContext("denoise")
        def process(self, x):
            self.scheduler.set_timesteps(4)
            for number in range(4):
                x = x @ x if number < 2 else x + x  # two experts
                self.scheduler.step(x)

    Stage().process(torch.zeros(4, 4))
    dump_io_signatures("signatures.json")
    config = HarnessConfig(output_dir="out", step=3)
    for step in (3, "first", None):
        config.step = step
        harness = StageBenchHarness.from_signature_file(
            "signatures.json", "denoise", Stage(), config
        )
        results = harness.profile()
        names = {row["name"] for row in results["kernel_breakdown"]["top_kernels"]}
        print(results["step"]["number"], "aten::matmul" in names, str(results["iteration"]))
    try:
        HarnessConfig(step=0)
    except RuntimeError as error:
        print(error)


if __name__ == "__main__":
    globals()[sys.argv.pop(1)]()
