"""``stagespan stages``: lists the contents of a signature file."""

from __future__ import annotations

from typing import Any

import click

from stagespan.signature.describe import describe, printable
from stagespan.signature.kinds import contains_text
from stagespan.signature.model import SignatureFile, StageSignature

_MOST_NAMED = 8


@click.command("stages")
@click.argument("signature_file", type=click.Path())
def command(signature_file: str) -> None:
    """List the stages of SIGNATURE_FILE with their inputs and outputs."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from stagespan.console import set_width, trimmed

    file = SignatureFile.read(signature_file)
    console = Console()
    set_width(console, 160)
    title = f"{len(file.stages)} stage{'' if len(file.stages) == 1 else 's'}"
    table = Table(
        title=Text(title + (f" of {printable(file.request_id)}" if file.request_id else ""))
    )
    table.add_column("stage", overflow="fold")
    table.add_column("runs", justify="right")
    table.add_column("inputs", overflow="fold")
    table.add_column("output", overflow="fold")
    for stage in file.stages.values():
        for index, signature in enumerate((stage, *stage.variants)):
            name = printable(stage.stage_name) if index == 0 else f"  variant {index}"
            if signature.key is not None and stage.variants:
                name += f" ({printable(signature.key)})"
            count = "-" if signature.count is None else f"{signature.count:,}"
            table.add_row(Text(name), count, Text(_inputs(signature)), Text(_output(signature)))
        table.add_section()
    with trimmed(console):
        console.print(table, highlight=False)
        console.print(Text(_about_text(file)), soft_wrap=True)


def _about_text(file: SignatureFile) -> str:
    names = [
        printable(stage.stage_name)
        for stage in file.stages.values()
        if any(map(_holds_text, (stage, *stage.variants)))
    ]
    if not names:
        return "This file contains no text from inputs or outputs."
    more = len(names) - _MOST_NAMED
    listed = ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
    return (
        f"This file contains text from the inputs or outputs of {listed}. To leave it out, run the "
        "pipeline with STAGESPAN_REDACT=strings."
    )


def _holds_text(signature: StageSignature) -> bool:
    return contains_text([*signature.arguments.values(), signature.output])


def _inputs(signature: StageSignature) -> str:
    nodes: dict[str, Any] = signature.arguments
    return "\n".join(f"{printable(name)}: {describe(node)}" for name, node in nodes.items()) or "-"


def _output(signature: StageSignature) -> str:
    return "-" if signature.output is None else describe(signature.output)
