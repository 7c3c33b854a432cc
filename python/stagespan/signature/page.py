"""The page of a signature file: the stages with their inputs and outputs."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from stagespan.pages.amounts import counted, listed
from stagespan.pages.escaping import one_line
from stagespan.pages.figures import Count, RecordedFigures
from stagespan.pages.page import ResultPage, Words
from stagespan.pages.result import Block, Cell, Result, Table
from stagespan.signature.model import SignatureFile, StageSignature
from stagespan.signature.value_kinds import contains_text
from stagespan.signature.value_kinds.base import describe

_MOST_VARIANTS = 64
"""Of one stage; twice as many as stagespan writes, because a file can contain any number."""
_MOST_SIGNATURES = 4096
_MOST_INPUTS = 256


class SignatureFigures(RecordedFigures, frozen=True):
    """The inputs and the output of a stage, as texts such as ``float32[8, 32] cpu``."""

    key: str | None
    runs: Count | None
    inputs: dict[str, str]
    more_inputs: Count
    """How many are not in `inputs`."""
    output: str | None

    @classmethod
    def of(cls, signature: StageSignature) -> SignatureFigures:
        """Return the figures of a signature."""
        arguments = signature.arguments
        return cls(
            signature.key,
            signature.count,
            {name: describe(node) for name, node in islice(arguments.items(), _MOST_INPUTS)},
            max(len(arguments) - _MOST_INPUTS, 0),
            None if signature.output is None else describe(signature.output),
        )


class StageSignatures(RecordedFigures, frozen=True):
    """The signatures of a stage, that of the most runs first."""

    stage: str
    signatures: list[SignatureFigures]
    more_signatures: Count
    """How many are not in `signatures`."""


class SignaturesFigures(RecordedFigures, frozen=True):
    """The stages of a signature file."""

    request_id: str
    stages: list[StageSignatures]
    more_stages: Count
    """How many are not in `stages`."""
    with_text: list[str]
    """The stages whose inputs or outputs contain text."""


@dataclass(frozen=True)
class Signatures(Result):
    """The stages of a signature file."""

    of: SignaturesFigures

    @classmethod
    def read(cls, path: str) -> Signatures:
        """Read a file. Raises SignatureError if that is not possible."""
        file = SignatureFile.read(path)
        stages: list[StageSignatures] = []
        left = _MOST_SIGNATURES
        for stage in file.stages.values():
            if left <= 0:
                break
            variants = [stage, *stage.variants[:_MOST_VARIANTS]]
            more = max(len(stage.variants) - _MOST_VARIANTS, 0)
            signatures = list(map(SignatureFigures.of, variants))
            stages.append(StageSignatures(stage.stage_name, signatures, more))
            left -= len(variants)
        with_text = [
            stage.stage_name
            for stage in file.stages.values()
            if contains_text(
                [[*of.arguments.values(), of.output] for of in (stage, *stage.variants)]
            )
        ]
        more_stages = len(file.stages) - len(stages)
        return cls(SignaturesFigures(file.request_id or "", stages, more_stages, with_text))

    def figures(self) -> SignaturesFigures:
        """Return the stages."""
        return self.of

    def head(self) -> list[Block]:
        """Return the table."""
        return [*self.tables()]

    def tables(self) -> list[Table]:
        """Return a row for each input of each signature."""
        rows: list[tuple[Cell, ...]] = []
        for stage in self.of.stages:
            for index, signature in enumerate(stage.signatures):
                name = f"  variant {index}" if index else stage.stage
                if signature.key is not None and len(stage.signatures) > 1:
                    name += f" ({signature.key})"
                first, *others = _inputs(signature)
                rows.append((name, signature.runs, first, signature.output))
                rows += [("", "", text, "") for text in others]
            if stage.more_signatures:
                rows.append((f"  and {stage.more_signatures:,} more", "", "", ""))
        columns = ("stage", "words"), ("runs", ""), ("inputs", "words"), ("output", "words")
        return [Table("", columns, rows)] if rows else []

    def page(self) -> ResultPage:
        """Return the page of `stagespan show`."""
        stages = counted(len(self.of.stages) + self.of.more_stages, "stage")
        of_request = f" of {one_line(self.of.request_id)}" if self.of.request_id else ""
        more = f"{self.of.more_stages:,} more stages are not listed."
        remarks = [*([more] if self.of.more_stages else []), self._about_text()]
        words = Words(page="Signatures", as_text="stagespan show")
        return ResultPage(words, self, "Signatures", f"{stages}{of_request}", remarks)

    def _about_text(self) -> str:
        if not self.of.with_text:
            return "This file contains no text from inputs or outputs."
        return (
            "This file contains text from the inputs or outputs of "
            f"{listed(map(one_line, self.of.with_text))}. To leave it out, run the pipeline with "
            "STAGESPAN_REDACT=strings."
        )


def _inputs(signature: SignatureFigures) -> list[str]:
    """Return a line for each input that is not None."""
    inputs = signature.inputs
    lines = [f"{name}: {text}" for name, text in inputs.items() if text != "None"]
    if len(lines) < len(inputs):
        lines.append(f"None: {counted(len(inputs) - len(lines), 'argument')}")
    if signature.more_inputs:
        lines.append(f"and {signature.more_inputs:,} more")
    return lines or ["-"]
