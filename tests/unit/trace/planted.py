"""A host and a device that run by simple rules, and the trace that a profiler would write.

All times are in us. The host's thread does one thing after another. Work begins when it was
launched `LATENCY` ago, and earlier work of its stream and all work for which it must wait is
finished.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stagespan.trace import Trace, read_trace

LATENCY = 3
CALL = 5
HOST, DEVICE = 100, 0
MAIN = 100


class Program:
    """Builds a trace step by step; `now` is the host's time, `free` the end of each stream."""

    def __init__(self, begin: int = 1_000) -> None:
        self.now = begin
        self.free: dict[int, int] = {}
        self.thread = MAIN
        self.events: list[dict[str, Any]] = []
        self._correlation = 0

    def event(self, name: str, cat: str, begin: float, end: float, **args: Any) -> None:
        place = {"pid": HOST, "tid": self.thread}
        if "stream" in args:
            place = {"pid": DEVICE, "tid": args["stream"]}
        entry = {"ph": "X", "name": name, "cat": cat, "ts": begin, "dur": end - begin, **place}
        self.events.append(entry | ({"args": args} if args else {}))

    @contextmanager
    def within(self, name: str, cat: str = "cpu_op") -> Iterator[None]:
        begin = self.now
        yield
        self.event(name, cat, begin, self.now)

    def work(self, us: int) -> None:
        """The host does work that no event shows."""
        self.now += us

    def call(self, name: str, us: int) -> None:
        self.event(name, "cuda_runtime", self.now, self.now + us)
        self.now += us

    def launch(
        self,
        kernel: str,
        us: int,
        stream: int = 7,
        cat: str = "kernel",
        call: str = "cudaLaunchKernel",
        call_us: int = CALL,
        after: int | None = None,
        known: bool = True,
    ) -> None:
        """Launch work, which begins after the current work of stream `after`."""
        self._correlation += 1
        number = self._correlation
        if known:
            self.event(call, "cuda_runtime", self.now, self.now + call_us, correlation=number)
        self.now += call_us
        begin = max(self.now + LATENCY, self.free.get(stream, 0))
        if after is not None:
            begin = max(begin, self.free[after] + LATENCY)
        self._run(kernel, cat, begin, us, stream, number)

    def graph(self, kernels: list[int], gap: int, stream: int = 7) -> None:
        """One launch of a graph of several kernels with gaps between them."""
        self._correlation += 1
        self.event(
            "cudaGraphLaunch", "cuda_runtime", self.now, self.now + CALL,
            correlation=self._correlation,
        )  # fmt: skip
        self.now += CALL
        begin = max(self.now + LATENCY, self.free.get(stream, 0))
        for number, us in enumerate(kernels):
            self._run(f"graph_kernel_{number}", "kernel", begin, us, stream, self._correlation)
            begin = self.free[stream] + gap

    def wait(self, call: str = "cudaStreamSynchronize", tail: int = 2) -> None:
        """The host waits until all launched work is finished, and for `tail` more."""
        end = max([self.now, *self.free.values()]) + tail
        self.event(call, "cuda_runtime", self.now, end)
        self.now = end

    def operator(self, name: str = "aten::mm", us: int = 50, before: int = 10) -> None:
        """An operator that launches one kernel."""
        with self.within(name):
            self.work(before)
            self.launch(name.replace("aten::", "kernel_"), us)

    def _run(self, name: str, cat: str, begin: int, us: int, stream: int, number: int) -> None:
        self.event(name, cat, begin, begin + us, device=0, stream=stream, correlation=number)
        self.free[stream] = begin + us

    def trace(self, folder: Path) -> Trace:
        path = folder / "planted.json"
        path.write_text(json.dumps({"traceEvents": self.events}))
        return read_trace(path)
