"""One use of each public name, with and without the extension: run as a program by a test.

    python public_uses.py [blocked]

It prints a JSON object: the error that the use of each name has raised, or an empty text. Without
the extension, it reads files of an earlier run with it in the same folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.util
import inspect
import json
import logging
import os
import pkgutil
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

if sys.argv[1:] == ["blocked"]:
    sys.modules["stagespan._core"] = None  # type: ignore[assignment]
JOB = "job-of-this-test"
if __name__ == "__main__":
    os.environ["STAGESPAN_JOB"] = JOB

import stagespan  # noqa: E402 - after the names that it reads

HAS_TORCH = importlib.util.find_spec("torch") is not None
TELEFUSER = "stagespan.compat.telefuser"
MORE_MODULES = tuple(
    f"{TELEFUSER}.{name}" for name in ("memory_snapshot", "profiler", "stage_bench_harness")
)
MORE_NAMES = ("stagespan.export.prometheus.register",)
# The commands have a test of their own.
NOT_CALLED_BY_USERS = {
    *("__main__", "_core", "cli", "packing", "pytest_plugin", "settings", "signature"),
    "without_core",
}
TRACE, REPORT, SIGNATURES = "trace.json", "timing.json", "signatures.json"


def modules() -> Iterator[str]:
    """Yield the modules with public names: those directly in the package, and some others."""
    yield "stagespan"
    for found in pkgutil.iter_modules(stagespan.__path__, "stagespan."):
        name = found.name.rpartition(".")[2]
        if name not in NOT_CALLED_BY_USERS:
            yield found.name
    yield from MORE_MODULES


def is_data(thing: object) -> bool:
    """Whether a name is a constant, or a class that only holds values or is raised."""
    if not isinstance(thing, type):
        return not callable(thing)
    return issubclass(thing, (Exception, tuple)) or hasattr(thing, "__match_args__")


def public_names() -> list[str]:
    """Return the public names that are to be used, with their modules; each object once."""
    found: dict[int, str] = {}
    for module in modules():
        if module.startswith(TELEFUSER) and not HAS_TORCH:
            continue
        loaded = importlib.import_module(module)
        for name in getattr(loaded, "__all__", None) or dir(loaded):
            thing = getattr(loaded, name)
            home = getattr(inspect.unwrap(thing) if callable(thing) else thing, "__module__", "")
            is_own = hasattr(loaded, "__all__") or home == module
            if name[0] != "_" and is_own and not is_data(thing) and not inspect.ismodule(thing):
                found.setdefault(id(thing), f"{module}.{name}")
    return [*found.values(), *MORE_NAMES]


# --- uses -------------------------------------------------------------------------------------

USES: dict[str, Callable[[], Any]] = {}


def returned(x: Any) -> Any:
    """Return the argument."""
    return x


def use(name: str) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Register a function as the use of a name."""

    def register(function: Callable[[], Any]) -> Callable[[], Any]:
        USES[f"stagespan.{name}"] = function
        return function

    return register


def entered(context: Any) -> Any:
    """Enter a context, also as `async with`, and return what the first entry gave."""

    async def again() -> None:
        async with context:
            pass

    with context as given:
        pass
    asyncio.run(again())
    return given


def decorated(decorator: Any) -> None:
    """Decorate functions of each kind, and call them."""

    def plain(x: int, *, y: int = 1) -> int:
        return x + y

    def generator(x: int) -> Iterator[int]:
        yield x

    async def coroutine(x: int) -> int:
        return x

    async def asynchronous(x: int) -> Any:
        yield x

    async def all_of() -> list[int]:
        return [x async for x in decorator(asynchronous)(4)]

    class Owner:
        @decorator
        def method(self) -> int:
            return 5

        @property
        @decorator
        def value(self) -> int:
            return 6

        static = staticmethod(decorator(lambda: 7))

    assert decorator(plain)(1, y=2) == 3
    assert decorator(plain).__name__ == "plain"
    assert list(decorator(generator)(2)) == [2]
    assert asyncio.run(decorator(coroutine)(3)) == 3
    assert asyncio.run(all_of()) == [4]
    assert (Owner().method(), Owner().value, Owner.static()) == (5, 6, 7)


