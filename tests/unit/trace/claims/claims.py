"""The claims of a page, each compared with what a script finds in the raw events."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

from checks import RIGHT, UNCHECKED, WRONG, Claim, Page, check, equals, lies_between
from raw_trace import Event, Interval, Overlap, RawTrace, clipped, length, union

# --- The file, the steps, and the use of the device ---


@check("window")
def window(page: Page) -> Iterator[Claim]:
    """Entries and length of the trace."""
    told = page.told["trace"]
    yield equals("window", "entries", told["entries"], len(page.raw.entries), 0)
    if not told["ignored_us"]:
        yield equals("window", "µs", told["window_us"], page.raw.end / 1000, 0.001)


@check("steps")
def steps(page: Page) -> Iterator[Claim]:
    """Number, length and limits of the steps that the profiler has marked."""
    told = page.told["steps"]
    if "count" not in told:
        return
    if told["source"] != "profiler":
        marks = [each for each in page.raw.marks if each.duration > 0]
        state = WRONG if len(marks) > 1 else RIGHT
        yield Claim("steps", told["how"], f"{len(marks)} marks of the profiler", state)
        return
    steps = page.raw.steps
    last = page.raw.marks[-1] if page.raw.marks else None
    if last and page.raw.device and not page.raw.launched_between(last.begin, last.end):
        steps = steps[:-1]  # the profiler had stopped, or the program ended there
    yield equals("steps", "count", told["count"], len(steps), 0)
    lengths = sorted(end - begin for begin, end in steps)
    middle = (lengths[(len(lengths) - 1) // 2] + lengths[len(lengths) // 2]) / 2
    yield equals("steps", "median µs", told["step_us"]["median"], middle / 1000, 0.001)
    yield equals("steps", "shortest µs", told["step_us"]["min"], lengths[0] / 1000, 0.001)
    yield equals("steps", "longest µs", told["step_us"]["max"], lengths[-1] / 1000, 0.001)
    for number, step in enumerate(told["steps"]):
        begin, end = steps[number]
        yield equals("steps", f"{step['name']} µs", step["step_us"], (end - begin) / 1000, 0.001)
        yield equals("steps", f"{step['name']} begins", step["time_us"], begin / 1000, 0.001)
        if page.raw.device:
            compute = length(clipped(page.raw.intervals("compute"), begin, end)) / 1000
            told_us = step["parts_us"]["computation"]
            yield equals("steps", f"{step['name']} computes", told_us, compute, 0.001)
        total = sum(step["parts_us"].values())
        yield equals("steps", f"parts of {step['name']}", total, step["step_us"], 0.01)
    if page.base is not None and page.told["verdict"]["base"]["of"] == "steps":
        yield equals("steps", "base begins", page.base[0], steps[0][0], 1)
        yield equals("steps", "base ends", page.base[1], steps[-1][1], 1)


def _uses(raw: RawTrace, begin: int, end: int) -> dict[str, float]:
    """Return the parts of a device's time in µs."""
    compute = length(clipped(raw.intervals("compute"), begin, end))
    active = length(clipped(raw.intervals("compute", "communication"), begin, end))
    busy = length(clipped(raw.intervals(), begin, end))
    return {
        "computing": compute / 1000,
        "communicating": (active - compute) / 1000,
        "copying": (busy - active) / 1000,
        "busy": busy / 1000,
    }


@check("device use")
def device_use(page: Page) -> Iterator[Claim]:
    """The parts of the bar and of the verdict: computing, communicating, copying, idle."""
    told = page.told["verdict"]
    if not page.raw.device or "parts_us" not in told or page.base is None:
        return
    devices = len(page.raw.devices)
    if devices > 1:
        yield Claim("device use", "several devices", str(devices), UNCHECKED)
        return
    found = _uses(page.raw, *page.base)
    for part in ("computing", "communicating", "copying"):
        yield equals("device use", part, told["parts_us"].get(part, 0.0), found[part], 0.01)
    whole = (page.base[1] - page.base[0]) / 1000
    yield equals("device use", "whole", told["whole_us"], whole, 0.01)
    parts = sum(told["parts_us"].values())
    yield equals("device use", "the parts sum to the whole", parts, whole, 0.01)
    use = page.told["device_use"]
    total = _uses(page.raw, 0, page.raw.end)
    yield equals("device use", "busy in the trace", use["busy_us"], total["busy"], 0.01)
    yield equals("device use", "exposed", use["exposed_comm_us"], total["communicating"], 0.01)
    yield equals("device use", "exposed copies", use["exposed_memcpy_us"], total["copying"], 0.01)


