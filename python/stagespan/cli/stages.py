"""``stagespan stages``: lists the contents of a signature file."""

from __future__ import annotations

from itertools import islice
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from stagespan.pages.amounts import counted, listed
from stagespan.pages.console import set_width, trimmed
from stagespan.pages.escaping import one_line
from stagespan.signature.model import SignatureFile, StageSignature
from stagespan.signature.value_kinds import contains_text
from stagespan.signature.value_kinds.base import describe

_MOST_VARIANTS = 64
"""Of one stage; twice as many as stagespan writes, because a file can contain any number."""
_MOST_ROWS = 4096
_MOST_INPUTS = 256


@click.command("stages")
@click.argument("signature_file", type=click.Path())
def command(signature_file: str) -> None:
    """List the stages of SIGNATURE_FILE with their inputs and outputs."""
    file = SignatureFile.read(signature_file)
    console = Console()
    set_width(console, 160)
    title = counted(len(file.stages), "stage")
    table = Table(
        title=Text(title + (f" of {one_line(file.request_id)}" if file.request_id else ""))
    )
    table.add_column("stage", overflow="fold")
    table.add_column("runs", justify="right")
    table.add_column("inputs", overflow="fold")
    table.add_column("output", overflow="fold")
    rows = stages = 0
    for stage in file.stages.values():
        if rows >= _MOST_ROWS:
            break
        for index, signature in enumerate((stage, *stage.variants[:_MOST_VARIANTS])):
            name = one_line(stage.stage_name) if index == 0 else f"  variant {index}"
            if signature.key is not None and stage.variants:
                name += f" ({one_line(signature.key)})"
            count = "-" if signature.count is None else f"{signature.count:,}"
            output = "-" if signature.output is None else describe(signature.output)
            table.add_row(Text(name), count, Text(_inputs(signature)), Text(output))
            rows += 1
        more = len(stage.variants) - _MOST_VARIANTS
        if more > 0:
            table.add_row(Text(f"  and {more:,} more"), "", "", "")
        stages += 1
        table.add_section()
    with trimmed(console):
        console.print(table, highlight=False)
        if stages < len(file.stages):
            console.print(Text(f"{len(file.stages) - stages:,} more stages are not listed."))
        console.print(Text(_about_text(file)), soft_wrap=True)


def _about_text(file: SignatureFile) -> str:
    names = [
        one_line(stage.stage_name)
        for stage in file.stages.values()
        if contains_text(
            [[*one.arguments.values(), one.output] for one in (stage, *stage.variants)]
        )
    ]
    if not names:
        return "This file contains no text from inputs or outputs."
    return (
        f"This file contains text from the inputs or outputs of {listed(names)}. To leave it out, "
        "run the pipeline with STAGESPAN_REDACT=strings."
    )


def _inputs(signature: StageSignature) -> str:
    nodes: dict[str, Any] = signature.arguments
    texts = {name: describe(node) for name, node in islice(nodes.items(), _MOST_INPUTS)}
    shown = [f"{one_line(name)}: {text}" for name, text in texts.items() if text != "None"]
    if len(shown) < len(texts):
        shown.append(f"None: {counted(len(texts) - len(shown), 'argument')}")
    if len(nodes) > len(texts):
        shown.append(f"and {len(nodes) - len(texts):,} more")
    return "\n".join(shown) or "-"
