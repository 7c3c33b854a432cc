"""The measured statements, with their requirements and the spans that they record."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from itertools import repeat
from time import perf_counter_ns
from typing import Any, Literal

STAGES = 200
NAMES = tuple(f"bench_stages_{i}" for i in range(STAGES))
UNROLL = 20
COPIES = 5
"""Equal bare functions: how far their figures differ is what a difference of 0 is worth."""

Where = Literal[
    "main", "nested", "request", "worker", "task", "coroutine", "off", "served", "logged", "told"
]


@dataclass(frozen=True)
class Case:
    """One statement, repeated `UNROLL` times in the body of a loop."""

    name: str
    statement: str
    setup: str = ""
    needs: str = ""
    """Module of a peer; the case is skipped where it cannot be imported."""
    stage: str = ""
    """The stage, or the beginning of the stages' names, that the statement times."""
    per_loop: bool = False
    """One span for each loop, not for each statement."""
    where: Where = "main"


_SPAN = "from stagespan import span"
_REQUEST = "from stagespan import request"
_PROFILING = "from stagespan import ProfilingContext as P"
_DEBUG = "from stagespan import ProfilingContext4Debug as D"
_FAST = "import torch; from torch._C._profiler import _RecordFunctionFast as fast"
_NAMES = "from itertools import cycle; from benchmarks.cases import NAMES; names = cycle(NAMES)"

_PYTHON = (
    Case("bare call", "f()", "def f(): pass"),
    *(Case(f"bare call, copy {i}", "f()", "def f(): pass") for i in range(1, COPIES)),
    Case("hand-written pair", "t = pc(); l.append(pc() - t)", "l = []"),
    Case("with threading.Lock", "with lock: pass", "import threading; lock = threading.Lock()"),
    Case(
        "with nullcontext, new", "with null(): pass", "from contextlib import nullcontext as null"
    ),
    Case(
        "with an empty Python class",
        "with c: pass",
        "class C:\n"
        "        def __enter__(self): return self\n"
        "        def __exit__(self, a, b, c): pass\n"
        "    c = C()",
    ),
    Case(
        "async with an empty Python class",
        "async with c: pass",
        "class C:\n"
        "        async def __aenter__(self): return self\n"
        "        async def __aexit__(self, a, b, c): pass\n"
        "    c = C()",
        where="coroutine",
    ),
    Case("bare coroutine", "await f()", "async def f(): pass", where="coroutine"),
    Case("bare generator, a turn", "next(g)", "g = (None for _ in iter(int, 1))"),
    Case("next name", "next(names)", _NAMES),
)

_STAGESPAN = (
    Case(
        "with span, reused",
        "with s: pass",
        f"{_SPAN}; s = span('bench_reused')",
        "",
        "bench_reused",
    ),
    Case("with span, new", "with span('bench_new'): pass", _SPAN, "", "bench_new"),
    Case(
        "with ProfilingContext, new",
        "with P('bench_profiling'): pass",
        _PROFILING,
        "",
        "bench_profiling",
        where="served",
    ),
    Case(
        "decorated call",
        "g()",
        f"{_SPAN}\n    @span('bench_call')\n    def g(): pass",
        "",
        "bench_call",
    ),
    Case(
        "timed C callable",
        "g()",
        f"{_SPAN}; from stagespan._core import TimedFunction\n    def f(): pass\n"
        "    g = TimedFunction(span('bench_builtin'), f)",
        "",
        "bench_builtin",
    ),
    Case("decorated call, debug off", "g()", f"{_DEBUG}\n    @D('bench_debug')\n    def g(): pass"),
    Case("with debug context off, new", "with D('bench_debug'): pass", _DEBUG),
    Case("at depth 3", "with span('bench_deep'): pass", _SPAN, "", "bench_deep", where="nested"),
    Case(
        "in a request",
        "with span('bench_request'): pass",
        _SPAN,
        "",
        "bench_request",
        where="request",
    ),
    Case(
        f"over {STAGES} stages",
        "with span(next(names)): pass",
        f"{_SPAN}; {_NAMES}",
        "",
        "bench_stages_",
    ),
    Case(
        "on a worker thread",
        "with span('bench_worker'): pass",
        _SPAN,
        "",
        "bench_worker",
        where="worker",
    ),
    Case(
        "in an asyncio task", "with span('bench_task'): pass", _SPAN, "", "bench_task", where="task"
    ),
    Case(
        "async with span, reused",
        "async with s: pass",
        f"{_SPAN}; s = span('bench_async')",
        "",
        "bench_async",
        where="coroutine",
    ),
    Case(
        "decorated coroutine",
        "await g()",
        f"{_SPAN}\n    @span('bench_coroutine')\n    async def g(): pass",
        "",
        "bench_coroutine",
        where="coroutine",
    ),
    Case(
        "decorated generator, a turn",
        "next(g)",
        f"{_SPAN}\n    @span('bench_generator')\n    def make():\n"
        "        while True: yield\n"
        "    g = make(); next(g)",
        "",
        "bench_generator",
        per_loop=True,
    ),
    Case(
        "begin and end",
        "end(begin('bench_token'))",
        "from stagespan import begin, end",
        "",
        "bench_token",
    ),
    Case(
        "record",
        "record('bench_record', t, u)",
        "from time import time_ns; from stagespan import record; u = time_ns(); t = u - 1000",
        "",
        "bench_record",
    ),
    Case("inject()", "inject(queue='bench')", "from stagespan import inject", where="request"),
    Case(
        "extract() and with",
        "with extract(carrier): pass",
        f"{_REQUEST}; from stagespan import extract, inject\n"
        "    with request(): carrier = inject(queue='bench')",
    ),
    Case("with request()", "with request('bench'): pass", _REQUEST),
    Case(
        "with request(), OpenTelemetry told",
        "with request('bench'): pass",
        f"{_REQUEST}; import opentelemetry.trace",
        "opentelemetry.trace",
        where="told",
    ),
    Case(
        "with batch of 1",
        "with batch('bench_batch', one): pass",
        f"{_REQUEST}; from stagespan import batch; one = [request()]",
    ),
    Case(
        "with batch of 101",
        "with batch('bench_batch', many): pass",
        f"{_REQUEST}; from stagespan import batch; many = [request() for _ in range(101)]",
    ),
    Case(
        "chunk()",
        "r.chunk(tokens=1)",
        "from stagespan import current_request; r = current_request()",
        where="request",
    ),
    Case("with queued()", "with queued('bench_queue'): pass", "from stagespan import queued"),
    Case("s.add(tokens=1)", "s.add(tokens=1)", f"{_SPAN}; s = span('bench_add')"),
    Case("with span, recorder off", "with s: pass", f"{_SPAN}; s = span('bench_off')", where="off"),
    Case(
        "decorated call, recorder off",
        "g()",
        f"{_SPAN}\n    @span('bench_off')\n    def g(): pass",
        where="off",
    ),
    Case(
        "ProfilingContext, lines written",
        "with P('bench_logged'): pass",
        _PROFILING,
        "",
        "bench_logged",
        where="logged",
    ),
)