_OF_VERDICT = {
    "device-busy": "computing", "communication-bound": "communicating", "copy-bound": "copying",
}  # fmt: skip
_HOST_CAUSES = (
    "launch", "synchronisation", "between_steps", "host_work", "host_unseen", "data_loading",
    "memory_allocation", "compilation", "kernel_loading", "runtime_call", "profiler",
    "start_up", "loader_start", "graph_capture", "first_compilation", "earlier_work",
)  # fmt: skip


@check("verdict")
def verdict(page: Page) -> Iterator[Claim]:
    """The verdict's word: the largest loss if it takes a quarter, or else the largest part."""
    told = page.told["verdict"]
    if not page.raw.device or page.base is None or "verdict" not in told:
        return
    if len(page.raw.devices) > 1:
        return
    word = told["verdict"]
    found = _uses(page.raw, *page.base)
    whole = (page.base[1] - page.base[0]) / 1000
    idle = whole - found["busy"]
    late = _Idle(page, *page.base)
    outside = late.before + late.after
    least, most = (late.host_least + outside) / 1000, (late.host_most + outside) / 1000
    text = f"{found['computing']:,.1f} computing, {idle:,.1f} idle, {least:,.1f} to {most:,.1f}"
    # A loss counts if it takes more time than computing, or a quarter of all time.
    enough = min(found["computing"], 0.25 * whole)
    if word == "device-busy":
        losses = (found["communicating"], found["copying"], late.host_least / 1000)
        state = RIGHT if max(losses) <= max(enough, 0.25 * whole) else WRONG
    elif word in _OF_VERDICT:
        state = RIGHT if found[_OF_VERDICT[word]] >= enough else WRONG
    elif word in ("host-bound", "launch-bound"):
        state = RIGHT if most >= enough else WRONG
    else:
        state = RIGHT if least < 0.5 * idle else WRONG
    yield Claim("verdict", word, text, state)


# --- Causes of idle time ---


class _Idle:
    """The gaps of a range by what the raw launches say. Times in ns."""

    # Calls whose device work begins so soon after them count as launches of the host.
    _LATENCY_NS = 50_000

    def __init__(self, page: Page, begin: int, end: int) -> None:
        raw = page.raw
        self.gaps = [
            (max(gap.begin, begin), min(gap.end, end), gap.next)
            for gap in raw.gaps
            if gap.begin < end and gap.end > begin
        ]
        first, last = raw.device[0].begin, max(each.end for each in raw.device)
        self.before = max(min(first, end) - begin, 0)
        self.after = max(end - max(last, begin), 0)
        seen: set[Any] = set()
        first_of: dict[int, Event] = {}
        for event in raw.device:
            call = raw.launch(event)
            if call is not None and id(call) not in seen:
                seen.add(id(call))
                first_of[id(call)] = event
        self.graph = self.unknown = self.queued = 0
        self.host_least = self.host_most = self.may_be_unexplained = 0
        self.contradicted = 0
        known = [
            (event.begin, call) for event in raw.device if (call := raw.launch(event)) is not None
        ]  # by begin
        at = 0
        for gap_begin, gap_end, event in self.gaps:
            time = gap_end - gap_begin
            call = raw.launch(event)
            while at < len(known) and known[at][0] < gap_end:
                at += 1
            if call is None:
                self.unknown += time
                self.may_be_unexplained += time
                self.host_most += time
                if at < len(known) and known[at][1].begin >= gap_begin:
                    self.contradicted += time
            elif first_of[id(call)] is not event:
                self.graph += time
                self.host_most += min(time, self._LATENCY_NS)
            else:
                issued = min(max(call.begin, gap_begin), gap_end)
                self.host_least += issued - gap_begin
                if call.end > gap_begin or time <= self._LATENCY_NS:
                    self.host_most += time
                if gap_end - call.end > self._LATENCY_NS or call.end <= gap_begin:
                    self.may_be_unexplained += gap_end - issued

    def near(self, raw: RawTrace, events: list[Event]) -> int:
        """Return the time of the gaps in which one of these events was open."""
        spans = Overlap([(each.begin, each.end) for each in events])
        # The clocks of host and device can differ by 5 µs.
        return sum(end - begin for begin, end, _ in self.gaps if spans.within(begin - 5_000, end))


