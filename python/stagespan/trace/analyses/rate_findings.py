"""Findings about operators that are slow for the work that they do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec
import numpy as np
from msgspec import structs

from stagespan.pages.amounts import counted, in_percent, in_words, listed, three_digits
from stagespan.pages.result import (
    Evidence,
    Finding,
    Gain,
    Spared,
    Thresholds,
    of_size,
    share,
)
from stagespan.trace.derived.kernel_kinds import ATTENTION, CONVOLUTION, MATMUL, kind_of
from stagespan.trace.rates.calls import Call
from stagespan.trace.rates.limits import (
    USED_WELL,
    has_few_tiles,
    thin_side,
    unaligned_sizes,
)
from stagespan.trace.rates.peaks import kernel_profiler
from stagespan.trace.rates.work import ShapeRate

# Percent of the device's work in products whose rows are not aligned.
_UNALIGNED_SHARES = Thresholds(25.0, 10.0, 3.0)
# Products above this share of the peak lose little because of their sizes.
_SLOW_PERCENT = 40.0
_LARGE_SIZE = 1_000
# Percent of the steps, or of the trace, that a better kernel may win. It may not exist, so no
# finding is of high severity.
_BELOW_SHARES = Thresholds(medium=10.0, low=4.0)
_DOMINANT_PERCENT = 50.0
_APPENDED_SHARES = Thresholds(medium=20.0, low=5.0)
_TIMES_LARGER, _FEWEST_SIZES = 8, 3
# Percent of the time of all shapes of a finding; the rates of shorter ones are not named.
_LEAST_SHAPE_PERCENT = 5.0
_NOUNS = {
    MATMUL: ("rates.products", "matrix product"),
    CONVOLUTION: ("rates.convolutions", "convolution"),
    ATTENTION: ("rates.attention", "call of attention", "calls of attention"),
}
# From this percentage of a peak on, a better kernel wins little.
_NEAR_PERCENT = 80.0
OTHER_DEVICE = 110.0
"""Above this percentage of a peak, the peaks are not those of the device."""
_NEAR = {
    "memory": (
        "the memory's peak",
        "A better kernel wins little: smaller types or fusion with other operators move less data.",
    ),
    "compute": (
        "the peak of its type",
        "A better kernel wins little: fewer operations or a faster type, such as fp8, would help.",
    ),
}
"""What limits a call near a peak, and what makes it faster."""
_ADVICE = {
    (MATMUL, "AMD"): (
        "PYTORCH_TUNABLEOP_ENABLED=1 measures which kernel of hipBLASLt and rocBLAS is the fastest"
        " for each shape."
    ),
    (MATMUL, "NVIDIA"): (
        "torch.compile(mode='max-autotune') measures which kernel is the fastest for each shape."
    ),
    (CONVOLUTION, "AMD"): (
        "torch.backends.cudnn.benchmark = True measures which kernel of MIOpen is the fastest for"
        " each shape."
    ),
    (CONVOLUTION, "NVIDIA"): (
        "torch.backends.cudnn.benchmark = True measures which kernel of cuDNN is the fastest for"
        " each shape."
    ),
    (ATTENTION, "AMD"): "Other libraries have other kernels of attention, such as aiter.",
    (ATTENTION, "NVIDIA"): (
        "torch.nn.attention.sdpa_kernel chooses another implementation, such as that of cuDNN."
    ),
}
"""What makes work of a kind faster on the devices of a vendor."""


def unaligned(shapes: Sequence[ShapeRate], work_ns: int, work: str) -> Finding | None:
    """Return a finding about products whose sizes keep them from the fast kernels."""
    slowed = [(each, sizes) for each in shapes if (sizes := _sizes_that_slow(each))]
    time = sum(each.time_ns for each, _ in slowed)
    percent = share(time, work_ns)
    severity = _UNALIGNED_SHARES.severity(percent)
    if severity is None:
        return None
    sizes = sorted({size for _, of in slowed for size in of}, reverse=True)
    peaks = [each.peak_percent for each, _ in slowed if each.peak_percent is not None]
    first = slowed[0][0]
    padded = -(-sizes[0] // 8) * 8
    products = counted(sum(each.calls for each, _ in slowed), "product")
    be = "is not a multiple" if len(sizes) == 1 else "are not multiples"
    rate = f"{products} at {_range([each.tflop_s or 0.0 for each, _ in slowed])} TFLOP/s"
    rate += f", at most {in_percent(max(peaks))} of the peak, because" if peaks else ", and"
    gain = _joined([each.gain_at(USED_WELL) for each, _ in slowed]) if peaks else None
    return Finding(
        of_size(severity if peaks else "medium", time),
        f"{in_words(time, 'ns')} ({in_percent(percent)} of {work}) went into {rate}"
        f" {listed(f'{each:,}' for each in sizes)} {be} of 8: rows of the matrices"
        " do not begin at multiples of 16 bytes, as the fast kernels need.",
        (Evidence(f"{first.operator} {first.shape}", None, first.time_ns, "ns"),),
        "rates.unaligned",
        action=f"Pad {sizes[0]:,} to {padded:,}.",
        gain=gain,
        no_gain="" if gain else "the peaks of the device are not known (--device NAME names it)",
        numbers={"time_ns": time, "percent": percent}
        | ({"peak_percent": max(peaks)} if peaks else {}),
        covers=() if peaks else _covered(percent),
    )


def below_the_peak(
    shapes: Sequence[ShapeRate], work_ns: int, whole_ns: int, vendor: str | None
) -> list[Finding]:
    """Return findings about products, convolutions and attention that use neither peak well."""
    kinds: dict[str, list[ShapeRate]] = {kind: [] for kind in _NOUNS}
    for shape in shapes:
        slow = shape.limit == "neither" and shape.peak_percent is not None
        kind = kind_of(shape.operator)
        # Sizes are not the kernel's fault. Single precision has a finding of its own.
        if slow and kind in kinds and shape.type != "fp32" and not shape.reason:
            kinds[kind].append(shape)
    found = [_below(kind, of, work_ns, whole_ns, vendor) for kind, of in kinds.items() if of]
    return [each for each in found if each is not None]


def _below(
    kind: str, shapes: list[ShapeRate], work_ns: int, whole_ns: int, vendor: str | None
) -> Finding | None:
    gain = _joined([each.gain_at(USED_WELL) for each in shapes])
    severity = None if gain is None else _BELOW_SHARES.severity(share(gain.time_ns, whole_ns))
    if severity is None:
        return None
    time = sum(each.time_ns for each in shapes)
    percent = share(time, work_ns)
    most = [each for each in shapes if share(each.time_ns, time) >= _LEAST_SHAPE_PERCENT] or shapes
    peaks = [each.peak_percent or 0.0 for each in most]
    memory = max(each.memory_percent or 0.0 for each in most)
    types = dict.fromkeys(each.type for each in most)
    mostly = "" if most == shapes else ", mostly"
    code, *noun = _NOUNS[kind]
    # Templates of Inductor are the result of such a measurement.
    by_torch = all(
        each.operator.startswith("aten::") and not (each.kernel or "").startswith("triton_tem")
        for each in shapes
    )
    advice = _ADVICE.get((kind, vendor or ""), "") if by_torch else ""
    return Finding(
        of_size(severity, time),
        f"{in_words(time, 'ns')} ({in_percent(percent)} of device work) went into"
        f" {counted(sum(each.calls for each in shapes), *noun)}{mostly} at"
        f" {_range([each.tflop_s or 0.0 for each in most])} TFLOP/s,"
        f" {_range(peaks, in_percent)} of the peak of {listed(types)}, although the memory was"
        f" used at no more than {in_percent(memory)} of its peak.{_uneven(most)}",
        tuple(
            Evidence(f"{each.operator} {each.shape}", None, each.time_ns, "ns")
            for each in shapes[:2]
        ),
        code,
        action=advice or f"{kernel_profiler(vendor)} shows what limits them.",
        details=f"{kernel_profiler(vendor)} shows what else limits them." if advice else "",
        covers=_covered(percent),
        gain=gain,
        numbers={
            "time_ns": time,
            "percent": percent,
            "peak_percent": max(peaks),
            "memory_percent": memory,
        },
    )


def _uneven(shapes: Iterable[ShapeRate]) -> str:
    """A sentence about the calls of one shape that differ most; "" if all are alike."""
    uneven = [each for each in shapes if each.is_uneven]
    if not uneven:
        return ""
    first = max(uneven, key=lambda each: each.time_ns)
    assert first.shortest_ns is not None
    assert first.longest_ns is not None
    times = three_digits(first.longest_ns / first.shortest_ns)
    return (
        f" Equal calls of {first.operator} take {in_words(first.shortest_ns, 'ns')} to"
        f" {in_words(first.longest_ns, 'ns')} ({times} x): the clock of the device changed, or it"
        " did other work beside some of them."
    )


def _covered(percent: float) -> tuple[str, ...]:
    # A finding about the kernels that take most of the device's work covers the longest of them.
    return ("kernels.dominant",) if percent >= _DOMINANT_PERCENT else ()


class Appends(msgspec.Struct, frozen=True):
    """Calls of cat that join a large tensor and small ones."""

    longest: Evidence
    """The longest call, or its longest kernel."""
    calls: int
    sizes: int
    """The number of different inputs."""
    time_ns: int
    gain: Gain | None


def appends_to_larger(call: Call) -> bool:
    """Whether a call joins a tensor and others that are much smaller together."""
    joined = call.arguments[0] if call.name == "aten::cat" and call.arguments else None
    if not isinstance(joined, tuple):
        return False
    sizes = sorted(each.numel for each in joined if each.numel)
    return len(sizes) > 1 and sizes[-1] >= _TIMES_LARGER * sum(sizes[:-1])


def appended(appends: Appends, work_ns: int, work: str) -> Finding | None:
    """Return a finding about tensors that grow by a small part again and again.

    Each time, all of such a tensor is copied, as a cache of keys and values.
    """
    time, percent = appends.time_ns, share(appends.time_ns, work_ns)
    severity = _APPENDED_SHARES.severity(percent)
    if severity is None or appends.sizes < _FEWEST_SIZES:
        return None
    return Finding(
        of_size(severity, time),
        f"{in_words(time, 'ns')} ({in_percent(percent)} of {work}) went into"
        f" {counted(appends.calls, 'call')} of aten::cat that append to tensors of"
        f" {appends.sizes:,} sizes at least {_TIMES_LARGER} times as large as the new part: each"
        " call copies all of the tensor.",
        (appends.longest,),
        "rates.appended",
        action="Allocate the final size once and write each new part into it, as static caches of"
        " keys and values do.",
        gain=appends.gain,
        numbers={"time_ns": time, "percent": percent, "calls": appends.calls},
    )


def slow_in_memory(shapes: Sequence[ShapeRate], work_ns: int, vendor: str | None) -> Finding | None:
    """Return a finding about an operator that moves data, slowly, for most of the time."""
    moving = [
        each
        for each in shapes
        if each.tflop_s is None and each.memory_percent is not None and each.limit != "latency"
    ]
    times: dict[str, int] = {}
    for each in moving:
        times[each.operator] = times.get(each.operator, 0) + each.time_ns
    name = max(times, key=lambda operator: times[operator], default="")
    time = times.get(name, 0)
    percent = share(time, work_ns)
    of_operator = [each for each in moving if each.operator == name]
    reached = sum((each.memory_percent or 0.0) * each.time_ns for each in of_operator) / max(
        time, 1
    )
    if percent < _DOMINANT_PERCENT or reached >= USED_WELL:
        return None
    rates = [
        each.tb_s * 1e12
        for each in of_operator
        if each.tb_s is not None and share(each.time_ns, time) >= _LEAST_SHAPE_PERCENT
    ]
    return Finding(
        of_size("medium", time),
        f"{in_words(time, 'ns')} ({in_percent(percent)} of device work) went into"
        f" {counted(sum(each.calls for each in of_operator), 'call')} of {name}, which mostly moves"
        f" data{_bytes_per_s(rates)}: {in_percent(reached)} of the memory's peak.",
        (Evidence(f"{name} {of_operator[0].shape}", None, of_operator[0].time_ns, "ns"),),
        "rates.memory",
        action=f"{kernel_profiler(vendor)} shows what limits {name}.",
        covers=_covered(percent),
        gain=_joined([each.gain_at(USED_WELL) for each in of_operator]),
        numbers={"time_ns": time, "percent": percent, "memory_percent": reached},
    )


def at_the_peak(shapes: Sequence[ShapeRate], work_ns: int) -> Finding | None:
    """Return a finding about an operator that takes most of the time, near a peak of the device."""
    fast = [each for each in shapes if _NEAR_PERCENT <= _of_peak(each) <= OTHER_DEVICE]
    times: dict[tuple[str, str | None], int] = {}
    for each in fast:
        times[each.operator, each.limit] = times.get((each.operator, each.limit), 0) + each.time_ns
    name, limit = max(times, key=lambda key: times[key], default=("", None))
    time = times.get((name, limit), 0)
    percent = share(time, work_ns)
    if percent < _DOMINANT_PERCENT or limit is None:
        return None
    of_operator = [each for each in fast if (each.operator, each.limit) == (name, limit)]
    peak, action = _NEAR[limit]
    of_peak = [_of_peak(each) for each in of_operator]
    return Finding(
        "low",
        f"{in_words(time, 'ns')} ({in_percent(percent)} of device work) went into"
        f" {counted(sum(each.calls for each in of_operator), 'call')} of {name} at"
        f" {_range(of_peak, in_percent)} of {peak}.{_uneven(of_operator)}",
        (Evidence(f"{name} {of_operator[0].shape}", None, of_operator[0].time_ns, "ns"),),
        "rates.at_peak",
        action=action,
        covers=_covered(percent),
        gain=_joined([each.gain_at(100.0) for each in of_operator]),
        numbers={"time_ns": time, "percent": percent, "peak_percent": max(of_peak)},
    )


def _of_peak(shape: ShapeRate) -> float:
    """The percentage of the peak that limits a call; 0 if none does."""
    percents = {"memory": shape.memory_percent, "compute": shape.peak_percent}
    return percents.get(shape.limit or "") or 0.0


def dominant_on_host(shapes: Sequence[ShapeRate], work_ns: int) -> Finding | None:
    """Return a finding about an operator with inputs of one shape that takes most of the time."""
    if not shapes or shapes[0].percent < _DOMINANT_PERCENT:
        return None
    first = shapes[0]
    rates = []
    if first.tflop_s is not None:
        rates.append(in_words(first.tflop_s * 1e12, "FLOP/s"))
    if first.tb_s is not None:
        rates.append(in_words(first.tb_s * 1e12, "bytes/s"))
    percent = share(first.time_ns, work_ns)
    reason = first.reason or thin_side(first.cost)
    because = f", because {reason}" if reason else ""
    return Finding(
        of_size("medium", first.time_ns),
        f"{counted(first.calls, 'call')} of {first.operator} with inputs {first.shape}"
        f" {'takes' if first.calls == 1 else 'take'} {in_words(first.time_ns, 'ns')}"
        f" ({in_percent(percent)} of the operators' time), at {' and '.join(rates)}{because}.",
        (Evidence(f"{first.operator} {first.shape}", None, first.time_ns, "ns"),),
        "rates.dominant",
        no_gain="the trace does not show how fast they could be",
        numbers={"time_ns": first.time_ns, "percent": percent, "calls": first.calls},
    )


def _sizes_that_slow(shape: ShapeRate) -> list[int]:
    if shape.peak_percent is None:
        # Without peaks, only large products are certain not to be limited by the memory.
        if shape.tflop_s is None or shape.cost.product is None:
            return []
        if min(shape.cost.product[1:]) < _LARGE_SIZE:
            return []
    elif shape.peak_percent >= _SLOW_PERCENT:
        return []
    if shape.limit in ("memory", "latency"):
        return []
    if thin_side(shape.cost) is not None or has_few_tiles(shape.cost, shape.units):
        return []
    return unaligned_sizes(shape.call, shape.cost)


def _range(numbers: list[float], in_text: Callable[[float], str] = three_digits) -> str:
    """Return `457 to 629`, or one number if both are the same when they are rounded."""
    least, most = in_text(min(numbers)), in_text(max(numbers))
    if least != most and least.endswith(" %"):
        least = least.removesuffix(" %")
    return least if least == most else f"{least} to {most}"


def _bytes_per_s(rates: list[float]) -> str:
    """Return `, at 457 to 629 GB/s`, or nothing if no rate is known."""
    if not rates:
        return ""
    if max(rates) >= 1e9:
        return f", at {_range([each / 1e9 for each in rates])} GB/s"
    least, most = (in_words(each, "bytes/s") for each in (min(rates), max(rates)))
    return f", at {least}" if least == most else f", at {least} to {most}"


def _joined(gains: Iterable[Gain | None]) -> Gain | None:
    """Return the gain of several changes of the same kind; None if none of them is known."""
    with_spared = [gain for gain in gains if gain is not None and gain.spared is not None]
    if not with_spared:
        return None
    spared = [gain.spared for gain in with_spared if gain.spared is not None]
    rows = np.concatenate([each.rows for each in spared])
    time_ns = np.concatenate([each.time_ns for each in spared])
    return structs.replace(
        with_spared[0],
        time_ns=sum(gain.time_ns for gain in with_spared),
        spared=Spared(rows, time_ns),
    )
