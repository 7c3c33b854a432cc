"""`begin`, `end` and `record`: spans across scopes and threads, and spans timed by other code."""

from __future__ import annotations

import asyncio
import gc
import time

import pytest
from recording import assert_closed, count, lost, only, parents, recorded

import stagespan
from running import in_threads
from stagespan import Token, _core, begin, end, record, request, span

pytestmark = pytest.mark.usefixtures("fresh")


# --- tokens ---------------------------------------------------------------------------------------


def test_begin_and_end() -> None:
    with span("outer"):
        token = begin("token")
        with span("meanwhile"):
            still_open = {one["stage"]: one["detached"] for one in _core.open_spans()}
        end(token)
    assert still_open == {"outer": False, "meanwhile": False, "token": True}
    assert parents() == {"outer": {None}, "token": {"outer"}, "meanwhile": {"outer"}}
    assert (token.name, token.id) == ("token", only("token").id)
    assert not only("token").failed
    assert_closed()


def test_ended_in_another_scope_and_thread() -> None:
    tokens: list[Token] = []

    def begins() -> None:
        with span("begins"):
            tokens.extend(begin("token") for _ in range(3))

    in_threads(begins)
    end(tokens[0])
    in_threads(lambda: end(tokens[1], error=True))

    async def ends() -> None:
        end(tokens[2])

    asyncio.run(ends())

    assert count("token") == 3
    assert parents()["token"] == {"begins"}
    assert sum(span.failed for span in recorded("token")) == 1
    assert lost() == {}
    assert _core.open_spans() == []


def test_a_token_outlasts_its_parent() -> None:
    with span("parent"):
        token = begin("outlasts")
    with span("later"):
        time.sleep(0.001)
        end(token)

    assert parents()["outlasts"] == {"parent"}
    assert only("outlasts").end_ns > only("parent").end_ns
    assert_closed()


def test_ended_twice_is_counted_and_ignored() -> None:
    token = begin("twice")
    end(token)
    end(token)
    end(token, error=True)

    assert count("twice") == 1
    assert not only("twice").failed
    assert lost() == {"unmatched": 2}


def test_a_token_ends_itself() -> None:
    begin("done").end()
    failed = begin("failed")
    failed.end(error=True)
    failed.end()

    assert not only("done").failed
    assert only("failed").failed
    assert lost() == {"unmatched": 1}
    with pytest.raises(TypeError):
        failed.end(True)  # type: ignore[call-arg]


def test_a_token_that_is_never_ended_is_counted_when_it_is_freed() -> None:
    begin("given up")
    gc.collect()

    assert count("given up") == 0
    assert lost() == {"abandoned": 1}
    assert _core.open_spans() == []


def test_a_token_from_when_the_recorder_was_off() -> None:
    stagespan.disable()
    off = begin("off")
    stagespan.enable()
    on = begin("on")
    stagespan.disable()

    for token in (off, on, off):
        end(token)
    stagespan.enable()

    assert (count("off"), count("on"), off.id) == (0, 1, 0)
    del off
    gc.collect()
    assert lost() == {}


def test_more_tokens_than_can_be_shown() -> None:
    tokens = [begin("many") for _ in range(10_000)]
    shown = len(_core.open_spans())
    for token in tokens:
        end(token)
    assert count("many") == 10_000
    assert lost()["detached_open_spans"] == 10_000 - shown
    assert _core.open_spans() == []
    end(begin("afterwards"))
    assert count("afterwards") == 1


def test_tokens_carry_the_request() -> None:
    with request("r") as current:
        token = begin("in a request")
    end(token)

    assert only("in a request").request == current.number


def test_wrong_arguments() -> None:
    with pytest.raises(TypeError, match=r"a token that begin\(\) returned, not 'token'"):
        end("token")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        end()  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Token()
    token = begin("attributes")
    with pytest.raises(AttributeError):
        token.name = "other"  # type: ignore[misc]


# --- what was timed elsewhere ---------------------------------------------------------------------


def test_record() -> None:
    # GIVEN times in this process's past
    now = _core.now_ns()

    with span("outer"):
        record("recorded", now - 3_000_000, now - 1_000_000)
        record("recorded", now - 500_000, now, error=True)
    # THEN they are recorded within the clocks' error, as children of the open span
    first, second = recorded("recorded")
    assert first.duration_ns == pytest.approx(2_000_000, abs=50_000)
    assert second.duration_ns == pytest.approx(500_000, abs=50_000)
    assert first.begin_ns == pytest.approx(now - 3_000_000, abs=50_000)
    assert (first.failed, second.failed) == (False, True)
    assert parents()["recorded"] == {"outer"}
    assert_closed()


def test_record_of_zero_length() -> None:
    now = time.time_ns()
    record("no length", now, now)

    assert only("no length").duration_ns == 0


def test_record_that_ends_before_it_begins() -> None:
    with pytest.raises(ValueError, match="'backwards' would end at 5, before it begins at 10"):
        record("backwards", 10, 5)
    with pytest.raises(ValueError, match="would end"):
        record("extreme", 2**63 - 1, -(2**63))
    assert count("backwards") == 0


@pytest.mark.parametrize("times", [(2**63, 2**63), (1.5, 2.5), ("1", "2"), (None, None)])
def test_record_of_values_that_are_not_times(times: tuple[int, int]) -> None:
    with pytest.raises((TypeError, OverflowError)):
        record("no time", *times)


@pytest.mark.parametrize("begin_ns", [-(2**63), 0, 1, 2**63 - 1])
def test_record_of_times_far_away(begin_ns: int) -> None:
    record("far away", begin_ns, begin_ns)
    assert count("far away") + lost().get("records", 0) == 1


def test_record_while_the_recorder_is_off() -> None:
    stagespan.disable()
    record("off", 1, 2)

    assert count("off") == 0
    assert lost() == {}