_WAITS = r"synchroni|memcpy|item|nonzero|Event_?Wait|QueueFinish"
_ALLOCATES = r"malloc|free|MemCreate|MemMap|MemRelease|MemUnmap|AddressReserve|HostAlloc"
_LOADS = r"data[_ ]?load|__next__|next[_ ]?(?:batch|data)|load[_ ]?(?:batch|data)"


def _at_edges(page: Page, events: list[Event]) -> int:
    """Return the time of some events before the device's first work and after its last, in ns."""
    assert page.base is not None
    begin, end = page.base
    first = min(each.begin for each in page.raw.device)
    last = max(each.end for each in page.raw.device)
    own = [(each.begin, each.end) for each in events]
    before = length(union(clipped(own, begin, max(begin, first))))
    return before + length(union(clipped(own, min(end, last), end)))


@check("idle causes")
def idle_causes(page: Page) -> Iterator[Claim]:
    """The causes of idle time, by launches and by what the host did meanwhile."""
    told = page.told["verdict"]
    if not page.raw.device or page.base is None or "parts_us" not in told:
        return
    if len(page.raw.devices) > 1:
        return
    raw, parts = page.raw, told["parts_us"]
    if not any(raw.launch(event) for event in raw.device):
        yield Claim("idle causes", "no launches in the trace", "", UNCHECKED)
        return
    idle = _Idle(page, *page.base)
    edges = parts.get("preparation", 0.0) + parts.get("finishing", 0.0)
    host = sum(parts.get(cause, 0.0) for cause in _HOST_CAUSES) + edges
    outside = idle.before + idle.after
    # If the launch of the first work is unknown, so is what it waited for.
    before = idle.before if raw.launch(raw.device[0]) is not None else 0
    least = (idle.host_least + before + idle.after) / 1000
    most = (idle.host_most + outside) / 1000
    yield lies_between("idle causes", "because of the host", host, least, most, 0.05)
    # The time from the first launch to its start is a cause of its own.
    yield lies_between("idle causes", "before and after", edges, 0, outside / 1000, 0.05)
    graph = parts.get("graph", 0.0)
    if _only_streams(raw):
        # One call of these runtimes can launch several events that are not a graph.
        yield lies_between("idle causes", "within graphs", graph, 0, idle.graph / 1000, 0.05)
    else:
        yield equals("idle causes", "within graphs", graph, idle.graph / 1000, 0.05)
    unexplained = parts.get("not_traced", 0.0)
    yield lies_between(
        "idle causes", "unexplained", unexplained, 0, idle.may_be_unexplained / 1000, 0.05
    )
    unexplained -= (idle.before - before) / 1000
    if unexplained > 0.05:
        # The next work with a known launch decides, not only the next work.
        contradicted = idle.contradicted / 1000
        state = WRONG if unexplained > idle.unknown / 1000 - 0.9 * contradicted + 0.05 and (
            contradicted > 0.1 * unexplained
        ) else RIGHT  # fmt: skip
        yield Claim(
            "idle causes", f"nothing is known about {unexplained:,.3f}",
            f"the next known launch came after the gap began in {contradicted:,.3f}", state,
        )  # fmt: skip
    long_calls = [each for each in raw.calls if each.duration > 200_000]
    marks = raw.marks or raw.named(r"^execute_|^step\[|^Optimizer\.step")
    edges_of_steps = [each._replace(end=each.begin + 1) for each in marks]
    edges_of_steps += [each._replace(begin=each.end, end=each.end + 1) for each in marks]
    evidence = {
        "synchronisation": raw.named(_WAITS, raw.calls) + raw.named(_WAITS, raw.operators),
        "memory_allocation": raw.named(_ALLOCATES, raw.calls),
        "data_loading": raw.named(_LOADS),
        "runtime_call": long_calls,
        "compilation": raw.named("dynamo_timed"),
    }
    for cause, events in evidence.items():
        if parts.get(cause):
            # A wait that ended shortly before the gap delays the next launch too.
            most = (idle.near(raw, events) + _at_edges(page, events)) / 1000
            yield lies_between("idle causes", cause, parts[cause], 0, most, 0.05)
    if parts.get("between_steps") and edges_of_steps:
        before = [each._replace(end=each.end + 100_000_000) for each in edges_of_steps]
        most = idle.near(raw, before) / 1000
        yield lies_between("idle causes", "between_steps", parts["between_steps"], 0, most, 0.05)


