"""Programs that torch.compile has compiled, as traces show them, and what is found in them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from commands import checked, fits
from planted import HOST, Program

from stagespan.pages.result import Finding
from stagespan.trace import Trace
from stagespan.trace.analyses import compiled
from stagespan.trace.analyses.compiled import Compiled
from stagespan.trace.json_schema import json_schema

AUTOGRAD = 300
GRAPH = "## Call CompiledFxGraph fabc ##"


def compiled_of(trace: Trace) -> Compiled:
    return checked(compiled.analyze(trace), Compiled)


def of(program: Program, folder: Path) -> tuple[dict[str, Any], list[Finding]]:
    found = compiled_of(program.trace(folder))
    assert found.tables()
    fits(found.to_dict(), json_schema()["properties"]["compiled"])
    return found.to_dict(), found.findings()


@contextmanager
def region(program: Program, frame: str = ": 0/0", lookup: int = 2) -> Iterator[None]:
    with program.within("TorchDynamo Cache Lookup"):
        program.work(lookup)
    with program.within(f"Torch-Compiled Region{frame}"):
        program.work(1)
        yield
        program.work(1)


@contextmanager
def region_of_nothing() -> Iterator[None]:
    yield


def graph(program: Program, us: int = 40, cat: str = "cpu_op") -> None:
    with program.within(GRAPH, cat):
        program.work(us)


def compilation(program: Program, id_: str, parts: dict[str, int], nested: bool = True) -> None:
    """dynamo compiles a frame, as in traces of torch 2.13 (nested) or torch 2.3."""
    name = "_compile.compile_inner" if nested else "_compile.<locals>.compile_inner"
    begin = program.now
    if nested:
        program.event(f"dynamo_data: compile_id={id_}", "user_annotation", begin, begin + 0.5)
    with program.within("dynamo") if nested else program.within(f"{name} (dynamo_timed)"):
        program.work(1)
        with program.within(f"{name} (dynamo_timed)") if nested else region_of_nothing():
            for part, us in parts.items():
                # Compiling runs operators on tensors without data.
                with program.within(f"{part} (dynamo_timed)"), program.within("aten::mm"):
                    program.work(us)


PARTS = {
    "bytecode_tracing": 100,
    "create_aot_dispatcher_function": 200,
    "GraphLowering.run": 300,
    "async_compile.wait": 5_000,
    "build_guards": 50,
}


def backward(program: Program, arrows: bool = True) -> None:
    """A region whose graph autograd uses, and its backward pass in another thread."""
    with region(program):
        begin = program.now
        with program.within("CompiledFunction"):
            program.work(5)
            graph(program)
    program.thread = AUTOGRAD
    end = program.now
    name = "CompiledFunctionBackward"
    with program.within(f"autograd::engine::evaluate_function: {name}"), program.within(name):
        program.work(3)
        graph(program, 60)
    common = {"id": 1, "pid": HOST, "cat": "fwdbwd", "name": "fwdbwd"}
    program.events += [
        {"ph": "s", "ts": begin, "tid": 100, **common},
        {"ph": "f", "ts": end, "tid": AUTOGRAD, "bp": "e", **common},
    ]


def run(
    program: Program, operator: str, kernel: str, us: int, call: str = "cudaLaunchKernel"
) -> None:
    with program.within(operator):
        program.launch(kernel, us, call=call)


def inductor_graph(program: Program) -> None:
    with region(program), program.within(GRAPH, "user_annotation"):
        run(program, "triton_poi_fused_add_0", "triton_poi_fused_add_0", 30, "cuLaunchKernel")
        run(program, "triton_red_fused_mean_1", "triton_red_fused_mean_1", 20, "cuLaunchKernel")
        run(program, "aten::mm", "ampere_gemm", 400)
        # A user's kernel, which Inductor launches without an operator around it.
        program.launch("my_rope_kernel", 15, call="cuLaunchKernel")
        run(program, "my_library::moe", "moe_kernel<int>", 25)
        with program.within("aten::empty_strided"):
            program.work(1)
        run(program, "aten::reshape", "direct_copy_kernel", 5)
