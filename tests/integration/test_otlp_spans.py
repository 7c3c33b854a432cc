"""Tests that the spans that are sent are those that OpenTelemetry's own encoder would send."""

from __future__ import annotations

import json
import math
import os
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stagespan
from recorded import part_of, read_spans, segment_of, span_rows
from stagespan import _core
from stagespan.export.parts import Batch, Part, Resource
from stagespan.export.requests import Taker
from stagespan.export.totals import resource_of
from stagespan.live.span_kinds import KINDS
from stagespan.recording.finding import open_recording
from stagespan.recording.segments import Segment, as_dicts, as_rows
from stagespan.recording.spans import ReadSpans, Span

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="there is no OTLP exporter")
oracle = pytest.importorskip("otlp_oracle")
otlp_spans = pytest.importorskip("stagespan.export.otlp_spans")

texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
words = st.text("abcxyz", min_size=1, max_size=8)
times_ns = st.integers(1, 2**62)
ids = st.integers(1, 2**63 - 1)
span_ids = st.integers(1, 40)
hex_ids = st.integers(1, 2**64 - 1).map("{:016x}".format)
trace_ids = st.integers(1, 2**128 - 1).map("{:032x}".format)
amounts = st.dictionaries(words, st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False))
NAMES = ["decode", "", "a stage with ümläuts", "x" * 300]


@st.composite
def drawn_spans(draw: st.DrawFn) -> ReadSpans:
    """Rows of a recording, with parents inside and outside of them."""
    numbers = draw(st.lists(span_ids, unique=True, max_size=12))
    rows = np.zeros(len(numbers), _core.spans().dtype)
    for row, number in zip(rows, numbers, strict=True):
        row["id"], row["parent"] = number, draw(st.integers(0, 40))
        row["stage"], row["thread"] = draw(st.integers(0, 3)), draw(st.integers(0, 2**32 - 1))
        row["begin_ns"], row["end_ns"] = draw(times_ns), draw(times_ns)
        kind = draw(st.sampled_from(KINDS[:8]))
        flags = draw(st.sampled_from([0, _core.FLAG_ERROR, _core.FLAG_ASYNC]))
        row["flags"] = KINDS.index(kind) << _core.KIND_SHIFT | flags
        row["suspended_ns"] = draw(st.sampled_from([0, 1, 123_456_789]))
        row["device_elapsed_ns"] = draw(st.sampled_from([math.nan, 0.0, 1.5e9]))
        row["cpu_ns"] = draw(st.sampled_from([math.nan, 0.0, 1.5e6]))
    work = draw(st.dictionaries(st.sampled_from(numbers), amounts)) if numbers else {}
    failed = [int(row["id"]) for row in rows if row["flags"] & _core.FLAG_ERROR]
    pairs = st.tuples(words, st.none() | texts.filter(bool))  # recordings have no empty message
    errors = {id_: draw(pairs) for id_ in failed if draw(st.booleans())}
    since_ns = draw(st.sampled_from([0, 0, 2**61]))
    known = {int(row["id"]) for row in rows if row["begin_ns"] > since_ns}
    work = {id_: of for id_, of in work.items() if id_ in known}
    return ReadSpans(rows, NAMES, work, errors, since_ns)


@st.composite
def segments(draw: st.DrawFn, origins: list[str]) -> Any:
    """A segment of a recording, or a hop that has come back."""
    unset = {**dict.fromkeys(Segment.__annotations__), "hops_sent": 0, "sent_clock": 0}
    segment: dict[str, Any] = unset | segment_of(1)
    maybe_ns = st.none() | times_ns
    segment |= {
        "id": draw(texts.map(_short)),
        "trace_id": draw(trace_ids),
        "segment": draw(hex_ids),
        "parent_hop": draw(st.none() | hex_ids),
        "origin": draw(st.sampled_from(origins)),
        "status": draw(st.sampled_from(["ok", "unused", "error", "cancelled"])),
        "attempt": draw(st.integers(1, 3)),
        "is_http": draw(st.booleans()),
        "fields": draw(st.dictionaries(words, texts | st.floats(allow_nan=False) | ids)),
        "link": draw(st.none() | st.tuples(trace_ids, hex_ids)),
        "chunks": draw(st.sampled_from([0, 7])),
        "chunk_amount": draw(ids),
    }
    segment["parent_segment"] = None if segment["parent_hop"] is None else draw(hex_ids)
    for name in ("route", "queue", "branch", "exception"):
        segment[name] = draw(st.none() | words)
    for name in ("sent_ns", "sent_unix_ns", "received_ns", "first_chunk_ns", "request_ns"):
        segment[name] = draw(maybe_ns)
    for name in ("begin_ns", "end_ns", "work_ns"):
        segment[name] = draw(maybe_ns)
    return segment