# --- Kernels, launches, memory ---


@check("kernels")
def kernels(page: Page) -> Iterator[Claim]:
    """Number and time of device events, of each kernel, and of the kinds."""
    raw, told = page.raw, page.told["kernels"]
    if not raw.device or "time_us" not in told:
        return
    ranges: list[Interval] = [(0, raw.end + 1)]
    if page.base is not None:
        ranges.append(page.base)
    chosen = None
    for begin, end in ranges:
        events = [each for each in raw.device if begin <= each.begin < end]
        if len(events) == told["count"]:
            chosen = events
    if chosen is None:
        launched = raw.launched_between(*raw_step_range(page))
        if len(launched) == told["count"]:
            chosen = launched
    is_cut = page.told["trace"]["ignored_us"] or page.told["trace"]["doubtful_us"]
    state = UNCHECKED if _only_streams(raw) or is_cut else WRONG
    if chosen is None:
        text = f"{told['count']:,} device events"
        yield Claim("kernels", text, f"{len(raw.device):,} in the trace", state)
        return
    yield equals("kernels", "device events", told["count"], len(chosen), 0)
    total = sum(each.duration for each in chosen) / 1000
    yield equals("kernels", "µs of device events", told["time_us"], total, 0.01)
    times: dict[str, int] = {}
    counts: dict[str, int] = {}
    for each in chosen:
        times[each.name] = times.get(each.name, 0) + each.duration
        counts[each.name] = counts.get(each.name, 0) + 1
    for row in told["top"][:20]:
        if row["name"] in times:
            found = times[row["name"]] / 1000
            yield equals("kernels", row["name"][:40], row["time_us"], found, 0.01)
            yield equals("kernels", row["name"][:40], row["count"], counts[row["name"]], 0)
        else:
            yield Claim("kernels", row["name"][:60], "no such event", WRONG)
    shares = sum(row["percent"] for row in told["by_kind"])
    yield equals("kernels", "shares of the kinds", shares, 100.0, 0.01)


def raw_step_range(page: Page) -> Interval:
    """Return the host's time from the first mark to the last."""
    marks = page.raw.marks
    return (marks[0].begin, marks[-1].end) if marks else (0, page.raw.end)


def _only_streams(raw: RawTrace) -> bool:
    """Whether device work is found by streams and not by categories."""
    return any(each.category == "mtia_ccp_events" for each in raw.device)


_KIND_OF_OPERATOR = {
    "matmul": r"^aten::(?:mm|addmm|bmm|baddbmm)$",
    "attention": r"^aten::_(?:scaled_dot_product_)?(?:flash|efficient|cudnn)_attention",
    "norm": r"^aten::(?:native_layer_norm|native_batch_norm|native_group_norm|cudnn_batch_norm)$",
}


@check("kinds of kernels")
def kinds(page: Page) -> Iterator[Claim]:
    """Kernels that an operator of a known kind launched have that kind."""
    raw, told = page.raw, page.told["kernels"]
    if not raw.device or "top" not in told:
        return
    of_names: dict[str, dict[str, int]] = {}
    for event in raw.device:
        operator = raw.operator(event)
        if operator is None or not raw.is_kernel(event):
            continue
        for kind, pattern in _KIND_OF_OPERATOR.items():
            if re.match(pattern, operator.name):
                of = of_names.setdefault(event.name, {})
                of[kind] = of.get(kind, 0) + 1
                break
        else:
            of_names.setdefault(event.name, {})["other"] = 1
    helpers = re.compile(r"reduce|memset|fill|copy|elementwise|transpose|splitk", re.IGNORECASE)
    for row in told["top"][:20]:
        of = of_names.get(row["name"], {})
        if len(of) == 1 and "other" not in of and not helpers.search(row["name"]):
            kind = next(iter(of))
            state = RIGHT if row["kind"] == kind else WRONG
            text = f"{row['name'][:50]} is {row['kind']}"
            yield Claim("kinds of kernels", text, f"launched by operators of {kind}", state)


