"""Read ncu's CSV in both layouts: one row per metric, or one row per kernel (`--page raw`)."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from stagespan.errors import TraceError
from stagespan.trace.read.csv_tables import long_cells

DURATION = "gpu__time_duration.sum"
COMPUTE = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
MEMORY = "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"
DRAM = "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"
L1 = "l1tex__throughput.avg.pct_of_peak_sustained_active"
L2 = "lts__throughput.avg.pct_of_peak_sustained_elapsed"
ACHIEVED = "sm__warps_active.avg.pct_of_peak_sustained_active"
THEORETICAL = "sm__maximum_warps_per_active_cycle_pct"
WAVES = "launch__waves_per_multiprocessor"
REGISTERS = "launch__registers_per_thread"
ISSUED = "smsp__issue_active.avg.per_cycle_active"
ISSUED_PERCENT = "smsp__issue_active.avg.pct_of_peak_sustained_active"
ELIGIBLE = "smsp__warps_eligible.avg.per_cycle_active"
CYCLES_PER_ISSUE = "smsp__average_warp_latency_per_inst_issued.ratio"
DRAM_BYTES = "dram__bytes.sum"
DRAM_RATE = "dram__bytes.sum.per_second"
DRAM_READ, DRAM_WRITTEN = "dram__bytes_read.sum", "dram__bytes_write.sum"
SM_CLOCK = "sm__cycles_elapsed.avg.per_second"
SMSP_CLOCK = "smsp__cycles_elapsed.avg.per_second"
DRAM_CLOCK = "dram__cycles_elapsed.avg.per_second"
DRAM_PEAK = "dram__bytes.sum.peak_sustained"
TENSOR = (
    "sm__inst_executed_pipe_tensor.sum",
    "smsp__inst_executed_pipe_tensor.sum",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active",
    "sm__inst_executed_pipe_tensor_op_hmma.avg.pct_of_peak_sustained_active",
)
"""If any of them is above 0, the tensor cores were used."""

BY_LABEL: Mapping[tuple[str, str], str] = {
    ("Duration", "second"): DURATION,
    ("Compute (SM) Throughput", "%"): COMPUTE,
    ("SM [%]", "%"): COMPUTE,
    ("Memory Throughput", "%"): MEMORY,
    ("Memory [%]", "%"): MEMORY,
    ("Memory Throughput", "byte/second"): DRAM_RATE,
    ("DRAM Throughput", "%"): DRAM,
    ("L1/TEX Cache Throughput", "%"): L1,
    ("L2 Cache Throughput", "%"): L2,
    ("SOL DRAM", "%"): DRAM,
    ("SOL L1/TEX Cache", "%"): L1,
    ("SOL L2 Cache", "%"): L2,
    ("SM Frequency", "hz"): SM_CLOCK,
    ("DRAM Frequency", "hz"): DRAM_CLOCK,
    ("Achieved Occupancy", "%"): ACHIEVED,
    ("Theoretical Occupancy", "%"): THEORETICAL,
    ("Waves Per SM", ""): WAVES,
    ("Registers Per Thread", "register/thread"): REGISTERS,
    ("Issued Warp Per Scheduler", ""): ISSUED,
    ("Eligible Warps Per Scheduler", "warp"): ELIGIBLE,
    ("Warp Cycles Per Issued Instruction", "cycle"): CYCLES_PER_ISSUE,
    ("Block Limit Registers", "block"): "launch__occupancy_limit_registers",
    ("Block Limit Shared Mem", "block"): "launch__occupancy_limit_shared_mem",
    ("Block Limit Warps", "block"): "launch__occupancy_limit_warps",
    ("Block Limit SM", "block"): "launch__occupancy_limit_blocks",
    ("Block Limit Barriers", "block"): "launch__occupancy_limit_barriers",
}
"""The metric of each label and unit on the details page."""

LIMITS = {
    "launch__occupancy_limit_registers": "registers",
    "launch__occupancy_limit_shared_mem": "shared memory",
    "launch__occupancy_limit_warps": "the block's size",
    "launch__occupancy_limit_blocks": "the number of blocks",
    "launch__occupancy_limit_barriers": "barriers",
}
"""The limits of the number of blocks on a multiprocessor."""

STALLED = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
STALLED_LATENCY = "smsp__average_warp_latency_issue_stalled_{}.ratio"
STALLED_PERCENT = "smsp__warp_issue_stalled_{}_per_warp_active.pct"
STALLS = {
    "long_scoreboard": "data from L1, L2 or device memory",
    "short_scoreboard": "shared memory or special functions",
    "lg_throttle": "the queue of global and local memory",
    "mio_throttle": "the queue of shared memory and special functions",
    "tex_throttle": "the texture queue",
    "drain": "its last writes to memory",
    "membar": "a memory barrier",
    "math_pipe_throttle": "a busy arithmetic pipe",
    "barrier": "other warps at a barrier",
    "wait": "a fixed latency between instructions",
    "branch_resolving": "a branch's target",
    "no_instruction": "instructions to be fetched",
    "imc_miss": "a constant that was not in its cache",
    "dispatch_stall": "the dispatcher",
    "sleeping": "its own sleep",
    "gmma": "other warps of its group",
    "misc": "something else",
}
"""The reasons for which a warp waits. `not_selected` is not one, because the warp was ready."""


_BLANKS = " \u00a0\u202f\u2009'\u2019"
_NUMBER = re.compile(rf"[+-]?\d[\d.,{_BLANKS}]*(?:[eE][+-]?\d+)?")
_PREFIXES = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "K": 1e3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_LEAST, _MOST = 1e-30, 1e30
_BASES = {
    "second": "second",
    "s": "second",
    "sec": "second",
    "byte": "byte",
    "bytes": "byte",
    "B": "byte",
    "hz": "hz",
    "Hz": "hz",
    "cycle": "cycle",
    "inst": "inst",
}
_WHOLE = {"%": ("%", 1.0), "": ("", 1.0), "Ghz": ("hz", 1e9), "Mhz": ("hz", 1e6)}


def decimal_sign(values: Iterable[str]) -> str:
    """Return the decimal separator in a file's numbers, "." or ","; "." if unknown.

    A sign that occurs twice in a number separates thousands, and so does the first of two different
    signs. A sign that is not followed by three digits, or that follows a single 0, is the decimal
    separator. If the numbers contradict each other, the majority counts.
    """
    votes = {".": 0, ",": 0}
    other = {".": ",", ",": "."}
    for value in values:
        value = value.strip().rstrip("%").strip()
        if _NUMBER.fullmatch(value) is None:
            continue
        digits = value.lstrip("+-").split("e")[0].split("E")[0]
        signs = [letter for letter in digits if letter in ".,"]
        if not signs:
            continue
        last = signs[-1]
        if len(set(signs)) == 2:
            votes[last] += 1
        elif len(signs) > 1:
            votes[other[last]] += 1
        else:
            before, after = digits.split(last)
            if len(after) != 3 or before == "0" or len(before.strip(_BLANKS)) > 3:
                votes[last] += 1
    return "," if votes[","] > votes["."] else "."


def number(text: str, decimal: str = ".") -> float | int | None:
    """Parse a number printed by ncu. Returns an int or a float; None if it is not a number."""
    text = text.strip().rstrip("%").strip()
    if _NUMBER.fullmatch(text) is None:
        return None
    for sign in _BLANKS + ("." if decimal == "," else ","):
        text = text.replace(sign, "")
    text = text.replace(decimal, ".")
    try:
        value = float(text) if "." in text or "e" in text.lower() else int(text)
    except ValueError:
        return None
    # No device counter exceeds this, so larger numbers are damaged.
    return value if value == 0 or _LEAST < abs(value) < _MOST else None


def in_base_unit(value: float, unit: str) -> tuple[float, str]:
    """Convert a value to seconds, bytes or hertz: 1.5 "Kbyte" is 1500 "byte".

    ncu's prefixes are powers of 1000. Unknown units are not changed.
    """
    factor, names = 1.0, []
    for at, part in enumerate(unit.strip().split("/")):
        name, size = _base(part.strip())
        factor = factor * size if at == 0 else factor / size
        names.append(name)
    named = "/".join(names)
    if named == "cycle/second":
        named = "hz"
    scaled = value if factor == 1.0 else value * factor
    return scaled, named


def _base(unit: str) -> tuple[str, float]:
    if unit in _WHOLE:
        return _WHOLE[unit]
    if unit in _BASES:
        return _BASES[unit], 1.0
    if unit[:1] in _PREFIXES and unit[1:] in _BASES:
        return _BASES[unit[1:]], _PREFIXES[unit[0]]
    return unit, 1.0


# --- The file ---


_METRIC = ("Metric Name", "Metric Unit", "Metric Value")
_LIST_OF_THREE = re.compile(r"\(?\s*(\d+)\s*,\s*(\d+)\s*,\s*(\d+)\s*\)?")
_PERMISSION = re.compile(r"ERR_NVGPUCTRPERM")
_NO_KERNELS = re.compile(r"No kernels were profiled")
_ERROR = re.compile(r"^==ERROR==\s*(.+)$", re.MULTILINE)
_MOST_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Measured:
    """One launch of a kernel, measured by ncu."""

    number: int
    """ncu's own id, in the order of launches."""
    name: str
    grid: tuple[int, int, int] | None
    block: tuple[int, int, int] | None
    metrics: dict[str, float | int]
    """Values by the metric's name, in seconds, bytes, hertz, percent or plain counts."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The contents of a file of ncu."""

    path: str
    kernels: list[Measured]
    left_out: dict[str, int] = field(default_factory=dict)
    """Rows and values that are not in `kernels`, counted by cause."""
    incomplete: str | None = None
    """A sentence if the file ends in the middle of a row, otherwise None."""


