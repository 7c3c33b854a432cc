"""Libraries that look at functions see a decorated function as they see the undecorated one."""

from __future__ import annotations

import abc
import asyncio
import dataclasses
import enum
import inspect
import json
import os
import pickle
import subprocess
import sys
import textwrap
import types
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest import mock

import decorated_kinds
import pytest
from decorated_kinds import (
    CONTEXTS,
    KINDS,
    SYNCHRONOUS,
    Kinds,
    all_by_name,
    in_this_function,
    run_and_count,
)

import stagespan
from running import ran

pytestmark = pytest.mark.usefixtures("fresh")
DECORATED = [name for name in CONTEXTS if name != "none"]
PLAIN = in_this_function(CONTEXTS["none"]("none"))
SYNCHRONOUS_BY_POSITION = ("nested", "method", "static", "class")
WITH_ONE_PARAMETER = ("nested", "static", "coroutine", "generator", "async_generator")
IN_WORKERS = {**os.environ, "STAGESPAN_DEBUG": "true"}


def spans_of_copy(kind: str) -> int:
    """Return how many spans a call of a copy of a decorated function ends: none if it is not timed.

    The copy has the code of the original, which times the function only where its calls cannot be
    intercepted: those of all functions on Python 3.11, of those that may be an `__init__` on Python
    3.13 and later, and of those that may be the getter of a property on Python 3.14.
    """
    in_code = (
        sys.version_info[:2] == (3, 11)
        or (sys.version_info >= (3, 13) and kind in SYNCHRONOUS_BY_POSITION)
        or (sys.version_info >= (3, 14) and kind in WITH_ONE_PARAMETER)
    )
    return int(in_code)


@pytest.fixture(params=DECORATED)
def context(request: pytest.FixtureRequest, fresh: None) -> Callable[[str], Any]:
    """Each kind of context, while it is active."""
    stagespan.set_debug()
    return CONTEXTS[request.param]


@pytest.fixture
def decorated(context: Callable[[str], Any]) -> Kinds:
    return in_this_function(context("in libraries"))


def outcome(call: Callable[[], Any]) -> tuple[str, Any]:
    """Return what a call returns (coroutines differ), or the kind of error that it raises."""
    try:
        returned = call()
        if inspect.iscoroutine(returned):
            returned.close()
            return "returned", types.CoroutineType
        return "returned", returned
    except Exception as error:
        return "raised", type(error)


def seen_by_inspect(function: Any) -> dict[str, Any]:
    function = getattr(function, "__func__", function)
    questions = (
        *("isfunction", "isroutine", "ismethod", "isbuiltin", "ismethoddescriptor"),
        *("iscoroutinefunction", "isgeneratorfunction", "isasyncgenfunction"),
        *("signature", "getfullargspec", "getfile", "getsourcefile", "getsourcelines", "getdoc"),
    )
    code = function.__code__
    names = ("co_name", "co_filename", "co_firstlineno", "co_argcount", "co_kwonlyargcount")
    return {
        **{name: getattr(inspect, name)(function) for name in questions},
        **{name: getattr(code, name) for name in names},
        "type": type(function),
        "names": code.co_varnames[: len(inspect.signature(function).parameters)],
        "qualname": function.__qualname__,
        "globals": id(function.__globals__),
        "defaults": (function.__defaults__, function.__kwdefaults__),
        "attributes": vars(function),
    }


@pytest.mark.parametrize("kind", KINDS)
def test_inspect(decorated: Kinds, kind: str) -> None:
    assert seen_by_inspect(decorated.of(kind)) == seen_by_inspect(PLAIN.of(kind))


def test_free_variables_are_those_of_the_function(decorated: Kinds) -> None:
    # GIVEN free variables, which libraries read to resolve names
    for kind in KINDS:
        function, plain = (getattr(k.of(kind), "__func__", k.of(kind)) for k in (decorated, PLAIN))

        found = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))

        expected = inspect.getclosurevars(plain).nonlocals
        assert {name: found[name].cell_contents for name in expected} == expected


def test_members_of_a_class(decorated: Kinds) -> None:
    found = [
        [name for name, _ in inspect.getmembers(kinds.model, inspect.isfunction)]
        for kinds in (PLAIN, decorated)
    ]

    assert found[1] == found[0] != []


@pytest.mark.parametrize("kind", KINDS)
def test_autospec(decorated: Kinds, kind: str) -> None:
    def use(function: Callable[..., Any]) -> list[Any]:
        spec = mock.create_autospec(function, return_value=5)
        return [
            outcome(lambda: run_and_count(spec, 1)[0]),
            outcome(lambda: spec()),
            outcome(lambda: spec(1, unknown=1, other=2)),
            spec.call_args_list,
            inspect.iscoroutinefunction(spec),
        ]

    assert use(decorated.of(kind)) == use(PLAIN.of(kind))