def _short(text: str) -> str:
    """Return a text as a recording has it: cut, and without what follows a zero."""
    return text.partition("\0")[0].encode()[:64].decode(errors="ignore")


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    """A batch with spans in it, and links to requests."""
    read = draw(drawn_spans().filter(lambda one: len(one.rows) > 0))
    span, *inner = read.spans()
    links = draw(st.lists(st.tuples(trace_ids, hex_ids), max_size=5))
    return Batch(span, inner, links, draw(st.integers(1, 9)))


@st.composite
def parts(draw: st.DrawFn) -> Part:
    """A part of a request."""
    resource = Resource(
        *(draw(texts), draw(texts), draw(st.sampled_from(["", "3"])), draw(st.integers(1, 2**31))),
        *(draw(texts), draw(texts), draw(words)),
    )
    segment = draw(segments(["root", "remote", "repeated", "nested"]))
    returns = [
        {**one, "segment": segment["segment"], "number": segment["number"]}
        for one in draw(st.lists(segments(["return"]), max_size=2))
    ]
    return part_of(
        segment,
        draw(st.just(read_spans()) | drawn_spans()),
        resource=resource,
        returns=returns,
        batches=draw(st.lists(batches(), max_size=2)),
        is_whole=draw(st.booleans()),
    )


@given(st.lists(parts(), max_size=3))
def test_the_spans_are_those_of_the_official_encoder(found: list[Part]) -> None:
    # WHEN parts are encoded THEN the official classes read what the official encoder writes
    sent, official = oracle.messages_of(found)
    assert oracle.spans_in(sent) == oracle.spans_in(official)
    expected = {of.resource.SerializeToString(True) for of in official.resource_spans}
    assert {of.resource.SerializeToString(True) for of in sent.resource_spans} == expected
    scopes = [scope.scope for of in sent.resource_spans for scope in of.scope_spans]
    assert all(scope == official.resource_spans[0].scope_spans[0].scope for scope in scopes)


def test_what_a_process_has_recorded_is_sent_as_the_official_encoder_would() -> None:
    with stagespan.request("r"), stagespan.span("outer") as outer:
        outer.add(tokens=3, seconds=0.5)
        with pytest.raises(ValueError, match="no"), stagespan.span("inner"):
            raise ValueError("no")
    copy = open_recording(os.getpid())
    taker = Taker()
    found = taker.parts(copy, resource_of(copy), taker.ended(copy, at_end=True))
    assert found is not None
    sent, official = oracle.messages_of(list(found))
    assert oracle.spans_in(sent) == oracle.spans_in(official)


def test_what_otlp_cannot_express_is_left_out_and_counted() -> None:
    # GIVEN a row with a time before 1970, one of a stage without a name, and fields that are none
    fields = {"bad": "\ud800", "huge": 2**63, "good": 2**63 - 1}
    segment = segment_of(1, fields=fields)
    rows = span_rows(3, id=[1, 2, 3], begin_ns=[5, -1, 5], end_ns=6, stage=[0, 0, 9])
    part = part_of(segment, read_spans("decode", rows=rows))
    # WHEN it is encoded THEN the others are there
    encoded = otlp_spans.encoded(part.of, [0])
    assert encoded.left_out == 2
    assert sum(message.spans for message in encoded.messages) == 2
    (of_segment,) = [span for span in oracle.spans_in(_decoded(encoded)) if span.name == "default"]
    attributes = {one.key: one.value for one in of_segment.attributes}
    assert attributes["stagespan.field.good"].int_value == 2**63 - 1
    assert not {"stagespan.field.bad", "stagespan.field.huge"} & attributes.keys()


def test_many_spans_of_a_part_are_several_messages() -> None:
    rows = span_rows(2000, id=np.arange(1, 2001), begin_ns=5, end_ns=6, parent=[0, *[1] * 1999])
    part = part_of(segment_of(1), read_spans("decode", rows=rows))
    encoded = otlp_spans.encoded(part.of, [0])
    assert [message.spans for message in encoded.messages] == [512, 512, 512, 465]
    # THEN the part is complete with the last one
    assert encoded.ends == [0, 0, 0, 1]
    spans = oracle.spans_in(_decoded(encoded))
    # THEN each span knows its parent, also one of an earlier message
    parents = {span.parent_span_id for span in spans if span.name == "decode"}
    (segment,) = [span for span in spans if span.name == "default"]
    first = otlp_spans.span_id_in(1, 1).to_bytes(8, "big")
    assert parents == {segment.span_id, first}


