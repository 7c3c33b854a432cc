"""What is measured: statements in a loop, what each needs, and the stage that it times."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import Any

STAGES = 200


@dataclass(frozen=True)
class Case:
    """One statement. `spans` is how many spans a run of it records, under names that begin with
    `bench_`; None where it records none."""

    name: str
    statement: str
    setup: str = ""
    needs: str = ""
    """Module of a peer; the case is skipped where it is not installed."""
    spans: int = 0
    calls: int = 20_000
    where: str = "main"
    """"main", "request", "thread" or "task": where the loop runs."""


_SPAN = "from stagespan import span"
_TORCH = "import torch; from torch._C._profiler import _RecordFunctionFast as fast"

CASES = (
    # --- what Python itself costs ---
    Case("bare call", "f()", "def f(): pass"),
    Case("hand-written pair", "t = pc(); l.append(pc() - t)", "l = []"),
    Case("with Lock", "with lock: pass", "import threading; lock = threading.Lock()"),
    Case(
        "with nullcontext, new", "with null(): pass", "from contextlib import nullcontext as null"
    ),
    Case(
        "with a Python class, reused",
        "with c: pass",
        "class C:\n"
        "        def __enter__(self): return self\n"
        "        def __exit__(self, a, b, c): pass\n"
        "    c = C()",
    ),
    # --- stagespan ---
    Case("with span, reused", "with s: pass", f"{_SPAN}; s = span('bench_reused')", spans=1),
    Case("with span, new", "with span('bench_new'): pass", _SPAN, spans=1),
    Case(
        "with ProfilingContext, new",
        "with P('bench_profiling'): pass",
        "from stagespan import ProfilingContext as P",
        spans=1,
        calls=2_000,
    ),
    Case(
        "with debug context off, new",
        "with D('bench_debug'): pass",
        "from stagespan import ProfilingContext4Debug as D",
    ),
    Case("decorated call", "g()", f"{_SPAN}\n    @span('bench_call')\n    def g(): pass", spans=1),
    Case(
        "decorated call, debug off",
        "g()",
        "from stagespan import ProfilingContext4Debug as D\n"
        "    @D('bench_debug_call')\n    def g(): pass",
    ),
    Case(
        "begin and end",
        "end(begin('bench_token'))",
        "from stagespan import begin, end",
        spans=1,
    ),
    Case(
        "with span, new, at depth 3",
        "with span('bench_deep'): pass",
        f"{_SPAN}\n    outer = span('bench_outer'); middle = span('bench_middle')\n"
        "    outer.__enter__(); middle.__enter__()",
        spans=1,
    ),
    Case(
        "with span, new, in a request",
        "with span('bench_request'): pass",
        _SPAN,
        spans=1,
        where="request",
    ),
    Case(
        f"with span, new, over {STAGES} stages",
        "with span(next(names)): pass",
        f"{_SPAN}\n    import itertools\n"
        f"    names = itertools.cycle([f'bench_stage_{{i}}' for i in range({STAGES})])",
        spans=1,
    ),
    Case(
        "with span, new, on a worker thread",
        "with span('bench_thread'): pass",
        _SPAN,
        spans=1,
        where="thread",
    ),
    Case(
        "with span, new, in an asyncio task",
        "with span('bench_task'): pass",
        _SPAN,
        spans=1,
        where="task",
    ),
    # --- peers ---
    Case(
        "torch record_function, idle",
        "with R('x'): pass",
        "from torch.profiler import record_function as R",
        "torch",
        calls=2_000,
    ),
    Case("_RecordFunctionFast, idle, new", "with fast('x'): pass", _TORCH, "torch"),
    Case("_RecordFunctionFast, idle, reused", "with r: pass", f"{_TORCH}; r = fast('x')", "torch"),
    Case("nvtx.annotate, new", "with nvtx.annotate('x'): pass", "import nvtx", "nvtx"),
    Case(
        "OpenTelemetry SDK",
        "with tracer.start_as_current_span('x'): pass",
        "from opentelemetry.sdk.trace import TracerProvider\n"
        "    tracer = TracerProvider().get_tracer('x')",
        "opentelemetry.sdk",
        calls=500,
    ),
    Case(
        "prometheus_client Histogram.time",
        "with h.time(): pass",
        "from prometheus_client import CollectorRegistry, Histogram\n"
        "    h = Histogram('x', 'x', registry=CollectorRegistry())",
        "prometheus_client",
        calls=5_000,
    ),
    Case(
        "codetiming Timer, reused",
        "with t: pass",
        "from codetiming import Timer; t = Timer(name='x', logger=None)",
        "codetiming",
        calls=5_000,
    ),
)


@dataclass(frozen=True)
class Budget:
    """A promise: `case`, less `less`, is at most `factor` times `beside`, or at most `most_ns`."""

    what: str
    case: str
    less: str = ""
    beside: str = ""
    factor: float = 0.0
    most_ns: float = 0.0
    aim: str = field(default="")


BUDGETS = (
    Budget("C++ span, on", "cpp on", beside="cpp floor", factor=1.5, aim="aim 1.3 x"),
    Budget("C++ span, on, at depth 3", "cpp depth 3", beside="cpp floor", factor=1.5),
    Budget("C++ span, off", "cpp off", most_ns=1.0),
    Budget("with span, reused", "with span, reused", beside="with Lock", factor=0.7),
    Budget(
        "with span, new", "with span, new", beside="hand-written pair", factor=1.0, aim="aim 0.85 x"
    ),
    Budget("  at depth 3", "with span, new, at depth 3", beside="hand-written pair", factor=1.0),
    Budget(
        "  in a request", "with span, new, in a request", beside="hand-written pair", factor=1.0
    ),
    Budget("  over 200 stages", f"with span, new, over {STAGES} stages"),
    Budget(
        "  on a worker thread",
        "with span, new, on a worker thread",
        beside="hand-written pair",
        factor=1.0,
    ),
    Budget("  in an asyncio task", "with span, new, in an asyncio task"),
    Budget("ProfilingContext, new, peak RSS", "with ProfilingContext, new", most_ns=1500.0),
    Budget("decorated call, over the bare call", "decorated call", less="bare call", most_ns=45.0),
    Budget("  debug context, off", "decorated call, debug off", less="bare call", most_ns=0.0),
    Budget(
        "with debug context, off",
        "with debug context off, new",
        beside="with nullcontext, new",
        factor=1.0,
        aim="better 90 ns",
    ),
    Budget("begin and end", "begin and end"),
)
PEERS = (
    *(case.name for case in CASES if case.needs),
    "with a Python class, reused",
    "bare call",
)


def installed(case: Case) -> bool:
    """Whether the peer that a case needs can be imported."""
    if not case.needs:
        return True
    try:
        importlib.import_module(case.needs)
    except ImportError:
        return False
    return True


def loop(case: Case, unroll: int = 10) -> Any:
    """Compile `run(calls) -> ns` whose loop holds the statement `unroll` times."""
    body = "\n        ".join([case.statement] * unroll)
    source = (
        "def run(calls, pc=perf_counter_ns):\n"
        f"    {case.setup or 'pass'}\n"
        f"    rounds = repeat(None, calls // {unroll})\n"
        "    began = pc()\n"
        "    for _ in rounds:\n"
        f"        {body}\n"
        "    return pc() - began\n"
    )
    from itertools import repeat
    from time import perf_counter_ns

    namespace: dict[str, Any] = {"repeat": repeat, "perf_counter_ns": perf_counter_ns}
    exec(compile(source, f"<{case.name}>", "exec"), namespace)
    return namespace["run"]
