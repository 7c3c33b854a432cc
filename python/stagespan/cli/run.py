"""``stagespan run``: runs a script and times its stages without changing it."""

from __future__ import annotations

import atexit
import functools
import os
import sys
import threading
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stagespan.cli.numbers import FiniteRange
from stagespan.cli.output import Output, output_options
from stagespan.pages.amounts import counted, listed

if TYPE_CHECKING:
    from stagespan.contexts.named import Wrapper
    from stagespan.process.command import Command
    from stagespan.recording.members import Members
    from stagespan.sampling.auto import Auto


_JSON = "--json"


def _schema() -> dict[str, Any]:
    from stagespan.pages.figures import document_schema
    from stagespan.sampling.result import Sampled

    return document_schema(Sampled, title="Where the time of a program went")


class _RunCommand(click.Command):
    """The command, whose --json took the name of a file until 0.1.0."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        values, _, _ = self.make_parser(ctx).parse_args(list(args))
        given = values.get("arguments")
        after_program = list(given) if isinstance(given, (list, tuple)) else []
        at = len(args) - len(after_program) - 1  # of the program
        if at > 0 and args[at - 1] == _JSON and after_program:
            file = args[at]
            if file == "-":
                args = [*args[:at], *after_program]
            elif file.endswith((".json", ".json.gz")):
                args = [*args[:at], "-o", file, *after_program]
                click.echo("`--json FILE` is read as `--json -o FILE`: use that instead.", err=True)
        return super().parse_args(ctx, args)


@click.command(
    cls=_RunCommand,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    options_metavar="[OPTIONS]",
)
@click.option("--debug", is_flag=True, help="Turn debug mode on, and write its files.")
@click.option(
    "--stage",
    "stages",
    metavar="[NAME=]PKG.MOD:CLASS.METHOD",
    multiple=True,
    help="Time this function as a stage, which is named after the part behind the colon. "
    "__main__:FUNCTION is a function of the script. Can be repeated.",
)
@click.option(
    "--profile",
    "profiled",
    metavar="NAME[,NAME]",
    multiple=True,
    help="Run these stages under torch.profiler (* for all), and write a trace and a breakdown of "
    "each. Can be repeated.",
)
@click.option("--output", "folder", metavar="DIR", help="Write the files to this folder.")
@click.option(
    "--telefuser",
    is_flag=True,
    help="Replace the profiling modules of TeleFuser by stagespan's when the script imports them.",
)
@click.option(
    "--no-sample",
    is_flag=True,
    help="Do not sample. Without --stage, --debug and --profile, the functions with most time are "
    "found by samples of all stacks.",
)
@click.option(
    "--auto",
    is_flag=True,
    help="After 2 s, time the functions with most time as stages, from their next call on.",
)
@click.option(
    "--sample-ms",
    type=FiniteRange(1, 1000),
    default=10.0,
    show_default=True,
    help="The time between two samples, in ms.",
)
@output_options(_schema)
@click.option("-m", "as_module", is_flag=True, help="Run a module, like python -m.")
@click.argument("program", metavar="SCRIPT.PY|FOLDER|ZIP|MODULE")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(
    debug: bool,
    stages: tuple[str, ...],
    profiled: tuple[str, ...],
    folder: str | None,
    telefuser: bool,
    no_sample: bool,
    auto: bool,
    sample_ms: float,
    as_module: bool,
    program: str,
    arguments: tuple[str, ...],
    output: Output,
) -> None:
    """Run a script with its arguments and time its stages.

    Without --stage, it shows where the time went and which functions would be good stages.

    The exit status of the script is kept. The table goes to standard error, --json and --markdown
    to standard output. Files are written in debug mode and with --output.

    \b
    Examples:
      stagespan run train.py --epochs 3
      stagespan run --stage my_model:Model.forward -m my_package.train
    """
    from stagespan import is_available, is_debug, set_debug

    if not is_available():
        from stagespan import without_core

        without_core.refuse()

    from stagespan.contexts import named
    from stagespan.process import commands, run, sampler, script, termination
    from stagespan.process.command import AUTO, Command

    named.named_stages(stages)  # refused before anything is set
    is_sampled = not (stages or debug or is_debug() or profiled or no_sample)
    if (output.form or output.html is not None) and not is_sampled:
        raise click.UsageError(
            "--json, --markdown, --html and -o write samples: pass them without --stage, --debug,"
            " --profile and --no-sample."
        )
    if auto and not is_sampled:
        raise click.UsageError(
            "--auto chooses stages by samples: pass it without --stage, --debug, --profile and"
            " --no-sample."
        )
    called = [*(["-m"] if as_module else []), program, *arguments]
    if debug:
        os.environ["STAGESPAN_DEBUG"] = "true"  # also for workers
        set_debug(True)
    if telefuser:
        from stagespan.compat.telefuser import replace

        replace.install()
        program = (replace.replacement(program) or program) if as_module else program
    if folder is not None:
        run.set_output_dir(folder)
    if profiled:
        from stagespan.profiling import enable_profiler_for_names

        names = ",".join(profiled)
        os.environ["STAGESPAN_PROFILER_NAMES"] = names  # also for workers
        enable_profiler_for_names(names)
    if as_module:
        script.set_search_path(os.getcwd())
    elif script.is_folder(program):
        script.set_search_path(program)
    else:
        script.set_search_path(str(Path(program).resolve().parent))
    started = script.Program.module(program) if as_module else script.Program.script(program)
    run.whose_file(run.timing_report_path().parent)  # the plain names are this process's
    options = {"telefuser": telefuser, "write": folder is not None, AUTO: auto}
    interval_ms = sample_ms if is_sampled else None
    ending = _Ending(
        Command(stages, [name for name, is_on in options.items() if is_on], interval_ms),
        named.timed(stages, program if as_module else ""),
        called,
        output,
        interval_ms,
        write=folder is not None,
    )
    termination.watch(ending.after_signal)
    # These run after all other exit handlers and the threads of the script, the last one first.
    atexit.register(script.repeat_interrupt)
    atexit.register(ending.print_once)
    run.begin_script()
    commands.listen()
    if is_sampled:
        callback = _chooser() if auto else None
        sampler.start(str(ending.folder), sampler.MAIN, sample_ms, callback)
    started.run(arguments, ending.wrapper.prepare_main)


def _chooser() -> Auto:
    from stagespan.sampling.auto import Auto

    return Auto()


class _Ending:
    """Prints the tables, writes the files, and names the stages that were not found."""

    def __init__(
        self,
        command: Command,
        wrapper: Wrapper,
        called: Sequence[str],
        output: Output,
        sample_ms: float | None,
        *,
        write: bool,
    ) -> None:
        """``called`` is the program with its arguments, as the user wrote them."""
        self.wrapper = wrapper
        self.folder = command.folder
        self._command = command
        self._called = called
        self._output = output
        self._sample_ms = sample_ms
        command.when_crowded(self._remove_ended)
        self._write = write
        self._owner = os.getpid()
        self._lock = threading.RLock()
        self._is_printed = False

    @functools.cached_property
    def _members(self) -> Members:
        from stagespan.recording.members import Members

        return Members(self._command)

    def _remove_ended(self) -> None:
        self._members.remove_ended()

    def after_signal(self) -> None:
        """Print and write, in the thread that handles SIGTERM."""
        service: Any = sys.modules.get("stagespan.live.service")
        if service is not None:
            service.exit_soon()
        self.print_once()

    def print_once(self) -> None:
        """Print and write once, in the process that the command started."""
        if os.getpid() != self._owner:
            return  # a forked child runs the handlers of its parent too
        # SIGTERM can arrive while the script ends by itself.
        with self._lock:
            if not self._is_printed:
                self._is_printed = True
                try:
                    self._print_and_write()
                except Exception as error:  # a program may leave no descriptors, or broken modules
                    click.echo(f"stagespan: nothing can be shown, because {error}", err=True)
                finally:
                    self._command.remove()

    def _print_and_write(self) -> None:
        from stagespan.process import run, sampler

        sampler.stop()
        ran, written = self._report_stages()
        unused: Any = sys.modules.get("stagespan.profiling.unused")
        if run.rank() == 0:
            has_samples = self._show_samples()
            for sentence in (
                *([] if has_samples or ran else [self._why_nothing()]),
                *_about_stages(self._command, self.wrapper, ran),
                *_about_auto(self._command, ran),
                *(_about_tracers() if has_samples else ()),
                *(unused.sentences(ran) if unused is not None else ()),
            ):
                click.echo(f"stagespan: {sentence}", err=True)
        for path in written:
            click.echo(f"stagespan: saved {path}", err=True)

    def _report_stages(self) -> tuple[Collection[str], list[Path]]:
        """Print and write the stages. Returns their names, and the files that were written."""
        from stagespan import _core, is_debug
        from stagespan.process import run

        others = self._command.recordings() or self._command.figures()
        have_ended = "_members" in vars(self)  # it has removed their recordings
        if not (self._write or others or have_ended or _core.snapshot().stages()):
            return (), []  # without the imports of reports and recordings
        from rich.console import Console

        from stagespan.report import exit as at_exit
        from stagespan.report import timing
        from stagespan.report.tables import print_report

        recorded = self._members.recorded()
        # In debug mode, another handler writes the files, and each process writes its own.
        written = (
            at_exit.write_reports(timing.report_with(recorded))
            if self._write and not is_debug()
            else []
        )
        if run.rank() != 0:
            return (), written
        report = timing.report_with([*recorded, *self._members.handed_over()])
        if report["stages"]:
            print_report(report, Console(stderr=True))
        return report["stages"], written

    def _why_nothing(self) -> str:
        """Return why there is neither a stage nor a sample."""
        if self.wrapper.stages:
            return "no stage ran"
        if self._sample_ms is not None:
            return f"no sample was taken, because the program ended within {self._sample_ms:g} ms"
        return (
            "no stage ran, because neither the script nor --stage names one. Name the functions to "
            "time: for example --stage __main__:main for a function of the script, or --stage "
            "package.module:Class.method for a method of an imported module. --stage can be "
            "repeated."
        )

    def _show_samples(self) -> bool:
        """Print or write what sampling has found. Returns False if that is nothing."""
        from stagespan.sampling.stacks import read_processes

        processes = read_processes(self.folder)
        if not processes:
            return False
        from stagespan.errors import StagespanError
        from stagespan.sampling.page import print_sampled, sampled_page
        from stagespan.sampling.result import sampled
        from stagespan.sampling.stages import command_line

        result = sampled(processes)
        if result is None:
            return False
        if not self._output.form and sys.stderr is not None:
            shown = command_line(result.suggested_stages, self._called)
            print_sampled(result, shown, sys.stderr)
        try:
            page = sampled_page(result, " ".join(self._called), "stagespan run")
            self._output.show(page, on_terminal=False)
        except StagespanError as error:
            click.echo(f"stagespan: {error}", err=True)
        return True


def _about_stages(command: Command, wrapper: Wrapper, ran: Collection[str]) -> Iterator[str]:
    """Yield sentences about stages without a time, and about processes that were not reached."""
    replace: Any = sys.modules.get("stagespan.compat.telefuser.replace")
    for kind, facts in command.lines():
        if kind == "stage":
            wrapper.learn(*facts)
        elif kind == "replaced" and replace is not None:
            replace.has_replaced()
    yield from wrapper.missing()
    yield from wrapper.never_ran(ran)
    yield from wrapper.notes()
    unreached = command.unreached()
    if unreached:
        yield (
            f"{counted(unreached, 'process', 'processes')} of Python could not be reached, because "
            "of the options -I, -E or -S, another environment, or another version or installation "
            "of Python: what ran there is missing above"
        )
    if replace is not None:
        yield from replace.not_used()


def _about_auto(command: Command, ran: Collection[str]) -> Iterator[str]:
    """Yield sentences about the functions that ``--auto`` has chosen, or left as they are."""
    from stagespan.process.command import AUTO, has_option

    if not has_option(AUTO):
        return
    from stagespan.sampling.auto import LEFT, TIMED

    lines = list(command.lines())
    timed = {place: name for kind, facts in lines if kind == TIMED for place, name in [facts]}
    if not timed:
        yield "--auto timed no function: it begins after 2 s, with those that take 5 % or more"
    running = [place for place, name in timed.items() if name not in ran]
    found = [place for place in timed if place not in running]
    if found:
        yield f"timed since --auto found them: {listed(found)}"
    if running:
        yield f"sampled only, because they were not called again: {listed(running)}"
    left = {place: why for kind, facts in lines if kind == LEFT for place, why in [facts]}
    for place, why in left.items():
        if place not in timed:
            yield f"sampled only: {place}, because {why}"


def _about_tracers() -> Iterator[str]:
    from stagespan.process.tracers import active_tracers

    if tracers := active_tracers():
        yield f"{listed(tracers)} made Python code slower, so its times are too long"
