"""The command ``stagespan``: one file a verb, imported when the verb is used."""

from __future__ import annotations

import difflib
import errno
import importlib
import io
import os
import sys
from typing import Any

import click

from stagespan.errors import StagespanError

_VERBS = {
    "analyze": "Say where the time of a trace went, and why the device was idle.",
    "bench": "Replay one stage alone from its signature and profile it.",
    "doctor": "Show what works on this machine, what does not, and why.",
    "ncu": "Say what bounds a stage's top kernels, by Nsight Compute.",
    "report": "Show a timing report as a table, or compare two.",
    "run": "Run a script and time its stages without changing it.",
    "stages": "List the stages of a signature file.",
}


class _Refused(click.ClickException):
    """What was asked for cannot be done: one sentence, and the exit status of a wrong usage."""

    exit_code = 2


class _Verbs(click.Group):
    """A group whose verbs are listed without being imported."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _VERBS:
            return None
        command: click.Command = importlib.import_module(f"stagespan.cli.{cmd_name}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        # An option that is not known is refused by click itself.
        if name not in _VERBS and not name.startswith("-") and not ctx.resilient_parsing:
            close = difflib.get_close_matches(name.lower(), _VERBS, n=1, cutoff=0.6)
            hint = f"did you mean {close[0]!r}?" if close else f"the verbs are {', '.join(_VERBS)}."
            ctx.fail(f"No such command {name!r}; {hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl(list(_VERBS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except StagespanError as error:
            raise _Refused(str(error)) from error
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            # What could not be written is tried once more when the interpreter ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise _Refused(f"the output cannot be written: {error.strerror}; make room") from error


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="stagespan", message="stagespan %(version)s")
def command() -> None:
    """Time the stages of PyTorch pipelines: run, report, replay."""


def main() -> None:
    """Entry point of the command; exits with its status."""
    # Lines of tables and trees are beyond some encodings. A script that is run writes its own way.
    if sys.argv[1:2] != ["run"] and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    command(prog_name="stagespan")
