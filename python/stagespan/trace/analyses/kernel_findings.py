"""Findings about kernels that take much of the device's time."""

from __future__ import annotations

import re

import numpy as np

from stagespan.pages.amounts import counted, in_percent, in_words
from stagespan.pages.result import Evidence, Finding, Gain, Thresholds, of_size, share, shortened
from stagespan.trace.analyses.kernel_rows import KIND_OF_CODE, KernelRows
from stagespan.trace.analyses.operators import operator_findings
from stagespan.trace.derived.compile_events import runs_compiled
from stagespan.trace.derived.gains import gain_of_rows
from stagespan.trace.derived.kernel_kinds import (
    ATTENTION,
    COMMUNICATION,
    CONVOLUTION,
    COPY,
    ELEMENTWISE,
    LAYOUT,
    MATMUL,
    NORM,
    REDUCTION,
    inductor_kind,
)
from stagespan.trace.derived.windows import base_window, steps_of
from stagespan.trace.evidence import evidence
from stagespan.trace.rates.peaks import device_peaks, kernel_profiler, vendor_of
from stagespan.trace.read.groups import grouped
from stagespan.trace.read.intervals import Mask, covered

# Percent of the steps, or of the trace: if kernels take less, other time is to be saved first.
_LEAST_PERCENT = 10.0
_DOMINANT = 50.0
_TINY_NS = 5_000
_TINY_LEAST = 10_000
_TINY_SHARE = 50.0
_FUSIBLE = tuple(KIND_OF_CODE.index(kind) for kind in (ELEMENTWISE, COPY, NORM, REDUCTION))
_COMMUNICATES = KIND_OF_CODE.index(COMMUNICATION)
_FUSIBLE_SHARES = Thresholds(60.0, 40.0, 30.0)
_ELEMENTWISE_LEAST = 10.0
# These already read memory only once, or cannot be fused with elementwise kernels.
_FUSED = re.compile(
    r"multi_?tensor|foreach|softmax|pool|sort|topk|scan|cub::|rocprim", re.IGNORECASE
)
_LAYOUT_SHARES = Thresholds(20.0, 5.0)
_ASCEND_LAYOUT = re.compile("TransData")
_MIOPEN_LAYOUT = re.compile(r"^batched_transpose_\d")
_SINGLE = re.compile(
    r"(?:^|_)(?:volta|turing|ampere|hopper|sm[789]\d)_s(?:gemm|cudnn)_|cutlass_[789]\d_simt_sgemm"
    r"|^sm\d+_xmma_gemm_f32f32_f32f32_f32"
    # cuDNN's own kernels, whose first types are those of the operands.
    r"|(?:dgrad|wgrad)\w*_engine<float,|implicit_convolve_sgemm<float, float"
    r"|winograd\w*<float, float"
)
# These have matrix units only for half precision.
_HALF_ALONE = re.compile(r"volta|turing|sm7\d|cutlass_7")
# Shorter kernels do not become faster with more blocks.
_FILLING_NS = 10_000
_FEW_BLOCKS_SHARES = Thresholds(medium=25.0, low=10.0)
_SOFTMAX = re.compile(r"softmax", re.IGNORECASE)
_SOFTMAX_SHARES = Thresholds(30.0, 10.0)
_BATCHED = re.compile(r"^aten::(?:bmm|baddbmm)$")
# On the matrix units such work takes less than half of its time.
_SINGLE_SHARES = Thresholds(80.0, 40.0, 20.0)


def kernel_findings(kernels: KernelRows) -> list[Finding]:
    """Findings about a device's kernels, or about the operators of a trace without a device."""
    if not kernels.on_device:
        return operator_findings(kernels.trace)
    base = base_window(kernels.trace)
    time = int(kernels.time_ns[kernels.is_kernel].sum())
    if base is None or share(time, base.whole_ns) < _LEAST_PERCENT:
        return []
    findings = [
        _dominant(kernels),
        _tiny(kernels),
        _fusible(kernels),
        _layout(kernels),
        _single_precision(kernels),
        _attention_in_parts(kernels),
        _few_blocks(kernels),
    ]
    return [each for each in findings if each is not None]


