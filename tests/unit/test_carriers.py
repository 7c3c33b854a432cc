"""Tests of carriers: what is written is read, and what cannot be read does no harm."""

from __future__ import annotations

import collections
import re
import sys
import textwrap
import time
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import stagespan
from carrier_texts import Sent, other_members, own_text, sent_in
from running import ran
from stagespan import current_request, extract, inject, lost, request

TRACE, HOP = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
HEADER = f"00-{TRACE}-{HOP}-01"


def own(**changes: Any) -> str:
    """Return the text of our own key."""
    return own_text(Sent()._replace(**changes))


# --- traceparent ----------------------------------------------------------------------------------


@given(
    version=st.integers(0, 254),
    trace=st.integers(1, 2**128 - 1),
    hop=st.integers(1, 2**64 - 1),
    flags=st.integers(0, 255),
    more=st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=20),
    blanks=st.tuples(st.sampled_from(["", " ", "\t "]), st.sampled_from(["", " ", " \t"])),
)
def test_every_valid_header_is_read(
    version: int, trace: int, hop: int, flags: int, more: str, blanks: tuple[str, str]
) -> None:
    text = f"{version:02x}-{trace:032x}-{hop:016x}-{flags:02x}"
    header = text.join(blanks) if version == 0 else f"{text}-{more}"
    with extract({"traceparent": header}) as remote:
        written = inject()["traceparent"]

    assert remote.trace_id == f"{trace:032x}"
    assert re.fullmatch(f"00-{trace:032x}-[0-9a-f]{{16}}-{flags & 3:02x}", written)


@given(st.one_of(st.text(), st.binary(), st.none(), st.integers()))
@example(f"00-{'0' * 32}-{HOP}-01")
@example(f"00-{TRACE}-{'0' * 16}-01")
@example(f"ff-{TRACE}-{HOP}-01")
@example(f"00-{TRACE}-{HOP}-01-more")
@example(f"00-{TRACE.upper()}-{HOP}-01")
@example(f"00-{TRACE}-{HOP}-0১")
@example(f"00-{TRACE}-{HOP}-01\n")
@example(f"01-{TRACE}-{HOP}-01-" + "x" * 1_000_000)
@example(f"01-{TRACE}-{HOP}-01-x y")
@example(f"01-{TRACE}-{HOP}-01more")
def test_other_headers_are_ignored(text: Any) -> None:
    remote = extract({"traceparent": text})
    assert remote.trace_id != TRACE
    assert remote.inject() == {}


# --- our own key ----------------------------------------------------------------------------------


@given(id_=st.text(min_size=1), queue=st.text(), branch=st.text(), attempt=st.integers(1, 65_535))
@example("é" * 100, "x" * 300, "\ud800", 1)
@example("A b;c%d\n\x00~", "Ü;", "", 2)
def test_what_is_written_is_read(id_: str, queue: str, branch: str, attempt: int) -> None:
    before_ns = time.monotonic_ns()
    with request(id_):
        carrier = inject(queue=queue, branch=branch, attempt=attempt)
    text = carrier["stagespan"]

    assert re.fullmatch(r"[!-~]+", text)
    assert text == text.lower()
    assert len(text) <= 256
    sent, remote = sent_in(text), extract(carrier)
    assert before_ns <= sent.monotonic_ns <= time.monotonic_ns()
    assert (remote.id, remote.branch or "", remote.attempt) == (sent.id, sent.branch, attempt)
    assert remote.queue == (sent.queue or "default")
    for before, after, most in (
        (id_, sent.id, 96),
        (queue, sent.queue, 40),
        (branch, sent.branch, 16),
    ):
        is_text = before.encode("utf-8", "ignore").decode() == before
        if is_text and 3 * len(before.encode()) <= most:
            assert after == before


@given(
    sent=st.builds(
        Sent,
        id=st.text(min_size=1, max_size=8),
        monotonic_ns=st.integers(0, 2**62 - 1),
        unix_ns=st.integers(0, 2**62 - 1),
        clock=st.integers(0, 2**64 - 1),
        segment=st.integers(0, 2**64 - 1),
        queue=st.text(max_size=4),
        attempt=st.integers(1, 65_535),
        branch=st.text(max_size=2),
        age=st.none() | st.integers(0, 2**62 - 1),
    )
)
def test_keys_of_other_processes_are_read(sent: Sent) -> None:
    remote = extract({"traceparent": HEADER, "stagespan": own_text(sent)})
    assert (remote.id, remote.branch or "", remote.attempt) == (sent.id, sent.branch, sent.attempt)
    assert remote.queue == (sent.queue or "default")


def test_long_ids_stay_different() -> None:
    texts = set()
    for end in "abc":
        with request("r" * 200 + end):
            texts.add(sent_in(inject()["stagespan"]).id)
    assert len(texts) == 3


