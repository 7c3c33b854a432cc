"""``stagespan run``: a script with its stages timed, the script itself unchanged."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

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

    from stagespan import run, termination

    if output is not None:
        run.set_output_dir(output)
    wrapper = named.Wrapper(wanted, _decorator_for(debug), program if as_module else "")
    script.set_search_path(os.getcwd() if as_module else str(Path(program).resolve().parent))
    wrapper.install()
    started = script.Program.module(program) if as_module else script.Program.script(program)
    ending = _Ending(wrapper, write=output is not None)
    termination.watch(ending.after_signal)
    # Run last of all handlers and after the script's threads, whatever way the script ends.
    atexit.register(ending.tell)
    started.run(arguments, wrapper.prepare_main, wrapper.main_globals())


def _decorator_for(debug: bool) -> Callable[[str], Decorator]:
    from stagespan import ProfilingContext4Debug, set_debug, span

    if not debug:
        return span
    set_debug(True)
    return ProfilingContext4Debug


class _Ending:
    """What is told after the script: the table, the files, and the stages that were not found."""

    def __init__(self, wrapper: Wrapper, *, write: bool) -> None:
        self._wrapper = wrapper
        self._write = write
        self._owner = os.getpid()
        self._lock = threading.RLock()
        self._is_told = False

    def after_signal(self) -> None:
        """Tell it in a thread of its own, because SIGTERM is about to end the script."""
        service: Any = sys.modules.get("stagespan.service")
        if service is not None:
            service.exit_soon()
        self.tell()

    def tell(self) -> None:
        """Tell it once, in the process that the command started."""
        if os.getpid() != self._owner:
            return  # a child that was forked runs its parent's handlers too
        # SIGTERM may be received while the script ends by itself.
        with self._lock:
            if not self._is_told:
                self._is_told = True
                _tell(self._wrapper, self._write)


def _tell(wrapper: Wrapper, write: bool) -> None:
    from rich.console import Console

    from stagespan import is_debug, run, timing_report
    from stagespan.report import exit as at_exit
    from stagespan.report.tables import print_report

    report = timing_report()
    # Debug mode writes them itself.
    written = at_exit.write_reports() if write and not is_debug() else []
    if run.rank() == 0:
        if report["stages"]:
            print_report(report, Console(stderr=True))
        else:
            click.echo(f"stagespan: {_why_no_stage(wrapper)}", err=True)
        for sentence in (*wrapper.missing(), *wrapper.notes()):
            click.echo(f"stagespan: {sentence}", err=True)
    for path in written:
        click.echo(f"stagespan: saved {path}", err=True)


def _why_no_stage(wrapper: Wrapper) -> str:
    if wrapper.has_stages():
        return "no stage ran"
    return (
        "no stage ran, because the script has none and --stage named none. Name the functions to "
        "time, for example --stage __main__:main for a function of the script or --stage "
        "package.module:Class.method for a method of a module that it imports; --stage may be "
        "repeated."
    )
