"""``stagespan bench --ncu``: shows what limits the top kernels of a stage, with Nsight Compute."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import click

from stagespan.cli.output import write_to
from stagespan.errors import TraceError
from stagespan.harness.bundle import replay_file_of
from stagespan.pages.amounts import counted
from stagespan.pages.page import ResultPage, Words
from stagespan.process.files import module_name, safe_name
from stagespan.trace import nsight
from stagespan.trace.nsight import NcuReport, Reading, TopKernels, read_breakdown, read_ncu, report

_WORDS = Words(page="Nsight Compute", as_text="stagespan bench --ncu --markdown")


def kernels_page(
    breakdown: Path | None,
    *,
    csv_file: Path | None,
    report_file: Path | None,
    count: int,
    **options: Any,
) -> ResultPage | None:
    """Return the page of measured kernels; None if only the commands were printed.

    ``options`` are `factory`, `step`, `warmup`, `folder`, `script` and `dry_run` of the command.
    Raises TraceError if nothing can be measured or read.
    """
    top = None if breakdown is None else read_breakdown(breakdown)
    if (file := report_file or csv_file) is not None:
        reading: Reading | None = read_ncu(file)
    elif breakdown is not None and top is not None:
        reading = _measure(breakdown, top, count, options)
    else:
        raise TraceError("Pass a {stage}_breakdown.json, or a file of ncu with --csv or --report.")
    if reading is None:
        return None
    return _page(str(file or breakdown), report(reading, top, 0 if csv_file else count))


def file_page(path: Path) -> ResultPage:
    """Return the page of a file that ncu has written. Raises TraceError if it cannot be read."""
    return _page(str(path), report(read_ncu(path)))


def _page(name: str, judged: NcuReport) -> ResultPage:
    return ResultPage(_WORDS, judged, name, counted(len(judged.kernels), "kernel"))


def _measure(
    breakdown: Path, top: TopKernels, count: int, options: dict[str, Any]
) -> Reading | None:
    """Measure and return the figures; None if the commands were only printed."""
    stem = breakdown.name.removesuffix(".json").removesuffix("_breakdown")
    # A file of a rank or worker has its name behind that of the stage.
    stage = safe_name(top.name)
    name = module_name(top.name) + stem.removeprefix(stage) if stem.startswith(stage) else stem
    script: Path = options["script"] or breakdown.with_name(f"profile_{name}.py")
    if not script.is_file():
        raise TraceError(f"{script} does not exist, but ncu runs it: pass a script with --script.")
    if (factory := options["factory"]) is None:
        raise TraceError("Pass --factory MODULE:CALLABLE, which returns the loaded stage.")
    target = (options["folder"] or breakdown.parent) / f"{stem}_ncu.ncu-rep"
    table = target.with_suffix(".csv")
    program = [str(script), "--factory", factory]
    if options["step"] is not None:
        program += ["--step", options["step"]]
    measure = nsight.measuring(top, count, options["warmup"], target, program)
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
    write_to(str(table), text := nsight.exported(target))
    return nsight.parse(text, str(table))
