"""Requests: the spans that belong to one, across tasks and threads, and its figures."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import re
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from recording import assert_closed, lost, only, parents, recorded, work

import stagespan
from running import in_threads, until
from stagespan import _core, current_request, request, span
from stagespan.contexts.requests import figures_of, finished_requests, settle_figures
from stagespan.live import service

pytestmark = pytest.mark.usefixtures("fresh")


def requests_of(stage: str) -> list[int]:
    """Return the requests of a stage's spans, ordered by begin."""
    return [span.request for span in recorded(stage)]


# --- which spans carry it -------------------------------------------------------------------------


def test_spans_inside_carry_its_number() -> None:
    work("before")
    with request("req-1", user="a") as current:
        work("inside")
        assert current_request() is current
    work("after")

    assert (requests_of("before"), requests_of("inside"), requests_of("after")) == (
        [0],
        [current.number],
        [0],
    )
    assert (current.id, current.metadata) == ("req-1", {"user": "a"})
    assert current_request() is None


def test_nested_requests() -> None:
    with request("outer") as outer:
        work("first")
        with request("inner") as inner:
            work("nested")
        work("second")

    assert requests_of("first") + requests_of("nested") + requests_of("second") == [
        outer.number,
        inner.number,
        outer.number,
    ]


def test_a_span_that_was_open_before_keeps_its_request() -> None:
    outer, inner = span("outer"), span("outlasts")
    with outer, request("r") as current:
        inner.__enter__()
    inner.__exit__(None, None, None)

    assert only("outer").request == 0
    assert only("outlasts").request == current.number


def test_tasks_belong_to_the_request_that_they_were_created_in() -> None:
    numbers: dict[str, int] = {}

    async def part(name: str) -> None:
        await asyncio.sleep(0)
        with span(f"part of {name}"):
            await asyncio.sleep(0)
        assert (current := current_request()) is not None
        assert current.id == name

    async def serve(name: str) -> None:
        async with request(name) as current:
            numbers[name] = current.number
            with span(f"serves {name}"):
                await asyncio.gather(
                    part(name), part(name), asyncio.to_thread(work, f"thread of {name}")
                )
        with span(f"after {name}"):
            pass

    async def main() -> None:
        await asyncio.gather(*(serve(f"r{i}") for i in range(50)))

    asyncio.run(main())

    for name, number in numbers.items():
        assert requests_of(f"serves {name}") == [number]
        assert requests_of(f"part of {name}") == [number] * 2
        assert requests_of(f"thread of {name}") == [number]
        assert requests_of(f"after {name}") == [0]
    assert len(set(numbers.values())) == 50
    assert lost() == {}


def test_a_task_that_outlives_its_request_still_belongs_to_it() -> None:
    async def main() -> int:
        ended = asyncio.Event()

        async def late() -> None:
            await ended.wait()
            work("late")

        with request("r") as current:
            task = asyncio.create_task(late())
            await asyncio.sleep(0)
        ended.set()
        await task
        return current.number

    number = asyncio.run(main())

    assert requests_of("late") == [number]


def test_threads_inherit_it_only_with_the_context() -> None:
    with ThreadPoolExecutor(1) as pool, span("caller"), request("r") as current:
        pool.submit(contextvars.copy_context().run, work, "with context").result()
        pool.submit(work, "without").result()

    assert requests_of("with context") == [current.number]
    assert requests_of("without") == [0]
    assert parents()["with context"] == {"caller"}
    assert parents()["without"] == {None}


def test_nothing_is_left_of_a_request_in_the_context() -> None:
    with span("over"), request("r"):
        pass
    copied = contextvars.copy_context()

    async def main() -> None:
        work("in a loop there")

    in_threads(lambda: copied.run(work, "there"))

    def loop() -> None:
        with span("loop"):
            copied.run(asyncio.run, main())

    in_threads(loop)

    assert requests_of("there") + requests_of("in a loop there") == [0, 0]
    assert parents()["there"] == {None}
    assert parents()["in a loop there"] == {"loop"}


def test_a_request_around_the_loop() -> None:
    async def task() -> None:
        work("in a task")

    async def main() -> None:
        await asyncio.gather(task(), task())

    with request("r") as current:
        asyncio.run(main())
        work("after the loop")

    assert requests_of("in a task") == [current.number] * 2
    assert requests_of("after the loop") == [current.number]


def test_entered_in_one_task_and_left_in_another() -> None:
    @contextlib.asynccontextmanager
    async def serving() -> AsyncIterator[None]:
        async with request("r"):
            yield

    async def main() -> None:
        manager = serving()

        async def enters() -> None:
            await manager.__aenter__()
            work("entered")

        async def leaves() -> None:
            with request("other") as other:
                await manager.__aexit__(None, None, None)
                work("in the other")
                numbers.append(other.number)

        await asyncio.create_task(enters())
        await asyncio.create_task(leaves())
        work("afterwards")

    numbers: list[int] = []

    asyncio.run(main())
    assert requests_of("in the other") == numbers
    assert requests_of("afterwards") == [0]
    assert lost() == {}
    assert [finished["id"] for finished in finished_requests()[-2:]] == ["r", "other"]