_PEERS = (
    Case("nvtx.annotate, new", "with nvtx.annotate('x'): pass", "import nvtx", "nvtx"),
    Case(
        "nvtx.annotate, reused",
        "with a: pass",
        "import nvtx; a = nvtx.annotate('x')",
        "nvtx",
    ),
    Case("_RecordFunctionFast, new", "with fast('x'): pass", _FAST, "torch"),
    Case("_RecordFunctionFast, reused", "with r: pass", f"{_FAST}; r = fast('x')", "torch"),
    Case(
        "torch record_function",
        "with R('x'): pass",
        "from torch.profiler import record_function as R",
        "torch",
    ),
    Case(
        "codetiming.Timer, reused",
        "with t: pass",
        "from codetiming import Timer; t = Timer(name='x', logger=None)",
        "codetiming",
    ),
    Case(
        "prometheus Histogram.time",
        "with h.time(): pass",
        "from prometheus_client import CollectorRegistry, Histogram\n"
        "    h = Histogram('x', 'x', registry=CollectorRegistry())",
        "prometheus_client",
    ),
    Case(
        "OpenTelemetry API alone",
        "with tracer.start_as_current_span('x'): pass",
        "from opentelemetry.trace import NoOpTracerProvider\n"
        "    tracer = NoOpTracerProvider().get_tracer('x')",
        "opentelemetry",
    ),
    Case(
        "OpenTelemetry SDK",
        "with tracer.start_as_current_span('x'): pass",
        "from opentelemetry.sdk.trace import TracerProvider\n"
        "    tracer = TracerProvider().get_tracer('x')",
        "opentelemetry.sdk",
    ),
)

CASES = (*_PYTHON, *_STAGESPAN, *_PEERS)
PEERS = tuple(case.name for case in _PEERS)
PACKAGES = {
    "opentelemetry": "opentelemetry-api",
    "opentelemetry.sdk": "opentelemetry-sdk",
    "prometheus_client": "prometheus-client",
}
"""What to install for a module, where the name differs."""


def is_installed(case: Case) -> bool:
    """Whether the other tool that a case needs is installed."""
    if not case.needs:
        return True
    try:
        return importlib.util.find_spec(case.needs) is not None
    except ModuleNotFoundError:  # the package around it
        return False


def loop(case: Case) -> Callable[[int], Any]:
    """Compile `run(rounds) -> ns`, or a coroutine function for cases that need one."""
    body = "\n        ".join([case.statement] * UNROLL)
    prefix = "async " if case.where == "coroutine" else ""
    source = (
        f"{prefix}def run(rounds, pc=perf_counter_ns):\n"
        f"    {case.setup or 'pass'}\n"
        "    rounds = repeat(None, rounds)\n"
        "    began = pc()\n"
        "    for _ in rounds:\n"
        f"        {body}\n"
        "    return pc() - began\n"
    )
    namespace: dict[str, Any] = {"repeat": repeat, "perf_counter_ns": perf_counter_ns}
    exec(compile(source, f"<{case.name}>", "exec"), namespace)
    run: Callable[[int], Any] = namespace["run"]
    return run