@check("launches")
def launches(page: Page) -> Iterator[Claim]:
    """The number of device events with and without a launch, and the median delay."""
    raw, told = page.raw, page.told["launches"]
    if "launched" not in told or not raw.device:
        return
    without = sum(raw.launch(event) is None for event in raw.device)
    if _only_streams(raw):
        # Launches are found by streams, so that a script finds at most as many.
        state = RIGHT if told["without_launch"] <= without else WRONG
        yield Claim("launches", f"{told['without_launch']} without", str(without), state)
        return
    yield equals("launches", "without a launch", told["without_launch"], without, 0)


@check("memory")
def memory(page: Page) -> Iterator[Claim]:
    """The peak of each device's memory, from the profiler's memory events."""
    told = page.told["memory"]
    if "devices" not in told:
        return
    peaks: dict[tuple[int, int], int] = {}
    for entry in page.raw.entries:
        if entry.get("name") == "[memory]" and "Total Allocated" in entry.get("args", {}):
            arguments = entry["args"]
            device = (int(arguments["Device Type"]), int(arguments["Device Id"]))
            peaks[device] = max(peaks.get(device, 0), int(arguments["Total Allocated"]))
    for row in told["devices"]:
        if row["device"] == "cpu" or not row["total_known"]:
            continue
        index = int(row["device"].rpartition(":")[2])
        found = [peak for (kind, number), peak in peaks.items() if kind != 0 and number == index]
        if found:
            yield equals("memory", f"peak of {row['device']}", row["peak_bytes"], max(found), 0)


# --- Rates ---

_PEAKS = {
    # dense TFLOP/s of bf16 and fp16, and TB/s of the memory, from the vendors' data sheets
    "H100 80GB HBM3": (989.4, 3.35), "MI300X": (1307.4, 5.3), "A100-SXM4": (312.0, 2.039),
    "B200": (2250.0, 8.0),
}  # fmt: skip


def peaks_of(page: Page) -> tuple[float | None, float | None]:
    """Return the peaks of the page's device; None if it is not in the list."""
    devices = [each["device"] for each in page.told["rates"].get("devices", [])]
    found = (peaks for name, peaks in _PEAKS.items() if any(name in each for each in devices))
    return next(found, (None, None))


def numbers(dims: Any) -> list[list[int]]:
    return [[int(n) for n in each] if isinstance(each, list) else [] for each in dims]


def _pairs(queries: int, keys: int, is_causal: bool) -> int:
    """Return how many pairs of a query and a key a causal mask leaves."""
    if not is_causal:
        return queries * keys
    return sum(min(query + 1, keys) for query in range(queries))


def products(operator: Event, is_causal: bool) -> int | None:
    """Return the FLOPs of a product or of attention, by hand."""
    dims = operator.arguments.get("Input Dims", operator.arguments.get("Input dims"))
    if not dims:
        return None
    try:
        d = numbers(dims)
        if operator.name == "aten::mm":
            return 2 * d[0][0] * d[0][1] * d[1][1]
        if operator.name == "aten::addmm":
            return 2 * d[1][0] * d[1][1] * d[2][1]
        if operator.name == "aten::bmm":
            return 2 * d[0][0] * d[0][1] * d[0][2] * d[1][2]
        if operator.name == "aten::baddbmm":
            return 2 * d[1][0] * d[1][1] * d[1][2] * d[2][2]
        if operator.name == "aten::_scaled_dot_product_flash_attention":
            causal = str(operator.arguments.get("Concrete Inputs", [""] * 5)[4]) == "True"
            b, h, s, e = d[0]
            return 4 * b * h * e * _pairs(s, d[1][2], causal)
        if operator.name == "aten::_flash_attention_forward":
            b, s, h, e = d[0]
            return 4 * b * h * e * _pairs(s, d[1][1], is_causal)
    except (IndexError, ValueError, TypeError):
        return None
    return None