# --- the figures at its end ----------------------------------------------------------------------


def test_figures_of_a_request() -> None:
    def serve() -> None:
        with span("stage"):
            work("part")
            work("part")
        with span("stage"):
            raise KeyError

    with pytest.raises(KeyError), request("figures", size=3):
        serve()

    finished = finished_requests()[-1]
    assert (finished["id"], finished["metadata"]) == ("figures", {"size": 3})
    figures = figures_of(finished)
    assert figures.complete
    assert finished["status"] == "error"
    by_stage = {(name, top): (count, errors) for name, count, _, errors, top in figures.stages}
    assert by_stage == {("stage", True): (2, 1), ("part", False): (2, 0)}
    total = {name: total_ns for name, _, total_ns, _, _ in figures.stages}
    assert 0 < total["part"] <= total["stage"] <= finished["end_ns"] - finished["begin_ns"]
    assert_closed()


def test_figures_say_if_they_are_incomplete() -> None:
    ring = _core.arena_info()["ring_spans"]
    with request("long"):
        for _ in range(ring + 10):
            work("many")

    figures = figures_of(finished_requests()[-1])
    assert not figures.complete
    assert figures.stages[0][1] == ring


def test_only_what_happened_inside_is_counted() -> None:
    for _ in range(_core.arena_info()["ring_spans"] + 10):
        work("before")

    with request("short"):
        work("inside")

    figures = figures_of(finished_requests()[-1])
    assert figures.complete
    assert [(name, count) for name, count, *_ in figures.stages] == [("inside", 1)]


def test_figures_of_many_requests_are_settled_in_one_pass() -> None:
    # GIVEN requests that overlap, of which one began before the ring wrapped
    ring = _core.arena_info()["ring_spans"]
    _core.requests_forget_finished()
    with request("early"):
        for _ in range(ring + 10):
            work("many")
        with request("inner"):
            work("inside")
    with request("late") as late:
        work("inside")
    with late:
        work("again")

    settle_figures()

    figures = [(one["id"], one["figures"]) for one in finished_requests()]
    found = [(id_, one.complete, one.stages[0][:2]) for id_, one in figures if one is not None]
    assert found == [
        ("inner", True, ("inside", 1)),
        ("early", False, ("many", ring - 3)),
        ("late", True, ("inside", 1)),
        ("late", True, ("again", 1)),
    ]


def test_the_service_settles_figures() -> None:
    with request("served"):
        work("inside")
    # WHEN the service thread has run, and the ring wraps before anybody asks
    service.ensure_running()
    until(lambda: _core.service_wake() or finished_requests()[-1]["figures"] is not None)
    for _ in range(_core.arena_info()["ring_spans"] + 10):
        work("later")

    figures = figures_of(finished_requests()[-1])
    assert figures.complete
    assert [stage[:2] for stage in figures.stages] == [("inside", 1)]


def test_a_request_that_is_open_cannot_be_entered_again() -> None:
    with request("r") as current:
        with pytest.raises(RuntimeError, match="'r' is already open"), current:
            pass
        work("inside")
    # THEN it is open until its own end, and may be used again later
    assert requests_of("inside") == [current.number]
    with current:
        work("again")
    assert requests_of("again") == [current.number]


def test_requests_need_no_name() -> None:
    with request() as first, request("") as second, request(7) as third:  # type: ignore[arg-type]
        pass

    assert first.id == f"req_{first.number}"
    assert second.id == f"req_{second.number}"
    assert third.id == "7"


def test_while_the_recorder_is_off() -> None:
    stagespan.disable()
    kept = len(finished_requests())

    with request("off") as current:
        assert current_request() is current
        work("off")
    stagespan.enable()
    work("on")
    # THEN it has no figures, and leaves nothing behind
    assert len(finished_requests()) == kept
    assert requests_of("on") == [0]


def test_only_the_latest_requests_are_kept() -> None:
    for i in range(1100):
        with request(f"r{i}"):
            pass

    assert len(finished_requests()) == 1024
    assert finished_requests()[-1]["id"] == "r1099"


# --- as a decorator -------------------------------------------------------------------------------


def test_what_is_known_of_a_finished_request_is_read_once_and_shared() -> None:
    with request("shared") as own:
        pass

    finished = finished_requests()[-1]
    # THEN everybody sees the same dict, and the metadata of the request, also if it is set later
    assert finished is finished_requests()[-1]
    own.metadata["late"] = 1
    assert finished["metadata"] is own.metadata == {"late": 1}
    with request("not read") as other:
        pass
    other.metadata["late"] = 2
    assert finished_requests()[-1]["metadata"] is other.metadata == {"late": 2}
    assert other.metadata is not own.metadata


def test_metadata_is_set_and_replaced() -> None:
    own = request("r", a=1)
    assert own.metadata == {"a": 1}
    own.metadata = {"b": 2}
    with own:
        own.metadata["c"] = 3
    assert finished_requests()[-1]["metadata"] == {"b": 2, "c": 3}


