"""What a step of an inference server does, from the name of its annotation."""

from __future__ import annotations

import re

PREFILL, DECODE, MIXED = "prefill", "decode", "prefill and decode"
PHASES = (PREFILL, DECODE, MIXED)
"""Whether a step reads prompts, generates tokens, or does both."""

_VLLM = re.compile(r"^execute_(?:\d+_)?(?:context_(\d+))?(?:\([^)]*\))?(?:_?generation_(\d+))?")
_SGLANG = re.compile(r"^step\[(\w+)")
_OF_SGLANG = {
    "EXTEND": PREFILL,
    "PREFILL": PREFILL,
    "DECODE": DECODE,
    "TARGET_VERIFY": DECODE,
    "MIXED": MIXED,
}


def phase_of(name: str) -> str | None:
    """Return the phase of a step with this name; None if the name does not tell it.

    The names are those of vLLM (`execute_context_1(8)_generation_2(2)`: prompts and sequences) and
    of SGLang (`step[DECODE bs=32]`).
    """
    match = _SGLANG.match(name)
    if match is not None:
        return _OF_SGLANG.get(match[1])
    match = _VLLM.match(name)
    if match is None:
        return None
    reads, generates = (int(count or 0) > 0 for count in match.groups())
    if reads and generates:
        return MIXED
    return PREFILL if reads else DECODE if generates else None
