"""Reads CSV tables: columns by name, exact numbers with their units, and long cells."""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import re
import threading
import zlib
from collections.abc import Iterator
from decimal import ROUND_HALF_EVEN, Decimal, DecimalException
from pathlib import Path

import msgspec

_UNIT = re.compile(r"^(.*?)\s*\(\s*(ns|us|ms|s|b|kb|mb|gb|%)\s*\)$", re.IGNORECASE)
# Nanoseconds, or bytes.
_SCALES = {
    "ns": Decimal(1),
    "us": Decimal(10**3),
    "ms": Decimal(10**6),
    "s": Decimal(10**9),
    "b": Decimal(1),
    "kb": Decimal(2**10),
    "mb": Decimal(2**20),
    "gb": Decimal(2**30),
}
_LARGEST = 2**62
_THOUSANDS = re.compile(r"^[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?$")


def heading(text: str) -> tuple[str, str]:
    """Return a heading's name in lower case, and its unit: `Duration(us)` is ("duration", "us").

    Text in brackets that is not a unit belongs to the name.
    """
    found = _UNIT.match(text.strip())
    name, unit = (found[1], found[2].lower()) if found else (text, "")
    return " ".join(name.lower().split()), unit


def number(text: str) -> Decimal | None:
    """Return a cell's number, without thousands separators; None if it is not a number."""
    text = text.strip()
    if "," in text and _THOUSANDS.match(text):
        text = text.replace(",", "")
    if "_" in text:  # Decimal would accept these
        return None
    try:
        value = Decimal(text)
    except DecimalException:
        return None
    return value if value.is_finite() and abs(value) < _LARGEST else None


def scaled(text: str, unit: str) -> int | None:
    """Convert a cell with a unit of time to ns, or with a unit of size to bytes.

    The result is the nearest integer, or None if the cell is not a number or does not fit 64 bits.
    """
    whole, _, fraction = text.partition(".")
    # The common case: microseconds with at most three decimals.
    if (
        unit == "us"
        and len(fraction) <= 3
        and len(whole) < 20
        and whole.isdecimal()
        and (not fraction or fraction.isdecimal())
    ):
        result = int(whole) * 1000 + int(fraction.ljust(3, "0"))
        return result if result < _LARGEST else None
    value = number(text)
    if value is None or unit not in _SCALES:
        return None
    result = int((value * _SCALES[unit]).to_integral_value(rounding=ROUND_HALF_EVEN))
    return result if abs(result) < _LARGEST else None


def count(text: str) -> int | None:
    """Return the count in a cell; None if it is not a whole number."""
    value = number(text)
    return int(value) if value is not None and value == value.to_integral_value() else None


# --- Tables ---


_LONGEST_CELL_BYTES = 1 << 27
# Re-entrant, because a signal handler may also read a file.
_lock = threading.RLock()


@contextlib.contextmanager
def long_cells() -> Iterator[None]:
    """Allow cells of up to 128 MiB, for one thread at a time, because the limit is global.

    A call stack is in one cell, and can exceed the default limit of 128 KiB.
    """
    with _lock:
        before = csv.field_size_limit(_LONGEST_CELL_BYTES)
        try:
            yield
        finally:
            csv.field_size_limit(before)


class CsvTable(msgspec.Struct, frozen=True):
    """The cells of a table. `texts` returns those of a column without surrounding whitespace."""

    name: str
    """The file's."""
    headings: dict[str, tuple[int, str]]
    """The index and the unit ("" for none) of each column, by its name in lower case."""
    rows: list[list[str]]
    problem: str | None
    """A sentence if the file is incomplete, otherwise None."""

    def __len__(self) -> int:
        return len(self.rows)

    def has(self, *names: str) -> bool:
        """Whether all these columns exist. Names are without units, in upper or lower case."""
        return all(name.lower() in self.headings for name in names)

    def texts(self, *names: str) -> list[str]:
        """Return the cells of the first existing one of these columns; "" in every row if none."""
        for name in names:
            found = self.headings.get(name.lower())
            if found is not None:
                place = found[0]
                return [row[place].strip() for row in self.rows]
        return [""] * len(self.rows)

    def amounts(self, name: str, default: str) -> list[int | None]:
        """Return the times in ns, or the sizes in bytes, of a column with a unit; see `scaled`."""
        unit = self.unit(name, default)
        return [scaled(text, unit) for text in self.texts(name)]

    def unit(self, name: str, default: str) -> str:
        """Return a column's unit, or the default unit of the table."""
        return self.headings.get(name.lower(), (0, ""))[1] or default


def read_table(path: Path) -> CsvTable:
    """Read a CSV file, plain or gzip. `problem` of the table describes any problem.

    Never raises an exception: the table of an unreadable file is empty.
    """
    data, problem = bytes_of(path)
    text, name = data.decode("utf-8", "replace"), path.name
    # A byte order mark and blank rows are ignored.
    lines = csv.reader(io.StringIO(text.lstrip("\ufeff").replace("\0", ""), newline=""))
    rows: list[list[str]] = []
    try:
        with long_cells():
            rows.extend(row for row in lines if len(row) > 1 or (row and row[0].strip()))
    except csv.Error as error:
        problem = problem or f"{name} is not a table from line {lines.line_num} on ({error})."
    if not rows:
        return CsvTable(name, {}, [], problem or f"{name} is empty.")
    headings: dict[str, tuple[int, str]] = {}
    for place, title in enumerate(rows[0]):
        column, unit = heading(title)
        headings.setdefault(column, (place, unit))
    width = len(rows[0])
    whole = [row for row in rows[1:] if len(row) == width]
    odd = len(rows) - 1 - len(whole)
    if odd and problem is None:
        last = len(rows[-1]) != width and len(rows) > 1
        problem = (
            f"{name} ends in the middle of a row, which is skipped."
            if odd == 1 and last
            else f"{name}: skipped {odd:,} {'row' if odd == 1 else 'rows'}"
            " with a different number of cells than the heading."
        )
    return CsvTable(name, headings, whole, problem)


def bytes_of(path: Path) -> tuple[bytes, str | None]:
    """Return the content of a file, unpacked if it is gzip, and a sentence if it is incomplete."""
    try:
        data = path.read_bytes()
    except OSError as error:
        return b"", f"{path.name} cannot be read ({error.strerror or error})."
    if data[:2] != b"\x1f\x8b":
        return data, None
    data, cut = _gunzipped(data)
    return data, f"{path.name} is truncated: its compressed data ends early." if cut else None


def _gunzipped(data: bytes) -> tuple[bytes, bool]:
    try:
        return gzip.decompress(data), False
    except (OSError, EOFError, zlib.error):
        pass
    try:
        return zlib.decompressobj(wbits=31).decompress(data), True
    except zlib.error:
        return b"", True
