"""``stagespan bench --ncu``: shows what limits the top kernels of a stage, with Nsight Compute."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import click
import msgspec

from stagespan.cli.output import write_to
from stagespan.errors import TraceError
from stagespan.harness.bundle import replay_file_of
from stagespan.pages.amounts import counted
from stagespan.pages.page import ResultPage, Words
from stagespan.process.files import module_name, safe_name
from stagespan.report.reader import read_json
from stagespan.trace import nsight
from stagespan.trace.nsight import TopKernels, read_ncu, report

_WORDS = Words(page="Nsight Compute", as_text="stagespan bench --ncu --markdown")


def kernels_page(breakdown: Path | None, options: dict[str, Any]) -> ResultPage | None:
    """Return the page of measured kernels; None if only the commands were printed.

    ``options`` are those of `stagespan bench`. Raises StagespanError if there is nothing to read.
    """
    top = None if breakdown is None else read_breakdown(breakdown)
    file = options["report_file"] or options["csv_file"]
    if file is None and breakdown is not None and top is not None:
        file = _measure(breakdown, top, options)
    elif file is None:
        raise TraceError("Pass a {stage}_breakdown.json, or a file of ncu with --csv or --report.")
    requested = 0 if options["csv_file"] else options["count"]
    return None if file is None else file_page(file, top, requested)


def file_page(path: Path, top: TopKernels | None = None, count: int = 0) -> ResultPage:
    """Return the page of a file that ncu has written. Raises TraceError if it cannot be read.

    The first `count` kernels of `top` were requested.
    """
    judged = report(read_ncu(path), top, count)
    return ResultPage(_WORDS, judged, str(path), counted(len(judged.kernels), "kernel"))


def read_breakdown(path: Path) -> TopKernels:
    """Read a breakdown. Raises StagespanError if it is not one, or was made without a device."""
    try:
        top = msgspec.convert(read_json(path), TopKernels)
    except msgspec.ValidationError as error:
        raise TraceError(f"{path} is not a stage's breakdown.json: {error}.") from None
    kernels = [kernel for kernel in top.top_kernels if kernel.cuda_ms]
    if not kernels:
        raise TraceError(
            f"{path} lists no device kernels, and ncu measures only those: replay the stage on an"
            " NVIDIA GPU first."
        )
    return msgspec.structs.replace(top, top_kernels=kernels)


def _measure(breakdown: Path, top: TopKernels, options: dict[str, Any]) -> Path | None:
    """Measure and return the table of figures; None if the commands were only printed."""
    stem = breakdown.name.removesuffix(".json").removesuffix("_breakdown")
    # A file of a rank or worker has its name behind that of the stage.
    stage = safe_name(top.name)
    name = module_name(top.name) + stem.removeprefix(stage) if stem.startswith(stage) else stem
    script: Path = options["script"] or breakdown.with_name(f"profile_{name}.py")
    if not script.is_file():
        raise TraceError(f"{script} does not exist, but ncu runs it: pass a script with --script.")
    if (factory := options["factory"]) is None:
        raise TraceError("Pass --factory MODULE:CALLABLE, which returns the loaded stage.")
    target = Path(options["output_dir"] or breakdown.parent) / f"{stem}_ncu.ncu-rep"
    table = target.with_suffix(".csv")
    program = [str(script), "--factory", factory]
    if options["step"] is not None:
        program += ["--step", options["step"]]
    warmup = 1 if options["warmup"] is None else options["warmup"]
    measure = nsight.measuring(top, options["count"], warmup, target, program)
    if options["dry_run"] or shutil.which("ncu") is None:
        if not options["dry_run"]:
            click.echo("ncu is not installed here: run this where Nsight Compute is.", err=True)
        if (module := replay_file_of(script.read_text("utf-8", "replace"))) is not None:
            click.echo(f"{script.name} needs {module} in its folder: copy both.", err=True)
        click.echo(shlex.join(measure))
        click.echo(f"{shlex.join(nsight.exporting(target))} > {shlex.quote(str(table))}")
        click.echo(shlex.join(["stagespan", "bench", str(breakdown), "--ncu", "--csv", str(table)]))
        return None
    # Its output goes to standard error, because measuring takes minutes.
    status = subprocess.run(measure, check=False, stdout=2).returncode
    if status != 0 or not target.is_file():
        raise TraceError(
            f"ncu ended with status {status} and wrote no report: see what it printed. If it may "
            "not read the device's counters (ERR_NVGPUCTRPERM), run it as root, or let an "
            "administrator load the driver with NVreg_RestrictProfilingToAdminUsers=0."
        )
    write_to(str(table), nsight.exported(target))
    return table
