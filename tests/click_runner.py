"""A runner of commands for all versions of click."""

from __future__ import annotations

import inspect

from click.testing import CliRunner


def cli_runner() -> CliRunner:
    """Return a runner that keeps what a command writes to stderr apart from stdout."""
    if "mix_stderr" in inspect.signature(CliRunner).parameters:  # click before 8.2
        return CliRunner(mix_stderr=False)  # type: ignore[call-arg]
    return CliRunner()