@pytest.mark.parametrize(
    "text",
    [
        "",
        "3" + own()[1:],
        own()[:-4],
        own().replace(";", ",", 1),
        own() + ";more",
        own().replace("r-1", "%zz"),
        own().replace("r-1", "%4"),
        own().replace("r-1", "R"),
        own().replace("r-1", "%ff"),
        own().replace("r-1", "r\n1"),
        own().replace("decode", "x" * 300),
        own(attempt=0),
        own(attempt=65_536),
        own(attempt=100_000),
        own().replace(f"{5000:016x}", "f" * 16),
        "x" * 1_000_000,
    ],
)
def test_an_own_key_that_cannot_be_read_is_ignored(text: str) -> None:
    remote = extract({"traceparent": HEADER, "stagespan": text})
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


@pytest.mark.parametrize(
    "carrier",
    [
        {"traceparent": [HEADER], "stagespan": (own(),), "other": []},
        {"Traceparent": [HEADER.encode(), HEADER.encode()], "Stagespan": [own()]},
        [("traceparent", [HEADER]), ("stagespan", [bytearray(own().encode())])],
        collections.UserDict({"traceparent": [HEADER], "stagespan": [own()]}),
        {"HTTP_TRACEPARENT": HEADER, "HTTP_STAGESPAN": own(), "REQUEST_METHOD": "GET"},
    ],
)
def test_lists_of_texts_and_names_of_wsgi(carrier: Any) -> None:
    remote = extract(carrier)
    assert (remote.trace_id, remote.id, remote.queue) == (TRACE, "r-1", "decode")


def test_lists_with_several_values() -> None:
    # Like a header that comes several times.
    other = f"00-{'1' * 32}-{HOP}-01"
    assert extract({"traceparent": [HEADER, other]}).trace_id not in (TRACE, "1" * 32)
    with extract({"traceparent": HEADER, "tracestate": ["a=1", "b=2,c=3"]}):
        assert other_members(inject()["tracestate"]) == ["a=1", "b=2", "c=3"]


def test_names_of_wsgi_are_not_read_elsewhere() -> None:
    # A client can choose such a name for a header of its own.
    carriers: list[Any] = [
        [("HTTP_TRACEPARENT", HEADER)],
        collections.UserDict({"HTTP_TRACEPARENT": HEADER}),
        {"http_traceparent": HEADER},
        {"HTTP_STAGESPAN": own(), "traceparent": f"00-{'1' * 32}-{HOP}-01"},
    ]
    for carrier in carriers:
        remote = extract(carrier)
        assert remote.trace_id != TRACE
        assert remote.id != "r-1"


def test_a_wsgi_server_passes_its_environ() -> None:
    import http.client
    import threading
    from wsgiref.simple_server import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        def log_message(self, *arguments: Any) -> None:
            pass

    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        with extract(environ) as remote:
            start_response("200 OK", [])
            return [f"{remote.id} {remote.trace_id} {remote.queue}".encode()]

    with make_server("127.0.0.1", 0, app, handler_class=Quiet) as server:
        serving = threading.Thread(target=server.handle_request)
        serving.start()
        client = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
        with request("over http") as one:
            client.request("GET", "/", headers=inject(queue="web"))
            answer = client.getresponse().read().decode()
        client.close()
        serving.join()
    assert answer == f"over http {one.trace_id} web"


def test_a_carrier_of_another_shape_is_told_once() -> None:
    # GIVEN attributes of a message as objects, as some queues have them
    program = f"""
        import warnings, stagespan
        stagespan.extract({{"traceparent": None, "other": 5}})
        for kind in ("traceparent", "stagespan"):
            stagespan.extract({{kind: {{"StringValue": "{HEADER}"}}}})
        warnings.simplefilter("error")
        stagespan.extract([("tracestate", 5)])
    """
    done = ran([sys.executable, "-c", textwrap.dedent(program)])
    # THEN the first one is named, and nothing is raised
    (said,) = [line for line in done.stderr.splitlines() if "Warning" in line]
    assert done.returncode == 0
    assert "RuntimeWarning: stagespan: a carrier has the key 'traceparent' with a value of" in said
    assert "type 'dict', which is not a text" in said
    assert said.startswith("<string>:5:")


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
    parents = [carrier["traceparent"].split("-") for carrier in (first, second)]
    # Each hop has its own id, and the trace is sampled.
    assert len({hop for _, _, hop, _ in parents}) == 2
    assert {(trace, int(flags, 16) & 1) for _, trace, _, flags in parents} == {(one.trace_id, 1)}
    sent = sent_in(second["stagespan"])
    assert (sent.id, sent.queue, sent.attempt, sent.branch) == ("Req 1", "Decode", 3, "b")
    assert second["other"] == "x"
    assert inject() == {}


