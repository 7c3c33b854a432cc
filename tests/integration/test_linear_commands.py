"""No command that reads becomes quadratic: instructions of callgrind for input that doubles.

Differences are compared, so that what a command does to start hides no growth.
"""

from __future__ import annotations

import faulthandler
import json
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from running import command_of, ended, ran, ready, start_command

pytestmark = [pytest.mark.full, pytest.mark.slow]

_MOST_GROWTH = 2.3
"""What may be added by 2n more, in times of what n more have added. It is 2 if growth is linear."""
_ROOT = Path(__file__).parents[2]
_COMMAND = ("-m", "stagespan")
_RECORDED = """
    import sys
    import stagespan
    number, stages = map(int, sys.argv[1:])
    for number in range(number):
        with stagespan.request(f"request {number}"), stagespan.span(f"stage {number % stages}"):
            with stagespan.span("inner") as inner:
                inner.add(items=1)
"""
_WORKERS = """
    import os
    import sys
    import stagespan
    said, say = os.pipe()
    number = int(sys.argv[1])
    for _ in range(number):
        if os.fork() == 0:
            with stagespan.request("request"), stagespan.span("work"):
                pass
            os.write(say, b"1")
            sys.stdin.buffer.raw.read(1)
            os._exit(0)
    while number > 0:
        number -= len(os.read(said, number))
    print("ready", flush=True)
    sys.stdin.buffer.raw.read(1)
"""
_SCRAPE = """
    import gc, os, sys
    os.environ["STAGESPAN_RECORDING_DIR"] = "/proc"  # no file, which valgrind 3.19 cannot map
    import stagespan
    from stagespan.export.prometheus import RecordingCollector
    from stagespan.export.this_process import ThisProcess
    gc.freeze()  # a collection more or less of what was imported would be a sixth of the growth
    for number in range(int(sys.argv[1])):
        with stagespan.span(f"stage {number}"):
            pass
    assert "stage 0" in RecordingCollector(ThisProcess()).text(is_open=False)
"""


def _recorded(folder: Path, number: int, stages: int) -> str:
    """Run a program whose recording is kept, and return its path."""
    ran(
        [sys.executable, "-c", textwrap.dedent(_RECORDED), str(number), str(stages)],
        status=0,
        STAGESPAN_RECORDING="keep",
        STAGESPAN_RECORDING_DIR=str(folder),
        STAGESPAN_RING_SPANS="32768",
        STAGESPAN_REQUESTS="16384",
    )
    (path,) = map(str, folder.glob("*.stagespan"))
    return path


def _requests(folder: Path, number: int) -> Sequence[str]:
    return (*_COMMAND, "requests", _recorded(folder, number, 10))


def _kept(folder: Path, number: int) -> Sequence[str]:
    program = (
        "import pathlib, sys; from benchmarks import kept_requests as kept;"
        "kept.write(pathlib.Path(sys.argv[1]), int(sys.argv[2]))"
    )
    ran([sys.executable, "-c", program, str(folder), str(number)], cwd=_ROOT, status=0)
    return (*_COMMAND, "requests", *sorted(map(str, folder.iterdir())))


def _dump(folder: Path, number: int) -> Sequence[str]:
    of = _recorded(folder, number, 10)
    return (*_COMMAND, "dump", of, "-o", str(folder / "trace.json"))


def _top(folder: Path, number: int) -> Sequence[str]:
    return (*_COMMAND, "top", "--once", _recorded(folder, number, number))


def _ps(folder: Path, number: int) -> Sequence[str]:
    return (*_COMMAND, "ps")


def _scrape(folder: Path, number: int) -> Sequence[str]:
    return ("-c", textwrap.dedent(_SCRAPE), str(number))


