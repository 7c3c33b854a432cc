"""Operators that launch kernels, and the breakdown of a trace's kernels."""

from __future__ import annotations

from typing import Any

from commands import checked, fits
from planted import Program

from stagespan.trace import Trace
from stagespan.trace.analyses import kernels
from stagespan.trace.analyses.kernels import Kernels
from stagespan.trace.json_schema import json_schema


def kernels_of(trace: Trace) -> Kernels:
    return checked(kernels.analyze(trace), Kernels)


def json_of(trace: Trace) -> dict[str, Any]:
    found = kernels_of(trace).to_dict()
    fits(found, json_schema()["properties"]["kernels"])
    return found


def operator(
    program: Program, name: str, kernel: str, us: int, dims: list[Any] | None = None, **args: Any
) -> int:
    """An operator of 20 µs, 5 of them its own call, that launches a kernel; returns its start."""
    begin = program.now
    program.work(15)
    program.launch(kernel, us)
    if dims is not None:
        args["Input Dims"] = dims
    program.event(name, "cpu_op", begin, program.now, **args)
    return begin
