"""Tests of carriers: what is written is read, and what cannot be read does no harm."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import stagespan
from stagespan import _core, current_request, extract, inject, request
from stagespan.contexts import carriers

TRACE, HOP = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
HEADER = f"00-{TRACE}-{HOP}-01"
_IDS = st.integers(1, 2**64 - 1)


def own(**changes: Any) -> str:
    """Return the text of our own key."""
    sent = carriers.Sent("r-1", 5_000, 6_000, 7, 8, "decode", 1, "")
    return carriers.own_text(sent._replace(**changes))


# --- traceparent ----------------------------------------------------------------------------------


@given(
    version=st.integers(0, 254),
    trace=st.integers(1, 2**128 - 1),
    hop=_IDS,
    flags=st.integers(0, 255),
    more=st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=20),
)
def test_every_valid_header_is_read(
    version: int, trace: int, hop: int, flags: int, more: str
) -> None:
    text = f"{version:02x}-{trace:032x}-{hop:016x}-{flags:02x}"
    found = carriers.parent_in(text if version == 0 else f"{text}-{more}")

    assert found == (f"{trace:032x}", hop, flags)


@given(st.one_of(st.text(), st.binary(), st.none(), st.integers()))
@example(f"00-{'0' * 32}-{HOP}-01")
@example(f"00-{TRACE}-{'0' * 16}-01")
@example(f"ff-{TRACE}-{HOP}-01")
@example(f"00-{TRACE}-{HOP}-01-more")
@example(f"00-{TRACE.upper()}-{HOP}-01")
@example(f"00-{TRACE}-{HOP}-0১")
@example(f"00-{TRACE}-{HOP}-01\n")
@example(f"01-{TRACE}-{HOP}-01-" + "x" * 1_000_000)
def test_other_headers_are_ignored(text: Any) -> None:
    assert carriers.parent_in(text) is None
    assert extract({"traceparent": text}).trace_id != TRACE


# --- our own key ----------------------------------------------------------------------------------


@given(
    id_=st.text(),
    queue=st.text(),
    branch=st.text(),
    times=st.tuples(st.integers(0, 2**62 - 1), st.integers(0, 2**62 - 1)),
    clock=st.integers(0, 2**64 - 1),
    segment=_IDS,
    attempt=st.integers(1, 65_535),
)
@example("é" * 100, "x" * 300, "\ud800", (0, 0), 0, 1, 1)
@example("A b;c%d\n\x00~", "Ü;", "", (1, 1), 1, 1, 2)
def test_what_is_written_is_read(
    id_: str,
    queue: str,
    branch: str,
    times: tuple[int, int],
    clock: int,
    segment: int,
    attempt: int,
) -> None:
    sent = carriers.Sent(id_, *times, clock, segment, queue, attempt, branch)
    text = carriers.own_text(sent)

    # THEN every transport can carry it
    assert re.fullmatch(r"[!-~]+", text)
    assert text == text.lower()
    assert len(text) <= 256
    # AND it is read as it was written, or cut with a hash if it is too long
    found = carriers.sent_in(text)
    assert found is not None
    assert found._replace(id="", queue="", branch="") == sent._replace(id="", queue="", branch="")
    for before, after, most in (
        (id_, found.id, 96),
        (queue, found.queue, 40),
        (branch, found.branch, 16),
    ):
        is_text = before.encode("utf-8", "ignore").decode() == before
        if is_text and 3 * len(before.encode()) <= most:
            assert after == before


def test_long_ids_stay_different() -> None:
    long = "r" * 200
    texts = {carriers.own_text(carriers.Sent(long + end, 1, 1, 1, 1, "", 1, "")) for end in "abc"}
    assert len(texts) == 3


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2" + own()[1:],
        own()[:-4],
        own().replace(";", ",", 1),
        own() + ";more",
        own().replace("r-1", "%zz"),
        own().replace("r-1", "%ff"),
        own().replace("r-1", "r\n1"),
        own().replace("decode", "x" * 300),
        own(attempt=0),
        own().replace(f"{5000:016x}", "f" * 16),
        "x" * 1_000_000,
    ],
)
def test_an_own_key_that_cannot_be_read_is_ignored(text: str) -> None:
    # WHEN the rest of the carrier is right
    remote = extract({"traceparent": HEADER, "stagespan": text})
    # THEN that is used
    assert carriers.sent_in(text) is None
    assert remote.trace_id == TRACE
    assert remote.id.startswith("req_")
    with remote:
        assert current_request() is remote


@given(
    st.one_of(
        st.none(),
        st.dictionaries(st.text(), st.one_of(st.text(), st.binary(), st.none(), st.integers())),
        st.lists(st.tuples(st.binary(), st.binary())),
        st.lists(st.one_of(st.integers(), st.tuples(st.text(), st.text(), st.text()))),
    )
)
def test_foreign_carriers_give_a_request_of_their_own(carrier: Any) -> None:
    with extract(carrier) as remote:
        assert current_request() is remote
        assert remote.trace_id is not None


@pytest.mark.parametrize("carrier", [5, "traceparent", b"x", object()])
def test_what_is_no_carrier_is_refused(carrier: Any) -> None:
    with pytest.raises(TypeError, match="takes a mapping, or pairs of names and values"):
        extract(carrier)


def test_headers_in_any_case_and_as_pairs() -> None:
    for carrier in (
        {"TraceParent": HEADER, "STAGESPAN": own()},
        [(b"traceparent", HEADER.encode()), (b"stagespan", own().encode())],
        [["Traceparent", HEADER], ["Stagespan", own()], ["other", "x"]],
    ):
        remote = extract(carrier)
        assert (remote.trace_id, remote.id, remote.queue) == (TRACE, "r-1", "decode")
    # A header that comes twice with different values is not believed.
    twice = extract([("traceparent", HEADER), ("traceparent", f"00-{'1' * 32}-{HOP}-01")])
    assert twice.trace_id not in (TRACE, "1" * 32)
    assert extract([("traceparent", HEADER), ("traceparent", HEADER)]).trace_id == TRACE


def test_untrusted_carriers_give_only_their_trace() -> None:
    remote = extract({"traceparent": HEADER, "stagespan": own()}, trusted=False)
    assert remote.trace_id == TRACE
    assert remote.id.startswith("req_")
    with remote:
        written = inject()
    assert written["traceparent"].startswith(f"00-{TRACE}-")


# --- passing on -----------------------------------------------------------------------------------


def test_what_a_request_writes() -> None:
    with request("Req 1") as one:
        first, second = inject(), inject({"other": "x"}, queue="Decode", attempt=3, branch="b")
    parents = [carriers.parent_in(carrier["traceparent"]) for carrier in (first, second)]
    assert None not in parents
    # Each hop has its own id, and the trace is sampled.
    assert len({parent.hop for parent in parents if parent}) == 2
    assert {(parent.trace_id, parent.flags & 1) for parent in parents if parent} == {
        (one.trace_id, 1)
    }
    sent = carriers.sent_in(second["stagespan"])
    assert sent is not None
    assert (sent.id, sent.queue, sent.attempt, sent.branch) == ("Req 1", "Decode", 3, "b")
    assert second["other"] == "x"
    assert inject() == {}
    with pytest.raises(ValueError, match="from 1 to 65,535"), request():
        inject(attempt=0)


@pytest.mark.parametrize("flags", ["00", "01", "02", "03", "f7"])
def test_flags_and_foreign_members_are_passed_on(flags: str) -> None:
    state = "vendor=a:b, other=2"
    carrier = {"traceparent": f"00-{TRACE}-{HOP}-{flags}", "tracestate": state}
    with extract(carrier):
        written = inject()
    assert written["tracestate"] == state
    assert written["traceparent"].startswith(f"00-{TRACE}-")
    assert written["traceparent"].endswith(f"-{flags}")
    assert HOP not in written["traceparent"]


def test_a_carrier_that_is_only_passed_on_is_unchanged() -> None:
    carrier = {
        "traceparent": f"01-{TRACE}-{HOP}-09-more",
        "tracestate": "a=1,a=2",
        "stagespan": "?",
    }
    assert extract(carrier).inject() == carrier
    # AND also while the recorder is off, inside of the request
    stagespan.disable()
    try:
        with extract(carrier) as remote:
            assert current_request() is remote
            assert inject() == carrier
        with request(traceparent=HEADER):
            assert inject() == {"traceparent": HEADER}
        with request():
            assert inject() == {}
    finally:
        stagespan.enable()


def test_ids_do_not_come_from_pythons_random() -> None:
    import random

    found = []
    for _ in range(2):
        random.seed(42)
        with request() as one:
            found.append((one.trace_id, inject()["traceparent"]))
    assert found[0][0] != found[1][0]
    assert found[0][1][36:52] != found[1][1][36:52]
    assert _core.segment_random_id() != _core.segment_random_id()
