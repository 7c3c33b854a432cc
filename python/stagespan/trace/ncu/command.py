"""The command with which ncu measures a stage's top kernels in the script that replays it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from stagespan.errors import TraceError
from stagespan.process.files import SCHEMA_VERSION, is_from_newer_version

_ANONYMOUS = re.compile(r"\(anonymous namespace\)|\{anonymous\}|<unnamed>")
_INNERMOST = re.compile(r"<[^<>()]*>|\([^<>()]*\)")
# ncu writes `(int)32` for a template's argument that the profiler writes as `32`.
_CAST = re.compile(r"^(?:void|auto)\s|\((?:unsigned |signed )?(?:int|long|short|char|bool)\)|\s+")
_SECTIONS = ("SpeedOfLight", "SchedulerStats", "WarpStateStats", "Occupancy", "LaunchStats")
_MOST_LAUNCHES = 50  # each is replayed several times


def base_name(name: str) -> str:
    """Return a function's name without return type, namespaces, template arguments, parameters.

    ncu compares it with `--kernel-name-base function`, its default.
    """
    plain = _ANONYMOUS.sub("_anonymous_", name)
    while (shorter := _INNERMOST.sub("", plain)) != plain:
        plain = shorter
    return (plain.split("::")[-1].split() or [name])[-1]


def normal_form(name: str) -> str:
    """Return a whole name without blanks, casts and return type, which tools write differently."""
    return _CAST.sub("", _ANONYMOUS.sub("_anonymous_", name.strip()))


class Top(msgspec.Struct, frozen=True):
    """A kernel of a breakdown."""

    name: str
    ms: float | None = None
    count: int | None = None
    cuda_ms: float | None = None
    device_ms: float | None = None


class TopKernels(msgspec.Struct, frozen=True):
    """The contents of `{stage}_breakdown.json`."""

    top_kernels: list[Top]
    name: str = ""
    """Of the stage."""
    total_kernel_time_ms: float | None = None
    profile_steps: int | None = None
    schema_version: Any = None


def read_breakdown(path: str | Path) -> TopKernels:
    """Read a breakdown. Raises TraceError if it is not one, or was made without a device."""
    try:
        top = msgspec.json.decode(Path(path).read_bytes(), type=TopKernels)
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror or error}.") from None
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{path} is not a stage's breakdown.json: {error}.") from None
    if is_from_newer_version(top.schema_version):
        raise TraceError(
            f"{path} has the schema_version {top.schema_version!r}, but this stagespan reads only "
            f"up to {SCHEMA_VERSION}: update stagespan, or pass another file."
        )
    kernels = [kernel for kernel in top.top_kernels if kernel.cuda_ms or kernel.device_ms]
    if not kernels:
        raise TraceError(
            f"{path} lists no device kernels, and ncu measures only those: replay the stage on an"
            " NVIDIA GPU first."
        )
    return msgspec.structs.replace(top, top_kernels=kernels)


def kernel_filter(kernels: Sequence[Top]) -> str:
    """Return ncu's filter for these kernels: the full names of their functions."""
    names = dict.fromkeys(re.escape(base_name(kernel.name)) for kernel in kernels)
    return f"regex:(^|::)({'|'.join(names)})$"  # some versions of ncu keep the namespace


def measuring(
    top: TopKernels, count: int, warmup: int, report: Path, program: Sequence[str]
) -> list[str]:
    """Return the command that writes a report on the `count` kernels that take the longest.

    `program` is a stage's script with its options, which runs without a profiler. The launches of
    one iteration after the warm-up are measured, at most 50.
    """
    chosen = top.top_kernels[:count]
    names = {base_name(kernel.name) for kernel in chosen}
    # ncu counts launches by function name, and other kernels of the list may have the same name.
    launches = sum(k.count or 1 for k in top.top_kernels if base_name(k.name) in names)
    per_step = max(round(launches / (top.profile_steps or 1)), 1)
    return [
        *("ncu", "--target-processes", "all", "--kernel-name-base", "function"),
        *("--kernel-name", kernel_filter(chosen), "--launch-skip", str(warmup * per_step)),
        *("--launch-count", str(min(per_step, _MOST_LAUNCHES))),
        *(word for section in _SECTIONS for word in ("--section", section)),
        *("--force-overwrite", "--export", os.fspath(report), sys.executable, *program),
        *("--warmup", str(warmup), "--timing-steps", "1", "--steps", "0"),
    ]


def exporting(report: str | Path) -> list[str]:
    """Return the command that prints a report as CSV."""
    return ["ncu", "--import", os.fspath(report), "--csv", "--page", "raw"]


def exported(report: str | Path) -> str:
    """Return a report of ncu as CSV. Raises TraceError if ncu is missing or cannot read it."""
    try:
        done = subprocess.run(exporting(report), check=False, capture_output=True, text=True)
    except FileNotFoundError:
        raise TraceError(
            "ncu is not installed here: run `" + shlex.join(exporting(report)) + "` where it is, "
            "and pass its output to `stagespan bench --ncu --csv`."
        ) from None
    if done.returncode != 0:
        output = " ".join((done.stderr or done.stdout).split())[-300:]
        raise TraceError(f"ncu cannot read {report}: {output or 'it gives no reason'}")
    return done.stdout
