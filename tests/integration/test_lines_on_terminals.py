"""The log lines of contexts and of the harness on a terminal, if nobody has configured logging."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import preloaded
from running import on_terminal, ran

pytest.importorskip("torch", reason="torch is not installed")

CONTEXTS = """
import sys
{before}
from {module} import ProfilingContext, ProfilingContext4Debug

with ProfilingContext("encode"):
    pass

@ProfilingContext("decode")
def decode():
    pass

decode()
with ProfilingContext4Debug("off"):
    pass
"""
HARNESS = """
import torch
from {module} import HarnessConfig, StageBenchHarness
{before}
from stagespan.signature import SignatureFile, StageSignature, capture

class Scale:
    def process(self, x):
        return 2 * x

signature = StageSignature("scale", dict(x=capture(torch.zeros(3))))
path = SignatureFile(dict(scale=signature)).write("timing_io_signature.json")
harness = StageBenchHarness.from_signature_file(path, "scale", Scale(), HarnessConfig(warmup=1))
harness.setup()
harness.profile()
"""
OF_CONTEXTS = [
    r"\[Profile\] encode cost \d+\.\d{6} seconds",
    r"Rank 0 - Function 'encode' Peak \w+: \d+\.\d\d GB",
    r"\[Profile\] decode cost \d+\.\d{6} seconds",
    r"Rank 0 - Function 'decode' Peak \w+: \d+\.\d\d GB",
]
OF_THE_HARNESS = [
    r"\[Harness\] Setup complete for stage 'scale'",
    r"\[Harness\] Running 1 warmup iteration\(s\)\.\.\.",
    r"\[Harness\] Running 1 profile iteration\(s\)\.\.\.",
    r"\[Harness\] Chrome trace saved to: scale_trace\.json\.gz",
    r"\[Harness\] Kernel breakdown saved to: scale_breakdown\.json",
    r"\[Harness\] Test script saved to: profile_scale\.py",
    r"\[Harness\] Average iteration time: \d+\.\d\d ms",
]
OWN = "stagespan"
DROP_IN = "stagespan.compat.telefuser.profiler"


def stderr_of(program: str, folder: Path, terminal: bool) -> list[str]:
    """Run a program with a terminal, or a pipe, as its standard error; return what it wrote."""
    command = [*preloaded.python(), "-c", program]
    if terminal:
        return on_terminal(command, cwd=folder, TERM="dumb")[1].splitlines()
    return ran(command, cwd=folder, status=0, TERM="dumb").stderr.splitlines()


def are_lines(lines: list[str], patterns: list[str]) -> bool:
    """Whether the patterns match lines in this order; other lines may be between them."""
    rest = iter(lines)
    return all(any(re.fullmatch(pattern, line) for line in rest) for pattern in patterns)


@pytest.mark.parametrize(
    ("program", "module", "patterns"),
    [
        (CONTEXTS, OWN, OF_CONTEXTS),
        (CONTEXTS, DROP_IN, OF_CONTEXTS),
        (HARNESS, OWN, OF_THE_HARNESS),
        (HARNESS, "stagespan.compat.telefuser.stage_bench_harness", OF_THE_HARNESS),
    ],
)
def test_lines_are_seen_on_a_terminal(
    program: str, module: str, patterns: list[str], tmp_path: Path
) -> None:
    text = program.format(module=module, before="")
    shown = stderr_of(text, tmp_path, terminal=True)
    # THEN the lines are there, and only those of stages that are active
    assert are_lines(shown, patterns), shown
    assert not [line for line in shown if "off" in line.split()]
    assert stderr_of(text, tmp_path, terminal=False) == []


@pytest.mark.parametrize("module", [OWN, DROP_IN])
def test_a_program_that_has_configured_logging_decides_itself(module: str, tmp_path: Path) -> None:
    before = "import logging; logging.basicConfig(level=logging.WARNING)"
    text = CONTEXTS.format(module=module, before=before)
    assert stderr_of(text, tmp_path, terminal=True) == []