def _events(number: int, rank: int = 0) -> dict[str, Any]:
    """Return a trace of steps with operators, launches and kernels, in us."""
    events: list[dict[str, Any]] = []

    def add(kind: str, name: str, at: int, us: int, tid: int, **args: Any) -> None:
        place = {"ph": "X", "cat": kind, "name": name, "ts": at, "dur": us, "args": args}
        events.append({**place, "pid": 0 if tid == 7 else 1, "tid": tid})

    for i in range(number):
        at = 1_000_000 + 100 * i
        if i % 100 == 0:
            add("user_annotation", f"ProfilerStep#{i // 100}", at, 9_990, 1)
        add("python_function", f"model.py({i % 50}): forward", at, 90, 1)
        add("cpu_op", f"aten::op{i % 20}", at + 5, 60, 1, **{"External id": i + 1})
        add("cuda_runtime", "cudaLaunchKernel", at + 10, 20, 1, correlation=i + 1)
        of = {"device": 0, "stream": 7, "correlation": i + 1, "External id": i + 1}
        add("kernel", f"kernel{i % 20}", at + 40, 50, 7, **of)
    properties = [{"id": 0, "name": "NVIDIA H100", "totalGlobalMem": 1 << 36}]
    distributed = {"backend": "nccl", "rank": rank, "world_size": 64}
    return {
        "schemaVersion": 1,
        "deviceProperties": properties,
        "distributedInfo": distributed,
        "traceEvents": events,
    }


def _analyze(folder: Path, number: int) -> Sequence[str]:
    path = folder / "trace.json"
    path.write_text(json.dumps(_events(number)))
    return (*_COMMAND, "analyze", str(path))


def _ranks(folder: Path, number: int) -> Sequence[str]:
    for rank in range(number):
        (folder / f"rank{rank}.json").write_text(json.dumps(_events(300, rank)))
    return (*_COMMAND, "analyze", str(folder))


@contextmanager
def _running(folder: Path, number: int) -> Iterator[None]:
    """Let processes run that record in a folder."""
    process = start_command(command_of(_WORKERS, number), STAGESPAN_RECORDING_DIR=str(folder))
    assert ready(process) == "ready"
    yield
    ended(process)  # all of them read from its standard input


def _compare(folder: Path, number: int) -> Sequence[str]:
    for name, ms in (("before", 10.0), ("after", 11.0)):
        figures = {"count": 5, "percentage": 1.0, "mean_ms": ms, "min_ms": ms, "max_ms": ms}
        stages = {f"stage {i}": {"duration_ms": 5 * ms, **figures} for i in range(number)}
        report = {"stages": stages, "wall_clock_ms": 1e5, "total_stages_ms": 1e5}
        (folder / f"{name}.json").write_text(json.dumps(report))
    return (*_COMMAND, "compare", str(folder / "before.json"), str(folder / "after.json"))


def _instructions(folder: Path, command: Sequence[str]) -> int:
    counts = folder / "callgrind.out"
    tool = ("valgrind", "--tool=callgrind", f"--callgrind-out-file={counts}", sys.executable)
    done = ran(
        [*tool, *command],
        timeout_s=900,
        PYTHONHASHSEED="0",
        **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
        STAGESPAN_RECORDING_DIR=str(folder),
    )
    assert done.returncode in (0, 1), done.stderr[-2000:]  # 1: a stage has become slower
    assert "Traceback" not in done.stderr
    found, *_ = re.findall(r"^(?:summary|totals): (\d+)", counts.read_text(), re.MULTILINE)
    return int(found)


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed")
@pytest.mark.parametrize(
    ("make", "number"),
    [
        *((_requests, 500), (_kept, 500), (_dump, 1_000), (_top, 100), (_ps, 10)),
        *((_scrape, 200), (_analyze, 1_000), (_ranks, 3), (_compare, 100)),
    ],
)
def test_twice_the_input_takes_twice_the_instructions(
    folder: Path, make: Callable[[Path, int], Sequence[str]], number: int
) -> None:
    # On a busy machine callgrind takes longer than a test may; each command has a limit of its own.
    faulthandler.cancel_dump_traceback_later()
    found = []
    for factor in (1, 2, 4):
        place = folder / str(factor)
        place.mkdir(mode=0o700)
        with _running(place, factor * number) if make is _ps else nullcontext():
            found.append(_instructions(place, make(place, factor * number)))
    one, two, four = found
    assert two > 1.005 * one, found  # it has read its input
    growth = (four - two) / (two - one)
    print(f"{make.__name__}: {one:,}, {two:,} and {four:,} instructions, {growth:.2f}")
    assert growth <= _MOST_GROWTH, found