def _decoded(encoded: Any) -> Any:
    message = otlp_spans.Call(encoded.messages).SerializePartialToString()
    return oracle.trace_service_pb2.ExportTraceServiceRequest.FromString(message)


@given(parts())
def test_kept_parts_are_what_their_objects_encode_to(part: Part) -> None:
    (found,) = map(msgspec.json.decode, part.of.columns.kept([0], b'{"is_whole":', {}, {}))
    assert found.pop("is_whole") == bool(part.of.is_whole[0])
    assert (found.pop("batches"), found.pop("slowness")) == ([], None)
    kept = Span._fields.index("cpu_ns") + 1
    expected = {
        "segment": part.segment,
        "returns": part.returns,
        "spans": [span[:kept] for span in part.spans],
    }
    assert found == msgspec.json.decode(msgspec.json.encode(expected))
    # THEN a whole number stays a float if it is one, and what JSON cannot write is null
    for name, value in part.segment["fields"].items():
        is_number = not isinstance(value, float) or math.isfinite(value)
        assert type(found["segment"]["fields"][name]) is (type(value) if is_number else type(None))


@given(segments(["root", "remote", "return", "repeated", "nested"]))
def test_rows_of_segments_are_what_their_dicts_say(segment: Any) -> None:
    names: list[str] = []
    rows, details = as_rows([segment], names)
    (found,) = as_dicts(rows, names, details)
    # An exception is that of a request with an error, and a route is its pipeline.
    if segment["status"] != "error":
        segment |= {"exception": None, "exception_message": None}
    assert found == {**segment, "pipeline": segment["route"] or segment["pipeline"]}


def test_names_of_kept_spans_are_escaped_and_wrong_ones_refused() -> None:
    name = 'a "b"\\\n\x01\x7f\u2028é'

    def kept(names: Any) -> bytes:
        part = part_of(segment_of(1), read_spans(name, rows=span_rows(1)))
        part.of.read = part.of.read._replace(names=names)
        return part.of.columns.kept([0], b'{"is_whole":', {}, {})[0]

    ((_, _, found, *_),) = json.loads(kept([name]))["spans"]
    assert found == name
    for names in ([], ["\ud800"], [b"a"]):
        with pytest.raises(ValueError, match="no name"):
            kept(names)


@pytest.mark.parametrize(
    "arguments",
    [
        {"spans": np.zeros(3)},
        {"spans": np.zeros(6, _core.spans().dtype)[::2]},
        {"segments": np.zeros(1, _core.spans().dtype)},
        {"segments": np.zeros(2, _core.segment_type())},
        {"names": None},
        {"bounds": np.array([0, 2], "i8")},
        {"bounds": np.array([0], "i8")},
        {"return_bounds": np.array([0, -1], "i8")},
        {"is_whole": np.zeros(0, bool)},
    ],
)
def test_other_columns_are_refused(arguments: dict[str, Any]) -> None:
    usual: dict[str, Any] = {
        "segments": np.zeros(1, _core.segment_type()),
        "begins_ns": np.zeros(1, "i8"),
        "ends_ns": np.zeros(1, "i8"),
        "is_whole": np.ones(1, bool),
        "spans": np.zeros(1, _core.spans().dtype),
        "bounds": np.array([0, 1], "i8"),
        "returns": np.zeros(0, _core.segment_type()),
        "return_bounds": np.zeros(2, "i8"),
        "names": ["x"],
        "kinds": KINDS,
        "fields": {},
        "request_failures": {},
        "work": {},
        "failures": {},
        "amounts_since_ns": 0,
    }
    ((_, spans, parts),), left_out = _core.PartColumns(**usual).otlp([0], {}, {})
    assert (spans, parts, left_out) == (2, 1, 0)
    with pytest.raises((TypeError, ValueError)):
        _core.PartColumns(**{**usual, **arguments})


@pytest.mark.parametrize("others", [{0: [("name",)]}, {0: [None]}, {0: None}])
def test_other_spans_are_refused(others: Any) -> None:
    columns = part_of(segment_of(1)).of.columns
    with pytest.raises((TypeError, ValueError)):
        columns.otlp([0], {}, others)
    with pytest.raises(IndexError):
        columns.otlp([1], {}, {})
