"""The types of the package as type checkers see them; with mypy, if it is installed."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

from running import ran

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="mypy is not installed"),
]

# Checked, never run. An unneeded ignore is an error, so these lines show what must be refused.
DECORATED = """
from collections.abc import AsyncIterator, Iterator

from typing_extensions import assert_type

import stagespan
from stagespan import ProfilingContext, ProfilingContext4Debug, Span, span


@span
def bare(x: int, *, scale: float = 1.0) -> float:
    return x * scale


@ProfilingContext()
def empty(text: str) -> list[str]:
    return text.split()


@ProfilingContext4Debug(reset_peak_memory=False)
async def options(x: int) -> bytes:
    return bytes(x)


@span("named")
def named(x: int) -> Iterator[int]:
    yield x


@stagespan.request("id", user="a")
async def handle(x: int) -> str:
    return str(x)


class Model:
    @span
    def method(self, x: int) -> str:
        return str(x)

    @classmethod
    @ProfilingContext
    def load(cls, path: str) -> "Model":
        return cls()

    @staticmethod
    @ProfilingContext4Debug
    def static(x: int) -> int:
        return x

    @property
    @span
    def size(self) -> int:
        return 1

    @span
    async def stream(self) -> AsyncIterator[int]:
        yield 1


assert_type(bare(1, scale=2.0), float)
assert_type(empty("a b"), list[str])
assert_type(named(1), Iterator[int])
assert_type(Model().method(1), str)
assert_type(Model.load("x"), Model)
assert_type(Model.static(1), int)
assert_type(Model().size, int)
assert_type(Model().stream(), AsyncIterator[int])
assert_type(span("x"), Span)
with span("block") as block:
    assert_type(block, Span)
    block.add(tokens=230)


async def use() -> None:
    assert_type(await options(1), bytes)
    assert_type(await handle(1), str)


bare("text")  # type: ignore[arg-type]
empty(1)  # type: ignore[arg-type]
span("x")()  # type: ignore[call-arg]
with span():  # type: ignore[attr-defined]
    pass
span(3)  # type: ignore[call-overload]
"""

READ = """
from typing_extensions import assert_type

import stagespan

figures = stagespan.stats()["decode"]
assert_type(figures.mean_ns, float)
assert_type(figures.min_ns + figures.max_ns, int)
assert_type(figures.p50_ns + figures.p95_ns + figures.p99_ns, float)
assert_type(figures.quantile_ns(0.9), float)
print(figures.device_elapsed_ns.mean_ns)  # type: ignore[union-attr]
if figures.device_elapsed_ns is not None:
    assert_type(figures.device_elapsed_ns.p99_ns, float)

for one in stagespan.open_spans():
    assert_type(one["stage"], str)
    assert_type(one["elapsed_ns"], int)
    one["elapsed_ms"]  # type: ignore[typeddict-item]

report = stagespan.timing_report()
for name, stage in report["stages"].items():
    assert_type(stage["mean_ms"], float)
    assert_type(stage["parents"][0]["parent"], str | None)
    stage["mean_ns"]  # type: ignore[typeddict-item]
assert_type(report["requests"][0]["stages"]["x"]["count"], int)
"""


def first_example(document: Path) -> str:
    """Return the text of the first Python block."""
    found = re.search(
        r"^```python\n(.*?)^```", document.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    assert found is not None
    return found.group(1)


def test_mypy_reports_no_errors(tmp_path: Path) -> None:
    # One run for all programs, because mypy reads the package each time.
    programs = {
        "decorated.py": DECORATED,
        "read.py": READ,
        "readme.py": first_example(ROOT / "README.md"),
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    done = ran(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--config-file", ROOT / "pyproject.toml"),
            *("--cache-dir", ROOT / ".mypy_cache"),
            *(tmp_path / name for name in programs),
        ],
        cwd=ROOT,
    )
    assert done.returncode in (0, 1), done.stderr
    lines = done.stdout.splitlines()
    errors = [line for line in lines if any(f"{name}:" in line for name in programs)]
    assert errors == []
    assert re.search(r"^(Success|Found)", done.stdout, re.MULTILINE)
