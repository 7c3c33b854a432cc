"""Checks of findings: the figures of each, its evidence, and what it would gain."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from typing import Any

from checks import RIGHT, UNCHECKED, WRONG, Claim, Page, check, equals
from claims import causal_flash, numbers, peaks_of, products
from raw_trace import Event, Overlap, RawTrace, clipped, length, names_matching

_UNITS = {"µs": 1.0, "ms": 1e3, "s": 1e6}
_AMOUNT = re.compile(
    r"(?<![\w#.])(\d[\d,]*(?:\.\d+)?) (µs|ms|s)\b(?! ?\))|(\d[\d,]*\.\d|[\d,]+\d\d) %"
)

NO_WORK = re.compile(r"^ProfilerStep|^Optimizer\.|^enumerate\(DataLoader\)")
"""Operators of old traces that only contain other operators."""
WAITS = re.compile(r"^(?:gloo|mpi|ucc|nccl|c10d)\b|^record_param_comms")
"""Events of communication, which are not work of the host."""

Found = dict[str, tuple[float, float]]
"""What a script finds for a finding: by the key of its figure, the value and the tolerance."""
OfFinding = Callable[[Page, dict[str, Any]], Found]
_BY_CODE: dict[str, OfFinding] = {}


def of(*codes: str) -> Callable[[OfFinding], OfFinding]:
    """Register a script for findings by their codes."""

    def add(function: OfFinding) -> OfFinding:
        _BY_CODE.update(dict.fromkeys(codes, function))
        return function

    return add


def works_of(raw: RawTrace) -> list[Event]:
    """Return the operators without those that only contain others, or communicate."""
    none = re.compile(f"{NO_WORK.pattern}|{WAITS.pattern}")
    return [each for each in raw.operators if not none.search(each.name)]


def _events(page: Page) -> list[list[Event]]:
    """Return the device's events in the ranges that a page may refer to."""
    raw = page.raw
    ranges = [raw.device]
    if page.base is not None:
        begin, end = page.base
        ranges.append([each for each in raw.device if begin <= each.begin and each.end <= end])
        ranges.append([each for each in raw.device if each.begin < end and each.end > begin])
    if raw.marks:
        ranges.append(raw.launched_between(raw.marks[0].begin, raw.marks[-1].end))
    return ranges


def _sum_of(
    page: Page, finding: dict[str, Any], chosen: Callable[[Event], bool], count: str | None
) -> Found:
    """Return time and number of the chosen device events, in the range that fits best."""
    told = finding["figures"]["time_us"]
    best: tuple[float, float, int] | None = None
    for events in _events(page):
        times = [each.duration for each in events if chosen(each)]
        total = sum(times) / 1000
        all_us = sum(each.duration for each in events) / 1000
        if best is None or abs(total - told) < abs(best[0] - told):
            best = total, all_us, len(times)
    assert best is not None
    total, all_us, number = best
    found: Found = {"time_us": (total, 0.01)}
    if all_us:
        found["percent"] = (100 * total / all_us, 0.1)
    if count is not None:
        found[count] = (number, 0)
    return found


@of("device_use.exposed_communication", "device_use.exposed_copies")
def _exposed(page: Page, finding: dict[str, Any]) -> Found:
    assert page.base is not None
    begin, end = page.base
    raw = page.raw

    def time(*kinds: str) -> float:
        return length(clipped(raw.intervals(*kinds), begin, end)) / 1000

    if finding["code"].endswith("communication"):
        own = time("communication")
        exposed = time("compute", "communication") - time("compute")
    else:
        own, exposed = time("copy"), time() - time("compute", "communication")
    return {
        "time_us": (exposed, 0.01),
        "percent": (100 * exposed / ((end - begin) / 1000), 0.01),
        "hidden_percent": (100 * (1 - exposed / own), 0.01),
        "whole_us": ((end - begin) / 1000, 0.01),
    }


@of("kernels.attention_in_parts")
def _attention(page: Page, finding: dict[str, Any]) -> Found:
    found = _sum_of(page, finding, lambda e: "softmax" in e.name.lower(), "kernels")

    def is_product(event: Event) -> bool:
        operator = page.raw.operator(event)
        return operator is not None and operator.name in ("aten::bmm", "aten::baddbmm")

    told = {"figures": {"time_us": finding["figures"]["products_us"]}}
    products = _sum_of(page, told, lambda e: is_product(e) and page.raw.is_kernel(e), None)
    found["products_us"] = products["time_us"]
    found["products_percent"] = products["percent"]
    return found