Cause = Literal["permission", "no_match", "ncu", "empty", "format"]
"""Why a file contains no kernels: ncu may not read the counters, no kernel had a requested name,
ncu failed in another way, the file is empty, or it is not a CSV file of ncu with kernels."""


class NoKernelsError(TraceError):
    """A file of ncu contains no kernels."""

    def __init__(self, path: str, cause: Cause, reason: str) -> None:
        super().__init__(f"{path} {reason}")
        self.cause = cause


def read_ncu(path: str | Path) -> Reading:
    """Read a CSV file that ncu wrote, even if it contains other output of the program.

    Raises TraceError if the file cannot be read, is a report instead of CSV, or contains no kernel
    (NoKernelsError). If the file contains an error message of ncu, the error says what to do.
    """
    try:
        with open(path, "rb") as file:
            raw = file.read(_MOST_BYTES)
    except OSError as error:
        raise TraceError(
            f"{path} cannot be read ({error.strerror or error}): pass the CSV file that ncu wrote."
        ) from None
    if raw.startswith(b"NVR\x00") or Path(path).suffix == ".ncu-rep":
        raise TraceError(
            f"{path} is a report of ncu, not CSV: pass it with --report, which needs ncu, or turn"
            " it into CSV with `ncu --import FILE --csv --page raw`."
        )
    return parse(_decoded(raw), str(path))


