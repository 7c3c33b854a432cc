"""The arguments of a trace's events, one key at a time, as columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from stagespan.trace.assemble import Assembly
from stagespan.trace.columns import Codebook, EventColumns, Numbering
from stagespan.trace.model import Codes, Numbers
from stagespan.trace.schema import AnyEvent, Event, ExactEvent, coerce, loose_decoder

Table = Literal["events", "instants"]
_BEYOND = 1 << 63


@dataclass(frozen=True)
class Argument:
    """One argument (`args[key]`) of those rows of a table that have it.

    `rows` ascend. An argument that is `null`, or a number that is no number, counts as absent.
    Values that are all numbers or booleans stand in `numbers`, and `texts` is empty; all others are
    text-like, and `numbers` is None.
    """

    rows: NDArray[np.int64]
    """Rows of `Trace.events` (or `Trace.instants`) that have this argument, ascending."""
    texts: list[str]
    """Each text once: strings without their quotes, lists and objects as the JSON in the file."""
    codes: Codes
    """For each of `rows` the index into `texts`; empty when the values are numbers."""
    numbers: NDArray[np.int64] | NDArray[np.float64] | None
    """For each of `rows` its number: int64, or float64 when some value has a fraction."""


class ArgumentAssembly(Assembly):
    """Reads a trace again for the arguments of one key; rows as in the first reading."""

    def __init__(self, key: str) -> None:
        super().__init__()
        arguments = msgspec.defstruct(
            "KeyArguments", [("value", msgspec.Raw, msgspec.Raw(b""))], rename={"value": key}
        )
        kind = arguments | None
        self._arguments = arguments
        self._key = key
        usual = msgspec.defstruct("KeyEvent", [("args", kind, None)], bases=(Event,))
        exact = msgspec.defstruct("ExactKeyEvent", [("args", kind, None)], bases=(ExactEvent,))
        self._usual_decoder = msgspec.json.Decoder(list[usual])  # type: ignore[valid-type]
        self._exact_decoder = msgspec.json.Decoder(list[exact])  # type: ignore[valid-type]
        self.tables: dict[Table, _ArgumentColumns] = {
            "events": _ArgumentColumns(),
            "instants": _ArgumentColumns(),
        }
        self._events = self.tables["events"]
        self._instants = self.tables["instants"]

    def _decode(self, piece: bytes) -> Sequence[AnyEvent]:
        try:
            decoder = self._exact_decoder if self._exact else self._usual_decoder
            return decoder.decode(piece)
        except msgspec.ValidationError:
            pass
        events = []
        ignored: Counter[str] = Counter()
        for entry in loose_decoder.decode(piece):
            event = coerce(entry, ignored, ignored)
            if event is None:
                continue
            found = entry.get("args")
            event.args = None
            if isinstance(found, dict) and self._key in found:
                value = msgspec.Raw(msgspec.json.encode(found[self._key]))
                event.args = self._arguments(value)  # type: ignore[assignment]
            events.append(event)
        return events

    def _add_metadata(self, event: AnyEvent) -> None:
        """Names of processes and threads are known from the first reading."""


class _ArgumentColumns(EventColumns):
    def __init__(self) -> None:
        super().__init__(Codebook(), Codebook(), Numbering())
        self._count = 0
        self._rows: list[int] = []
        self._values: list[bytes] = []

    def add(self, events: Sequence[AnyEvent], begin_ns: Numbers, dur_ns: Numbers) -> None:
        row = self._count
        self._count += len(events)
        for event in events:
            if event.args is not None:
                value = bytes(event.args.value)  # type: ignore[attr-defined]
                if value and value != b"null":
                    self._rows.append(row)
                    self._values.append(value)
            row += 1

    def argument(self) -> Argument | None:
        """What was found; None when no row has the argument."""
        if not self._rows:
            return None
        rows = np.array(self._rows, dtype=np.int64)
        written: dict[bytes, int] = {}
        codes = np.fromiter(
            (written.setdefault(value, len(written)) for value in self._values), np.int32, len(rows)
        )
        values = [msgspec.json.decode(value) for value in written]
        if all(isinstance(value, (int, float)) for value in values) and all(
            isinstance(value, float) or -_BEYOND <= value < _BEYOND for value in values
        ):
            floats = any(isinstance(value, float) for value in values)
            table: NDArray[Any] = np.array(values, dtype=np.float64 if floats else np.int64)
            return Argument(rows, [], np.empty(0, dtype=np.int32), table[codes])
        texts = [
            value if isinstance(value, str) else raw.decode()
            for value, raw in zip(values, written, strict=True)
        ]
        # An escape can be written in several ways.
        known = {text: code for code, text in enumerate(dict.fromkeys(texts))}
        merged = np.array([known[text] for text in texts], dtype=np.int32)
        return Argument(rows, list(known), merged[codes], None)


def read_argument(path: str, key: str) -> dict[Table, Argument | None]:
    """Read the argument `key` of all events and instants of a trace file."""
    from stagespan.trace.reader import read_with

    assembly = ArgumentAssembly(key)
    read_with(path, assembly)
    return {table: columns.argument() for table, columns in assembly.tables.items()}


def cached_argument(cache: dict[str, Any], path: str, key: str, of: Table) -> Argument | None:
    """The argument from a cache, or from the file."""
    if key not in cache:
        cache[key] = read_argument(path, key)
    found: Argument | None = cache[key][of]
    return found
