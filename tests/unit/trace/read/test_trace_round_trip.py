"""Generated events, converted to JSON, to columns, and back."""

from __future__ import annotations

import gzip
import json
import tempfile
from decimal import Decimal
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from properties import examples
from stagespan.trace import MISSING, read_trace

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
_NANOSECONDS = st.one_of(
    st.integers(0, 10**6), st.integers(0, 2 * 10**18), st.integers(-(10**12), 10**12)
)
_EVENT = st.fixed_dictionaries(
    {
        "name": _TEXT,
        "cat": st.sampled_from(["cpu_op", "kernel", "user_annotation"]),
        "begin": _NANOSECONDS,
        "dur": st.integers(0, 10**13),
        "pid": st.integers(0, 2**63 - 1),
        "tid": st.integers(0, 2**63 - 1),
        "correlation": st.none() | st.integers(0, 2**63 - 1),
        "stream": st.none() | st.integers(0, 1000),
        "noise": st.recursive(
            st.none() | st.booleans() | st.integers() | _TEXT,
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
            max_leaves=6,
        ),
    }
)
_STYLE = st.sampled_from(["number", "text", "short"])
_LAYOUT = st.sampled_from([(None, (",", ":")), (None, (", ", ": ")), (2, None), (0, None)])


def _microseconds(nanoseconds: int, style: str) -> Any:
    exact = Decimal(nanoseconds) / 1000
    text = f"{exact:.3f}"
    if style == "text":
        return text
    if style == "short":
        text = text.rstrip("0").rstrip(".")
    return _Literal(text)


class _Literal(float):
    """A number that json.dumps writes as given."""

    def __new__(cls, text: str) -> _Literal:
        made = super().__new__(cls, text)
        made.text = text  # type: ignore[attr-defined]
        return made

    def __repr__(self) -> str:
        return str(self.text)  # type: ignore[attr-defined]


def _dumps(value: Any, indent: int | None, separators: Any) -> str:
    # json writes floats with float.__repr__, so markers are replaced to keep the digits unchanged.
    literals: list[str] = []

    def mark(each: Any) -> Any:
        if isinstance(each, _Literal):
            literals.append(repr(each))
            return f"\x00{len(literals) - 1}\x00"
        if isinstance(each, dict):
            return {key: mark(inner) for key, inner in each.items()}
        return [mark(inner) for inner in each] if isinstance(each, list) else each

    text = json.dumps(mark(value), indent=indent, separators=separators)
    for number, literal in enumerate(literals):
        text = text.replace(f'"\\u0000{number}\\u0000"', literal)
    return text


@settings(max_examples=examples(150))
@given(
    events=st.lists(_EVENT, max_size=12),
    style=_STYLE,
    layout=_LAYOUT,
    chunk_bytes=st.integers(1, 400),
    packed=st.booleans(),
    base=st.none() | st.integers(0, 2 * 10**18),
)
def test_columns_hold_what_was_written(
    events: list[dict[str, Any]],
    style: str,
    layout: tuple[int | None, Any],
    chunk_bytes: int,
    packed: bool,
    base: int | None,
) -> None:
    entries = []
    for event in events:
        arguments = {"noise": event["noise"]}
        arguments |= {k: event[k] for k in ("correlation", "stream") if event[k] is not None}
        entries.append(
            {
                "ph": "X",
                "args": arguments,
                **{key: event[key] for key in ("name", "cat", "pid", "tid")},
                "ts": _microseconds(event["begin"], style),
                "dur": _microseconds(event["dur"], style),
            }
        )
    top: dict[str, Any] = {"head": {"traceEvents": [{}]}, "traceEvents": entries}
    if base is not None:
        top["baseTimeNanoseconds"] = base
    data = _dumps(top, *layout).encode()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace")
        path.write_bytes(gzip.compress(data) if packed else data)
        trace = read_trace(path, chunk_bytes=chunk_bytes)
    columns = trace.events
    assert [trace.names[code] for code in columns.name] == [event["name"] for event in events]
    assert [trace.categories[code] for code in columns.category] == [e["cat"] for e in events]
    assert columns.begin_ns.tolist() == [event["begin"] + (base or 0) for event in events]
    assert columns.dur_ns.tolist() == [event["dur"] for event in events]
    assert columns.pid.tolist() == [event["pid"] for event in events]
    assert columns.tid.tolist() == [event["tid"] for event in events]
    for key, column in (("correlation", columns.correlation), ("stream", columns.stream)):
        assert column.tolist() == [MISSING if e[key] is None else e[key] for e in events]
    assert (trace.total, trace.left_out, trace.adjusted) == (len(events), {}, {})
    assert trace.incomplete is None
