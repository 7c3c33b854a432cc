"""Former names of commands, which go on working for a release."""

from __future__ import annotations

import os

import click

from stagespan.cli.contents import Kind, kind_of

FORMER = {
    "recover": "show FILE|PID",
    "report": "show FILE",
    "stages": "show FILE",
    "merge-spans": "dump [FILE|PID] --into TRACE",
    "ncu": "bench [FILE] --ncu",
}
"""What stands for each name now."""


def say_former(old: str, new: str) -> None:
    """Say on standard error what stands for a form of a command that is going to be removed."""
    click.echo(
        f"`stagespan {old}` is `stagespan {new}` now, and its old form will be removed in the next "
        "release.",
        err=True,
    )


def with_present_name(name: str, arguments: list[str]) -> list[str]:
    """Say what stands for a former name, and return all arguments with which it does the same."""
    if name == "report" and (before := _taken_out("--against", arguments)):
        say_former("report AFTER --against BEFORE", "compare BEFORE AFTER")
        return ["compare", *before, *arguments]
    say_former(name, FORMER[name])
    if name == "ncu":
        return ["bench", "--ncu", *arguments]
    if name == "merge-spans":
        recording = _taken_out("--recording", arguments)
        values = {at + 1 for at, word in enumerate(arguments) if word in ("-o", "--output")}
        for at, word in enumerate(arguments):
            if at not in values and not word.startswith("-"):
                arguments.insert(at, "--into")
                break
        return ["dump", *arguments, *recording]
    is_of_process = name == "report" and any(
        kind_of(word) is Kind.RECORDING and not os.path.isdir(word) for word in arguments
    )
    return ["show", *(["--stages"] if is_of_process else []), *arguments]


def _taken_out(option: str, arguments: list[str]) -> list[str]:
    """Remove an option and return its value, if it is there and has one."""
    for at, word in enumerate(arguments):
        name, equals, value = word.partition("=")
        if name == option and (equals or at + 1 < len(arguments)):
            values = [value] if equals else [arguments[at + 1]]
            del arguments[at : at + (1 if equals else 2)]
            return values
    return []