def _dominant(kernels: KernelRows) -> Finding | None:
    """Return a finding if one kernel takes most of the device's busy time."""
    first = kernels.by_name[0]
    events = kernels.trace.events
    # Streams overlap: more than half of the busy time, not only of the sum.
    begin, end = events.begin_ns[kernels.rows], events.end_ns[kernels.rows]
    of_kernel = kernels.name == kernels.trace.names.index(first.kernel)
    of_busy = share(covered(begin[of_kernel], end[of_kernel]), covered(begin, end))
    if min(first.percent, of_busy) < _DOMINANT or first.kind == COMMUNICATION:
        return None
    if _SINGLE.search(first.kernel):
        return None  # another finding says what to change
    launched = "" if first.operator is None else f" (launched by {first.operator})"
    tool = kernel_profiler(vendor_of(kernels.trace))
    return Finding(
        of_size("medium", first.time_ns),
        f"The kernel {shortened(first.kernel)}{launched} takes {in_words(first.time_ns, 'ns')}"
        f" ({in_percent(first.percent)} of device work) in"
        f" {counted(first.count, 'launch', 'launches')}.",
        tuple(_longest_two(kernels, of_kernel)),
        "kernels.dominant",
        numbers={
            "time_ns": first.time_ns,
            "percent": first.percent,
            "launches": first.count,
        },
        no_gain="the trace does not show how fast the kernel could be",
        action=f"{tool} shows whether this kernel uses the device well.",
    )


def _tiny(kernels: KernelRows) -> Finding | None:
    """Return a finding about many kernels that are shorter than their launches."""
    assert kernels.launched is not None
    single = kernels.is_kernel & ~kernels.launched.of_graph
    tiny = single & (kernels.time_ns < _TINY_NS)
    count = int(tiny.sum())
    percent = share(count, int(single.sum()))
    if count < _TINY_LEAST or percent < _TINY_SHARE:
        return None
    time = int(kernels.time_ns[tiny].sum())
    first = grouped(kernels.name[tiny], kernels.time_ns[tiny])[0]
    return Finding(
        "medium",
        f"{count:,} kernels ({in_percent(percent)} of those launched one by one) ran for less than"
        f" {in_words(_TINY_NS, 'ns')} each, {in_words(time, 'ns')} in total.",
        (
            Evidence("kernels below 5 µs", None, count, "events"),
            Evidence(kernels.trace.names[first.code], None, first.count, "events"),
        ),
        "kernels.tiny",
        numbers={"kernels": count, "percent": percent, "time_ns": time},
        gain=_gain(kernels, tiny, "few kernels do their work in next to no time"),
        action="Fuse small kernels with torch.compile, launch them in a device graph, or give each"
        " more work.",
    )


def _fusible(kernels: KernelRows) -> Finding | None:
    """Return a finding if memory-bound kernels that are not fused take much time."""
    names = kernels.trace.names
    if any(inductor_kind(names[code]) for code in kernels.names) or runs_compiled(kernels.trace):
        return None
    chosen = kernels.is_kernel & np.isin(kernels.kind, _FUSIBLE) & ~_named(kernels, _FUSED)
    time, total = int(kernels.time_ns[chosen].sum()), kernels.total_ns
    percent = share(time, total)
    severity = _FUSIBLE_SHARES.severity(percent)
    elementwise = chosen & (kernels.kind == KIND_OF_CODE.index(ELEMENTWISE))
    least = _ELEMENTWISE_LEAST
    if severity is None or share(int(kernels.time_ns[elementwise].sum()), total) < least:
        return None
    groups = grouped(kernels.name[chosen], kernels.time_ns[chosen])
    merged, how = chosen, "all of them become part of other kernels"
    if not (kernels.is_kernel & ~chosen & (kernels.kind != _COMMUNICATES)).any():
        # Nothing else runs: what is fused is a kernel as well.
        if len(groups) == 1:
            return None
        merged = chosen & ~_longest_of_steps(kernels, chosen)
        how = "all of a step become part of its longest kernel"
    return Finding(
        of_size(severity, time),
        f"{in_words(time, 'ns')} ({in_percent(percent)} of device work) went into"
        f" {counted(int(chosen.sum()), 'memory-bound kernel')} (elementwise, copies, norms,"
        " reductions), and no code in the trace was compiled.",
        tuple(Evidence(names[each.code], None, each.time_ns, "ns") for each in groups[:2]),
        "kernels.memory_bound",
        numbers={"time_ns": time, "percent": percent, "kernels": int(chosen.sum())},
        gain=_gain(kernels, merged, how),
        action="torch.compile would fuse many of these kernels.",
    )


def _longest_of_steps(kernels: KernelRows, chosen: Mask) -> Mask:
    """Which of some kernels are the longest of their step, or of the trace without steps."""
    steps = steps_of(kernels.trace)
    begin = kernels.trace.events.begin_ns[kernels.rows]
    step = np.zeros(len(begin), dtype=np.int64)
    if steps is not None:
        step = np.searchsorted(steps.begin_ns, begin, side="right")
    rows = np.flatnonzero(chosen)
    rows = rows[np.lexsort((-kernels.time_ns[rows], step[rows]))]
    longest = np.zeros(len(begin), dtype=np.bool_)
    longest[rows[np.append(True, np.diff(step[rows]) > 0)]] = True
    return longest


