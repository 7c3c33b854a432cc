"""The highest rates of devices, from `devices.csv` or from a file of the user.

Rates are those of dense products, in TFLOP/s (TOP/s for integers), and of the device's memory, in
TB/s. Vendors give them at the highest clock, which a device does not keep under load, so no
operator reaches 100 %.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from stagespan import settings
from stagespan.errors import SettingsError, TraceError
from stagespan.trace.read.groups import values_of
from stagespan.trace.read.model import Trace
from stagespan.trace.read.view import once

_RATES = (
    *("fp64", "fp64_matrix", "fp32", "fp32_matrix", "tf32"),
    *("fp16", "bf16", "fp8", "int8", "fp4"),
)
# A device shows a little less memory than it has; a smaller part of a device has its own rates.
_LEAST_MEMORY, _MOST_MEMORY = 0.85, 1.12
# About the size of the caches of processors of servers.
_CACHED_BYTES = 1 << 25
# Names that many devices have. These are told apart by their units and memory.
_ANY_NAME = re.compile(r"^(?:AMD Radeon Graphics)?$")


_MOBILE = re.compile(r"\b(?:Laptop|Mobile|Max-Q)\b", re.IGNORECASE)


class Peaks(msgspec.Struct, frozen=True, eq=False):
    """The highest rates of one device."""

    name: str
    """The device in the table, such as "H100 SXM"."""
    vendor: str
    units: int | None
    """Multiprocessors, compute units or cores."""
    tflops: Mapping[str, float]
    """By the name of a rate, such as "bf16"; rates that are unknown are absent."""
    memory_tb_s: float | None
    source: str
    """The document that has the rates."""
    date: str
    """The date of the document."""
    cached_bytes: int = 0
    """The bytes of a call up to which they are in caches, so that the memory does not limit it."""

    def of_type(self, element: str, kernels: Iterable[str] = ()) -> tuple[str, float] | None:
        """Return the name and the rate of products of an element type, such as `c10::BFloat16`.

        Products of `float` run as fp32 or as TF32, which is 8 times as fast on some devices: the
        names of their kernels say which. None if the rate is unknown.
        """
        rate = _rate_of(element)
        if rate == "fp32":
            rate = self._single(kernels)
        if rate == "fp64" and "fp64_matrix" in self.tflops:
            rate = "fp64_matrix"
        found = self.tflops.get(rate or "")
        return None if rate is None or found is None else (rate, found)

    def _single(self, kernels: Iterable[str]) -> str | None:
        names = list(kernels)
        if "fp32_matrix" in self.tflops:
            return "fp32_matrix"
        if "tf32" not in self.tflops:
            return "fp32"
        if any(_TF32.search(name) for name in names):
            return "tf32"
        return "fp32" if any(_FP32.search(name) for name in names) else None


_TF32 = re.compile(r"tf32|tensorop_s1688|_s1688|s884|nvjet_[^_]*tst", re.IGNORECASE)
_FP32 = re.compile(
    r"sgemm|simt|scudnn|gemv|gemmSN|dot_kernel|f32f32_f32f32|ffma|_sgemm|scalar", re.IGNORECASE
)


def _rate_of(element: str) -> str | None:
    """Return the name of the rate of a C++ type's products."""
    exact = {
        "double": "fp64",
        "float": "fp32",
        "c10::Half": "fp16",
        "c10::BFloat16": "bf16",
        "signed char": "int8",
        "c10::qint8": "int8",
        "unsigned char": "int8",
    }
    if "Float8" in element:
        return "fp8"
    return "fp4" if "Float4" in element else exact.get(element)


class _Row(msgspec.Struct, frozen=True):
    pattern: re.Pattern[str]
    memory_gib: float | None
    peaks: Peaks


def peaks_of(name: str, memory_bytes: int | None = None, units: int | None = None) -> Peaks | None:
    """Return the peaks of a device by its name in a trace; None if it is unknown.

    A row of STAGESPAN_PEAKS comes before those of stagespan. A device without a name of its own is
    found by its memory and its number of units, if these fit one device only. A part of a device
    (MIG) is unknown, and a device of a laptop is not the one whose name it has. Raises
    SettingsError if the user's file cannot be read.
    """
    mobile = _MOBILE.search(name) is not None
    known = [each for each in _known_rows() if mobile == bool(_MOBILE.search(each.peaks.name))]
    rows = [*_own_rows(), *known]
    memory = None if memory_bytes is None else memory_bytes / 2**30
    if _ANY_NAME.search(name.strip()):
        same = [each for each in rows if _fits(each, memory) and each.peaks.units == units]
        rates = {(each.peaks.vendor, *sorted(each.peaks.tflops.items())) for each in same}
        return same[0].peaks if memory is not None and len(rates) == 1 else None
    if re.search(r"\bMIG\b", name):
        return None
    matching = [each for each in rows if each.pattern.search(name)]
    if memory is not None:
        matching = [each for each in matching if each.memory_gib is None or _fits(each, memory)]
    return matching[0].peaks if matching else None


def _fits(row: _Row, memory: float | None) -> bool:
    if memory is None or row.memory_gib is None:
        return False
    return _LEAST_MEMORY * row.memory_gib <= memory <= _MOST_MEMORY * row.memory_gib