def used_span(context: Any) -> None:
    """Do with a context what a span allows."""
    decorated(context)
    given = entered(context)
    given.add(tokens=3)
    given.inputs(x=1)
    assert given.output(2) == context.output(2)
    assert isinstance(context, stagespan.Span)
    assert context.name == "used"


use("span")(lambda: (used_span(stagespan.span("used")), decorated(stagespan.span())))
use("ProfilingContext")(lambda: used_span(stagespan.ProfilingContext("used", False)))
use("ProfilingContext4Debug")(lambda: used_span(stagespan.ProfilingContext4Debug("used")))
use("Span")(lambda: isinstance(stagespan.span("a"), stagespan.Span))
use("queued")(lambda: entered(stagespan.queued("wait")).add(bytes=3))
use("begin")(lambda: stagespan.begin("token", kind="queue").end(error=True))
use("end")(lambda: stagespan.end(stagespan.begin("token")))
use("Token")(lambda: isinstance(stagespan.begin("token"), stagespan.Token))
use("record")(lambda: stagespan.record("recorded", 1, 2, error=True))
use("batch")(lambda: entered(stagespan.batch("b", [stagespan.extract({})])).add(tokens=3))
use("inject")(lambda: stagespan.inject({}, queue="q", attempt=2, branch="b"))
use("extract")(lambda: entered(stagespan.extract({}, trusted=False, size_bytes=3)))
use("Remote")(lambda: isinstance(stagespan.extract({}), stagespan.Remote))
use("bind")(lambda: stagespan.bind(len)([1]))


@use("request")
def _() -> None:
    with stagespan.request("id", user="u") as one:
        one.chunk(3)
        one.set_status("cancelled")
        one.pipeline = "p"
        assert (one.id, one.metadata, one.attempt) == ("id", {"user": "u"}, 1)
        assert stagespan.current_request() is one
        one.inject({})
    decorated(lambda function: function)
    assert stagespan.request("each")(lambda: stagespan.current_request().id)() == "each"


use("current_request")(lambda: stagespan.current_request() is None)
use("gauge")(lambda: stagespan.gauge("kv_blocks_free", 1))
use("record_request_fields")(lambda: stagespan.record_request_fields("steps"))


@use("BoundExecutor")
def _() -> None:
    with stagespan.request("r"), stagespan.BoundExecutor(ThreadPoolExecutor(1)) as executor:
        assert executor.submit(lambda: stagespan.current_request().id).result() == "r"


@use("propagate_to_threads")
def _() -> None:
    stagespan.propagate_to_threads()
    stagespan.propagate_to_threads(False)


class Graph:
    def replay(self) -> int:
        return 3


use("graph_stages")(lambda: stagespan.graph_stages({8: Graph()}, "graph")[8].replay())
use("stats")(lambda: (str(stagespan.stats(60)), dict(stagespan.stats(kind="queue"))))
use("spans")(lambda: stagespan.spans(since=stagespan.SpanCursor(from_now=True))["begin_ns"])
use("SpanCursor")(lambda: stagespan.SpanCursor().overwritten)
use("stage_names")(lambda: list(stagespan.stage_names()))
use("open_spans")(lambda: list(stagespan.open_spans()))
use("lost")(lambda: stagespan.lost()["overwritten"])
use("flush")(lambda: stagespan.flush(1))
use("enable")(lambda: stagespan.enable(device_every=2))
use("is_enabled")(stagespan.is_enabled)
use("is_available")(stagespan.is_available)
use("is_debug")(stagespan.is_debug)


@use("disable")
def _() -> None:
    stagespan.disable()
    used_span(stagespan.span("used"))
    stagespan.enable()


@use("set_debug")
def _() -> None:
    stagespan.set_debug(True)
    used_span(stagespan.ProfilingContext4Debug("used"))
    stagespan.set_debug(False)


use("set_pipeline_name")(lambda: stagespan.set_pipeline_name("p"))
use("set_profiler_output_dir")(lambda: stagespan.set_profiler_output_dir("output"))
use("get_profiler_output_dir")(stagespan.get_profiler_output_dir)


