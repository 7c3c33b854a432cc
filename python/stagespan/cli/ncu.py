"""``stagespan ncu``: shows what limits the top kernels of a stage, with Nsight Compute."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from stagespan.cli.output import write_to
from stagespan.errors import TraceError
from stagespan.harness.bundle import replay_file_of
from stagespan.process.files import module_name, safe_name, write_whole
from stagespan.trace.analysis import analyze
from stagespan.trace.ncu import command as commands
from stagespan.trace.ncu.command import Command, TopKernels, exporting, read_breakdown
from stagespan.trace.ncu.reading import NoKernelsError, Reading, parse, read_ncu
from stagespan.trace.ncu.report import report
from stagespan.trace.read.reader import read_trace
from stagespan.trace.render.markdown import markdown_of
from stagespan.trace.render.terminal import print_result

_SUFFIX = "_breakdown.json"
_FILE = click.Path(path_type=Path)


@click.command("ncu")
@click.argument("breakdown", metavar="[BREAKDOWN]", type=_FILE, required=False)
@click.option(
    "--csv", "csv_file", type=_FILE, help="Read this CSV file of ncu instead of running ncu."
)
@click.option("--report", "report_file", type=_FILE, help="Read this .ncu-rep file with ncu.")
@click.option(
    "--factory", metavar="MODULE:CALLABLE", help="Function that returns the loaded stage."
)
@click.option(
    "--script", type=_FILE, help="The script of the stage. [default: in BREAKDOWN's folder]"
)
@click.option("--step", metavar="MODULE:CALLABLE", help="Value of the option --step of the script.")
@click.option("--top", "count", default=5, show_default=True, help="Number of kernels.")
@click.option("--warmup", default=1, show_default=True, help="Iterations that are not measured.")
@click.option("--output", type=_FILE, help="Folder for the files. [default: BREAKDOWN's folder]")
@click.option("--dry-run", is_flag=True, help="Only print the commands.")
@click.option(
    "--trace",
    "trace_file",
    type=_FILE,
    help="Trace with the operators. [default: the stage's trace]",
)
@click.option(
    "--json", "json_file", metavar="FILE", help="Write all figures as JSON; - is standard output."
)
@click.option("--markdown", "markdown_file", metavar="FILE", help="Write the tables as Markdown.")
def command(
    breakdown: Path | None,
    csv_file: Path | None,
    report_file: Path | None,
    trace_file: Path | None,
    count: int,
    json_file: str | None,
    markdown_file: str | None,
    **options: Any,
) -> None:
    """Show what limits the top kernels of a stage: memory, computing, or latency.

    BREAKDOWN is {stage}_breakdown.json. ncu measures the kernels while the generated script replays
    the stage. If ncu is not installed, the commands are printed, so that you can run them on
    another machine.
    """
    if breakdown is None and csv_file is None and report_file is None:
        raise TraceError(
            "Pass the {stage}_breakdown.json of a stage, or a file of ncu with --csv or --report."
        )
    if count < 1:
        raise TraceError(f"--top {count} selects no kernel: use 1 or more.")
    top = None if breakdown is None else read_breakdown(breakdown)
    if report_file is not None:
        reading = parse(_exported(report_file), str(report_file))
    elif csv_file is not None:
        reading = read_ncu(csv_file)
    else:
        assert breakdown is not None
        assert top is not None
        script = _checked_script(breakdown, top, options)
        built = _built(breakdown, top, count, options, script)
        if options["dry_run"] or shutil.which("ncu") is None:
            _print_commands(built, breakdown, script, there=options["dry_run"])
            return
        reading = _run(built)
    launchers = _launchers(breakdown, trace_file)
    found = report(reading, top, count if csv_file is None else None, launchers)
    if json_file is not None:
        write_to(json_file, json.dumps(found.to_dict(), indent=1) + "\n")
    if markdown_file is not None:
        write_to(markdown_file, markdown_of(found))
    if "-" not in (json_file, markdown_file):
        print_result(found)


def _script_beside(breakdown: Path, stem: str, stage: str) -> Path:
    """Return the path of the script that the replay with a breakdown has written."""
    rank_or_worker = stem.removeprefix(safe_name(stage))
    name = stem if rank_or_worker == stem else module_name(stage) + rank_or_worker
    return breakdown.with_name(f"profile_{name}.py")


def _needed_by(script: Path) -> Path | None:
    """Return the path of the module beside a script, if it imports one."""
    name = replay_file_of(script.read_text(encoding="utf-8", errors="replace"))
    return None if name is None else script.with_name(name)


def _checked_script(breakdown: Path, top: TopKernels, options: dict[str, Any]) -> Path:
    """Return the path of the stage's script. Raises TraceError if what it needs is missing."""
    stem = _stem(breakdown)
    script: Path = options["script"] or _script_beside(breakdown, stem, top.stage)
    if not script.is_file():
        raise TraceError(
            f"{script} does not exist, but ncu needs it to replay the stage: pass it with --script,"
            " or write it with `stagespan bench`."
        )
    beside = _needed_by(script)
    if beside is not None and not beside.is_file():
        raise TraceError(
            f"{script} needs {beside.name}, which is not in its folder: copy it there from where"
            " `stagespan bench` wrote both."
        )
    if options["factory"] is None:
        raise TraceError(
            "Pass --factory MODULE:CALLABLE, a function that returns the loaded stage."
        )
    return script


