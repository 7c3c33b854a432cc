"""Checks of findings about the program: optimizers, compiled graphs, and steps that took long."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from typing import Any

from checks import Page
from finding_claims import NO_WORK, WAITS, Found, of
from raw_trace import Event, Interval, RawTrace, clipped, host_computing, length

_MARKS = ("user_annotation", "Operator", "cpu_op")


@of("training.zero_grad", "training.optimizer_by_tensor")
def _by_tensor(page: Page, finding: dict[str, Any]) -> Found:
    """Return the number of an optimizer's calls, and number and time of what they launched."""
    raw, name = page.raw, finding["sentence"].partition(" ")[0]
    assert page.base is not None
    begin, end = page.base
    if not raw.device:
        # The verdict is about the operators, and this finding about the steps as the page states
        # them, which need not be marked.
        first, last = page.told["steps"]["steps"][0], page.told["steps"]["steps"][-1]
        begin = round(first["time_us"] * 1000)
        end = round((last["time_us"] + last["step_us"]) * 1000)
    marks = [e for e in raw.events if e.name.startswith("Optimizer.") and e.category in _MARKS]
    calls = [each for each in marks if each.name == name and begin <= each.begin < end]
    if not raw.device:
        inside = [e for e in raw.operators for c in calls if _is_in(e, c) and e is not c]
        inside = [each for each in inside if not each.name.startswith(("Optimizer.", "Profiler"))]
        time = sum(each.duration for each in calls)
        found = {"calls": (len(calls), 0.0), "parts": (len(inside), 0.0)}
    else:
        # Work of an optimizer inside another one is that of the inner one.
        launched: dict[int, list[Event]] = defaultdict(list)
        for event in raw.device:
            call = raw.launch(event)
            around = [m for m in marks if call is not None and m.begin <= call.begin < m.end]
            if around:
                inner = min(around, key=lambda each: each.duration)
                if inner.name == name and begin <= inner.begin < end:
                    launched[id(inner)].append(event)
        parts = sum(map(len, launched.values()))
        time = sum(max(e.end for e in w) - min(e.begin for e in w) for w in launched.values())
        found = {"calls": (len(launched), 0.0), "parts": (parts, 0.0)}
    whole = end - begin
    if name.startswith("Optimizer.zero_grad") and raw.device:
        found["added_us"] = (_added(raw, calls, (begin, end)) / 1000, 0.01)
    return {
        **found,
        "time_us": (time / 1000, 0.01),
        "percent": (100 * time / whole, 0.01),
        "whole_us": (whole / 1000, 0.01),
    }


def _added(raw: RawTrace, calls: list[Event], base: Interval) -> int:
    """Return the time of the kernels that add gradients to those that calls have cleared."""
    nodes = [e for e in raw.operators if e.name == "torch::autograd::AccumulateGrad"]
    adds = [e for e in raw.operators if e.name == "aten::add_"]
    nodes = [n for n in nodes if any(_is_in(each, n) for each in adds)]
    nodes.sort(key=lambda each: each.begin)
    zeroes = [e for e in raw.operators if e.name == "aten::zero_"]
    calls = sorted(calls, key=lambda each: each.end)
    chosen: list[Event] = []
    for call, following in zip(calls, [*calls[1:], None], strict=True):
        until = following.end if following is not None else base[1]
        after = [each for each in nodes if call.end <= each.begin < until]
        chosen += after[: sum(_is_in(each, call) for each in zeroes)]
    time = 0
    for event in raw.device:
        call_of = raw.launch(event)
        if call_of is not None and base[0] <= event.begin < base[1]:
            time += event.duration * any(_is_in(call_of, node) for node in chosen)
    return time


def _is_in(inner: Event, outer: Event) -> bool:
    return inner.thread == outer.thread and outer.begin <= inner.begin and inner.end <= outer.end


_GRAPHS = re.compile(r"^CompiledFunction(?:Backward)?$|^## Call CompiledFxGraph")
_LIBRARIES = re.compile(
    r"mm$|mv$|matmul|linear|einsum|conv|attention|flash|^aten::dot$", re.IGNORECASE
)


