"""``stagespan doctor``: shows what works on this machine, what does not, and why."""

from __future__ import annotations

import click

from stagespan.cli import examine
from stagespan.cli.examine import Check
from stagespan.cli.output import print_json
from stagespan.pages.tables import Column, print_table

_STYLES = {"works": "green", "absent": "dim", "note": "yellow", "fails": "bold red"}


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--no-device", is_flag=True, help="Do not initialise the device to test it.")
@click.pass_context
def command(ctx: click.Context, as_json: bool, no_device: bool) -> None:
    """Show what works on this machine, what does not, and why.

    The exit status is 0 if everything that should work here works, otherwise 1. If torch finds a
    device, it is tested with a few spans.
    """
    findings = examine.examine(use_device=not no_device)
    is_well = examine.is_well(findings)
    if as_json:
        print_json(
            {
                "schema_version": 1,
                "works": is_well,
                "findings": [finding._asdict() for finding in findings],
            }
        )
    else:
        _print(findings, is_well)
    ctx.exit(0 if is_well else 1)


def _print(findings: list[Check], is_well: bool) -> None:
    areas = [finding.area for finding in findings]
    is_new = [area != before for area, before in zip(areas, ["", *areas], strict=False)]
    states = [finding.state for finding in findings]
    columns = [
        Column("area", [area if new else "" for area, new in zip(areas, is_new, strict=True)]),
        Column("what", [finding.name for finding in findings]),
        Column("state", states, styles=[_STYLES[state] for state in states]),
        Column("found", [finding.text for finding in findings], is_flexible=True, is_folded=True),
    ]
    print_table(columns)
    failing = [
        f"{finding.area}: {finding.name}" for finding in findings if finding.state == "fails"
    ]
    click.echo(
        "Everything that should work here works."
        if is_well
        else f"Does not work: {', '.join(failing)}."
    )
