"""``stagespan bench``: runs one stage alone, on inputs created from its signature."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stagespan.cli.contents import Kind, kind_of
from stagespan.cli.output import FormerFilesCommand, Output, output_options
from stagespan.errors import HarnessError

if TYPE_CHECKING:
    from rich.console import Console

    from stagespan.harness.config import HarnessResult
    from stagespan.signature.model import StageSignature

_FILE = click.Path(path_type=Path)
_OF_NCU = ("count", "csv_file", "report_file", "script", "dry_run")
"""The options that need --ncu."""
_OF_REQUEST = "id_", "slowest"
"""The options that need --from-request."""


def _schema() -> dict[str, Any]:
    from stagespan.harness.result_page import ReplayFigures
    from stagespan.pages.figures import document_schema
    from stagespan.trace.nsight import NcuReport

    return document_schema(ReplayFigures, NcuReport, title="Replay, or what limits its kernels")


@click.command("bench", cls=FormerFilesCommand)
@click.argument("source", metavar="[FILE]", required=False)
@click.option("--stage", "stage_name", help="Name of the stage. Not needed if there is only one.")
@click.option(
    "--factory",
    metavar="MODULE:CALLABLE",
    help="Function that returns the loaded stage, or a pipeline one of whose attributes is the "
    "stage. MODULE:CALLABLE.ATTRIBUTE is an attribute of what it returns.",
)
@click.option(
    "--warmup", type=int, help="Iterations before measuring. [default: until the times settle]"
)
@click.option(
    "--steps", "profile_steps", default=1, show_default=True, help="Iterations under the profiler."
)
@click.option("--timing-steps", type=int, help="Timed iterations. [default: 20 or more]")
@click.option(
    "--output",
    "output_dir",
    type=click.Path(),
    help="Folder for the files, in which those of an earlier replay are replaced. [default: the "
    "output folder that a variable names, or that of FILE; nothing is replaced there]",
)
@click.option("--device", help="Device of the inputs. [default: the captured device]")
@click.option("--dtype", help="Element type of floating-point inputs. [default: the captured type]")
@click.option(
    "--threads",
    default="captured",
    show_default=True,
    metavar="N|captured|machine",
    help="Number of torch's threads. captured is the number of the live runs, if the machine has "
    "as many cores and OMP_NUM_THREADS is not set. machine is the default of this machine.",
)
@click.option("--seed", default=0, show_default=True, help="Seed of the inputs.")
@click.option(
    "--profile-compile",
    is_flag=True,
    help="Also profile the first call, in which torch.compile compiles.",
)
@click.option(
    "--step",
    metavar="STEP",
    help="Step of the stage's own loop: first, second, middle, last or its number; whole for the "
    "whole call; or MODULE:CALLABLE, a function of stage and inputs that runs one iteration. "
    "[default: second, or whole if there is no loop]",
)
@click.option(
    "--variant",
    help="Which signature of the stage: its number or key as in `stagespan show FILE`, largest, "
    "smallest, or NAME=SIZE. [default: the one that ran most]",
)
@click.option(
    "--inputs",
    metavar="MODULE:CALLABLE",
    help="Function that returns inputs by name, which are used instead of mock inputs. It is "
    "called for each iteration that needs new inputs.",
)
@click.option(
    "--from-request",
    metavar="FILE",
    help="Replay the slow stage of a request that `stagespan export --keep` has kept in a file or "
    "folder, instead of a stage of a signature file.",
)
@click.option("--id", "id_", metavar="ID", help="With --from-request: the id of the request.")
@click.option("--slowest", is_flag=True, help="With --from-request: the slowest of several.")
@click.option("--any-callable", is_flag=True, help="Allow a callable other than the captured one.")
@click.option(
    "--explain", is_flag=True, help="Show which adapters were tried, and why one was chosen."
)
@click.option(
    "--ncu",
    is_flag=True,
    help="Show what limits the top kernels of the stage, with Nsight Compute. FILE can also be the "
    "breakdown of an earlier replay, which is not repeated then.",
)
@click.option(
    "--top", "count", default=5, type=click.IntRange(1), help="With --ncu: kernels. [default: 5]"
)
@click.option("--csv", "csv_file", type=_FILE, help="With --ncu: read a CSV file of ncu instead.")
@click.option("--report", "report_file", type=_FILE, help="With --ncu: read a .ncu-rep file.")
@click.option(
    "--script", type=_FILE, help="With --ncu: script of the stage. [default: beside the breakdown]"
)
@click.option("--dry-run", is_flag=True, help="With --ncu: only print the commands.")
@output_options(_schema)
@click.pass_context
def command(
    ctx: click.Context,
    /,
    source: str | None,
    explain: bool,
    ncu: bool,
    output: Output,
    **options: Any,
) -> None:
    """Replay one iteration of a stage of FILE, time it and profile it.

    FILE is the timing_io_signature.json of a run, or the folder of the run. --from-request takes
    the signature from a kept request instead.

    Writes the kernel trace, the kernel breakdown, a script that reproduces both, and the result,
    which `stagespan compare` compares with that of another replay.

    With --ncu, Nsight Compute measures the top kernels while the script replays the stage. If it is
    not installed, the commands are printed, so that you can run them on another machine.

    \b
    Examples:
      stagespan bench out/ --stage denoise --factory my_pipeline:get_stage
      stagespan bench out/denoise_breakdown.json --ncu --factory my_pipeline:get_stage
    """
    from_request = options["from_request"]
    _must_have(ctx, _OF_NCU, "--ncu", has=ncu)
    _must_have(ctx, _OF_REQUEST, "--from-request", has=from_request is not None)
    of_ncu = {name: options.pop(name) for name in _OF_NCU}
    is_replayed = from_request is not None or not (ncu and _is_measured(source, of_ncu))
    if from_request is not None and (source is not None or options["variant"] is not None):
        raise click.UsageError("--from-request takes neither a FILE besides its own nor --variant.")
    if is_replayed and source is None and from_request is None:
        raise click.UsageError(
            "Pass the timing_io_signature.json of a run, or its folder, or --from-request."
        )
    replayed = _replayed(source, **options) if is_replayed else None
    if ncu:
        from stagespan.cli.ncu import kernels_page

        breakdown = None if source is None else Path(source)
        if replayed is not None:
            breakdown = replayed.breakdown_path
        if (page := kernels_page(breakdown, ctx.params)) is not None:
            output.show(page)
    elif replayed is not None:
        from stagespan.harness.result_page import Replay

        output.show(Replay(replayed, explain=explain).page())


def _is_measured(file: str | None, of_ncu: dict[str, Any]) -> bool:
    """Whether nothing is replayed: the kernels are known, or their figures are in a file."""
    if file is None or of_ncu["csv_file"] or of_ncu["report_file"]:
        return True
    return not os.path.isdir(file) and kind_of(file) is not Kind.SIGNATURES


def _must_have(ctx: click.Context, names: tuple[str, ...], needed: str, *, has: bool) -> None:
    """Raise click.UsageError if an option was given without the one that it needs."""
    for name in names:
        if not has and ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            (flag,) = (one.opts[0] for one in ctx.command.params if one.name == name)
            raise click.UsageError(f"{flag} needs {needed}.")


def _replayed(
    file: str | None,
    *,
    from_request: str | None,
    id_: str | None,
    slowest: bool,
    stage_name: str | None,
    factory: str | None,
    step: str | None,
    variant: str | None,
    inputs: str | None,
    any_callable: bool,
    **settings: Any,
) -> HarnessResult:
    """Replay a stage of a signature file or of a kept request, and return the result."""
    from rich.console import Console

    from stagespan.cli.kept_stage import kept_stage
    from stagespan.harness.bench import StageBenchHarness
    from stagespan.harness.config import HarnessConfig
    from stagespan.harness.standalone.fit import ReplayError
    from stagespan.harness.standalone.loading import load, load_stage
    from stagespan.signature.target import class_of

    if factory is None:
        raise click.UsageError(
            "Missing option '--factory': MODULE:CALLABLE, a function that returns the loaded stage."
        )
    # Before the stage is loaded, which can take long.
    kept = None
    if from_request is not None:
        kept = kept_stage(from_request, id_, stage_name, slowest=slowest)
    signature = _signature(str(file), stage_name, variant) if kept is None else kept.signature
    console = Console(stderr=True)
    with _log_lines(console), _progress(console) as progress:
        try:
            make_inputs = None if inputs is None else load(inputs)
            step_fn = load(step) if step is not None and ":" in step else None
            is_any = any_callable or step_fn is not None
            stage = load_stage(factory, None if is_any else class_of(signature.target))
        except ReplayError as error:
            raise HarnessError(_sentence(str(error))) from error
        config = HarnessConfig(
            inputs=make_inputs,
            step_fn=step_fn,
            step=step if step_fn is None else None,
            any_callable=any_callable,
            progress=progress,
            **settings,  # the other options have the names of the settings
        )
        if kept is None:
            harness = StageBenchHarness.from_signature_file(
                str(file), signature.stage_name, stage, config, variant=variant
            )
        else:
            harness = StageBenchHarness(signature, stage, config)
            harness.live = {"p50_ms": kept.took_ms, "count": 1}
        harness.setup()
        return harness.profile()


def _signature(path: str, stage_name: str | None, variant: str | None) -> StageSignature:
    from stagespan.signature.model import SignatureFile

    file = SignatureFile.read(path)
    if stage_name is None:
        if not file.stages:
            raise HarnessError(
                f"The signature file {path!r} contains no stage: run the pipeline in debug mode "
                f"(STAGESPAN_DEBUG=true) to capture its stages."
            )
        if len(file.stages) > 1:
            listed = ", ".join(map(repr, file.stages))
            raise HarnessError(
                f"The file contains several stages: choose one of {listed} with --stage."
            )
        (stage_name,) = file.stages
    return file.stage(stage_name, variant)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}" + ("" if text.endswith(".") else ".")


class _ToConsole(logging.Handler):
    """Prints log lines above the progress bar, without cutting or wrapping them."""

    def __init__(self, console: Console) -> None:
        super().__init__(logging.INFO)
        self.console = console

    def emit(self, record: logging.LogRecord) -> None:
        self.console.print(
            self.format(record), markup=False, highlight=False, soft_wrap=True, emoji=False
        )


@contextlib.contextmanager
def _log_lines(console: Console) -> Iterator[None]:
    logger = logging.getLogger("stagespan")
    handler, level, propagates = _ToConsole(console), logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(min(level or logging.INFO, logging.INFO))
    logger.propagate = False  # otherwise a root handler would show every line twice
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagates


@contextlib.contextmanager
def _progress(console: Console) -> Iterator[Any]:
    """Yield a function that shows the progress of the harness, on terminals only."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with bar:
        task = bar.add_task("loading the stage", total=None)

        def show(part: str, done: int, total: int | None) -> None:
            bar.update(task, description=part, completed=done, total=total)

        yield show