@of("kernels.dominant")
def _dominant(page: Page, finding: dict[str, Any]) -> Found:
    times: dict[str, float] = {}
    for each in page.raw.device:
        if page.raw.is_kernel(each) and page.raw.kind(each) == "compute":
            times[each.name] = times.get(each.name, 0.0) + each.duration / 1000
    longest = max(times, key=lambda name: times[name])
    return _sum_of(page, finding, lambda each: each.name == longest, "launches")


@of("kernels.few_blocks")
def _few_blocks(page: Page, finding: dict[str, Any]) -> Found:
    """Kernels of at least 10 µs with less than one block for each multiprocessor."""

    def blocks(event: Event) -> float:
        return float(event.arguments.get("blocks per SM", 1))

    def is_one(event: Event) -> bool:
        is_long = page.raw.is_kernel(event) and event.duration >= 10_000
        return is_long and 0 < blocks(event) < 1 and page.raw.kind(event) == "compute"

    found = _sum_of(page, finding, is_one, "kernels")
    told = finding["figures"]["time_us"]

    def time_us(events: list[Event]) -> float:
        return sum(each.duration for each in events) / 1000

    choices = [[each for each in events if is_one(each)] for events in _events(page)]
    mine = min(choices, key=lambda events: abs(time_us(events) - told))
    used = sum(blocks(each) * each.duration for each in mine) / 1000
    found["multiprocessors_percent"] = (100 * used / max(time_us(mine), 0.001), 0.01)
    return found


@of("kernels.layout")
def _layout(page: Page, finding: dict[str, Any]) -> Found:
    layout = names_matching(
        r"batched_transpose|nchwtonhwc|nhwctonchw|nchw2nhwc|nhwc2nchw", page.raw.device
    )
    return _sum_of(page, finding, lambda each: each.name in layout, "kernels")


@of("kernels.single_precision")
def _single_precision(page: Page, finding: dict[str, Any]) -> Found:
    products = names_matching(
        r"gemm|scudnn|xmma|gemv|conv|dgrad|wgrad|fprop|winograd", page.raw.device
    ) - names_matching(
        r"hgemm|igemm|tensorop|s1688|s884|_bf16|_fp16|f16|half|hcudnn|h884|h1688|i8|dgemm"
        r"|nchwto|nhwcto|transpose|tf32|bn_|bfloat|convert|elementwise|scal_|add_tensor"
        r"|reduce|generate|offset",
        page.raw.device,
    )
    found = _sum_of(page, finding, lambda each: each.name in products, None)
    # Names of products are a convention of the library, so a few kernels may be missed.
    return {"time_us": (found["time_us"][0], 0.05 * found["time_us"][0])}


@of("kernels.memory_bound")
def _memory_bound(page: Page, finding: dict[str, Any]) -> Found:
    light = names_matching(".", [e for e in page.raw.device if page.raw.is_kernel(e)])
    light -= names_matching(
        r"gemm|conv|fprop|dgrad|wgrad|winograd|scudnn|hcudnn|flash|fmha|attn|nccl|rccl|nvjet|cijk"
        r"|xmma|matmul|splitk|im2col|gemv|dot_kernel|cublas|igemm_|moe",
        page.raw.device,
    ) - names_matching("elementwise|norm|bn_", page.raw.device)
    found = _sum_of(page, finding, lambda each: each.name in light, None)
    return {"time_us": (found["time_us"][0], 0.15 * found["time_us"][0])}


@of("rates.unaligned")
def _unaligned(page: Page, finding: dict[str, Any]) -> Found:
    size = re.search(r"because ([\d,]+) is not a multiple of (\d+)", finding["sentence"])
    if size is None:
        return {}
    number = int(size[1].replace(",", ""))
    assert number % int(size[2]) != 0

    def has_size(event: Event) -> bool:
        operator = page.raw.operator(event)
        if operator is None or not re.match(r"aten::(?:b?mm|baddbmm|addmm)$", operator.name):
            return False
        return page.raw.is_kernel(event) and str(number) in re.findall(
            r"\d+", str(operator.arguments.get("Input Dims"))
        )

    found = _sum_of(page, finding, has_size, None)
    # Only those with a low rate are counted.
    return {"least": (finding["figures"]["time_us"], max(found["time_us"][0] * 0.01, 0.01))} if (
        finding["figures"]["time_us"] <= found["time_us"][0] + 0.01
    ) else found  # fmt: skip


