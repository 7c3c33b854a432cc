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

MOST = {
    "cpp on": 1.5,
    "cpp at depth 3": 1.5,
    "cpp over 200 stages": 1.5,
    "cpp on a worker thread": 1.5,
    "with span, reused": 0.7,
    "with span, new": 1.0,
    "at depth 3": 1.0,
    "in a request": 1.0,
    "on a worker thread": 1.0,
    "in an asyncio task": 1.9,
    "nested in a task": 0.9,
    "in a task and a request": 0.9,
    "decorated call": 3.0,
    "decorated coroutine": 2.2,
    "decorated coroutine, sleep": 3.0,
    "decorated coroutine, uvloop": 3.0,
    "with debug context off, new": 1.0,
    "with request()": 12.0,
    "extract() and with": 16.0,
    "inject()": 3.0,
    "with batch of 1": 4.0,
    "chunk()": 0.8,
    "with queued()": 1.0,
}
"""The largest ratio of a case to its reference that the project allows, on CPython 3.11."""

Where = Literal[
    "main",
    "nested",
    "request",
    "worker",
    "task",
    "nested task",
    "request task",
    "coroutine",
    "uvloop",
    "off",
    "served",
    "logged",
    "told",
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

_HAND_TIMED = (
    "l = []\n"
    "    async def f():\n"
    "        t = pc()\n"
    "        try: {}\n"
    "        finally: l.append(pc() - t)"
)
_DECORATED = _SPAN + "\n    @span('bench_coroutine')\n    async def {}: {}"
_SLEEP = "from asyncio import sleep\n    "


def _coroutines(suffix: str, body: str, where: Where, needs: str = "") -> tuple[Case, ...]:
    """Return a bare, a hand-timed and a decorated coroutine."""
    before = _SLEEP if "sleep" in body else ""
    return (
        Case(
            f"bare coroutine{suffix}",
            "await f()",
            f"{before}async def f(): {body}",
            needs,
            where=where,
        ),
        Case(
            f"hand-timed coroutine{suffix}",
            "await f()",
            before + _HAND_TIMED.format(body),
            needs,
            where=where,
        ),
        Case(
            f"decorated coroutine{suffix}",
            "await g()",
            before + _DECORATED.format("g()", body),
            needs,
            "bench_coroutine",
            where=where,
        ),
    )


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
        "nested in a task",
        "with span('bench_inner'): pass",
        _SPAN,
        "",
        "bench_inner",
        where="nested task",
    ),
    Case(
        "in a task and a request",
        "with span('bench_served'): pass",
        _SPAN,
        "",
        "bench_served",
        where="request task",
    ),
    Case(
        "bare async generator, a turn",
        "await anext(g)",
        "async def make():\n        while True: yield\n    g = make()",
        where="coroutine",
    ),
    Case(
        "decorated async generator, a turn",
        "await anext(g)",
        f"{_SPAN}\n    @span('bench_turns')\n    async def make():\n"
        "        while True: yield\n"
        "    g = make(); await anext(g)",
        "",
        "bench_turns",
        per_loop=True,
        where="coroutine",
    ),
    Case("bare generator, once", "list(make())", "def make(): yield"),
    Case(
        "decorated generator, once",
        "list(make())",
        f"{_SPAN}\n    @span('bench_once')\n    def make(): yield",
        "",
        "bench_once",
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

_COROUTINES = (
    *_coroutines("", "pass", "coroutine"),
    *_coroutines(", sleep", "await sleep(0)", "coroutine"),
    *_coroutines(", uvloop", "await sleep(0)", "uvloop", "uvloop"),
)

CASES = (*_PYTHON, *_STAGESPAN, *_COROUTINES, *_PEERS)
PEERS = tuple(case.name for case in _PEERS)
PACKAGES = {
    "opentelemetry": "opentelemetry-api",
    "opentelemetry.sdk": "opentelemetry-sdk",
    "prometheus_client": "prometheus-client",
}
"""What to install for a module, where the name differs."""


def is_installed(case: Case) -> bool:
    """Whether the other tool that a case needs is installed, and stagespan is new enough."""
    needed = [case.needs] if case.needs else []
    if case.where == "told":
        needed.append("stagespan.contexts.opentelemetry")
    try:
        return all(importlib.util.find_spec(name) is not None for name in needed)
    except ModuleNotFoundError:  # the package around it
        return False


def loop(case: Case) -> Callable[[int], Any]:
    """Compile `run(rounds) -> ns`, or a coroutine function for cases that need one."""
    body = "\n        ".join([case.statement] * UNROLL)
    prefix = "async " if case.where in ("coroutine", "uvloop") else ""
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
