"""Traces for the tests: written from events, or real ones if their folder exists."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from real_traces import read_real

from stagespan.trace import Trace

_REPOSITORY = Path(__file__).resolve().parents[3]


def _named(variable: str, beside: str) -> Path:
    """Return the folder that a variable names, or the one next to the clone."""
    return Path(os.environ.get(variable) or _REPOSITORY.parent / beside)


def _more_traces() -> Path:
    return _named("STAGESPAN_TRACES_MORE", "shared/review/traces")


@pytest.fixture(scope="session")
def traces() -> Path:
    """Return the folder of real traces: STAGESPAN_TRACES, or `shared/traces` next to the clone."""
    folder = _named("STAGESPAN_TRACES", "shared/traces")
    if not (folder / "truth.json").is_file():
        pytest.skip(f"no folder with real traces ({folder}): set STAGESPAN_TRACES to one")
    return folder


@pytest.fixture(scope="session")
def more_traces() -> Path:
    """Return a second folder of real traces: STAGESPAN_TRACES_MORE, or one next to the clone."""
    folder = _more_traces()
    if not (folder / "ascend_st_level2").is_dir():
        pytest.skip(f"no folder with more real traces ({folder}): set STAGESPAN_TRACES_MORE to one")
    return folder


@pytest.fixture(scope="session")
def every_trace(traces: Path) -> list[Path]:
    """Return the files in both folders, not in folders below them."""
    return sorted(path for each in (traces, _more_traces()) for path in each.glob("*.json.gz"))


@pytest.fixture(scope="session")
def real(every_trace: list[Path]) -> Callable[[str], Trace]:
    """Return a function that reads a trace of either folder by its name."""
    paths = {path.name.removesuffix(".json.gz"): path for path in every_trace}

    def read(name: str) -> Trace:
        if name not in paths:
            pytest.skip(f"no real trace {name}")
        return read_real(paths[name])

    return read


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
