"""``stagespan run``: a script with its stages timed, the script itself unchanged."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from stagespan.cli.named import Decorator, Wrapper


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    options_metavar="[OPTIONS]",
)
@click.option("--debug", is_flag=True, help="Debug mode, with its files.")
@click.option(
    "--stage",
    "stages",
    metavar="[NAME=]PKG.MOD:CLASS.METHOD",
    multiple=True,
    help="Time this callable as a stage; __main__:function for one of the script. May be repeated.",
)
@click.option("--output", metavar="DIR", help="Output folder.")
@click.option("-m", "as_module", is_flag=True, help="Run a module, as python -m does.")
@click.argument("program", metavar="SCRIPT.PY|MODULE")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(
    debug: bool,
    stages: tuple[str, ...],
    output: str | None,
    as_module: bool,
    program: str,
    arguments: tuple[str, ...],
) -> None:
    """Run a script with its arguments and time its stages.

    The script's exit status is kept. The table goes to standard error; the files go to the output
    folder in debug mode or when --output is given.
    """
    from stagespan.cli import named, script

    wanted = named.named_stages(stages)
    if debug:
        os.environ["STAGESPAN_DEBUG"] = "true"  # for workers as well

    from stagespan import settings

    if output is not None:
        settings.set_output_dir(output)
    wrapper = named.Wrapper(wanted, _decorator_for(debug), program if as_module else "")
    script.set_search_path(os.getcwd() if as_module else str(Path(program).resolve().parent))
    wrapper.install()
    run = script.Program.module(program) if as_module else script.Program.script(program)
    # Run last of all handlers and after the script's threads, whatever way the script ends.
    atexit.register(_tell, wrapper, os.getpid(), output is not None)
    run.run(arguments, wrapper.prepare_main, wrapper.main_globals())


def _decorator_for(debug: bool) -> Callable[[str], Decorator]:
    from stagespan import ProfilingContext4Debug, set_debug, span

    if not debug:
        return span
    set_debug(True)
    return ProfilingContext4Debug


def _tell(wrapper: Wrapper, owner: int, write: bool) -> None:
    """After the script: the table, the files, and the stages that were never found."""
    if os.getpid() != owner:
        return  # a child that was forked runs its parent's handlers too

    from rich.console import Console

    from stagespan import is_debug, settings, timing_report
    from stagespan.report import exit as at_exit
    from stagespan.report.tables import print_report

    report = timing_report()
    if settings.rank() == 0:
        if report["stages"]:
            print_report(report, Console(stderr=True))
        else:
            hint = "" if wrapper.has_stages() else "; name one with --stage pkg.mod:function"
            click.echo(f"stagespan: no stage ran{hint}", err=True)
        for sentence in wrapper.missing():
            click.echo(f"stagespan: {sentence}", err=True)
    if write and not is_debug():  # debug mode writes them itself
        for path in at_exit.write_reports():
            click.echo(f"stagespan: saved {path}", err=True)