def test_autospec_of_a_class(decorated: Kinds) -> None:
    def use(model: type) -> list[Any]:
        spec = mock.create_autospec(model)
        made = spec(2)
        with mock.patch.object(model, "method", autospec=True) as patched:
            instance = model(2)
            instance.method(5)
        return [
            outcome(lambda: made.method(1, 2, 3)),
            outcome(lambda: made.static_method()),
            patched.call_args.args == (instance, 5),
        ]

    assert use(decorated.model) == use(PLAIN.model)


def test_enum(context: Callable[[str], Any]) -> None:
    stage = context("in an enum")

    class Color(enum.Enum):
        RED = 3

        @stage
        def double(self) -> int:
            return 2 * int(self.value)

        @staticmethod
        @stage
        def nothing(x: int) -> int:
            return x

    assert list(Color) == [Color.RED]
    assert run_and_count(lambda _: (Color.RED.double(), Color.nothing(1)), None) == ((6, 1), 2)


def test_abstract_base_class(context: Callable[[str], Any]) -> None:
    class Base(abc.ABC):
        @context("abstract")
        @abc.abstractmethod
        def work(self) -> int: ...

    class Derived(Base):
        @context("concrete")
        def work(self) -> int:
            return 6

    with pytest.raises(TypeError, match="abstract"):
        Base()  # type: ignore[abstract]
    assert run_and_count(lambda _: Derived().work(), None) == (6, 1)


def test_dataclass(context: Callable[[str], Any]) -> None:
    stage = context("in a dataclass")

    @stage
    def add_one(x: int) -> int:
        return x + 1

    @dataclasses.dataclass(frozen=True, slots=True)
    class Model:
        x: int

        @stage
        def double(self) -> int:
            return 2 * self.x

        call: Callable[[int], int] = add_one
        made: list[int] = dataclasses.field(default_factory=stage(lambda: [1]))

    assert [field.name for field in dataclasses.fields(Model)] == ["x", "call", "made"]
    model = Model(3)
    assert run_and_count(lambda _: (model.double(), model.call(1), model.made), None) == (
        (6, 2, [1]),
        2,
    )


# --- libraries that send functions to other processes -------------------------------------------


def test_cloudpickle_by_value() -> None:
    cloudpickle = pytest.importorskip("cloudpickle", reason="cloudpickle is not installed")
    stagespan.set_debug()
    sent = {
        name: {kind: in_this_function(make(name)).of(kind) for kind in KINDS}
        for name, make in CONTEXTS.items()
    }
    cloudpickle.register_pickle_by_value(decorated_kinds)
    try:
        payload = cloudpickle.dumps((sent, run_and_count))
    finally:
        cloudpickle.unregister_pickle_by_value(decorated_kinds)

    program = textwrap.dedent("""
        import json, pickle, sys
        functions, run_and_count = pickle.load(sys.stdin.buffer)
        print(json.dumps({
            name: {kind: run_and_count(function, 3) for kind, function in kinds.items()}
            for name, kinds in functions.items()
        }))
    """)
    done = subprocess.run(
        [sys.executable, "-c", program], input=payload, capture_output=True, env=IN_WORKERS
    )

    # THEN they work there, and are timed if a copy of their code is
    assert done.returncode == 0, done.stderr.decode()
    assert json.loads(done.stdout) == {
        name: {kind: [6, spans_of_copy(kind) if name != "none" else 0] for kind in KINDS}
        for name in CONTEXTS
    }


def test_cloudpickle_by_name() -> None:
    cloudpickle = pytest.importorskip("cloudpickle", reason="cloudpickle is not installed")

    for function in all_by_name():
        if inspect.isclass(getattr(function, "__self__", None)):
            continue  # cloudpickle copies class methods
        again = pickle.loads(cloudpickle.dumps(function))

        assert getattr(again, "__func__", again) is getattr(function, "__func__", function)
        assert run_and_count(again, 3) == (6, 1)


@pytest.mark.slow
def test_joblib(tmp_path: Path) -> None:
    pytest.importorskip("joblib", reason="joblib is not installed")
    # GIVEN a program whose functions only exist in its own process
    program = tmp_path / "program.py"
    main = """
        @stagespan.span("of the program")
        def work(x):
            return 2 * x

        if __name__ == "__main__":
            import json
            import joblib

            functions = [
                in_this_function(CONTEXTS[name](name)).of(kind)
                for name in CONTEXTS if name != "none" for kind in KINDS
            ]
            calls = [joblib.delayed(run_and_count)(function, 3) for function in [*functions, work]]
            results = joblib.Parallel(2, "loky")(calls)
            print(json.dumps(results))
    """
    source = Path(decorated_kinds.__file__).read_text()
    program.write_text(source + textwrap.dedent(main))

    done = ran([sys.executable, program], env=IN_WORKERS, status=0)

    # THEN they work there, and are timed if a copy of their code is
    expected = [[6, spans_of_copy(kind)] for _ in DECORATED for kind in KINDS]
    assert json.loads(done.stdout) == [*expected, [6, spans_of_copy("static")]]


