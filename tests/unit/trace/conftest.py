"""Traces for the tests: written from events, or real ones if their folder exists."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

_REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session")
def traces() -> Path:
    """Return the folder of real traces: STAGESPAN_TRACES, or `shared/traces` next to the clone."""
    named = os.environ.get("STAGESPAN_TRACES")
    folder = Path(named) if named else _REPOSITORY.parent / "shared" / "traces"
    if not (folder / "truth.json").is_file():
        pytest.skip(f"no folder with real traces ({folder}): set STAGESPAN_TRACES to one")
    return folder


@pytest.fixture
def write_trace(tmp_path: Path) -> Callable[..., Path]:
    """Write a trace from bytes, or from a list of events with other top-level values."""

    def write(events: bytes | list[Any], packed: bool = False, **others: Any) -> Path:
        if isinstance(events, bytes):
            data = events
        else:
            data = json.dumps({"schemaVersion": 1, "traceEvents": events, **others}).encode()
        path = tmp_path / ("trace.json.gz" if packed else "trace.json")
        path.write_bytes(gzip.compress(data) if packed else data)
        return path

    return write


@pytest.fixture
def compiler() -> Iterator[None]:
    """Let torch.compile begin afresh, without Inductor's test of vector units.

    The test runs g++ for about 15 s. All tests that compile need the same choice, because Inductor
    keeps its precompiled header for the whole process.
    """
    torch = pytest.importorskip("torch")
    torch._dynamo.reset()
    with torch._inductor.config.patch({"cpp.simdlen": 0, "cpp.vec_isa_ok": False}):
        yield
    torch._dynamo.reset()
