"""The values that the scanner reads from entries, compared with Python's own json module."""

from __future__ import annotations

import json
import tempfile
from decimal import ROUND_HALF_EVEN, Decimal
from pathlib import Path
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from properties import examples
from stagespan.trace import MISSING, Trace, read_trace

KEYS = ["a", "b", "Input Dims", "é", 'q"', "stream", "External id"]
IDS = {"stream", "External id"}
NUMBER = st.from_regex(
    r"-?(0|[1-9][0-9]{0,20})(\.[0-9]{1,22})?([eE][+-]?[0-9]{1,2})?", fullmatch=True
)
TEXT = st.text(max_size=12) | st.text('"\\/{}[],: \n\x00é漢😀', max_size=12)
SCALAR = st.none() | st.booleans() | st.integers(-(2**65), 2**65) | st.floats() | TEXT
VALUE = st.recursive(
    SCALAR,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
ID = st.integers(-(2**63) + 1, 2**63 - 1) | st.integers(0, 50)
# Usually all values of a key are of one kind; rarely they are of all kinds.
COLUMN = st.sampled_from(
    [st.integers(-5, 5), st.integers(-(2**63), 2**63 - 1), st.floats(), st.booleans(), TEXT, VALUE]
)
INDENT = st.sampled_from([None, 0, 1, 8, 17])


@st.composite
def tables(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Return the arguments of some events."""
    kinds = {
        key: ID if key in IDS else draw(COLUMN) for key in draw(st.sets(st.sampled_from(KEYS)))
    }
    row = st.fixed_dictionaries({}, optional=dict(kinds))
    return draw(st.lists(row, max_size=10))


def read(data: bytes, chunk_bytes: int) -> Trace:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        path.write_bytes(data)
        return read_trace(path, chunk_bytes=chunk_bytes)


def clean(text: str) -> str:
    """Replace surrogates, which cannot be written as UTF-8."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def is_number(value: Any) -> bool:
    return isinstance(value, float) or (isinstance(value, int) and -(2**63) <= value < 2**63)


@settings(max_examples=examples(300))
@given(
    rows=tables(), indent=INDENT, ascii_only=st.booleans(), chunk_bytes=st.integers(1, 300),
    instants=st.booleans(),
)  # fmt: skip
def test_arguments_are_what_json_says(
    rows: list[dict[str, Any]],
    indent: int | None,
    ascii_only: bool,
    chunk_bytes: int,
    instants: bool,
) -> None:
    entries = [{"ph": "i" if instants else "X", "ts": 1, "dur": 1, "args": row} for row in rows]
    data = json.dumps(entries, indent=indent, ensure_ascii=ascii_only)
    trace = read(data.encode("utf-8", "replace"), chunk_bytes)
    table = "instants" if instants else "events"
    assert (trace.total, trace.left_out, trace.incomplete) == (len(rows), {}, None)
    for key in KEYS:
        expected = [
            (row, found[key])
            for row, found in enumerate(json.loads(data))
            for found in [found["args"]]
            if found.get(key) is not None
            and not (isinstance(found[key], float) and (found[key] - found[key] != 0))
        ]
        argument = trace.argument(key, table)  # type: ignore[arg-type]
        if not expected:
            assert argument is None
            continue
        assert argument is not None
        assert argument.rows.tolist() == [row for row, _ in expected]
        values = [value for _, value in expected]
        if argument.numbers is not None:
            assert all(map(is_number, values))
            assert argument.numbers.tolist() == values
            continue
        # In a column with fractions, integers that a double cannot hold are texts too.
        real = any(isinstance(value, float) for value in values)
        assert not all(is_number(value) and not (real and abs(value) > 2**53) for value in values)
        assert len(set(argument.texts)) == len(argument.texts)
        for code, value in zip(argument.codes.tolist(), values, strict=True):
            text = argument.texts[code]
            if isinstance(value, str):
                assert text == (
                    clean(value) if ascii_only else value.encode("utf-8", "replace").decode()
                )
            else:
                assert json.loads(text) == value or json.loads(text) == int(value)
    if not instants:
        for key, column in (
            ("stream", trace.events.stream),
            ("External id", trace.events.external_id),
        ):
            assert column.tolist() == [row.get(key, MISSING) for row in rows]


@settings(max_examples=examples(400))
@example([("0", "19000000000.000000000E6", False)], 1)
@given(
    st.lists(st.tuples(NUMBER, NUMBER, st.booleans()), min_size=1, max_size=8), st.integers(1, 60)
)
def test_times_are_exact(times: list[tuple[str, str, bool]], chunk_bytes: int) -> None:
    def written(text: str, quoted: bool) -> str:
        return f'"{text}"' if quoted else text

    entries = ",".join(
        f'{{"ph":"X","ts":{written(ts, quoted)},"dur":{written(dur, quoted)}}}'
        for ts, dur, quoted in times
    )
    trace = read(f'{{"traceEvents":[{entries}]}}'.encode(), chunk_bytes)

    # THEN each is the nearest nanosecond, unless it is out of bounds
    def nanoseconds(text: str) -> int | None:
        exact = int((Decimal(text) * 1000).to_integral_value(rounding=ROUND_HALF_EVEN))
        return exact if abs(exact) < 2**62 // 1000 * 1000 else None

    timed = [(nanoseconds(ts), nanoseconds(dur)) for ts, dur, _ in times]
    kept = [(begin, max(dur or 0, 0)) for begin, dur in timed if begin is not None]
    assert trace.events.begin_ns.tolist() == [begin for begin, _ in kept]
    assert trace.events.dur_ns.tolist() == [dur for _, dur in kept]
    assert trace.left_out.get("event without a time", 0) == len(times) - len(kept)
    negative = sum(begin is not None and dur is not None and dur < 0 for begin, dur in timed)
    assert trace.adjusted.get("negative duration, taken as 0", 0) == negative


@settings(max_examples=examples(300))
@given(st.lists(VALUE, max_size=8), st.integers(1, 100), INDENT)
def test_any_values_as_entries(values: list[Any], chunk_bytes: int, indent: int | None) -> None:
    entries = [{"ph": "X", "ts": 1, "name": "first"}, *values, {"ph": "X", "ts": 2, "name": "last"}]
    trace = read(json.dumps(entries, indent=indent).encode(), chunk_bytes)
    # THEN each is counted, and the entries around them are read
    objects = sum(isinstance(value, dict) for value in values)
    assert trace.total == len(entries)
    assert trace.left_out.get("entry that is not an object", 0) == len(values) - objects
    assert [trace.names[code] for code in trace.events.name] == ["first", "last"]
    assert trace.incomplete is None
