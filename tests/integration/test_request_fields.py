"""What leaves the process of a request: recorded fields, routes, and types of exceptions."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from recorded_process import command_here, started
from recording import printed, python

import stagespan
from running import PROGRAMS
from stagespan import recording
from stagespan.asgi import RequestMiddleware
from stagespan.recording.segments import Segment
from stagespan.recording.timelines import timelines

REQUESTING = PROGRAMS / "requesting.py"


def rows(*options: str) -> dict[str, dict[str, Any]]:
    page = json.loads(command_here("requests", *options, "--json").stdout)
    return {one["request_id"]: one for one in page["requests"]}


# --- recorded fields ------------------------------------------------------------------------------


def test_named_metadata_is_shown_and_searched(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")  # wide enough for the last column, whatever the times
    process = started(REQUESTING, "with_fields", STAGESPAN_REQUEST_FIELDS="steps,model")
    found = rows()
    assert found["r1"]["fields"] == {"steps": 60, "model": "wan-1"}
    assert "secret text" not in json.dumps(found)
    assert {*rows("--where", "steps=60")} == {"r1", "r3", "r5"}
    assert {*rows("--where", "steps=60", "--where", "model=wan-0")} == {"r3"}
    assert {*rows("--pipeline", "image")} == {"r4", "r5"}
    assert {*rows("--pipeline", "image", "--where", "steps=20")} == {"r4"}
    assert rows("--where", "steps=61") == rows("--route", "/x") == rows("--where", "no=1") == {}
    text = command_here("requests").stdout
    assert "steps=60, model=wan-1" in " ".join(text.split())
    assert "video" in text
    # Without the number of the process, recordings that other processes have in memory count too.
    none = command_here("requests", str(process.pid), "--where", "model=x").stdout
    assert none.startswith("There are no requests with model 'x' in 1 recording")
    wrong = command_here("requests", "--where", "steps")
    assert (wrong.returncode, "write FIELD=VALUE" in wrong.stderr) == (2, True)


def test_no_metadata_leaves_the_process_by_default(folder: Path) -> None:
    process = started(REQUESTING, "with_fields")
    copy = recording.open(process.pid)
    assert {one["fields"] == {} for one in copy.segments()} == {True}
    assert b"secret text" not in Path(copy.path).read_bytes()
    before = os.stat(copy.path).st_blocks
    named = started(REQUESTING, "with_fields", STAGESPAN_REQUEST_FIELDS="steps")
    # THEN the table takes space only where it is used
    more = os.stat(recording.open(named.pid).path).st_blocks - before
    assert 0 < more * 512 <= 64 * 1024


def test_numbers_and_short_texts_are_recorded(tmp_path: Path) -> None:
    (found,) = printed(python((REQUESTING, "values_of_fields"), tmp_path))
    assert found[:5] == [{"x": 7}, {"x": -(2**63)}, {"x": 2.0**70}, {"x": 1}, {"x": 1.5}]
    assert found[5:7] == [{}, {}]
    assert found[7:11] == [
        {"x": "é" * 32},
        {"x": ""},
        {"x": "\\ud800"},
        {"x": "m" * 64},
    ]
    assert found[11:] == [{}, {}, {}]


def test_secrets_are_replaced(tmp_path: Path) -> None:
    names = {"STAGESPAN_REQUEST_FIELDS": "api_key,token,model"}
    (found,) = printed(python((REQUESTING, "secret_fields"), tmp_path, **names))
    assert found == {"api_key": "(redacted)", "token": 5, "model": "m"}
    (found,) = printed(
        python((REQUESTING, "secret_fields"), tmp_path, STAGESPAN_REDACT="none", **names)
    )
    assert found["api_key"] == "sk-1"


def test_fields_have_a_limit(tmp_path: Path) -> None:
    (found,) = printed(python((REQUESTING, "limits_of_fields"), tmp_path))
    assert ["32 bytes" in one for one in found] == [True, True, False]
    assert "'8' is the ninth field" in found[2]


def test_fields_are_those_at_the_end_of_a_request_also_in_a_fork(tmp_path: Path) -> None:
    assert printed(python((REQUESTING, "changed_fields"), tmp_path)) == [
        {"steps": 1},
        {"steps": 2},
        {"user": "u"},
    ]


# --- routes ---------------------------------------------------------------------------------------


def called(app: Any, path: str) -> Segment:
    """Call an application, and return the segment of the call."""

    async def call() -> None:
        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            pass

        scope = {"type": "http", "method": "GET", "path": path, "headers": [], "query_string": b""}
        scope |= {"root_path": "", "http_version": "1.1", "scheme": "http", "server": ("t", 80)}
        await app(scope, receive, send)

    asyncio.run(call())
    # A child of it follows if the application has taken time after its answer.
    segments = recording.open(os.getpid()).segments()
    return [segment for segment in segments if segment["parent_segment"] is None][-1]


@pytest.mark.usefixtures("fresh")
def test_calls_are_told_apart_by_the_templates_of_their_routes() -> None:
    fastapi = pytest.importorskip("fastapi")
    api = fastapi.FastAPI()

    @api.get("/items/{item}")
    async def items(item: int) -> dict[str, int]:
        return {"item": item}

    app = RequestMiddleware(api)
    one = called(app, "/items/5")
    assert (one["is_http"], one["route"], one["pipeline"]) == (True, *["/items/{item}"] * 2)
    # WHEN clients choose paths that match no route THEN none of them is a name
    for n in range(3):
        one = called(app, f"/wp-admin/{n}")
        assert (one["is_http"], one["route"], one["pipeline"]) == (True, None, "(unmatched)")
    counts = {name: of.count for name, of in stagespan.stats(kind="request").items()}
    assert counts == {"/items/{item}": 1, "(unmatched)": 3}
    assert not any("wp-admin" in name for name in stagespan.stage_names())


@pytest.mark.usefixtures("fresh")
def test_an_application_without_a_router_has_the_pipeline_of_the_process() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    one = called(RequestMiddleware(app), "/anything")
    assert (one["is_http"], one["route"], one["pipeline"]) == (True, None, "default")


# --- the service ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "service"),
    [
        ({"STAGESPAN_JOB": "mine", "OTEL_SERVICE_NAME": "chat-api"}, "mine"),
        ({"OTEL_SERVICE_NAME": "chat-api", "SLURM_JOB_ID": "7"}, "chat-api"),
        ({}, "python requesting.py"),
    ],
)
def test_a_service_is_called_as_the_user_calls_it(
    folder: Path, variables: dict[str, str], service: str
) -> None:
    process = started(REQUESTING, "with_fields", **variables)
    assert recording.open(process.pid).service == service


# --- exceptions -----------------------------------------------------------------------------------


class OwnError(Exception):
    """Of this module."""

    def __str__(self) -> str:
        return "m" * 300


def exceptions() -> dict[str, tuple[str, str | None]]:
    """Return the types and messages of the latest failures, by stage."""
    copy = recording.open(os.getpid())
    names, failures = copy.stage_names(), copy.failures()
    return {
        names[row["stage"]]: failures[int(row["id"])]
        for row in copy.spans()
        if int(row["id"]) in failures
    }


@pytest.mark.usefixtures("fresh")
def test_a_failed_span_tells_the_type_of_its_exception() -> None:
    @stagespan.span("function")
    def function() -> None:
        raise KeyError("a secret")

    @stagespan.span("coroutine")
    async def coroutine() -> None:
        await asyncio.sleep(0)
        raise OwnError

    @stagespan.span("generator")
    def generator() -> Any:
        yield 1
        raise OSError

    def block() -> None:
        with stagespan.span("block"):
            raise OwnError

    for call in (function, lambda: asyncio.run(coroutine()), lambda: list(generator()), block):
        with pytest.raises((KeyError, OwnError, OSError)):
            call()
    with stagespan.span("well"):
        pass
    own = f"{__name__}.OwnError"
    assert exceptions() == {
        "function": ("KeyError", None),
        "coroutine": (own, None),
        "generator": ("OSError", None),
        "block": (own, None),
    }


@pytest.mark.usefixtures("fresh")
def test_a_failed_request_tells_the_type_of_its_exception() -> None:
    with pytest.raises(OwnError), stagespan.request("fails"), stagespan.span("inner"):
        raise OwnError
    with stagespan.request("well") as well:
        well.set_status("error")
    found = {one.id: one for one in timelines([recording.open(os.getpid())])}
    assert found["fails"].exception == f"{__name__}.OwnError"
    assert found["fails"].segments[0].spans[0].exception == f"{__name__}.OwnError"
    assert found["well"].exception is None


def test_types_of_exceptions_have_a_limit_and_messages_are_asked_for(tmp_path: Path) -> None:
    assert printed(python((REQUESTING, "many_exceptions"), tmp_path)) == [
        [300, 257, 44, 1],
        ["None"],
        0,
    ]
    found = printed(
        python((REQUESTING, "many_exceptions"), tmp_path, STAGESPAN_EXCEPTION_MESSAGES="true")
    )
    assert found[1] == ["é" * 100]