@of("idle.finishing")
def _finishing(page: Page, finding: dict[str, Any]) -> Found:
    """Return the time from the end of the last device work to that of the trace."""
    assert page.base is not None
    begin, end = page.base
    inside = [each for each in page.raw.device if begin <= each.begin and each.end <= end]
    time = (end - max(each.end for each in inside)) / 1000
    # The profiler's own time is a part of its own.
    return {"time_us": (time, 0.01 * time)}


_OF_KIND = {
    "rates.products": r"^aten::(?:mm|addmm|bmm|baddbmm)$",
    "rates.attention": r"^aten::_(?:flash_attention_forward|scaled_dot_product_flash_attention)$",
    "rates.convolutions": r"^aten::(?:(?:cudnn_|miopen_)?convolution|convolution_backward)$",
}


def _flops_of_convolution(operator: Event) -> int:
    """Return 2 N O H W (I / groups) K K, once for each result of a backward pass, by hand."""
    inputs, dims = operator.arguments["Concrete Inputs"], numbers(operator.arguments["Input Dims"])
    if operator.name.endswith("backward"):
        # The results are the gradients of the input, of the weights and of the bias.
        results = json.loads(str(inputs[10]).lower())[:2].count(True)
        return 2 * results * math.prod(dims[0]) * math.prod(dims[2][1:])
    at = 2 if operator.name.endswith("cudnn_convolution") else 3
    first, second, dilation = (json.loads(each) for each in inputs[at : at + 3])
    is_plain = operator.name == "aten::convolution"
    strides, paddings = (first, second) if is_plain else (second, first)
    (batch, _, *size), (channels, *kernel) = dims[:2]
    for n, k, s, p, d in zip(size, kernel[1:], strides, paddings, dilation, strict=True):
        channels *= (n + 2 * p - d * (k - 1) - 1) // s + 1
    return 2 * batch * channels * math.prod(kernel)


@of("rates.products", "rates.attention", "rates.convolutions")
def _below_the_peak(page: Page, finding: dict[str, Any]) -> Found:
    """Return the time of the shapes that are below 60 % of both peaks and well aligned."""
    raw, (peak, memory) = page.raw, peaks_of(page)
    assert page.base is not None
    if peak is None or memory is None:
        return {}
    begin, end = page.base
    causal = causal_flash(raw)
    times: dict[tuple[str, str], float] = {}
    calls: dict[tuple[str, str], dict[int, Event]] = {}
    all_us = 0.0
    for event in raw.device:
        if not begin <= event.begin < end:
            continue
        all_us += event.duration / 1000
        operator = raw.operator(event)
        if operator is not None and re.match(_OF_KIND[finding["code"]], operator.name):
            if str(operator.arguments.get("Input type", ["float"])[0]) == "float":
                continue
            key = operator.name, str(operator.arguments.get("Input Dims"))
            times[key] = times.get(key, 0.0) + event.duration / 1000
            calls.setdefault(key, {})[id(operator)] = operator
    slow = 0.0
    for key, time in times.items():
        (first, *_), count = calls[key].values(), len(calls[key])
        if finding["code"] == "rates.convolutions":
            flops: int | None = _flops_of_convolution(first)
        else:
            flops = products(first, id(first) in causal)
        assert flops is not None
        dims = numbers(first.arguments["Input Dims"])
        carried = 2 * count * sum(math.prod(each) for each in dims if len(each) > 1)
        # The first input of addmm and baddbmm is added, and not multiplied.
        factors = dims[1:] if re.match(r"^aten::b?addb?mm$", first.name) else dims
        sizes = [size for factor in factors if len(factor) > 1 for size in factor[-2:]]
        is_even = all(size % 8 == 0 and size >= 16 for size in sizes)
        is_slow = flops * count / time / 1e6 < 0.6 * peak and carried / time / 1e6 < 0.6 * memory
        if is_slow and time / count >= 10 and (is_even or finding["code"] != "rates.products"):
            slow += time
    # The sizes of bytes are those of the inputs, so that a shape near 60 % may be missed.
    return {
        "time_us": (slow, 0.02 * slow),
        "percent": (100 * slow / all_us, 0.02 * 100 * slow / all_us),
    }