def _layout(kernels: KernelRows) -> Finding | None:
    """Return a finding about changes of layout around convolutions."""
    chosen = kernels.is_kernel & _named(kernels, LAYOUT)
    time, total = int(kernels.time_ns[chosen].sum()), kernels.total_ns
    percent = share(time, total)
    severity = _LAYOUT_SHARES.severity(percent)
    if severity is None:
        return None
    if _named(kernels, _ASCEND_LAYOUT)[chosen].any():
        advice = "See whether torch.npu.config.allow_internal_format = False avoids them"
    elif _named(kernels, _MIOPEN_LAYOUT)[chosen].any():
        advice = (
            "Keep model and inputs in memory_format=torch.channels_last, and set"
            " PYTORCH_MIOPEN_SUGGEST_NHWC=1, without which MIOpen is given the other layout"
        )
    else:
        advice = (
            "Keep model and inputs in the layout that the convolutions use"
            " (memory_format=torch.channels_last)"
        )
    return Finding(
        of_size(severity, time),
        f"{in_words(time, 'ns')} ({in_percent(percent)} of device work) went into"
        f" {counted(int(chosen.sum()), 'kernel')} that only"
        f" {'changes' if chosen.sum() == 1 else 'change'} the layout of tensors.",
        tuple(_longest_two(kernels, chosen)),
        "kernels.layout",
        numbers={"time_ns": time, "percent": percent, "kernels": int(chosen.sum())},
        gain=_gain(kernels, chosen, "none of them is necessary"),
        action=f"{advice}.",
    )


def _single_precision(kernels: KernelRows) -> Finding | None:
    """Return a finding about single-precision products without the device's matrix units."""
    chosen = kernels.is_kernel & _named(kernels, _SINGLE)
    chosen &= np.isin(kernels.kind, (KIND_OF_CODE.index(MATMUL), KIND_OF_CODE.index(CONVOLUTION)))
    time, total = int(kernels.time_ns[chosen].sum()), kernels.total_ns
    percent = share(time, total)
    severity = _SINGLE_SHARES.severity(percent)
    if severity is None:
        return None
    half = _named(kernels, _HALF_ALONE)[chosen].any()
    how = "autocast to bfloat16 or torch.set_float32_matmul_precision('high')"
    if half:
        how = "autocast to float16"
    elif _tf32_is_no_faster(kernels):
        how = "autocast to bfloat16"
    return Finding(
        of_size(severity, time),
        f"{in_words(time, 'ns')} ({in_percent(percent)} of device work) went into products and"
        " convolutions in single precision that, by the kernels' names, do not use the device's"
        " matrix units.",
        tuple(_longest_two(kernels, chosen)),
        "kernels.single_precision",
        numbers={"time_ns": time, "percent": percent},
        gain=(gain := _gain_of_precision(kernels, chosen)),
        no_gain="" if gain else "the peaks of the device are not known",
        action=f"If lower precision is sufficient, {how} uses the matrix units.",
    )


def _attention_in_parts(kernels: KernelRows) -> Finding | None:
    """Return a finding about attention that runs as two products and a softmax."""
    if (kernels.kind == KIND_OF_CODE.index(ATTENTION)).any():
        return None
    chosen = kernels.is_kernel & _named(kernels, _SOFTMAX)
    # The last layer, or a loss, has one softmax per step; attention has one per layer.
    time, total = int(kernels.time_ns[chosen].sum()), kernels.total_ns
    percent = share(time, total)
    severity = _SOFTMAX_SHARES.severity(percent)
    batched = kernels.is_kernel & (np.isin(kernels.operator, _codes(kernels, _BATCHED)))
    products = int(kernels.time_ns[batched].sum())
    if severity is None or int(chosen.sum()) < 4 or int(batched.sum()) < 2 * int(chosen.sum()):
        return None
    return Finding(
        of_size(severity, time),
        f"Attention ran as separate kernels: {in_words(time, 'ns')}"
        f" ({in_percent(percent)} of device work) went into {int(chosen.sum()):,} softmax"
        f" kernels, and {in_words(products, 'ns')} ({in_percent(share(products, total))}) into the"
        " batched products around them.",
        (_longest(kernels, chosen), _longest(kernels, batched)),
        "kernels.attention_in_parts",
        gain=_gain(kernels, chosen, "one kernel computes the softmax with the products"),
        action="torch.nn.functional.scaled_dot_product_attention runs attention in one kernel,"
        " without writing the weights to memory.",
        numbers={
            "time_ns": time,
            "percent": percent,
            "kernels": int(chosen.sum()),
            "products_ns": products,
            "products_percent": share(products, total),
        },
    )


