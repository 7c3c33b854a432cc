"""ncu's CSV, in both layouts: one row a metric, and one row a kernel (`--page raw`)."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import dataclass, field
from pathlib import Path

from stagespan.errors import TraceError
from stagespan.trace.long_cells import long_cells
from stagespan.trace.ncu.metrics import BY_LABEL
from stagespan.trace.ncu.numbers import decimal_sign, in_base_unit, number

_METRIC = ("Metric Name", "Metric Unit", "Metric Value")
_LIST_OF_THREE = re.compile(r"\(?\s*(\d+)\s*,\s*(\d+)\s*,\s*(\d+)\s*\)?")
_PERMISSION = re.compile(r"ERR_NVGPUCTRPERM")
_NO_KERNELS = re.compile(r"No kernels were profiled")
_ERROR = re.compile(r"^==ERROR==\s*(.+)$", re.MULTILINE)
_MOST_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Measured:
    """One launch of a kernel as ncu measured it."""

    number: int
    """ncu's own, by the order of launches."""
    name: str
    grid: tuple[int, int, int] | None
    block: tuple[int, int, int] | None
    metrics: dict[str, float | int]
    """By the metric's own name, in seconds, bytes, hertz, percent or plain counts."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What a file of ncu holds."""

    path: str
    kernels: list[Measured]
    left_out: dict[str, int] = field(default_factory=dict)
    """Rows and values that are not in `kernels`, counted by cause."""
    incomplete: str | None = None
    """A sentence when the file ends in the middle of a row, else None."""


def read_ncu(path: str | Path) -> Reading:
    """Read a CSV file that ncu wrote, also with a program's output around it.

    Raises TraceError with one sentence for a file that cannot be read, is a report and no CSV, or
    holds no kernel; with what to do where ncu itself says what failed.
    """
    try:
        with open(path, "rb") as file:
            raw = file.read(_MOST_BYTES)
    except OSError as error:
        raise TraceError(
            f"{path} cannot be read ({error.strerror or error}): name the CSV file that ncu wrote."
        ) from None
    if raw.startswith(b"NVR\x00") or Path(path).suffix == ".ncu-rep":
        raise TraceError(
            f"{path} is a report of ncu, not CSV: pass it with --report, which needs ncu, or turn"
            " it into CSV with `ncu --import FILE --csv --page raw`."
        )
    return parse(_decoded(raw), str(path))


def parse(text: str, path: str) -> Reading:
    """Read the text of a CSV file of ncu; `read_ncu` says what it raises."""
    text = text.replace("\x00", "")
    rows = list(_rows(text))
    start = next((at for at, row in enumerate(rows) if _is_head(row)), None)
    if start is None:
        raise TraceError(f"{path} {_reason(text)}")
    head = [name.strip() for name in rows[start]]
    left_out: dict[str, int] = {}
    long = all(name in head for name in _METRIC)
    # Rows of metrics may end before the columns of rules, with a comma.
    least = max(head.index(name) for name in _METRIC) + 1 if long else len(head)
    cut = None
    body = []
    whole = _ends_whole(text)
    for at, row in enumerate(rows[start + 1 :], start + 1):
        last = at == len(rows) - 1
        if _is_head(row):
            continue
        if not row[-1] and len(row) == len(head) + 1:
            row.pop()
        if least <= len(row) <= len(head) and (whole or not last):
            body.append(row + [""] * (len(head) - len(row)))
        elif last and not whole and 1 < len(row) <= len(head):
            cut = f"{path} is incomplete: it ends in the middle of a row."
        elif any(cell.strip() for cell in row):
            _count(left_out, "line that is no row of the table")
    kernels = _long(head, body, left_out) if long else _wide(head, body, left_out)
    if not kernels:
        raise TraceError(f"{path} {_reason(text)}")
    return Reading(path, kernels, left_out, cut)


def _ends_whole(text: str) -> bool:
    """Whether the last line is complete: a number of which digits are missing is a wrong one."""
    line = text[text.rfind("\n") + 1 :]
    return not line or (line.endswith('"') and line.count('"') % 2 == 0)


def _decoded(raw: bytes) -> str:
    for mark, encoding in ((b"\xef\xbb\xbf", "utf-8-sig"), (b"\xff\xfe", "utf-16")):
        if raw.startswith(mark):
            return raw.decode(encoding, "replace")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        # Thousands parted by a blank that does not break, in an older encoding.
        return raw.decode("cp1252", "replace")


def _rows(text: str) -> list[list[str]]:
    sign = ";" if re.search(r'^"?ID"?;', text, re.MULTILINE) else ","
    with long_cells():
        try:
            kept = (line for line in io.StringIO(text) if not line.startswith("=="))
            return [row for row in csv.reader(kept, delimiter=sign) if row]
        except csv.Error:
            # A quote that is never closed: each line for itself.
            lines = [line for line in text.splitlines() if not line.startswith("==")]
            return [row for line in lines for row in _one(line, sign)]