@of("compiled.no_inductor")
def _no_inductor(page: Page, finding: dict[str, Any]) -> Found:
    """Return the kernels' time in graphs, launched by operators of aten that are no products."""
    raw = page.raw
    graphs: dict[Any, list[Event]] = defaultdict(list)
    operators: dict[Any, list[Event]] = defaultdict(list)
    for each in raw.operators:
        (graphs if _GRAPHS.match(each.name) else operators)[each.thread].append(each)
    for events in operators.values():
        events.sort(key=lambda e: (e.begin, -e.end))
    # The operators that a graph calls, without those that these call.
    top: dict[Any, list[Event]] = {}
    for thread, own in graphs.items():
        inside = [e for e in operators[thread] if any(_is_in(e, graph) for graph in own)]
        reached, kept = -1, []
        for each in inside:
            if each.begin >= reached:
                kept.append(each)
                reached = each.end
        top[thread] = kept
    total = plain = 0
    for event in raw.device:
        call = raw.launch(event)
        if call is None or not any(
            graph.begin <= call.begin < graph.end for graph in graphs.get(call.thread, [])
        ):
            continue
        total += event.duration
        by = next((e for e in top[call.thread] if e.begin <= call.begin < e.end), None)
        if by is not None and by.name.startswith("aten::") and not _LIBRARIES.search(by.name):
            plain += event.duration
    return {"time_us": (plain / 1000, 0.01), "percent": (100 * plain / total, 0.01)}


# --- Steps that took long ---

_PART = re.compile(r'The part that grew most is "([^"]+)"')
_EVENT = re.compile(r"in the other steps\. (\S.*?) took [\d.,]+ (?:µs|ms|s) in this step")


def _intervals_of_parts(raw: RawTrace) -> list[tuple[str, list[Interval]]]:
    """Return the intervals of each part of a step's time, the part that counts first at first."""
    own = [e for e in raw.operators if not NO_WORK.search(e.name)]
    calls = [(each.begin, each.end) for each in raw.calls]
    loads = [(e.begin, e.end) for e in raw.named(r"^enumerate\(DataLoader\)")]
    if raw.device:
        return [
            ("computing", raw.intervals("compute")),
            ("communicating, nothing else", raw.intervals("communication")),
            ("copying, nothing else", raw.intervals("copy")),
            ("device idle, host in a call of the runtime", calls),
            ("device idle, host loading data", loads),
            ("device idle, host in an operator", [(e.begin, e.end) for e in own]),
        ]
    waits = [(e.begin, e.end) for e in raw.events if WAITS.search(e.name)]
    works = host_computing(raw, nodes=True)
    return [
        ("loading data", loads), ("operators", works),
        ("communicating without an operator", waits),
    ]  # fmt: skip


@of("steps.outlier")
def _outlier(page: Page, finding: dict[str, Any]) -> Found:
    """Return the step's length, the part that grew, and the event that is blamed for it."""
    raw, name = page.raw, finding["sentence"].partition(" ")[0]
    steps = [(mark.name, step) for mark, step in zip(raw.marks, raw.steps, strict=True)][
        : page.told["steps"]["count"]
    ]
    at = next((at for at, (mark, _) in enumerate(steps) if mark == name), None)
    if at is None:
        return {}
    lengths = [end - begin for _, (begin, end) in steps]
    found: Found = {
        "step_us": (lengths[at] / 1000, 0.001),
        "median_us": (_median(lengths) / 1000, 0.001),
    }
    part = _PART.search(finding["details"])
    parts = _intervals_of_parts(raw)
    if part is not None and part[1] in dict(parts):
        times = [_part_of_step(parts, part[1], step) for _, step in steps]
        found["part_us"] = (times[at] / 1000, 0.01)
        found["part_of_others_us"] = (_median(times[:at] + times[at + 1 :]) / 1000, 0.01)
    event = _EVENT.search(finding["details"])
    if event is not None:
        sums: Counter[int] = Counter()
        for each in raw.events:
            if each.name == event[1] and each.category != "gpu_user_annotation":
                for number, (_, (begin, end)) in enumerate(steps):
                    if begin <= each.begin < end:
                        sums[number] += each.duration
        others = sum(sums.values()) - sums[at]
        found["event_us"] = (sums[at] / 1000, 0.01)
        found["event_of_others_us"] = (others / (len(steps) - 1) / 1000, 0.01)
    return found


def _part_of_step(parts: list[tuple[str, list[Interval]]], name: str, step: Interval) -> int:
    """Return the time of a step that belongs to a part and to none before it."""
    before: list[Interval] = []
    for part, intervals in parts:
        own = clipped(intervals, *step)
        if part == name:
            return length(before + own) - length(before)
        before += own
    return 0


def _median(values: list[int]) -> float:
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
