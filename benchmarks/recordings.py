"""Measures the cost of spans with a recording in a file, compared with anonymous memory.

    python -m benchmarks.recordings [--minutes N] [--turns N] [--json FILE]

Two processes, one with the file and one with STAGESPAN_RECORDING=off, take turns on one core:
only one of them runs at a time, so that a drift of the machine affects both. Times of spans are CPU
times of the thread. The reader runs in this process, on another core if there is one. For
``--minutes``, each of the two also times every single span from outside: how many took how long,
and what the long ones were.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import native
from stagespan import recording

SPANS = 200_000
READS_PER_S = 10
SLICE_MS = 1000
LONG_NS = 100_000


class Writer:
    """A process that writes spans on command."""

    def __init__(self, program: Path, **variables: str) -> None:
        self._process = subprocess.Popen(
            [program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **variables},
        )
        self.path = self._answer()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def _ask(self, command: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        return self._answer()

    def ns_per_span(self) -> float:
        return int(self._ask(f"spans {SPANS}")) / SPANS

    def watch(self, milliseconds: int) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._ask(f"watch {milliseconds}"))
        return found

    def end(self) -> int:
        """Check that each span was counted, and return their number."""
        timed, counted = map(int, self._ask("end 0").split())
        self._process.wait(timeout=30)
        if timed != counted:
            sys.exit(f"{timed:,} spans were timed, the statistics have {counted:,}.")
        return timed


@contextlib.contextmanager
def reading(path: str) -> Iterator[list[float]]:
    """Read a recording like `stagespan top`, 10 times a second. Yields the CPU ms of each."""
    over = threading.Event()
    took_ms: list[float] = []

    def read() -> None:
        while not over.wait(1 / READS_PER_S):
            began = time.thread_time()
            copy = recording.open(path, spans=False)
            copy.stats(), copy.open_spans(), copy.threads()
            took_ms.append((time.thread_time() - began) * 1e3)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield took_ms
    finally:
        over.set()
        thread.join()


def compare(file: Writer, memory: Writer, turns: int) -> dict[str, Any]:
    """Spans with the file and without it, and with the file while a reader reads it."""
    ns_by_case: dict[str, list[float]] = {"memory": [], "file": [], "file, read": []}
    reads: list[float] = []
    for turn in range(turns):
        order = [("memory", memory), ("file", file)]
        for name, writer in order if turn % 2 == 0 else order[::-1]:
            ns_by_case[name].append(writer.ns_per_span())
    # Longer than the pause between two reads.
    alone: list[float] = []
    for _ in range(max(turns // 8, 2)):
        alone.append(_for_a_second(file))
        with reading(file.path) as took_ms:
            ns_by_case["file, read"].append(_for_a_second(file))
        reads += took_ms
    ns_by_case["file, not read"] = alone
    return {"ns": ns_by_case, "read_ms": reads}


def _for_a_second(writer: Writer) -> float:
    until = time.monotonic() + 1
    ns_per_span = []
    while time.monotonic() < until:
        ns_per_span.append(writer.ns_per_span())
    return statistics.mean(ns_per_span)


def watch(file: Writer, memory: Writer, minutes: float) -> dict[str, Any]:
    """Time each span for some minutes with the file, and as long without, in slices."""
    parts: dict[str, Any] = {}
    for _ in range(max(round(minutes * 60_000 / SLICE_MS), 1)):
        for name, writer in (("memory", memory), ("file", file)):
            part = writer.watch(SLICE_MS)
            whole = parts.setdefault(name, part)
            if whole is part:
                continue
            for key, value in part.items():
                if key == "spans":
                    whole[key] = [a + b for a, b in zip(whole[key], value, strict=True)]
                elif key.startswith("longest"):
                    whole[key] = max(whole[key], value)
                else:
                    whole[key] += value
    return parts


def ratio(over: list[float], under: list[float]) -> float:
    """Return the median of the ratios of consecutive turns."""
    return statistics.median(a / b for a, b in zip(over, under, strict=True))


def show(page: dict[str, Any]) -> None:
    """Print the figures."""
    ns = page["ns"]
    for name, of, budget in (("file", "memory", 1.02), ("file, read", "file, not read", 1.02)):
        of_all = ratio(ns[name], ns[of])
        verdict = "within" if of_all <= budget else "OVER"
        print(
            f"{name:12} {statistics.median(ns[name]):6.2f} ns   {of:15} "
            f"{statistics.median(ns[of]):6.2f} ns   {of_all:5.3f} x of {budget} x   {verdict}"
        )
    print(f"reader: {statistics.median(page['read_ms']):.2f} ms of CPU time a read")
    if "watched" not in page:
        return
    print(f"\n{'ns':>14} {'memory':>16} {'file':>16}")
    memory, file = page["watched"]["memory"], page["watched"]["file"]
    for i, (a, b) in enumerate(zip(memory["spans"], file["spans"], strict=True)):
        if a or b:
            print(f"{1 << i:>14,} {a:>16,} {b:>16,}")
    print(f"\nspans of {LONG_NS / 1000:.0f} us or more")
    for key, words in (
        ("switched", "the thread was switched out"),
        ("faulted", "it touched a page for the first time"),
        ("unexplained", "neither"),
    ):
        print(f"{words:>40} {memory[key]:>10,} {file[key]:>10,}")
    for key, words in (
        ("longest_ns", "longest, us"),
        ("longest_not_switched_ns", "longest, us, not switched out"),
    ):
        print(f"{words:>40} {memory[key] / 1e3:>10,.0f} {file[key] / 1e3:>10,.0f}")


def main() -> None:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(description="What a recording in a file costs the spans.")
    parser.add_argument("--minutes", type=float, default=10, help="of watching each; 0: none")
    parser.add_argument("--turns", type=int, default=101)
    parser.add_argument("--json", type=Path, help="write the raw figures here")
    options = parser.parse_args()
    try:
        program = native.build() / "recording_cost"
    except native.SkipError as error:
        sys.exit(f"The writer of spans is missing: {error}")
    folder = tempfile.mkdtemp(prefix="stagespan-benchmark-", dir="/dev/shm")
    cores = sorted(os.sched_getaffinity(0))
    file = Writer(program, STAGESPAN_RECORDING="on", STAGESPAN_RECORDING_DIR=folder)
    memory = Writer(program, STAGESPAN_RECORDING="off")
    try:
        os.sched_setaffinity(0, cores[:-1] or cores)  # the writers use the last one
        page = {"load": os.getloadavg()[0], **compare(file, memory, options.turns)}
        if options.minutes > 0:
            page["watched"] = watch(file, memory, options.minutes)
        page["spans"] = file.end() + memory.end()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    show(page)
    print(
        f"\n{page['spans']:,} spans were timed, and the statistics have every one of them. "
        f"Load {page['load']:.1f} at the start, {os.getloadavg()[0]:.1f} at the end, "
        f"{len(cores)} cores."
    )
    if options.json is not None:
        options.json.write_text(json.dumps(page))


if __name__ == "__main__":
    main()