def _of_operators(page: Page, finding: dict[str, Any], chosen: Callable[[Event], bool]) -> Found:
    """Return the time of the chosen operators' device work, or their time on a host."""
    raw = page.raw
    if raw.device:
        return _sum_of(
            page, finding, lambda e: (by := raw.operator(e)) is not None and chosen(by), None
        )
    calls = [each for each in raw.operators if chosen(each)]
    whole = own = 0
    for call in calls:
        inside = [
            (each.begin, each.end)
            for each in raw.operators
            if each is not call
            and each.thread == call.thread
            and call.begin <= each.begin
            and each.end <= call.end
        ]
        whole += call.duration
        own += call.duration - length(inside)
    # Operators inside that have rates count for themselves, and the others for the call.
    between = (whole + own) / 2000, (whole - own) / 2000 + 0.01
    return {"time_us": between, "calls": (len(calls), 0)}


_LOADS = r"^enumerate\(DataLoader\)#|torch/utils/data/dataloader\.py\(\d+\): __next__$"


@of("host.data_loader")
def _loading(page: Page, finding: dict[str, Any]) -> Found:
    """Return how long the program loaded data, with the operators that load it.

    The wait for the first batch and the end of workers, within that time, are not told as loading.
    """
    assert page.base is not None
    begin, end = page.base
    loads = [(each.begin, each.end) for each in page.raw.named(_LOADS)]
    most, whole = length(clipped(loads, begin, end)) / 1000, (end - begin) / 1000
    least = most - page.told["host"]["parts_us"].get("loader_start", 0.0)
    return {
        "time_us": ((least + most) / 2, (most - least) / 2 + 0.01),
        "whole_us": (whole, 0.01),
        "percent": (100 * finding["figures"]["time_us"] / whole, 0.01),
    }


@of("host.unseen", "host.other", "host.between_steps", "host.between_operators")
def _without_operators(page: Page, finding: dict[str, Any]) -> Found:
    """Return the share of a time of the host, which is at most that in which no operator ran."""
    assert page.base is not None
    begin, end = page.base
    ran = clipped([(each.begin, each.end) for each in works_of(page.raw)], begin, end)
    whole, most = (end - begin) / 1000, (end - begin - length(ran)) / 1000
    return {
        "time_us": (most / 2, most / 2 + 0.01),
        "whole_us": (whole, 0.01),
        "percent": (100 * finding["figures"]["time_us"] / whole, 0.01),
    }


@of("rates.appended")
def _appended(page: Page, finding: dict[str, Any]) -> Found:
    """Return the time of the calls of cat whose largest tensor is 8 times as large as the rest."""

    def appends(operator: Event) -> bool:
        dims = operator.arguments.get("Input Dims")
        if operator.name != "aten::cat" or not dims:
            return False
        *others, largest = sorted(math.prod(each) for each in numbers(dims[0]) if each)
        return sum(others) > 0 and largest >= 8 * sum(others)

    return _of_operators(page, finding, appends)


@of("rates.dominant")
def _dominant_on_host(page: Page, finding: dict[str, Any]) -> Found:
    """Return the time and the calls of the operator with the inputs that the sentence names."""
    named = re.search(r"of (\S+) with inputs (.*?) takes? ", finding["sentence"])
    assert named is not None

    def has_inputs(operator: Event) -> bool:
        if operator.name != named[1]:
            return False
        dims = numbers(operator.arguments.get("Input Dims") or [])
        return named[2] == ", ".join("x".join(map(str, each)) for each in dims if each)

    return _of_operators(page, finding, has_inputs)


_BYTES = {"float": 4, "double": 8, "c10::Half": 2, "c10::BFloat16": 2}
_POINTWISE = re.compile(r"^aten::(?:add|sub|mul|div|relu|gelu|silu)$")


@of("rates.memory")
def _slow_in_memory(page: Page, finding: dict[str, Any]) -> Found:
    """Return an operator's time, and how fast it moves data if it works on each element alone."""
    named = re.search(r"calls? of (\S+), which mostly moves data", finding["sentence"])
    assert named is not None
    found = _of_operators(page, finding, lambda operator: operator.name == named[1])
    _, memory = peaks_of(page)
    if memory is None or not _POINTWISE.match(named[1]):
        return found
    carried = 0
    for each in page.raw.operators:
        if each.name == named[1]:
            sizes = [math.prod(dims) for dims in numbers(each.arguments["Input Dims"]) if dims]
            carried += (sum(sizes) + max(sizes)) * _BYTES[each.arguments["Input type"][0]]
    reached = 100 * carried / found["time_us"][0] / 1e6 / memory
    return {**found, "memory_percent": (reached, 0.01 * reached)}