@use("capture")
def _capture() -> None:
    if HAS_TORCH:
        import torch  # noqa: F401
    try:
        stagespan.capture("never").cancel()
    except stagespan.StagespanError as error:
        if HAS_TORCH or "torch" not in str(error):
            raise


use("profile_window")(lambda: stagespan.profile_window("window").stop())
use("Capture")(lambda: stagespan.Capture.progress)
use("profile_steps")(lambda: stagespan.profile_steps(1, 1, 1, name="s"))
use("annotate")(lambda: (stagespan.annotate("a"), stagespan.annotate(())))


@use("enable_profiler_for_names")
def _() -> None:
    stagespan.enable_profiler_for_names("used")
    used_span(stagespan.ProfilingContext("used"))
    stagespan.enable_profiler_for_names(())


use("timing_report")(lambda: stagespan.timing_report()["stages"])
use("dump_timing_report")(lambda: stagespan.dump_timing_report("dumped.json"))
use("print_timing_summary")(stagespan.print_timing_summary)
use("reset_timing_registry")(lambda: stagespan.reset_timing_registry("r", {"k": 1}))
use("set_timing_metadata")(lambda: stagespan.set_timing_metadata("k", 1))
use("compare_timing_reports")(lambda: stagespan.compare_timing_reports(REPORT, REPORT))
use("get_io_signatures")(lambda: dict(stagespan.get_io_signatures()))
use("dump_io_signatures")(lambda: stagespan.dump_io_signatures("dumped_signatures.json"))
use("memory_snapshot")(lambda: stagespan.memory_snapshot("now")["name"])
use("get_include")(stagespan.get_include)


@use("StageBenchHarness")
def _() -> None:
    config = stagespan.HarnessConfig(any_callable=True)
    harness = stagespan.StageBenchHarness.from_signature_file(
        SIGNATURES, "used", returned, config=config
    )
    if HAS_TORCH:
        harness.setup()


use("analyze")(lambda: stagespan.analyze(TRACE))


def own_recording() -> Any:
    """Open the recording of this process."""
    with stagespan.span("recorded"):
        pass
    return importlib.import_module("stagespan.recording").open(os.getpid())


use("recording.open")(lambda: own_recording().stats())
use("recording.Recording")(lambda: own_recording().spans())
use("load_ipython_extension")(
    lambda: stagespan.load_ipython_extension(
        SimpleNamespace(register_magic_function=lambda *_: None)
    )
)
use("recording.recordings")(lambda: importlib.import_module("stagespan.recording").recordings())
use("recording.job")(lambda: importlib.import_module("stagespan.recording").job(JOB))


@use("recording.Job")
def _() -> None:
    from stagespan import recording

    with stagespan.span("recorded"):
        recording.job(JOB).stats()


@use("harness.StepAdapter")
def _() -> None:
    from stagespan.harness import StepAdapter, register_adapter, unregister_adapter

    class Adapter(StepAdapter):
        name = "of this test"

        def matches(self, stage: Any, inputs: Any) -> bool:
            return False

        def build(self, stage: Any, inputs: Any, config: Any) -> Any:
            return stage

    adapter = Adapter()
    register_adapter(adapter)
    unregister_adapter(adapter)


USES["stagespan.harness.register_adapter"] = USES["stagespan.harness.StepAdapter"]
USES["stagespan.harness.unregister_adapter"] = USES["stagespan.harness.StepAdapter"]


@use("asgi.RequestMiddleware")
def _() -> None:
    from stagespan.asgi import RequestMiddleware

    sent = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": stagespan.current_request().id.encode()})

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    headers = [(b"x-request-id", b"abc"), (b"Traceparent", b"no trace"), (b"Accept", b"*/*")]
    scope = {"type": "http", "method": "GET", "path": "/", "headers": headers}
    asyncio.run(RequestMiddleware(app, id_header="x-request-id")(scope, receive, send))
    assert sent[1]["body"] == b"abc"


@use("logging.RequestFilter")
def _() -> None:
    from stagespan.logging import RequestFilter

    record = logging.makeLogRecord({})
    with stagespan.request("r"):
        assert RequestFilter().filter(record)
    assert record.__dict__["request"] == "r"


