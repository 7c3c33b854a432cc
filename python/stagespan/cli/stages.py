"""``stagespan stages``: the former name of `show` for signature files."""

from __future__ import annotations

from typing import Any

import click

from stagespan.cli.output import Output, PageCommand, output_options


def _schema() -> dict[str, Any]:
    from stagespan.pages.figures import document_schema
    from stagespan.signature.page import SignaturesFigures

    return document_schema(SignaturesFigures, title="The stages of a signature file")


@click.command("stages", cls=PageCommand)
@click.argument("signature_file", type=click.Path())
@output_options(_schema)
def command(signature_file: str, output: Output) -> None:
    """List the stages of SIGNATURE_FILE with their inputs and outputs: `stagespan show`."""
    from stagespan.signature.page import Signatures

    output.show(Signatures.read(signature_file).page())
