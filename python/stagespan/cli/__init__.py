"""The command ``stagespan``. Each subcommand has one file, which is imported when it is used."""

from __future__ import annotations

import difflib
import errno
import importlib
import io
import os
import sys
from collections import Counter
from typing import Any

import click

from stagespan import __version__, _core, is_available
from stagespan.errors import StagespanError
from stagespan.process.files import cannot_open, is_shortage

_COMMANDS = {
    "analyze": "Show where the time of a trace went, and why the device was idle.",
    "bench": "Replay one stage alone from its signature, and profile it.",
    "compare": "Show which stages are slower than before, beyond tolerance and noise.",
    "doctor": "Show what works on this machine, what does not, and why.",
    "dump": "Write the spans of a recording for Perfetto, or as CSV, JSON or Parquet.",
    "export": "Hand what processes record to Prometheus and OpenTelemetry.",
    "merge-spans": "Add the spans of a recording to a trace of torch.profiler.",
    "ncu": "Show what limits the top kernels of a stage, with Nsight Compute.",
    "ps": "List the processes that record on this machine, and their current stages.",
    "recover": "Show what a process was doing when it died, or what it is doing now.",
    "report": "Show or compare timing reports, or write a recording as an HTML page.",
    "requests": "Show where the time of requests went, over all their processes.",
    "run": "Run a script and time its stages without changing it.",
    "stages": "List the stages of a signature file.",
    "top": "Show the stages and threads of a process or a job, live.",
}


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


class _Commands(click.Group):
    """A group that lists its commands without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = importlib.import_module(
            f"stagespan.cli.{cmd_name.replace('-', '_')}"
        ).command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        # click itself refuses unknown options.
        if name not in _COMMANDS and not name.startswith("-") and not ctx.resilient_parsing:
            close = difflib.get_close_matches(name.lower(), _COMMANDS, n=1, cutoff=0.6)
            hint = (
                f"did you mean {close[0]!r}?"
                if close
                else f"the commands are {', '.join(_COMMANDS)}."
            )
            ctx.fail(f"No such command {name!r}; {hint}")
        found = super().resolve_command(ctx, args)
        if found[1] is not None and not ctx.resilient_parsing:
            _refuse_repeated(found[1], ctx, found[2])
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))

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


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="stagespan %(version)s")
def command() -> None:
    """Measure the stages of PyTorch pipelines, replay them, and explain their traces."""


def main() -> None:
    """Run the command and exit with its status."""
    # Some encodings lack the lines of tables. `run` does not change the output of its script.
    if sys.argv[1:2] != ["run"] and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    if sys.argv[1:2] == ["doctor"] and is_available():
        _core.recording_hide()  # its spans are no work of the user
    command(prog_name="stagespan")