def of(module: str) -> Any:
    """Return a module of the package."""
    return importlib.import_module(f"stagespan.{module}")


use("profiling.Window")(lambda: of("profiling").Window.start)
use("trace.read_trace")(lambda: of("trace").read_trace(TRACE))
use("trace.breakdown")(lambda: of("trace").breakdown(of("trace").read_trace(TRACE), "used"))
use("trace.device_use")(lambda: of("trace").device_use(of("trace").read_trace(TRACE)))
use("trace.register_cost")(lambda: of("trace").register_cost("x::y", lambda call: None))
use("export.prometheus.register")(lambda: of("export.prometheus").register())


# --- for TeleFuser, which needs torch -----------------------------------------------------------


def memory(name: str, *arguments: Any) -> None:
    """Register the use of a function of `memory_snapshot`."""
    module = f"{TELEFUSER}.memory_snapshot"
    USES[f"{module}.{name}"] = lambda: getattr(importlib.import_module(module), name)(*arguments)


def profiler(name: str, *arguments: Any) -> None:
    """Register the use of a function of `profiler`."""
    module = f"{TELEFUSER}.profiler"
    USES[f"{module}.{name}"] = lambda: getattr(importlib.import_module(module), name)(*arguments)


for _name in (
    *("capture_memory_snapshot", "get_memory_analysis", "get_memory_info", "get_memory_snapshots"),
    *("print_memory_analysis", "reset_memory_registry", "reset_peak_memory_stats"),
    "set_memory_baseline",
):
    memory(_name)
memory("record_memory_snapshot", "here")
for _name in (
    *("get_io_signatures", "get_profiler_output_dir", "get_timing_report"),
    *("mark_as_worker_process", "print_timing_summary", "reset_timing_registry"),
):
    profiler(_name)
profiler("compare_timing_reports", REPORT, REPORT)
profiler("dump_io_signatures", "of_telefuser.json")
profiler("dump_timing_report", "of_telefuser.json")
profiler("enable_profiler_for_names", "")
profiler("set_pipeline_name", "p")
profiler("set_profiler_output_dir", "output")
profiler("set_timing_metadata", "k", 1)


@use("compat.telefuser.profiler.GlobalTimingRegistry")
def _() -> None:
    registry = of("compat.telefuser.profiler").GlobalTimingRegistry.get_instance()
    registry.record("recorded", 3.0)
    registry.get_report()


use("compat.telefuser.profiler.ProfilingContext")(
    lambda: decorated(of("compat.telefuser.profiler").ProfilingContext("a"))
)


@use("compat.telefuser.profiler.analyze_ncu_report")
def _() -> None:
    with contextlib.suppress(stagespan.errors.TraceError):  # as on a machine without ncu
        of("compat.telefuser.profiler").analyze_ncu_report("missing.ncu-rep")


@use("compat.telefuser.stage_bench_harness.StageBenchHarness")
def _() -> None:
    harness = of("compat.telefuser.stage_bench_harness").StageBenchHarness
    harness.from_signature_file(SIGNATURES, "used", returned).setup()


@use("compat.telefuser.stage_bench_harness.main")
def _() -> None:
    with contextlib.suppress(SystemExit):
        of("compat.telefuser.stage_bench_harness").main(["--help"])


def write_files() -> None:
    """Write the files that the uses read, which takes the extension."""
    Path(TRACE).write_text(
        json.dumps([{"ph": "X", "name": "a", "cat": "cpu_op", "ts": 1, "dur": 2}])
    )
    stagespan.set_debug(True)
    stagespan.ProfilingContext4Debug("used")(returned)(3)
    stagespan.dump_timing_report(REPORT)
    stagespan.dump_io_signatures(SIGNATURES)
    stagespan.set_debug(False)


def main() -> None:
    """Use every name, and print what happened."""
    if stagespan.is_available():
        write_files()
    found = {}
    for name, use_it in USES.items():
        if name.startswith(TELEFUSER) and not HAS_TORCH:
            continue
        try:
            use_it()
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
        else:
            found[name] = ""
    found |= {name: "has no use here" for name in public_names() if name not in USES}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