@once
def device_peaks(trace: Trace) -> dict[int, Peaks | None]:
    """Return the peaks of the devices that a trace describes, by their numbers."""
    return {
        number: peaks_of(
            _text(properties.get("name")),
            _whole(properties.get("totalGlobalMem")),
            _whole(properties.get("numSms")),
        )
        for number, properties in _described(trace).items()
    }


def with_device(trace: Trace, name: str) -> Trace:
    """Return the trace as if it had been recorded on devices of this name.

    Raises TraceError if the peaks of such a device are unknown.
    """
    if peaks_of(name) is None:
        raise TraceError(
            f"The peaks of {name!r} are unknown: pass a name as torch.cuda.get_device_name()"
            " returns it, or name a file with the peaks (STAGESPAN_PEAKS)."
        )
    numbers = values_of(trace.events.device[trace.events.device.exist()]).tolist()
    devices = [{"id": number, "name": name} for number in numbers or [0]]
    return replace(trace, metadata={**trace.metadata, "deviceProperties": devices})


# The beginnings of the names of calls, as each vendor's runtime has them.
_CALLS = {"cuda": "NVIDIA", "cu": "NVIDIA", "hip": "AMD", "ur": "Intel", "acl": "Huawei"}


@once
def vendor_of(trace: Trace) -> str | None:
    """Return the vendor of a trace's devices, by their names or by the calls of the runtime."""
    vendors = {each.vendor for each in device_peaks(trace).values() if each is not None}
    if not vendors:
        used = values_of(trace.events.name[trace.rows_of(["cuda_runtime", "cuda_driver"])])
        names = [trace.names[code] for code in used.tolist()]
        vendors = {
            vendor
            for prefix, vendor in _CALLS.items()
            if any(re.match(rf"{prefix}[A-Z]", name) for name in names)
        }
    return vendors.pop() if len(vendors) == 1 else None


_PROFILERS = {
    "NVIDIA": "Nsight Compute",
    "AMD": "rocprof-compute",
    "Intel": "VTune",
    "Huawei": "msprof op",
}


def kernel_profiler(vendor: str | None) -> str:
    """Return the profiler of a vendor that measures single kernels."""
    return _PROFILERS.get(vendor or "", "A kernel profiler")


def host_peaks(trace: Trace) -> Peaks | None:
    """Return the peaks of the processors that stagespan measured while it made a trace."""
    written = trace.metadata.get("stagespan_peaks")
    if not isinstance(written, dict):
        return None
    rates = {
        name: float(rate)
        for name, rate in written.items()
        if name in (*_RATES, "memory_tb_s") and isinstance(rate, (int, float)) and 0 < rate < 1e12
    }
    memory = rates.pop("memory_tb_s", None)
    return Peaks(
        name="the processors of its machine",
        vendor="",
        units=None,
        tflops=rates,
        memory_tb_s=memory,
        source="measured when it was recorded",
        date="",
        cached_bytes=_CACHED_BYTES,
    )


def device_names(trace: Trace) -> dict[int, str]:
    """Return the names of the devices that a trace describes, by their numbers; "" if unknown."""
    return {number: _text(each.get("name")) for number, each in _described(trace).items()}


def _described(trace: Trace) -> dict[int, dict[str, Any]]:
    properties = trace.metadata.get("deviceProperties")
    if not isinstance(properties, list):
        return {}
    described = [each for each in properties if isinstance(each, dict) and each]
    return {
        number if (own := _whole(each.get("id"))) is None else own: each
        for number, each in enumerate(described)
    }


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


# --- the tables ---


@cache
def _known_rows() -> tuple[_Row, ...]:
    file = Path(__file__).with_name("devices.csv")
    return _rows(file.read_text(encoding="utf-8"), "devices.csv")


def _own_rows() -> tuple[_Row, ...]:
    path = settings.get("STAGESPAN_PEAKS")
    if path is None:
        return ()
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"STAGESPAN_PEAKS={path!r} cannot be read ({error}): name a CSV file with peaks."
        ) from None
    return _rows(text, path)


def _rows(text: str, path: str) -> tuple[_Row, ...]:
    return tuple(
        _row(row, f"{path}, line {line}")
        for line, row in enumerate(csv.DictReader(text.splitlines()), 2)
    )


def _row(row: Mapping[str, str | None], where: str) -> _Row:
    name = row.get("name") or row.get("pattern") or ""
    try:
        pattern = re.compile(row.get("pattern") or re.escape(name), re.IGNORECASE)
    except re.error as error:
        raise SettingsError(
            f"{where}: the pattern {row.get('pattern')!r} is not valid: {error}."
        ) from None
    if not name:
        raise SettingsError(f"{where}: a device has neither a name nor a pattern: add a name.")

    def number(column: str) -> float | None:
        written = (row.get(column) or "").strip()
        if not written:
            return None
        try:
            figure = float(written)
        except ValueError:
            figure = 0.0
        if not 0 < figure < 1e12:
            raise SettingsError(
                f"{where}: {column} of {name} is {written!r}: write a positive number."
            )
        return figure

    units = number("units")
    rates = {rate: value for rate in _RATES if (value := number(rate)) is not None}
    return _Row(
        pattern,
        number("memory_gib"),
        Peaks(
            name=name,
            vendor=row.get("vendor") or "",
            units=None if units is None else int(units),
            tflops=rates,
            memory_tb_s=number("memory_tb_s"),
            source=row.get("source") or where,
            date=row.get("date") or "",
        ),
    )