def _few_blocks(kernels: KernelRows) -> Finding | None:
    """Return a finding about long kernels with fewer blocks than the device has multiprocessors."""
    written = kernels.trace.argument("blocks per SM")
    if written is None or written.numbers is None:
        return None
    every = np.full(len(kernels.trace.events), np.inf)
    every[written.rows] = written.numbers
    blocks = every[kernels.rows]
    chosen = kernels.is_kernel & (blocks > 0) & (blocks < 1) & (kernels.time_ns >= _FILLING_NS)
    # Collectives need few blocks.
    chosen &= kernels.kind != KIND_OF_CODE.index(COMMUNICATION)
    time, total = int(kernels.time_ns[chosen].sum()), kernels.total_ns
    percent = share(time, total)
    severity = _FEW_BLOCKS_SHARES.severity(percent)
    if severity is None:
        return None
    part = 100 * float(np.average(blocks[chosen], weights=kernels.time_ns[chosen]))
    spared = kernels.time_ns[chosen] * (1 - blocks[chosen])
    how = "the same work is spread over all multiprocessors"
    return Finding(
        of_size(severity, time),
        f"{in_words(time, 'ns')} ({in_percent(percent)} of device work) went into"
        f" {counted(int(chosen.sum()), 'kernel')} with fewer blocks than the device has"
        f" multiprocessors: on average they could use at most {in_percent(part)} of these.",
        tuple(_longest_two(kernels, chosen)),
        "kernels.few_blocks",
        numbers={
            "time_ns": time,
            "percent": percent,
            "kernels": int(chosen.sum()),
            "multiprocessors_percent": part,
        },
        gain=gain_of_rows(kernels.trace, kernels.rows[chosen], spared, how),
        action="Give these kernels more blocks (a larger batch, or work that is also split along"
        " the reduced dimension), or run independent work on another stream beside them.",
    )


def _gain(kernels: KernelRows, chosen: Mask, how: str) -> Gain | None:
    """Return the gain of a change that makes these kernels unnecessary."""
    return gain_of_rows(kernels.trace, kernels.rows[chosen], kernels.time_ns[chosen], how)


def _tf32_is_no_faster(kernels: KernelRows) -> bool:
    """Whether TF32 has the peak of single precision on each known device, as on GeForce cards."""
    known = [each.tflops for each in device_peaks(kernels.trace).values() if each is not None]
    return bool(known) and all(rates.get("tf32", 0.0) <= rates.get("fp32", 0.0) for rates in known)


def _gain_of_precision(kernels: KernelRows, chosen: Mask) -> Gain | None:
    """Return the gain of products on the matrix units; None if the device's peaks are unknown."""
    peaks = {each for each in device_peaks(kernels.trace).values() if each is not None}
    if len(peaks) != 1:
        return None
    rates = peaks.pop().tflops
    fast = max(("tf32", "fp16", "bf16"), key=lambda name: rates.get(name, 0.0))
    if not 0 < rates.get("fp32", 0.0) < rates.get(fast, 0.0):
        return None
    times = rates[fast] / rates["fp32"]
    spared = kernels.time_ns[chosen] * (1 - 1 / times)
    how = f"they are as much faster as the peak of {fast} is higher, {times:.1f} times"
    return gain_of_rows(kernels.trace, kernels.rows[chosen], spared, how)


def _codes(kernels: KernelRows, pattern: re.Pattern[str]) -> list[int]:
    return [code for code, name in enumerate(kernels.trace.names) if pattern.search(name)]


def _named(kernels: KernelRows, pattern: re.Pattern[str]) -> Mask:
    codes = [code for code in kernels.names if pattern.search(kernels.trace.names[code])]
    return np.isin(kernels.name, codes)


def _longest_two(kernels: KernelRows, chosen: Mask) -> list[Evidence]:
    """Return the longest launch and, if there is one, the longest of another kernel or the next."""
    rows, names = kernels.rows[chosen], kernels.name[chosen]
    order = np.argsort(-kernels.time_ns[chosen], kind="stable")
    others = order[names[order] != names[order[0]]]
    shown = [order[0], *(others[:1] if len(others) else order[1:2])]
    return [evidence(kernels.trace, int(rows[at])) for at in shown]


def _longest(kernels: KernelRows, chosen: Mask) -> Evidence:
    rows = kernels.rows[chosen]
    return evidence(kernels.trace, int(rows[kernels.time_ns[chosen].argmax()]))
