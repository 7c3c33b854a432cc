"""Options that take a number: each of them refuses what is not a finite number."""

from __future__ import annotations

import click
import pytest

from click_runner import cli_runner
from stagespan.cli import command as main

OPTIONS = [
    (name, option.opts[-1])
    for name in main.list_commands(click.Context(main))
    for option in getattr(main.get_command(click.Context(main), name), "params", ())
    if isinstance(option.type, click.types.FloatParamType)
]


def test_options_with_numbers_are_found() -> None:
    assert ("ps", "--stalled") in OPTIONS
    assert ("top", "--interval") in OPTIONS


@pytest.mark.parametrize("text", ["nan", "NaN", "inf", "-inf", "1e999"])
@pytest.mark.parametrize(("name", "option"), OPTIONS)
def test_a_number_that_is_not_finite_is_refused(name: str, option: str, text: str) -> None:
    done = cli_runner().invoke(main, [name, option, text])
    assert done.exit_code == 2
    assert option in done.stderr
    assert done.exception is None or isinstance(done.exception, SystemExit)