@pytest.mark.parametrize(
    ("arguments", "error", "sentence"),
    [
        ({"queue": 3}, TypeError, "queue is 3: pass a text"),
        ({"branch": b"x"}, TypeError, "branch is b'x': pass a text"),
        ({"attempt": 0}, ValueError, "attempt is 0: pass a number from 1 to 65,535"),
        ({"attempt": 2**70}, ValueError, "pass a number from 1 to 65,535"),
        ({"attempt": "2"}, TypeError, "attempt is '2': pass a number from 1 to 65,535"),
        ({"carrier": [1]}, TypeError, "the carrier is of type 'list': pass a dict"),
        ({"name": "x"}, TypeError, "not another argument 'name'"),
    ],
)
def test_wrong_arguments_get_a_sentence(
    arguments: dict[str, Any], error: type[Exception], sentence: str
) -> None:
    # Also where nothing is written, because the program is the same there.
    with pytest.raises(error, match=re.escape(sentence)):
        inject(**arguments)
    with request() as one, pytest.raises(error, match=re.escape(sentence)):
        one.inject(**arguments)


def test_any_mapping_can_be_written_to() -> None:
    carrier = collections.UserDict({"other": "x"})
    with request("r") as one:
        assert inject(carrier) is carrier  # type: ignore[comparison-overlap]
    assert sorted(carrier) == ["other", "stagespan", "traceparent", "tracestate"]
    assert extract(carrier).trace_id == one.trace_id


@pytest.mark.parametrize("flags", ["00", "01", "02", "03", "f7"])
def test_flags_and_foreign_members_are_passed_on(flags: str) -> None:
    state = "vendor=a:b, other=2"
    carrier = {"traceparent": f"00-{TRACE}-{HOP}-{flags}", "tracestate": state}
    with extract(carrier):
        written = inject()
    assert other_members(written["tracestate"]) == ["vendor=a:b", "other=2"]
    assert written["traceparent"].startswith(f"00-{TRACE}-")
    # AND flags that no version of the specification defines yet are not
    assert written["traceparent"].endswith(f"-{int(flags, 16) & 3:02x}")
    assert HOP not in written["traceparent"]


def kept_state(state: Any, *, trusted: bool = True) -> str | None:
    """Return what is passed on of a `tracestate`, the same by each way."""
    carrier = {"traceparent": HEADER, "tracestate": state}
    remote = extract(carrier, trusted=trusted)
    unentered = remote.inject().get("tracestate")
    with remote:
        assert other_members(inject().get("tracestate")) == other_members(unentered)[:31]
    stagespan.disable()
    try:
        with extract(carrier, trusted=trusted):
            assert inject().get("tracestate") == unentered
    finally:
        stagespan.enable()
    return unentered


@pytest.mark.parametrize("trusted", [True, False])
def test_a_long_tracestate_is_cut_after_a_whole_member(trusted: bool) -> None:
    # GIVEN a header that no proxy has limited, with what ends a header far behind its start
    members = [f"v{i}=" + "x" * 120 for i in range(200)]
    state = ",".join(members) + ",end=1\r\nx-admin: yes"
    before = lost().get("tracestate", 0)
    assert kept_state(state, trusted=trusted) == ",".join(members[:4])
    assert lost()["tracestate"] - before == 2 * (200 - 4 + 1)
    short = [f"k{i}=1" for i in range(40)]
    assert kept_state(",".join(short), trusted=trusted) == ",".join(short[:32])


@pytest.mark.parametrize("malformed", ["b", "B=1", "b=\n", "b=é", "b=\udc80", "=1", "b=1=2"])
def test_malformed_members_of_a_tracestate_are_dropped(malformed: str) -> None:
    before = lost().get("tracestate", 0)
    assert kept_state(f"a=1,{malformed},c=3") == "a=1,c=3"
    assert kept_state(malformed) is None
    assert lost()["tracestate"] - before == 4


@given(st.one_of(st.text(), st.text(st.sampled_from("ab=,@ \t\n1é"), max_size=800)))
def test_no_more_of_a_tracestate_is_passed_on_than_a_header_can_contain(state: str) -> None:
    found = kept_state(state) or ""
    assert re.fullmatch(r"[ -~\t]*", found)
    assert len(found) <= 512
    given_members = [member.strip(" \t") for member in state.split(",")]
    assert all(member.strip(" \t") in given_members for member in found.split(",") if found)
    assert extract({"tracestate": state}).inject() == {}


def test_an_own_key_that_no_header_can_contain_is_not_passed_on() -> None:
    for text in ("9;new\r\nx: y", "9;" + "x" * 300, "9;é"):
        assert extract({"traceparent": HEADER, "stagespan": text}).inject() == {
            "traceparent": HEADER
        }


def test_a_carrier_that_is_only_passed_on_is_unchanged() -> None:
    carrier = {
        "traceparent": f"01-{TRACE}-{HOP}-09-more",
        "tracestate": f"a=1,stagespan={HOP},a=2",
        "stagespan": "?",
    }
    assert extract(carrier).inject() == carrier
    # EXCEPT that what a client says of our segments is not passed on to those who trust us
    client = extract(carrier, trusted=False).inject()
    assert client == {"traceparent": carrier["traceparent"], "tracestate": "a=1,a=2"}
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
