"""``stagespan doctor``: shows what works on this machine, what does not, and why."""

from __future__ import annotations

from typing import Any

import click

from stagespan.cli.output import Output, PageCommand, output_options


def _schema() -> dict[str, Any]:
    from stagespan.cli.examine import ChecksFigures
    from stagespan.pages.figures import document_schema

    return document_schema(ChecksFigures, title="What works on this machine")


@click.command(cls=PageCommand)
@click.option("--no-device", is_flag=True, help="Do not initialise the device to test it.")
@output_options(_schema)
@click.pass_context
def command(ctx: click.Context, no_device: bool, output: Output) -> None:
    """Show what works on this machine, what does not, and why.

    The exit status is 0 if everything that should work here works, otherwise 1. If torch finds a
    device, it is tested with a few spans.

    \b
    Examples:
      stagespan doctor
      stagespan doctor --no-device --json
    """
    from stagespan.cli import examine
    from stagespan.cli.examine import Checks

    checks = Checks(examine.examine(use_device=not no_device))
    output.show(checks.page())
    ctx.exit(0 if checks.works else 1)