def test_arguments_of_a_request() -> None:
    made = request(request_id="named", traceparent="no header", new=True, user="a", **{"b c": 2})

    assert (made.id, made.metadata) == ("named", {"user": "a", "b c": 2})
    assert made._is_new
    assert request(7).id == "7"  # type: ignore[arg-type]
    assert re.fullmatch(r"req_\d+", request(new=False).id)
    for wrong in (lambda: request("a", "b"), lambda: request("a", request_id="b")):
        with pytest.raises(TypeError, match="__init__"):
            wrong()  # type: ignore[no-untyped-call]
    with pytest.raises(TypeError, match=r"write @request\(\)"):
        request(test_arguments_of_a_request)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="'self'"):
        request(self=1)  # type: ignore[misc]


def test_the_init_of_a_subclass_and_a_replaced_one_are_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Job(request):
        def __init__(self, name: str, size: int) -> None:
            super().__init__(name, size=size)
            self.size = size

    job = Job("job", 3)
    assert (job.id, job.metadata, job.size) == ("job", {"size": 3}, 3)
    with job:
        assert current_request() is job

    seen: list[object] = []
    init = request.__init__
    with monkeypatch.context() as patch:
        patch.setattr(request, "__init__", lambda self, *args: seen.append(args) or init(self, "x"))
        assert request("y").id == "x"
    assert seen == [("y",)]
    assert request("z").id == "z"


def test_each_call_of_a_decorated_function_is_a_request() -> None:
    _core.requests_forget_finished()

    @request("nightly", user="a")
    def job(number: int) -> int:
        assert current_request() is not None
        work("step")
        return number

    @request()
    async def handle(number: int) -> int:
        work("step")
        return number

    async def both() -> list[int]:
        return await asyncio.gather(handle(3), handle(4))

    results = [job(1), job(2), *asyncio.run(both())]

    assert results == [1, 2, 3, 4]
    assert current_request() is None
    assert len(set(requests_of("step"))) == 4
    assert [one["id"] for one in finished_requests()][:2] == ["nightly", "nightly"]
    assert finished_requests()[0]["metadata"] == {"user": "a"}
    assert len({one["id"] for one in finished_requests()}) == 3
    assert (job.__name__, asyncio.iscoroutinefunction(handle)) == ("job", True)


def test_a_decorated_call_that_fails() -> None:
    _core.requests_forget_finished()

    @request("fails")
    def job() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        job()
    assert [one["status"] for one in finished_requests()] == ["error"]


def test_what_a_request_cannot_decorate() -> None:
    def generate() -> Iterator[int]:
        yield 1

    with pytest.raises(TypeError, match="generate is a generator"):
        request()(generate)
    with pytest.raises(TypeError, match=r"only a function can be decorated"):
        request()(int)
    with pytest.raises(TypeError, match=r"write @request\(\)"):
        request(work)  # type: ignore[arg-type]


def test_a_request_shows_its_id() -> None:
    one = request("req-7")
    assert repr(one) == f"<request 'req-7', number {one.number}, not open>"
    with one:
        assert repr(one).endswith(", open>")


def test_an_id_that_is_not_valid_unicode_is_accepted() -> None:
    # Servers decode the bytes of a header like this, and clients choose them.
    with request(b"req-\xff".decode("utf-8", "surrogateescape")) as one, span("inside"):
        pass
    assert requests_of("inside") == [one.number]
    assert finished_requests()[-1]["id"] == one.id == "req-\udcff"


# --- which trace it belongs to --------------------------------------------------------------------

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"


@pytest.mark.parametrize(
    ("header", "trace_id"),
    [
        (f"00-{TRACE}-{PARENT}-01", TRACE),
        (f"01-{TRACE}-{PARENT}-01-more", TRACE),
        (None, None),
        ("", None),
        (f"ff-{TRACE}-{PARENT}-01", None),
        (f"00-{TRACE.upper()}-{PARENT}-01", None),
        (f"00-{'0' * 32}-{PARENT}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (f"00-{TRACE}-{PARENT}-01\nx", None),
        (f"00-{TRACE[:-1]}-{PARENT}-01", None),
    ],
)
def test_the_trace_of_a_header(header: str | None, trace_id: str | None) -> None:
    with request("req-1", traceparent=header) as one, span("inside"):
        # A header that cannot be read gives a trace of its own.
        assert one.trace_id == (trace_id or one.trace_id)
        assert one.trace_id is not None
        assert re.fullmatch("[0-9a-f]{32}", one.trace_id)
        (inside,) = stagespan.open_spans()
        assert inside["trace_id"] == one.trace_id
    assert one.metadata == {}


def test_the_trace_of_opentelemetry_s_current_span() -> None:
    trace = pytest.importorskip("opentelemetry.trace")
    context = trace.SpanContext(int(TRACE, 16), int(PARENT, 16), is_remote=True)
    with trace.use_span(trace.NonRecordingSpan(context)):
        with request() as inside:
            pass
        with request(traceparent=f"00-{'1' * 32}-{PARENT}-01") as named:
            pass
    with request() as outside:
        pass
    assert (inside.trace_id, named.trace_id) == (TRACE, "1" * 32)
    assert outside.trace_id not in (TRACE, None)