def parse(text: str, path: str) -> Reading:
    """Read the text of a CSV file of ncu; raises the same errors as `read_ncu`."""
    text = text.replace("\x00", "")
    rows = list(_rows(text))
    start = next((at for at, row in enumerate(rows) if _is_head(row)), None)
    if start is None:
        raise NoKernelsError(path, *_reason(text))
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
            _count(left_out, "line that is not a row of the table")
    kernels = _long(head, body, left_out) if long else _wide(head, body, left_out)
    if not kernels:
        raise NoKernelsError(path, *_reason(text))
    return Reading(path, kernels, left_out, cut)


def _ends_whole(text: str) -> bool:
    """Whether the last line is complete, because a truncated number would be wrong."""
    line = text[text.rfind("\n") + 1 :]
    return not line or (line.endswith('"') and line.count('"') % 2 == 0)


def _decoded(raw: bytes) -> str:
    for mark, encoding in ((b"\xef\xbb\xbf", "utf-8-sig"), (b"\xff\xfe", "utf-16")):
        if raw.startswith(mark):
            return raw.decode(encoding, "replace")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        # Thousands are separated by a no-break space, in an older encoding.
        return raw.decode("cp1252", "replace")


def _rows(text: str) -> list[list[str]]:
    sign = ";" if re.search(r'^"?ID"?;', text, re.MULTILINE) else ","
    with long_cells():
        try:
            kept = (line for line in io.StringIO(text) if not line.startswith("=="))
            return [row for row in csv.reader(kept, delimiter=sign) if row]
        except csv.Error:
            # A quote is never closed, so each line is parsed separately.
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


def _reason(text: str) -> tuple[Cause, str]:
    """Return why a file contains no kernels, and the end of a sentence that explains it."""
    if _PERMISSION.search(text):
        return "permission", (
            "contains no kernels: ncu may not read the device's counters (ERR_NVGPUCTRPERM), so run"
            " it as root, or let an administrator load the driver with"
            " NVreg_RestrictProfilingToAdminUsers=0."
        )
    if _NO_KERNELS.search(text):
        return "no_match", (
            "contains no kernels: no kernel with a requested name ran, so raise --top,"
            " or check that the program runs on the device."
        )
    error = _ERROR.search(text)
    if error is not None:
        message = "".join(c if c.isprintable() else "?" for c in error[1])[:200].strip()
        return "ncu", f"contains no kernels, because ncu failed: {message}"
    if not text.strip():
        return "empty", "is empty: check what ncu printed."
    return "format", (
        "is not a CSV file of ncu with kernels: write one with"
        " `ncu --import REPORT --csv --page raw`."
    )


def _count(counts: dict[str, int], cause: str) -> None:
    counts[cause] = counts.get(cause, 0) + 1


def _long(head: list[str], body: list[list[str]], left_out: dict[str, int]) -> list[Measured]:
    """One row for each metric; rows of rules and tables have no metric."""
    at = {name: head.index(name) for name in head}
    name_at, unit_at, value_at = (at[name] for name in _METRIC)
    decimal = decimal_sign(row[value_at] for row in body if row[name_at].strip())
    found: dict[tuple[str, ...], Measured] = {}
    for row in body:
        metric = row[name_at].strip()
        if not metric:
            continue
        # The ids of each process start from 0.
        key = (row[at["Process ID"]] if "Process ID" in at else "", row[at["ID"]])
        if key not in found:
            found[key] = _kernel(row, at, len(found))
        _add(found[key].metrics, metric, row[unit_at], row[value_at], decimal, left_out)
    return list(found.values())


def _wide(head: list[str], body: list[list[str]], left_out: dict[str, int]) -> list[Measured]:
    """One row for each kernel; the row below the heading contains the units."""
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
        # Descriptions of device and launch can be text. Measured metrics have a dot in their names.
        if "." in metric or metric in _LABELS:
            _count(left_out, "value that is not a number")
        return
    scaled, base = in_base_unit(value, unit)
    # `--page details` writes labels. If one label is used for two metrics, the unit decides.
    name = BY_LABEL.get((metric, base), metric)
    metrics.setdefault(name, scaled)
