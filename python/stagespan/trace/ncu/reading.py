"""Read ncu's CSV: one row per kernel (`--page raw`), or one row per metric."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import NamedTuple

from stagespan.errors import TraceError

_SECONDS = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0}
_TIME = re.compile(r"([num]?)(?:s|sec|second)")
_NUMBER = re.compile(r"[+-]?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?")
# It depends on the locale of ncu. A comma that separates thousands is followed by three digits.
_DECIMAL_COMMA = re.compile(r'\d,(?:\d{1,2}|\d{4,})"|"0,\d')


class Measured(NamedTuple):
    """One launch of a kernel, measured by ncu."""

    name: str
    metrics: dict[str, float]
    """Values by the metric's name, with times in seconds and all others in the unit of the file."""


class Reading(NamedTuple):
    """The contents of a file of ncu."""

    path: str
    kernels: list[Measured]
    left_out: int
    """The number of rows and values that cannot be read."""


def read_ncu(path: str | Path) -> Reading:
    """Read a CSV file that ncu wrote, even if it contains other output of the program.

    Raises TraceError if the file cannot be read or contains no kernel.
    """
    try:
        text = Path(path).read_text("utf-8-sig", "replace")
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror or error}.") from None
    return parse(text, str(path))


def parse(text: str, path: str) -> Reading:
    """Read the text of a CSV file of ncu. Raises TraceError if it contains no kernel."""
    sign = ";" if re.search(r'^"?ID"?;', text, re.MULTILINE) else ","
    decimal = "," if _DECIMAL_COMMA.search(text) else "."
    lines = text.replace("\x00", "").split("\n")
    if not lines[-1].endswith('"'):
        lines.pop()  # nothing, or a line that was cut off: its last number would be wrong
    head, units = list[str](), dict[str, str]()
    kernels: dict[object, Measured] = {}
    least = left_out = 0
    for cells in (_cells(line, sign) for line in lines if not line.startswith("==")):
        if {"ID", "Kernel Name"} <= set(cells):
            head = cells
            # Rows of metrics may end before the columns of rules, with a comma.
            least = head.index("Metric Value") + 1 if "Metric Value" in head else len(head)
        elif head and least <= len(cells) <= len(head) + 1:
            row = dict(zip(head, cells, strict=False))
            if not (name := row.get("Kernel Name", "")):
                units = row
                continue
            values = {metric: value for metric, value in row.items() if "__" in metric}
            if metric := row.get("Metric Name", ""):
                values, units[metric] = {metric: cells[least - 1]}, row.get("Metric Unit", "")
            # The ids of each process start from 0.
            launch = kernels.setdefault((row.get("Process ID"), row["ID"]), Measured(name, {}))
            for metric in filter(values.get, values):
                value = _number(values[metric], decimal)
                # Descriptions of the launch can be text. Measured metrics have a dot in their name.
                left_out += value is None and "." in metric
                if value is not None:
                    time = _TIME.fullmatch(units.get(metric, ""))
                    launch.metrics[metric] = value * _SECONDS[time[1]] if time else value
        else:
            left_out += bool(head and cells)
    if not kernels:
        error = re.search(r"^==ERROR== *([ -~]{1,200})", text, re.MULTILINE)
        raise TraceError(
            f"{path} contains no kernels{f' ({error[1]})' if error else ''}: write a CSV file with "
            "`ncu --import REPORT --csv --page raw`."
        )
    return Reading(path, list(kernels.values()), left_out)


def _cells(line: str, sign: str) -> list[str]:
    try:
        return [cell.strip() for cell in next(csv.reader([line], delimiter=sign), [])]
    except csv.Error:  # for example, a cell of more than 128 KB
        return [line]


def _number(text: str, decimal: str) -> float | None:
    """Parse a number printed by ncu. Returns None if it is not a number, or too large for one."""
    plain = re.sub("[\\s'\u2019\ufffd%]", "", text).replace("," if decimal == "." else ".", "")
    plain = plain.replace(decimal, ".")
    value = float(plain) if _NUMBER.fullmatch(plain) else 1e30
    return value if abs(value) < 1e30 else None
