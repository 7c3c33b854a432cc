"""Signatures of the inputs and outputs of stages, and mock inputs that are created from them.

Importing this package imports no torch; `make_inputs` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagespan.process.imports import OnFirstUse
from stagespan.signature.capture import capture
from stagespan.signature.model import SignatureFile, StageSignature, TensorSignature
from stagespan.signature.recorder import signature_key
from stagespan.signature.store import (
    dump_io_signatures,
    get_io_signatures,
    reset_signatures,
    signature_stats,
)
from stagespan.signature.value_kinds.base import describe

with OnFirstUse(globals()) as _lazy:
    from stagespan.signature.mock import make_inputs
if not TYPE_CHECKING:
    __getattr__ = _lazy

__all__ = [
    "SignatureFile",
    "StageSignature",
    "TensorSignature",
    "capture",
    "describe",
    "dump_io_signatures",
    "get_io_signatures",
    "make_inputs",
    "reset_signatures",
    "signature_key",
    "signature_stats",
]
