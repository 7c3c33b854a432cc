"""``stagespan stages``: lists the contents of a signature file."""

from __future__ import annotations

from typing import Any

import click

from stagespan.cli.output import Output, PageCommand, output_options
from stagespan.pages.figures import document_schema
from stagespan.signature.page import Signatures, SignaturesFigures


def _schema() -> dict[str, Any]:
    return document_schema(SignaturesFigures, title="The stages of a signature file")


@click.command("stages", cls=PageCommand)
@click.argument("signature_file", type=click.Path())
@output_options(_schema)
def command(signature_file: str, output: Output) -> None:
    """List the stages of SIGNATURE_FILE with their inputs and outputs."""
    output.show(Signatures.read(signature_file).page())
