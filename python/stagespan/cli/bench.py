"""``stagespan bench``: runs one stage alone, on inputs created from its signature."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

from stagespan.cli.output import Output, PageCommand, output_options
from stagespan.errors import HarnessError
from stagespan.harness.config import HarnessConfig
from stagespan.harness.result_page import Replay, json_schema
from stagespan.harness.standalone.fit import ReplayError
from stagespan.harness.standalone.loading import load, load_stage
from stagespan.signature.model import SignatureFile, StageSignature
from stagespan.signature.target import class_of


@click.command("bench", cls=PageCommand)
@click.argument("signature_file", type=click.Path())
@click.option("--stage", "stage_name", help="Name of the stage. Not needed if there is only one.")
@click.option(
    "--factory",
    required=True,
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
    "output folder that a variable names, or that of SIGNATURE_FILE; nothing is replaced there]",
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
    help="Which signature of the stage: its number or key as in `stagespan stages`, largest, "
    "smallest, or NAME=SIZE. [default: the one that ran most]",
)
@click.option(
    "--inputs",
    metavar="MODULE:CALLABLE",
    help="Function that returns inputs by name, which are used instead of mock inputs. It is "
    "called for each iteration that needs new inputs.",
)
@click.option("--any-callable", is_flag=True, help="Allow a callable other than the captured one.")
@click.option(
    "--explain", is_flag=True, help="Show which adapters were tried, and why one was chosen."
)
@output_options(json_schema)
def command(
    signature_file: str,
    stage_name: str | None,
    factory: str,
    step: str | None,
    explain: bool,
    variant: str | None,
    inputs: str | None,
    any_callable: bool,
    output: Output,
    **settings: Any,
) -> None:
    """Replay one iteration of a stage of SIGNATURE_FILE, time it and profile it.

    SIGNATURE_FILE is the timing_io_signature.json of a run, or the folder of the run.

    Writes the kernel trace, the kernel breakdown, a script that reproduces both, and the result,
    which `stagespan compare` compares with that of another replay.
    """

    from stagespan.harness.bench import StageBenchHarness

    # Before the stage is loaded, which can take long.
    signature = _signature(signature_file, stage_name, variant)
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
        harness = StageBenchHarness.from_signature_file(
            signature_file, signature.stage_name, stage, config, variant=variant
        )
        harness.setup()
        result = harness.profile()
    output.show(Replay(result, explain=explain).page())


def _signature(path: str, stage_name: str | None, variant: str | None) -> StageSignature:
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
