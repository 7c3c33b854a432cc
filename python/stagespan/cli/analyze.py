"""``stagespan analyze``: analyses a trace, and prints or writes the result."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import click

from stagespan.cli.former import say_former
from stagespan.cli.lean import trace_analyses
from stagespan.cli.output import FormerFilesCommand, Output, output_options, write_to


def _schema() -> dict[str, Any]:
    from stagespan.trace.json_schema import json_schema

    return json_schema()


def _possible(context: click.Context, option: click.Parameter, jobs: int) -> int:
    if jobs == 0:
        raise click.BadParameter("0 is not allowed: use 1 or more, or -1 for one process per core.")
    source = context.get_parameter_source(option.name or "")
    if jobs != 1 and source is click.core.ParameterSource.COMMANDLINE:
        from importlib.util import find_spec

        if find_spec("joblib") is None:
            raise click.BadParameter(
                "reading several traces at a time needs joblib (the extra 'ranks'): install it "
                "with `pip install joblib`, or omit the option."
            )
    return jobs


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """Show on a terminal how many ranks are done."""
    with ExitStack() as stack:
        bars: list[Any] = []

        def show(done: int, total: int) -> None:
            if not sys.stderr.isatty():
                return
            if not bars:
                from rich.console import Console
                from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

                columns = (TextColumn("ranks read"), BarColumn(), MofNCompleteColumn())
                bar = Progress(*columns, console=Console(stderr=True), transient=True)
                bars.append(stack.enter_context(bar))
                bar.add_task("", total=total)
            bars[0].update(bars[0].task_ids[0], completed=done)

        yield show


@click.command(cls=FormerFilesCommand)
@click.argument("path", metavar="PATH")
@click.option(
    "--against",
    metavar="BEFORE",
    hidden=True,  # it is `compare BEFORE PATH`
)
@click.option(
    "--capture",
    "captures",
    metavar="FILE",
    multiple=True,
    help="A trace that was made while the device graphs of PATH were captured, or a folder of such "
    "traces: the graphs' kernels get their operators and shapes from it. Can be repeated.",
)
@click.option(
    "--device",
    metavar="NAME",
    help="The name of the device, for a trace that does not contain it: shares of peaks refer to "
    "it, such as 'NVIDIA H100 80GB HBM3'.",
)
@click.option(
    "--merge",
    "merge_file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="For a folder: write the timelines of all ranks into one file for Perfetto (.json.gz).",
)
@click.option(
    "--jobs",
    metavar="N",
    type=int,
    callback=_possible,
    default=-1,
    show_default="one per core",
    help="For a folder: how many traces to read at a time (needs joblib).",
)
@click.option(
    "--cluster",
    metavar="ADDRESS",
    help="For a folder: let a Dask cluster (tcp://HOST:PORT) or a Ray cluster (ray://HOST:PORT, or "
    "ray for one on this machine) read the traces.",
)
@click.option(
    "--flame",
    "flame_file",
    metavar="FILE",
    help="Write the recorded stacks in folded form, for tools that draw flame graphs.",
)
@click.option(
    "--critical-path",
    "path_file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write the trace with its critical path on a track of its own for Perfetto (.json.gz).",
)
@output_options(_schema)
def command(
    path: str,
    against: str | None,
    captures: tuple[str, ...],
    device: str | None,
    merge_file: Path | None,
    jobs: int,
    cluster: str | None,
    flame_file: str | None,
    path_file: Path | None,
    output: Output,
) -> None:
    """Show where the time of a trace went, and why the device was idle.

    PATH is a trace of torch.profiler (.json or .json.gz), a folder that torch_npu.profiler wrote
    for one process, or a folder with the traces of many ranks. For many ranks, the page shows which
    rank the others waited for. PATH can also be a timing.json, a recording, the id of a process
    that runs with stagespan, or a folder of timing reports or recordings. URLs such as
    s3://bucket/run are read with fsspec, and archives are unpacked.

    \b
    Examples:
      stagespan analyze trace.json.gz
      stagespan analyze traces_of_all_ranks/ --html page.html
    """
    if against is not None:
        say_former("analyze AFTER --against BEFORE", "compare BEFORE AFTER")
    with trace_analyses():
        from stagespan.recording.any_path import analyze
        from stagespan.trace.paths import merge_ranks

        with _progress() as progress:
            analysis = analyze(
                path,
                against,
                jobs=jobs,
                cluster=cluster,
                progress=progress,
                capture=captures,
                device=device,
            )
        if merge_file is not None:
            merge_ranks(analysis, merge_file)
        if path_file is not None:
            from stagespan.cli.critical_path import mark_critical_path

            mark_critical_path(analysis, path_file)
        if flame_file is not None:
            from stagespan.trace.analyses.flame import folded_of

            write_to(flame_file, folded_of(analysis.results.get("flame")))
        if flame_file != "-":
            output.show(analysis)
