"""The command ``stagespan``. Each subcommand has one file, which is imported when it is used."""

from __future__ import annotations

import errno
import importlib
import io
import os
import sys
from collections import Counter
from typing import Any

import click

from stagespan import __version__, _core, is_available
from stagespan.cli.former import FORMER, with_present_name
from stagespan.errors import StagespanError
from stagespan.process.files import cannot_open, is_shortage

_GROUPS = {
    "Time": {"run": "Run a script, and show where its time goes or how long its stages take."},
    "Look": {
        "show": "Show a process, a job, a recording, a timing report or another file.",
        "top": "Show the stages and threads of a process or a job, live.",
        "ps": "List the processes that record on this machine, and their current stages.",
        "requests": "Show where the time of requests went, over all their processes.",
    },
    "Replay": {
        "bench": "Replay one stage alone from its signature, and profile it.",
        "compare": "Show which stages are slower than before, beyond tolerance and noise.",
    },
    "Traces": {
        "analyze": "Show where the time of a trace went, and why the device was idle.",
        "dump": "Write the spans of a recording for other tools, or into a trace.",
        "capture": "Capture a kernel trace of some runs of one stage of a live process.",
    },
    "Hand on": {
        "export": "Hand what processes record to Prometheus and OpenTelemetry.",
        "doctor": "Show what works on this machine, what does not, and why.",
    },
}
VERBS = tuple(verb for group in _GROUPS.values() for verb in group)


class _Refused(click.ClickException):
    """An error that is shown as one sentence, with exit status 2."""

    exit_code = 2


def _too_large(error: MemoryError | RecursionError) -> str:
    if isinstance(error, MemoryError):
        return (
            "The input needs more memory than there is: pass a smaller file, or use a machine with"
            " more memory."
        )
    return "The input is nested too deeply to be read: write it with fewer levels."


def with_verb(arguments: list[str]) -> list[str]:
    """Return the arguments of the command with a verb, where the first one is a file or process.

    A name of a verb is always the verb. Otherwise a program is run, a trace is analysed, and any
    other existing file, folder or process id is shown.
    """
    if not arguments or arguments[0] in (*VERBS, *FORMER) or arguments[0].startswith("-"):
        return arguments
    from stagespan.cli.contents import verb_of

    verb = verb_of(arguments[0])
    return arguments if verb is None else [verb, *arguments]


class _Commands(click.Group):
    """A group that lists its commands without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        command: click.Command = importlib.import_module(f"stagespan.cli.{cmd_name}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        args = with_verb(args)
        if args[0] in FORMER:
            args = with_present_name(args[0], args[1:])
        # click itself refuses unknown options.
        if args[0] not in VERBS and not args[0].startswith("-"):
            ctx.fail(_unknown(args[0]))
        resolved = super().resolve_command(ctx, args)
        if resolved[1] is not None:
            _refuse_repeated(resolved[1], ctx, resolved[2])
        return resolved

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, VERBS))
        for group, verbs in _GROUPS.items():
            with formatter.section(group):
                formatter.write_dl([(verb.ljust(width), text) for verb, text in verbs.items()])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except StagespanError as error:
            notes = getattr(error, "__notes__", ())
            raise _Refused("\n\n".join((str(error), *notes))) from error
        except (MemoryError, RecursionError) as error:
            if ctx.invoked_subcommand == "run":  # an error of the script is shown as Python does
                raise
            raise _Refused(_too_large(error)) from error
        except PermissionError as error:
            # What `run` and `bench` call may raise it too, and is shown as Python does.
            if ctx.invoked_subcommand in ("run", "bench") or error.filename is None:
                raise
            raise _Refused(
                f"{os.fsdecode(error.filename)} cannot be opened: {error.strerror}. Check its "
                "permissions and those of its folders."
            ) from error
        except OSError as error:
            if is_shortage(error) and ctx.invoked_subcommand not in ("run", "bench"):
                raise _Refused(
                    str(cannot_open(os.fsdecode(error.filename or "A file"), error))
                ) from error
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            # Otherwise the interpreter would try to write the rest again when it ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise _Refused(
                f"the output cannot be written: {error.strerror}; free some space"
            ) from error


def _unknown(name: str) -> str:
    """Return that a word is neither a verb nor a file, and what may have been meant."""
    import difflib  # nearly no command needs it

    close = difflib.get_close_matches(name.lower(), [*VERBS, *FORMER], n=1, cutoff=0.6)
    if close:
        meant = FORMER.get(close[0], close[0]).split()[0]
        return f"No such command {name!r}; did you mean {meant!r}?"
    if os.sep in name or os.path.splitext(name)[1]:
        return f"{name} does not exist: pass an existing file, or one of {', '.join(VERBS)}."
    return f"No such command {name!r}; the commands are {', '.join(VERBS)}."


def _refuse_repeated(command: click.Command, ctx: click.Context, args: list[str]) -> None:
    """Refuse an option with one value that is given twice, of which click would use the last."""
    subcontext = click.Context(command, ctx, command.name, **command.context_settings)
    try:
        _, _, given = command.make_parser(subcontext).parse_args(list(args))
    except click.UsageError:
        return  # click reports it when it parses the arguments for the command
    for option, count in Counter(given).items():
        if count == 1 or not isinstance(option, click.Option):
            continue
        if not (option.multiple or option.is_flag or option.count):
            times = "twice" if count == 2 else f"{count} times"
            raise click.UsageError(
                f"{option.opts[-1]} is given {times}, but takes one value: give it once.",
                subcontext,
            )


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    subcommand_metavar="COMMAND|FILE|PID [ARGS]...",
)
@click.version_option(__version__, message="stagespan %(version)s")
def command() -> None:
    """Measure the stages of PyTorch pipelines, replay them, and explain their traces.

    A FILE or PID without a command: a program is run, a trace is analysed, anything else is shown.
    """


def main() -> None:
    """Run the command and exit with its status."""
    try:
        arguments = with_verb(sys.argv[1:])
    except StagespanError:  # the command says it
        arguments = sys.argv[1:]
    # Some encodings lack the lines of tables. `run` does not change the output of its script.
    if arguments[:1] != ["run"] and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    if arguments[:1] == ["doctor"] and is_available():
        _core.recording_hide()  # its spans are no work of the user
    try:
        command(arguments, prog_name="stagespan")
    except SystemExit as ending:
        script: Any = sys.modules.get("stagespan.process.script")
        if script is not None and isinstance(ending, script.Interrupted):
            script.end_interrupted()
        raise