def _one(line: str, sign: str) -> list[list[str]]:
    try:
        return [row for row in csv.reader([line], delimiter=sign) if row]
    except csv.Error:
        return []


def _is_head(row: list[str]) -> bool:
    names = {name.strip() for name in row}
    return "ID" in names and "Kernel Name" in names


def _reason(text: str) -> str:
    """Why there is no kernel in a file, as the rest of a sentence."""
    if _PERMISSION.search(text):
        return (
            "holds no kernels: ncu may not read the device's counters (ERR_NVGPUCTRPERM), so run it"
            " as root, or let an administrator load the driver with"
            " NVreg_RestrictProfilingToAdminUsers=0."
        )
    if _NO_KERNELS.search(text):
        return (
            "holds no kernels: none that ncu saw had the names asked for, so raise --top, lower"
            " --launch-skip, or check that the program runs on the device."
        )
    error = _ERROR.search(text)
    if error is not None:
        said = "".join(c if c.isprintable() else "?" for c in error[1])[:200].strip()
        return f"holds no kernels, as ncu failed: {said}"
    if not text.strip():
        return "is empty: ncu wrote nothing to it, so look at what it printed."
    return (
        "is no CSV of ncu with kernels in it: write one with"
        " `ncu --import REPORT --csv --page raw`."
    )


def _count(counts: dict[str, int], cause: str) -> None:
    counts[cause] = counts.get(cause, 0) + 1


def _long(head: list[str], body: list[list[str]], left_out: dict[str, int]) -> list[Measured]:
    """One row a metric; rows of rules and tables have no metric."""
    at = {name: head.index(name) for name in head}
    name_at, unit_at, value_at = (at[name] for name in _METRIC)
    decimal = decimal_sign(row[value_at] for row in body if row[name_at].strip())
    found: dict[tuple[str, ...], Measured] = {}
    for row in body:
        metric = row[name_at].strip()
        if not metric:
            continue
        # Several processes count from 0, each.
        key = (row[at["Process ID"]] if "Process ID" in at else "", row[at["ID"]])
        if key not in found:
            found[key] = _kernel(row, at, len(found))
        _add(found[key].metrics, metric, row[unit_at], row[value_at], decimal, left_out)
    return list(found.values())


def _wide(head: list[str], body: list[list[str]], left_out: dict[str, int]) -> list[Measured]:
    """One row a kernel; the row below the heading holds the units."""
    at = {name: column for column, name in enumerate(head)}
    metrics = [column for column, name in enumerate(head) if "__" in name or name in _LABELS]
    units = [""] * len(head)
    if body and not body[0][at["ID"]].strip() and not body[0][at["Kernel Name"]].strip():
        units = body.pop(0)
    decimal = decimal_sign(row[column] for row in body for column in metrics)
    kernels: list[Measured] = []
    for row in body:
        if not row[at["Kernel Name"]].strip():
            _count(left_out, "row without a kernel's name")
            continue
        kernel = _kernel(row, at, len(kernels))
        for column in metrics:
            if row[column].strip():
                _add(kernel.metrics, head[column], units[column], row[column], decimal, left_out)
        kernels.append(kernel)
    return kernels


_LABELS = {label for label, _ in BY_LABEL}


def _kernel(row: list[str], at: dict[str, int], order: int) -> Measured:
    def cell(name: str) -> str:
        return row[at[name]] if name in at else ""

    number_of = cell("ID").strip()
    return Measured(
        number=int(number_of) if number_of.isascii() and number_of.isdigit() else order,
        name=cell("Kernel Name").strip(),
        grid=_three(cell("Grid Size")),
        block=_three(cell("Block Size")),
        metrics={},
    )


def _three(text: str) -> tuple[int, int, int] | None:
    found = _LIST_OF_THREE.fullmatch(text.strip())
    return (int(found[1]), int(found[2]), int(found[3])) if found else None


def _add(
    metrics: dict[str, float | int],
    metric: str,
    unit: str,
    text: str,
    decimal: str,
    left_out: dict[str, int],
) -> None:
    value = number(text, decimal)
    if value is None:
        # What describes device and launch may be words; what was measured has a dot in its name.
        if "." in metric or metric in _LABELS:
            _count(left_out, "value that is no number")
        return
    scaled, base = in_base_unit(value, unit)
    # `--page details` writes labels; some stand for two metrics, told by the unit.
    name = BY_LABEL.get((metric, base), metric)
    metrics.setdefault(name, scaled)