def _stem(breakdown: Path) -> str:
    return breakdown.name.removesuffix(_SUFFIX).removesuffix(".json")


def _built(
    breakdown: Path, top: TopKernels, count: int, options: dict[str, Any], script: Path
) -> Command:
    program = commands.replay_program(
        script, options["factory"], options["warmup"], options["step"]
    )
    folder = options["output"] or breakdown.parent
    return commands.command(
        top,
        program,
        folder / f"{_stem(breakdown)}_ncu",
        count=count,
        warmup=options["warmup"],
    )


def _print_commands(built: Command, breakdown: Path, script: Path, there: bool) -> None:
    if not there:
        click.echo(
            "ncu is not installed here: run this on a machine with Nsight Compute.", err=True
        )
    beside = _needed_by(script)
    if beside is not None:
        click.echo(f"{script.name} needs {beside.name} in its folder: copy both.", err=True)
    click.echo(built.text())
    click.echo(f"stagespan ncu {shlex.quote(str(breakdown))} --csv {shlex.quote(str(built.table))}")


def _run(built: Command) -> Reading:
    """Measure and export. The output of ncu and of the program goes to standard error."""
    try:
        built.report.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(built.report.parent, error) from error
    output = []
    with subprocess.Popen(
        built.measure,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as running:
        assert running.stdout is not None
        # Measuring takes minutes, so each line is shown at once.
        for line in running.stdout:
            output.append(line)
            click.echo(line, err=True, nl=False)
    if running.returncode != 0 or not built.report.is_file():
        raise TraceError(_failure("".join(output), running.returncode))
    text = _exported(built.report)
    try:
        write_whole(built.table, text)
    except OSError as error:
        raise _unwritable(built.table, error) from error
    return parse(text, str(built.table))


def _unwritable(path: Path, error: OSError) -> TraceError:
    return TraceError(
        f"{path} cannot be written ({error.strerror or error}): choose another folder with"
        " --output."
    )


def _failure(output: str, status: int) -> str:
    try:
        parse(output, "ncu's output")
    except NoKernelsError as error:
        if error.cause in ("permission", "no_match", "ncu"):
            return str(error)
    return f"ncu ended with status {status} and wrote no report: see what it printed above."


def _exported(report: Path) -> str:
    """Return a report of ncu as CSV."""
    if not report.is_file():
        raise TraceError(f"{report} does not exist: pass the report that ncu wrote.")
    if shutil.which("ncu") is None:
        raise TraceError(
            f"{report} can only be read by ncu, which is not installed here: on a machine with"
            f" ncu, run `ncu --import {report} --csv --page raw`, and pass its output with --csv."
        )
    done = subprocess.run(
        exporting(report), check=False, capture_output=True, text=True, errors="replace"
    )
    if done.returncode != 0:
        output = " ".join((done.stderr or done.stdout).split())[-300:]
        raise TraceError(f"ncu cannot read {report}: {output or 'it gives no reason'}")
    return done.stdout


def _launchers(
    breakdown: Path | None, trace_file: Path | None
) -> Mapping[str, tuple[str | None, str | None]]:
    """Return operator and stage by kernel, from the trace of the breakdown."""
    if trace_file is None and breakdown is not None and breakdown.name.endswith(_SUFFIX):
        default = breakdown.with_name(f"{breakdown.name.removesuffix(_SUFFIX)}_trace.json.gz")
        trace_file = default if default.is_file() else None
    if trace_file is None:
        return {}

    kernels = analyze(read_trace(trace_file), only=["kernels"]).to_dict()["kernels"]
    return {row["name"]: (row["operator"], row["stage"]) for row in kernels.get("top", ())}