@check("rates")
def rates(page: Page) -> Iterator[Claim]:
    """FLOPs, TFLOP/s and shares of the peak of products and attention, by hand."""
    told = page.told["rates"]
    if "by_shape" not in told or page.base is None or not page.raw.device:
        return
    raw, (begin, end) = page.raw, page.base
    causal = causal_flash(raw)
    found: dict[tuple[str, str], list[int]] = {}
    calls: dict[tuple[str, str], set[int]] = {}
    for event in raw.device:
        operator = raw.operator(event)
        if operator is None or not (begin <= event.begin and event.end <= end):
            continue
        flops = products(operator, id(operator) in causal)
        if flops is None:
            continue
        d = numbers(operator.arguments.get("Input Dims", operator.arguments.get("Input dims")))
        shape = ", ".join("x".join(map(str, each)) for each in d if each)
        sums = found.setdefault((operator.name, shape), [0, 0])
        sums[1] += event.duration
        if id(operator) not in calls.setdefault((operator.name, shape), set()):
            calls[operator.name, shape].add(id(operator))
            sums[0] += flops
    names = {name for name, _ in found}
    peak, _ = peaks_of(page)
    for row in told["by_shape"]:
        if row["operator"] not in names or row["flops"] is None:
            continue
        matching = [
            sums
            for (name, shape), sums in found.items()
            if name == row["operator"] and (shape == row["shape"] or shape.startswith(row["shape"]))
        ]
        key = next(
            (key for key in found if key[0] == row["operator"] and key[1] == row["shape"]), None
        )
        if key is None or len(matching) != 1:
            yield Claim("rates", f"{row['operator']} {row['shape']}", "several", UNCHECKED)
            continue
        flops, time = found[key]
        if len(calls[key]) != row["calls"]:
            # The page has a row for each type or kernel of the same shape: their sums are right.
            alike = [
                each
                for each in told["by_shape"]
                if (each["operator"], each["shape"]) == (row["operator"], row["shape"])
            ]
            if len(alike) > 1 and row is alike[0]:
                text = f"{len(alike)} rows of {row['operator']} {row['shape']}"
                yield equals(
                    "rates", f"{text}, calls", sum(e["calls"] for e in alike), len(calls[key]), 0
                )
                yield equals("rates", f"{text}, FLOP", sum(e["flops"] for e in alike), flops, 0)
                times = sum(each["time_us"] for each in alike)
                yield equals("rates", f"{text}, µs", times, time / 1000, 0.01)
            elif len(alike) == 1:
                yield Claim("rates", f"{row['operator']} {row['shape']}", "", UNCHECKED)
            continue
        rate = flops / time / 1000
        text = f"{row['operator']} {row['shape']}"
        yield equals("rates", f"{text} TFLOP/s", row["tflop_s"], rate, 0.005 * rate)
        if peak is not None and row["type"] in ("bf16", "fp16"):
            share, told_share = 100 * rate / peak, row["peak_percent"] or 0.0
            yield equals("rates", f"{text} % of peak", told_share, share, 0.005 * share)
        if row["reason"]:
            yield _reason(text, row)