@of("rates.at_peak")
def _at_the_peak(page: Page, finding: dict[str, Any]) -> Found:
    """Return an operator's time; its rate is that of the table of shapes."""
    named = re.search(r"calls? of (\S+) at ", finding["sentence"])
    assert named is not None
    found = _of_operators(page, finding, lambda operator: operator.name == named[1])
    return {name: of for name, of in found.items() if name != "peak_percent"}


@of("steps.after_device")
def _after_device(page: Page, finding: dict[str, Any]) -> Found:
    """Return the time from the end of the last device work in the steps to that of the steps."""
    begin, end = page.raw.steps[0][0], page.raw.steps[-1][1]
    ends = [each.end for each in page.raw.device if begin <= each.begin < end]
    return {"time_us": ((end - max(ends)) / 1000, 0.01)} if ends else {}


@of("steps.before_device")
def _before_device(page: Page, finding: dict[str, Any]) -> Found:
    """Return the time from the first step to the launch of the device's first work in the steps."""
    raw = page.raw
    begin = raw.steps[0][0]
    launched = [raw.launch_begin(e) for e in raw.launched_between(begin, raw.steps[-1][1])]
    return {"time_us": ((min(launched) - begin) / 1000, 0.01)} if launched else {}


def _idle(page: Page, finding: dict[str, Any]) -> Found:
    """Return the whole, the share, and, for findings of one cause, its part of the verdict."""
    told = page.told["verdict"]
    whole = told["whole_us"]
    time = finding["figures"]["time_us"]
    found: Found = {"whole_us": (whole, 0.01), "percent": (100 * time / whole, 0.01)}
    # A part of the time can be in the finding about the start of the program.
    start_up = sum(
        each["figures"]["time_us"]
        for each in page.told["findings"]
        if each["code"] == "idle.start_up"
    )
    name = finding["code"].partition(".")[2]
    causes = [cause for cause in told["parts_us"] if f"{cause}_us" in finding["figures"]]
    if name in ("several", "start_up"):
        # It names some of the causes, and is about all of them.
        causes = [] if name == "start_up" else causes
        for cause in causes:
            found[f"{cause}_us"] = (told["parts_us"][cause], 0.01)
        return found
    causes = causes or [{"unexplained": "not_traced"}.get(name, name)]
    if all(cause in told["parts_us"] for cause in causes):
        total = sum(told["parts_us"][cause] for cause in causes)
        found["time_us"] = (total - start_up / 2, start_up / 2 + 0.01)
        for cause in causes:
            part = told["parts_us"][cause]
            found[f"{cause}_us"] = (part - start_up / 2, start_up / 2 + 0.01)
    if "median_kernel_us" in finding["figures"]:
        best = None
        for events in _events(page):
            times = sorted(e.duration for e in events if page.raw.is_kernel(e))
            if times:
                middle = (times[(len(times) - 1) // 2] + times[len(times) // 2]) / 2000
                aim = finding["figures"]["median_kernel_us"]
                if best is None or abs(middle - aim) < abs(best - aim):
                    best = middle
        if best is not None:
            found["median_kernel_us"] = (best, 0.001)
    return found


@check("findings")
def findings(page: Page) -> Iterator[Claim]:
    """The figures of each finding that a script can find in the raw events."""
    for finding in page.told["findings"]:
        code = finding["code"]
        script = _BY_CODE.get(code, _idle if code.startswith("idle.") else None)
        kind = f"finding {code}"
        if script is None or len(page.raw.devices) > 1:
            yield Claim(kind, finding["sentence"][:80], "", UNCHECKED)
            continue
        found = script(page, finding)
        if not found:
            yield Claim(kind, finding["sentence"][:80], "", UNCHECKED)
        for key, (value, within) in found.items():
            if key == "least":
                yield Claim(kind, f"time_us: {value:,.3f}", "within the time of all", RIGHT)
            elif key in finding["figures"]:
                yield equals(kind, key, finding["figures"][key], value, within)


@check("sentences")
def sentences(page: Page) -> Iterator[Claim]:
    """Each time and share in a sentence is a figure of its finding, rounded as it is printed."""
    for finding in page.told["findings"]:
        figures = [value for value in finding["figures"].values() if value is not None]
        if finding["gain"] is not None:
            figures.append(finding["gain"]["time_us"])
        texts = (finding[part] for part in ("action", "sentence", "details", "caveat"))
        for match in _AMOUNT.finditer(" ".join(texts)):
            if match[3] is not None:
                number, scale = match[3], 1.0
            else:
                number, scale = match[1], _UNITS[match[2]]
            # Half a unit of the last digit.
            value, digits = float(number.replace(",", "")), len(number.partition(".")[2])
            same = any(abs(value - figure / scale) <= 0.5001 * 10**-digits for figure in figures)
            state = RIGHT if same else UNCHECKED
            yield Claim("sentences", f"{finding['code']}: {match[0]}", "", state)


@check("evidence")
def evidence(page: Page) -> Iterator[Claim]:
    """Each piece of evidence with a time and a duration is an event or a gap of the trace."""
    raw = page.raw
    events: dict[tuple[int, int], str] = {}
    for each in raw.events:
        events[each.begin, each.duration] = each.name
    events.update({(begin, end - begin): "a step" for begin, end in raw.steps})
    # Steps that are not marked are those that the page states.
    for step in page.told["steps"].get("steps", []):
        events[round(step["time_us"] * 1000), round(step["step_us"] * 1000)] = "a step"
    longest: dict[int, int] = {}
    for each in raw.events:
        longest[each.begin] = max(longest.get(each.begin, 0), each.duration)
    gaps = [(gap.begin, gap.end) for gap in raw.gaps]
    gap_ends = {gap.end for gap in raw.gaps}
    working = Overlap([(each.begin, each.end) for each in works_of(raw)])
    for finding in page.told["findings"]:
        for each in finding["evidence"]:
            if each["time_us"] is None or each["unit"] != "us" or each["figure"] is None:
                continue
            begin, time = round(each["time_us"] * 1000), round(each["figure"] * 1000)
            is_gap = any(first <= begin and begin + time <= last for first, last in gaps)
            # The part of an event that is in a gap ends with the gap.
            is_gap |= begin in longest and begin + time in gap_ends
            # A gap of the host: no operator ran.
            is_gap |= finding["code"].startswith("host.") and not working.within(
                begin, begin + time
            )
            if (begin, time) in events or is_gap:
                state = RIGHT
            else:
                # A part of an event: the rest of it is not in the gap.
                state = UNCHECKED if longest.get(begin, 0) >= time else WRONG
            text = f"{finding['code']}: {each['event'][:50]} at {begin}: {time}"
            yield Claim("evidence", text, "", state)


@check("gains")
def gains(page: Page) -> Iterator[Claim]:
    """No gain is more than the time that its finding is about, or than the whole.

    Work of a host may also slow down what follows, by a third of its own time.
    """
    told = page.told["verdict"]
    for finding in page.told["findings"]:
        gain = finding["gain"]
        if gain is None:
            continue
        time = finding["figures"].get("time_us")
        others = gain["others_us"] + finding["figures"].get("added_us", 0.0)
        most = min(told["whole_us"], told["whole_us"] if time is None else time + others)
        if gain["others_us"]:
            state = RIGHT if 4 * gain["others_us"] <= gain["time_us"] + 0.01 else WRONG
            yield Claim("gains", f"{finding['code']}: others", f"{gain['others_us']:,.3f}", state)
        state = RIGHT if gain["time_us"] <= most + 0.01 else WRONG
        yield Claim("gains", f"{finding['code']}: {gain['time_us']:,.3f}", f"{most:,.3f}", state)
        if gain["now_us"] is not None:
            state = RIGHT if 0 <= gain["now_us"] <= gain["time_us"] + 0.01 else WRONG
            text = f"{finding['code']} now: {gain['now_us']:,.3f}"
            yield Claim("gains", text, f"{gain['time_us']:,.3f}", state)
        if finding["code"].startswith("kernels.") and page.base is not None:
            inside = length(clipped(page.raw.intervals(), *page.base)) / 1000
            state = RIGHT if gain["time_us"] <= inside + 0.01 else WRONG
            yield Claim(
                "gains", f"{finding['code']}: {gain['time_us']:,.3f}", f"{inside:,.3f}", state
            )
