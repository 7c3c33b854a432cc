"""Checks of the parts of a host's time, of what a program does once, and of gains."""

from __future__ import annotations

import re
from collections.abc import Iterator

from checks import RIGHT, WRONG, Claim, Page, check, equals, lies_between
from raw_trace import Interval, RawTrace, clipped, host_computing, length

_COMPILES = r" \(dynamo_timed\)$|triton/compiler/compiler\.py\(\d+\): compile$|cpp_extension\.py"
_LOADS_KERNELS = r"Lazy Function Loading|ModuleLoad|LibraryLoad"
_CAPTURES = r"BeginCapture|EndCapture|GraphInstantiate"
# Calls that take longer are not those of a warm program.
_LONG_NS = 200_000
_ONCE = ("start_up", "loader_start", "kernel_loading", "first_compilation", "graph_capture")


@check("host")
def host(page: Page) -> Iterator[Claim]:
    """The parts of a host's time: operators, and the sum."""
    told = page.told["host"].get("parts_us")
    if told is None or page.base is None:
        return
    begin, end = page.base
    whole = (end - begin) / 1000
    yield equals("host", "parts", sum(told.values()), whole, 0.01)
    if page.raw.named(_COMPILES):
        return
    works = clipped(host_computing(page.raw, nodes=True), begin, end)
    computing = length(works) / 1000
    # Operators that load data, or that a loader starts with, count as that.
    other = told.get("data_loading", 0.0) + told.get("loader_start", 0.0)
    told_us = told.get("operators", 0.0)
    yield lies_between("host", "operators", told_us, computing - other, computing, 0.01)
    verdict = page.told["verdict"]
    if verdict.get("verdict") == "computing":
        percent = 100 * computing / whole
        yield lies_between("host", "computes %", verdict["percent"], 0.0, percent, 0.01)


@check("once")
def once(page: Page) -> Iterator[Claim]:
    """What a program does once: no longer than the events that show it, and without a gain."""
    parts = page.told["verdict"].get("parts_us", {})
    if not page.raw.device or page.base is None:
        return
    begin, end = page.base
    raw = page.raw
    shown = {
        "first_compilation": [(e.begin, e.end) for e in raw.named(_COMPILES)],
        "kernel_loading": [
            (e.begin, e.end) for e in raw.named(_LOADS_KERNELS) if e.category in _HOST
        ],
        "graph_capture": _captures(raw),
    }
    for part, intervals in shown.items():
        if part in parts:
            most = length(clipped(intervals, begin, end)) / 1000 * len(raw.devices)
            yield lies_between("once", part, parts[part], 0.0, most, 0.01)
    if parts.get("start_up"):
        # Within long calls, or the first call of an operator, or a warm-up.
        long = [(e.begin, e.end) for e in raw.calls if e.end - e.begin > _LONG_NS]
        seen = {e.name: e for e in sorted(raw.operators, key=lambda e: -e.begin)}
        long += [(e.begin, e.end) for e in seen.values()]
        long += [(e.begin, e.end) for e in raw.named(r"warm[-_ ]?up")]
        most = length(clipped(long, begin, end)) / 1000 * len(raw.devices)
        yield lies_between("once", "start_up", parts["start_up"], 0.0, most, 0.01)
    for finding in page.told["findings"]:
        if finding["code"] in ("idle.start_up", "compiled.in_window"):
            state = RIGHT if finding["gain"] is None else WRONG
            yield Claim("once", f"{finding['code']} has no gain", str(finding["gain"]), state)
    start = page.told["idle"].get("start_up")
    for place in start["in"] if start else ():
        same = sorted(raw.named(f"^{re.escape(place['name'])}$"), key=lambda e: e.begin)
        is_mark = re.search(r"warm[-_ ]?up", place["name"], re.IGNORECASE)
        most = length([(e.begin, e.end) for e in (same if is_mark else same[:1])]) / 1000
        yield lies_between("once", place["name"], place["idle_us"], 0.0, most, 0.01)


_HOST = ("overhead", "cuda_runtime", "cuda_driver", "hip_runtime")


def _captures(raw: RawTrace) -> list[Interval]:
    """Return the time from each call that begins a capture to the last call that ends one."""
    calls = sorted(raw.named(_CAPTURES, raw.calls), key=lambda each: each.begin)
    found: list[Interval] = []
    since = None
    for call in calls:
        if "Begin" in call.name:
            since = call.begin if since is None else since
        else:
            found.append((call.begin if since is None else since, call.end))
            since = None if "Instantiate" in call.name or "End" in call.name else since
    return found


@check("gains")
def gains(page: Page) -> Iterator[Claim]:
    """Each gain fits into the base without what is done once, and into the time that it is of."""
    base = page.base
    if base is None:
        return
    whole = (base[1] - base[0]) / 1000
    parts = page.told["verdict"].get("parts_us", {})
    lost = sum(parts.get(part, 0.0) for part in _ONCE) if page.raw.device else 0.0
    idle = None
    if len(page.raw.devices) == 1:
        idle = whole - length(clipped(page.raw.intervals(), *base)) / 1000
    for finding in page.told["findings"]:
        gain, code = finding["gain"], finding["code"]
        if gain is None:
            continue
        yield lies_between("gains", code, gain["time_us"], 0.0, whole - lost, 0.01)
        if gain["now_us"] is not None:
            yield lies_between("gains", f"{code} now", gain["now_us"], 0.0, gain["time_us"], 0.01)
        if code.startswith("idle.") and idle is not None:
            yield lies_between("gains", f"{code} idle", gain["time_us"], 0.0, idle - lost, 0.01)
        percent = 100 * (gain["time_us"] if gain["now_us"] is None else gain["now_us"]) / whole
        if not code.endswith("communication"):
            state = WRONG if finding["severity"] == "high" and percent < 5 else RIGHT
            yield Claim("gains", f"{code} is {finding['severity']}", f"{percent:.2f} %", state)