def _reason(text: str, row: dict[str, Any]) -> Claim:
    """Check why a product is slow: the size that is named is a size of it, and is as claimed."""
    reason = row["reason"]
    sizes = {int(number) for number in re.findall(r"\d+", row["shape"])}
    named = [int(number.replace(",", "")) for number in re.findall(r"\d[\d,]*", reason)]
    per_call = re.match(r"([\d.]+) µs per call", reason)
    if per_call is not None:
        state = RIGHT if abs(float(per_call[1]) - row["time_us"] / row["calls"]) < 0.051 else WRONG
    elif "tiles" in reason:
        # Of the result, whose sizes are the rows of the first matrix and the columns of the other.
        matrices = [each.split("x") for each in row["shape"].split(", ") if "x" in each]
        (*batch, m, _), (*_, n) = (list(map(int, each)) for each in matrices[:2])
        tiles = math.prod(batch) * -(-m // named[1]) * -(-n // named[2])
        state = RIGHT if tiles == named[0] < named[3] else WRONG
    elif "odd" in reason:
        state = RIGHT if named[0] in sizes and named[0] % 2 == 1 else WRONG
    elif "multiple of" in reason:
        state = RIGHT if named[0] in sizes and named[0] % named[1] else WRONG
    else:
        state = RIGHT if named and named[-1] in sizes else WRONG
    return Claim("rates", f"{text}: {reason}", f"sizes {sorted(sizes)}", state)


def causal_flash(raw: RawTrace) -> set[int]:
    """Return each `_flash_attention_forward` inside an operator that is causal."""
    outer = [
        each
        for each in raw.named("^aten::_scaled_dot_product_flash_attention$", raw.operators)
        if str((each.arguments.get("Concrete Inputs") or [""] * 5)[4]) == "True"
    ]
    by_thread: dict[Any, list[Event]] = {}
    for each in outer:
        by_thread.setdefault(each.thread, []).append(each)
    found = set()
    for each in raw.named("^aten::_flash_attention_forward$", raw.operators):
        around = by_thread.get(each.thread, [])
        if any(outer.begin <= each.begin and each.end <= outer.end for outer in around):
            found.add(id(each))
    return found


# --- The critical path ---


@check("critical path")
def critical_path(page: Page) -> Iterator[Claim]:
    """Its length is that of the step, its parts sum to it, and its device work fits into it."""
    told = page.told["critical_path"]
    if "whole_us" not in told:
        return
    steps = page.told["steps"].get("steps", [])
    lengths = {step["name"]: (step["time_us"], step["step_us"]) for step in steps}
    for step in told["steps"]:
        total = sum(step["kinds_us"].values())
        yield equals("critical path", f"parts of {step['name']}", total, step["whole_us"], 0.01)
        if step["name"] not in lengths:
            continue
        begin, whole = lengths[step["name"]]
        yield equals("critical path", step["name"], step["whole_us"], whole, 0.01)
        first = round(begin * 1000)
        inside = clipped(page.raw.intervals(), first, first + round(whole * 1000))
        work = step["kinds_us"].get("work", 0.0)
        yield lies_between("critical path", "device work", work, 0, length(inside) / 1000, 0.01)
        host = step["kinds_us"].get("host", 0.0)
        blocking = [each for each in page.raw.calls if each.duration > 200_000]
        between = Overlap([(each.begin, each.end) for each in blocking])
        long_us = between.within(first, first + round(whole * 1000)) / 1000
        state = RIGHT if host <= whole - 0.5 * long_us + 0.01 else WRONG
        yield Claim(
            "critical path", f"host between calls {host:,.3f} of {whole:,.3f}",
            f"in long calls of the runtime {long_us:,.3f}", state,
        )  # fmt: skip


# --- Stages and compiled regions ---


@check("stages")
def stages(page: Page) -> Iterator[Claim]:
    """The number of calls and the host time of each annotation."""
    told = page.told["stages"]
    if "stages" not in told:
        return
    for row in told["stages"][:30]:
        if len(row["path"]) != 1:
            continue
        name = row["path"][0]
        same = [e for e in page.raw.events if e.name == name and e.category == "user_annotation"]
        if not same:
            continue
        outer = sum(each.duration for each in same)  # threads can be in it at the same time
        yield lies_between("stages", f"calls of {name[:40]}", row["calls"], 1, len(same), 0)
        yield lies_between("stages", f"µs of {name[:40]}", row["host_us"], 0, outer / 1000, 0.01)


@check("compiled")
def compiled(page: Page) -> Iterator[Claim]:
    """The number of graphs that ran."""
    told = page.told["compiled"]
    graphs = told.get("graphs")
    if not isinstance(graphs, dict):
        return
    forward = page.raw.named(r"^CompiledFunction$|^## Call CompiledFxGraph", page.raw.events)
    region = page.raw.named(r"^Torch-Compiled Region", page.raw.events)
    most = max(len(forward), len(region))
    yield lies_between("compiled", "forward graphs", graphs["forward"], 0, most, 0)
