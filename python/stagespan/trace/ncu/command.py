"""The command with which ncu measures a stage's top kernels in the script that replays it."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stagespan.errors import TraceError
from stagespan.process.files import SCHEMA_VERSION, is_from_newer_version

# ncu writes `(int)32` for a template's argument that the profiler writes as `32`.
_CAST = re.compile(r"\((?:unsigned |signed )?(?:int|long|long long|short|char|bool)\)(?=-?\w)")
_RETURNS = re.compile(r"^(?:void|auto)\s+")


def base_name(name: str) -> str:
    """Return a function's name without return type, namespaces, template arguments, parameters.

    ncu compares it with `--kernel-name-base function`, its default.
    """
    name = name.replace("(anonymous namespace)", "_anonymous_").replace(
        "{anonymous}", "_anonymous_"
    )
    kept: list[str] = []
    depth = 0
    for letter in _RETURNS.sub("", name.strip()):
        if letter in "<(":
            if letter == "(" and depth == 0 and kept:
                break
            depth += 1
        elif letter in ">)":
            depth -= 1
        elif depth <= 0:
            kept.append(letter)
    parts = "".join(kept).split("::")
    return parts[-1].strip() or parts[0].strip() or name


def one_way(name: str) -> str:
    """Return the whole name in a normal form: without blanks, casts and return type."""
    name = name.strip().replace("<unnamed>", "(anonymous namespace)")
    return re.sub(r"\s+", "", _CAST.sub("", _RETURNS.sub("", name)))


def without_parameters(name: str) -> str:
    """Return `one_way` without the parameters, which ncu or the profiler may leave out."""
    name = one_way(name)
    depth = 0
    for at in range(len(name) - 1, -1, -1):
        depth += (name[at] == ")") - (name[at] == "(")
        if depth == 0:
            return name[:at] if name[at] == "(" and at else name
    return name


# --- The command ---


SECTIONS = (
    "SpeedOfLight",
    "SpeedOfLight_RooflineChart",
    "ComputeWorkloadAnalysis",
    "MemoryWorkloadAnalysis",
    "SchedulerStats",
    "WarpStateStats",
    "Occupancy",
    "LaunchStats",
)
"""The sections of ncu that the verdict and the roofline need."""
MOST_LAUNCHES = 50
"""The most launches. Each is replayed about forty times, so more would take long."""
_LARGEST = 1e300
_SPECIAL = re.compile(r"([\\.^$|?*+()\[\]{}])")


@dataclass(frozen=True, slots=True)
class Top:
    """A kernel of a breakdown."""

    name: str
    ms: float
    count: int


@dataclass(frozen=True, slots=True)
class TopKernels:
    """The contents of `{stage}_breakdown.json`."""

    stage: str
    kernels: list[Top]
    total_ms: float
    steps: int
    """The number of iterations in its profile."""


def read_breakdown(path: str | Path) -> TopKernels:
    """Read a breakdown. Raises TraceError if it is not one, or was made without a device."""
    try:
        data: Any = json.loads(Path(path).read_bytes())
    except OSError as error:
        raise TraceError(
            f"{path} cannot be read ({error.strerror or error}): pass a stage's breakdown.json."
        ) from None
    except (ValueError, RecursionError):
        raise TraceError(f"{path} is not JSON: pass a stage's breakdown.json.") from None
    version = data.get("schema_version") if isinstance(data, dict) else None
    if is_from_newer_version(version):
        raise TraceError(
            f"{path} has the schema_version {version!r}, but this stagespan reads only up to "
            f"{SCHEMA_VERSION}: update stagespan, or pass another file."
        )
    rows = data.get("top_kernels") if isinstance(data, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise TraceError(
            f"{path} has no top_kernels: pass the breakdown.json that the harness or the profiler"
            " wrote for a stage."
        )
    kernels = [
        Top(row["name"], _figure(row.get("ms"), 0.0), max(int(_figure(row.get("count"), 1.0)), 1))
        for row in rows
        if isinstance(row.get("name"), str) and row.get("cuda_ms", row.get("device_ms"))
    ]
    if not kernels:
        raise TraceError(
            f"{path} lists no device kernels, and ncu measures only those: replay the stage on an"
            " NVIDIA GPU first."
        )
    total = data.get("total_kernel_time_ms")
    steps = data.get("profile_steps")
    return TopKernels(
        stage=str(data.get("name") or Path(path).name),
        kernels=kernels,
        total_ms=_figure(total, sum(kernel.ms for kernel in kernels)),
        steps=steps if isinstance(steps, int) and steps > 0 else 1,
    )


def _figure(value: Any, default: float) -> float:
    """Return a figure of the file; the default if it is missing or not a number."""
    return float(value) if isinstance(value, (int, float)) and abs(value) < _LARGEST else default


def kernel_filter(kernels: Sequence[Top]) -> str:
    """Return ncu's filter for these kernels: the full names of their functions."""
    names = dict.fromkeys(base_name(kernel.name) for kernel in kernels)
    escaped = "|".join(_SPECIAL.sub(r"\\\1", name) for name in names)
    return f"regex:(^|::)({escaped})$"  # some versions of ncu keep the namespace


@dataclass(frozen=True, slots=True)
class Command:
    """The two commands, as argument lists: to measure, and to convert the report to CSV."""

    measure: list[str]
    export: list[str]
    report: Path
    table: Path
    """The file for the output of `export`."""

    def text(self) -> str:
        """The commands as lines for a shell."""
        measure = [shlex.quote(word) for word in self.measure]
        breaks = "".join(
            f" \\\n  {word}"
            if word.startswith("--") or word == shlex.quote(sys.executable)
            else f" {word}"
            for word in measure[1:]
        )
        export = " ".join(shlex.quote(word) for word in self.export)
        return f"{measure[0]}{breaks}\n{export} > {shlex.quote(str(self.table))}"


def command(
    top: TopKernels,
    program: Sequence[str],
    output: Path,
    *,
    count: int,
    warmup: int = 1,
) -> Command:
    """Build the commands for the `count` kernels that take the longest; `output` has no suffix.

    The launches of one iteration after the warm-up are measured, but at most `MOST_LAUNCHES`.
    """
    chosen = top.kernels[:count]
    requested = {base_name(kernel.name) for kernel in chosen}
    # ncu counts launches by function name, and other kernels of the list may have the same name.
    matching = sum(k.count for k in top.kernels if base_name(k.name) in requested)
    per_step = max(round(matching / top.steps), 1)
    report = output.with_name(f"{output.name}.ncu-rep")
    collect = [word for section in SECTIONS for word in ("--section", section)]
    measure = [
        "ncu",
        "--target-processes", "all",
        "--kernel-name-base", "function",
        "--kernel-name", kernel_filter(chosen),
        "--launch-skip", str(warmup * per_step),
        "--launch-count", str(min(per_step, MOST_LAUNCHES)),
        *collect,
        "--force-overwrite",
        "--export", os.fspath(report),
        *program,
    ]  # fmt: skip
    return Command(measure, exporting(report), report, output.with_name(f"{output.name}.csv"))


def exporting(report: Path) -> list[str]:
    """Return the command that prints a report as CSV."""
    return ["ncu", "--import", os.fspath(report), "--csv", "--page", "raw"]


def replay_program(script: Path, factory: str, warmup: int, step: str | None) -> list[str]:
    """Return the command that runs the generated script under ncu, without a profiler."""
    words = [sys.executable, os.fspath(script), "--factory", factory]
    words += ["--warmup", str(warmup), "--timing-steps", "1", "--steps", "0"]
    return words + (["--step", step] if step is not None else [])
