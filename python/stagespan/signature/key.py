"""Computes a short hash of a signature's shapes, element types, kinds of device and structure.

Values of numbers and strings are left out, so that a new prompt or seed does not make a new
signature. Indexes of devices are left out, so that the ranks of a run share their keys.
"""

from __future__ import annotations

import hashlib
from typing import Any

from stagespan.signature.kinds.base import form_of


def key_of(inputs: dict[str, Any], *, sizes: bool = True) -> str:
    """Return the key of a stage's inputs: 12 hexadecimal digits, the same in every process.

    If ``sizes`` is False, only the number of a tensor's dimensions counts. The result is the key of
    a family of signatures.
    """
    parts = [part for name in sorted(inputs) for part in (name, *form_of(inputs[name], sizes))]
    return hashlib.blake2b("\x1f".join(parts).encode("utf-8", "replace"), digest_size=6).hexdigest()