@pytest.mark.slow
@pytest.mark.parametrize("start", ["spawn", "forkserver"])
def test_multiprocessing(start: str) -> None:
    with ProcessPoolExecutor(1, mp_context=get_context(start)) as pool:
        futures = [pool.submit(run_and_count, function, 3) for function in all_by_name()]

        assert [future.result() for future in futures] == [(6, 1)] * len(futures)


@pytest.mark.parametrize("bind", [False, True])
@pytest.mark.parametrize("kind", SYNCHRONOUS)
def test_celery(decorated: Kinds, kind: str, bind: bool) -> None:
    celery = pytest.importorskip("celery", reason="celery is not installed")

    def use(kinds: Kinds) -> tuple[str, Any]:
        app = celery.Celery("app", broker="memory://", set_as_current=False)
        app.conf.task_always_eager = True

        def call() -> Any:
            task = app.task(kinds.of(kind), bind=bind)
            return task.name, None if bind else task.delay(3).get()

        return outcome(call)

    assert use(decorated) == use(PLAIN)


def test_a_celery_task_is_timed(context: Callable[[str], Any]) -> None:
    celery = pytest.importorskip("celery", reason="celery is not installed")
    app = celery.Celery("app", broker="memory://", set_as_current=False)
    app.conf.task_always_eager = True

    @app.task(bind=True)
    @context("celery task")
    def task(self: Any, x: int, *, factor: int = 2) -> int:
        assert self.name
        return x * factor

    assert run_and_count(lambda x: task.delay(x).get(), 3) == (6, 1)


def test_ray(decorated: Kinds) -> None:
    ray = pytest.importorskip("ray", reason="ray is not installed")

    def use(kinds: Kinds) -> list[Any]:
        actor = ray.remote(kinds.model)
        return [
            *(outcome(lambda k=kind: type(ray.remote(kinds.of(k)))) for kind in KINDS),
            sorted(actor.__ray_metadata__.method_meta.methods),
        ]

    assert use(decorated) == use(PLAIN)


# --- FastAPI --------------------------------------------------------------------------------------


def request_of(app: Any, path: str) -> Any:
    """Return the answer of an ASGI application to a GET request."""
    sent: list[dict[str, Any]] = []
    path, _, query = path.partition("?")
    scope: dict[str, Any] = dict.fromkeys(("scheme", "root_path", "client", "server"))
    scope |= {"type": "http", "method": "GET", "headers": [], "asgi": {"version": "3.0"}}
    scope |= {"path": path, "query_string": query.encode(), "root_path": ""}

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    return json.loads(b"".join(message.get("body", b"") for message in sent))


def test_fastapi(context: Callable[[str], Any]) -> None:
    fastapi = pytest.importorskip("fastapi", reason="FastAPI is not installed")
    # GIVEN dependencies and routes of all kinds, with annotations that are text
    app = fastapi.FastAPI()
    stage = context("in a service")

    @stage
    def of_function(x: int) -> int:
        return x

    @stage
    async def of_coroutine(x: int) -> int:
        return x * 10

    @stage
    def of_generator(x: int) -> Iterator[int]:
        yield x * 100

    @stage
    async def of_async_generator(x: int) -> AsyncIterator[int]:
        yield x * 1000

    class Model:
        @stage
        def method(self, x: int) -> int:
            return x * 10000

    dependencies = (of_function, of_coroutine, of_generator, of_async_generator, Model().method)
    parameters = [fastapi.Depends(dependency) for dependency in dependencies]

    @app.get("/function")
    @stage
    def function(
        x: int,
        a: int = parameters[0],
        b: int = parameters[1],
        c: int = parameters[2],
        d: int = parameters[3],
        e: int = parameters[4],
    ) -> list[int]:
        return [x, a, b, c, d, e]

    @app.get("/coroutine")
    @stage
    async def coroutine(x: int, flag: bool = False) -> list[Any]:
        return [x, flag]

    first = run_and_count(lambda _: request_of(app, "/function?x=2"), None)
    second = run_and_count(lambda _: request_of(app, "/coroutine?x=3&flag=true"), None)

    # THEN they get their parameters by type and name, and all calls are timed
    assert first == ([2, 2, 20, 200, 2000, 20000], 6)
    assert second == ([3, True], 1)
    wrong = request_of(app, "/coroutine?x=text")
    assert wrong["detail"][0]["loc"] == ["query", "x"]


def test_function_types_are_those_of_python(decorated: Kinds) -> None:
    # What a library compares by `type(...) is`, and not with `isinstance`.
    for kind in KINDS:
        function = decorated.of(kind)
        assert type(getattr(function, "__func__", function)) is types.FunctionType
