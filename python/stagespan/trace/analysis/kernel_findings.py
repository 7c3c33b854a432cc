"""What an expert would say about the kernels of a trace, with the figures that say so."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from stagespan.trace.analysis.grouping import grouped
from stagespan.trace.analysis.kinds import (
    ATTENTION,
    CONVOLUTION,
    COPY,
    ELEMENTWISE,
    KINDS,
    LAYOUT,
    MATMUL,
    NORM,
    REDUCTION,
    inductor_kind,
)
from stagespan.trace.analysis.result import (
    Evidence,
    Finding,
    Severity,
    evidence,
    in_words,
    of_size,
    share,
    shortened,
)
from stagespan.trace.arrays import Mask
from stagespan.trace.intervals import covered

if TYPE_CHECKING:
    from stagespan.trace.analysis.kernels import Kernels

_KINDS = list(KINDS)
# Below these a trace is too short to say anything about a program.
_FEWEST_KERNELS = 100
_LEAST_NS = 1_000_000
_DOMINANT = 50.0
_TINY_NS = 5_000
_TINY_LEAST = 10_000
_TINY_SHARE = 50.0
_FUSIBLE = tuple(_KINDS.index(kind) for kind in (ELEMENTWISE, COPY, NORM, REDUCTION))
_FUSIBLE_SHARES: tuple[tuple[float, Severity], ...] = (
    (60.0, "high"),
    (40.0, "medium"),
    (30.0, "low"),
)
_ELEMENTWISE_LEAST = 10.0
# One pass over memory already, however many tensors; and what no elementwise kernel merges with.
_FUSED = re.compile(
    r"multi_?tensor|foreach|softmax|pool|sort|topk|scan|cub::|rocprim", re.IGNORECASE
)
_LAYOUT_SHARES: tuple[tuple[float, Severity], ...] = ((20.0, "high"), (5.0, "medium"))
_ASCEND_LAYOUT = re.compile("TransData")
_COMPILED = re.compile(r"^Torch-Compiled Region|^CompiledFunction|^## Call CompiledFxGraph")
_SINGLE = re.compile(
    r"(?:^|_)(?:volta|turing|ampere|hopper|sm[789]\d)_s(?:gemm|cudnn)_|cutlass_[789]\d_simt_sgemm"
    r"|^sm\d+_xmma_gemm_f32f32_f32f32_f32"
)
# These have matrix units for half precision alone.
_HALF_ALONE = re.compile(r"volta|turing|sm7\d|cutlass_7")
_SOFTMAX = re.compile(r"softmax", re.IGNORECASE)
_SOFTMAX_SHARES: tuple[tuple[float, Severity], ...] = ((30.0, "high"), (10.0, "medium"))
_BATCHED = re.compile(r"^aten::(?:bmm|baddbmm)$")
# On the matrix units such work takes less than half of its time.
_SINGLE_SHARES: tuple[tuple[float, Severity], ...] = (
    (80.0, "high"),
    (40.0, "medium"),
    (20.0, "low"),
)


def findings_of(kernels: Kernels) -> list[Finding]:
    """Findings about a device's kernels; what is amiss on a host alone stands elsewhere."""
    time = kernels.time_ns[kernels.is_kernel]
    if not kernels.on_device or len(time) < _FEWEST_KERNELS or time.sum() < _LEAST_NS:
        return []
    found = [
        _dominant(kernels),
        _tiny(kernels),
        _fusible(kernels),
        _layout(kernels),
        _single_precision(kernels),
        _attention_in_parts(kernels),
    ]
    return [each for each in found if each is not None]


def _dominant(kernels: Kernels) -> Finding | None:
    """One kernel takes most of the time that the device worked."""
    groups = kernels.by_name()
    first = groups[0]
    percent = share(first.time_ns, kernels.total_ns)
    events = kernels.trace.events
    # Streams overlap: more than half of the busy time, not only of the sum.
    begin, end = events.begin_ns[kernels.rows], events.end_ns[kernels.rows]
    mine = kernels.name == first.code
    of_busy = share(covered(begin[mine], end[mine]), covered(begin, end))
    kind = _KINDS[kernels.kind_of_name[first.code]]
    if min(percent, of_busy) < _DOMINANT or kind == "communication":
        return None
    operator = kernels.prevailing(kernels.operator).get(first.code)
    launched = "" if operator is None else f", launched by {kernels.trace.names[operator]},"
    name = shortened(kernels.trace.names[first.code])
    return Finding(
        "medium",
        f"One kernel, {name}{launched} takes {in_words(first.time_ns, 'ns')}"
        f" ({percent:.1f} % of device work) in {first.count:,} launches: whether it uses the"
        " device well, Nsight Compute or its like would tell first.",
        (_longest(kernels, mine), Evidence("all its launches", None, first.time_ns, "ns")),
        "kernels.dominant",
    )


def _tiny(kernels: Kernels) -> Finding | None:
    """Very many kernels that are too short for the device to be worth a launch each."""
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
        f"{count:,} kernels ({percent:.1f} % of those launched one by one) ran for less than"
        f" {in_words(_TINY_NS, 'ns')} each, together {in_words(time, 'ns')}. They would cost less"
        " if torch.compile fused them, if a device graph launched them, or with more work in each.",
        (
            Evidence("kernels below 5 µs", None, count, "events"),
            Evidence(kernels.trace.names[first.code], None, first.count, "events"),
        ),
        "kernels.tiny",
    )


def _fusible(kernels: Kernels) -> Finding | None:
    """Much time in what is bound by memory, and nothing has fused it."""
    names = kernels.trace.names
    ran = np.unique(kernels.name).tolist()
    if any(inductor_kind(names[code]) for code in ran):
        return None
    if any(_COMPILED.search(name) for name in names):
        return None
    chosen = kernels.is_kernel & np.isin(kernels.kind, _FUSIBLE) & ~_named(kernels, _FUSED)
    time, total = int(kernels.time_ns[chosen].sum()), kernels.total_ns
    percent = share(time, total)
    severity = _severity(percent, _FUSIBLE_SHARES)
    elementwise = chosen & (kernels.kind == _KINDS.index(ELEMENTWISE))
    least = _ELEMENTWISE_LEAST
    if severity is None or share(int(kernels.time_ns[elementwise].sum()), total) < least:
        return None
    first = grouped(kernels.name[chosen], kernels.time_ns[chosen])[0]
    return Finding(
        of_size(severity, time),
        f"{in_words(time, 'ns')} ({percent:.1f} % of device work) went into"
        f" {int(chosen.sum()):,} kernels that only pass over memory (elementwise, copies, norms,"
        " reductions), and nothing in the trace was compiled: torch.compile would fuse many of"
        " them.",
        (
            Evidence(names[first.code], None, first.time_ns, "ns"),
            Evidence("kernels that only pass over memory", None, percent, "%"),
        ),
        "kernels.memory_bound",
    )


def _layout(kernels: Kernels) -> Finding | None:
    """Tensors are turned from one layout to another around convolutions."""
    chosen = kernels.is_kernel & _named(kernels, LAYOUT)
    time, total = int(kernels.time_ns[chosen].sum()), kernels.total_ns
    percent = share(time, total)
    severity = _severity(percent, _LAYOUT_SHARES)
    if severity is None:
        return None
    ascend = _named(kernels, _ASCEND_LAYOUT)[chosen].any()
    advice = (
        "see whether torch.npu.config.allow_internal_format = False avoids them"
        if ascend
        else "keep model and inputs in the layout that the convolutions use"
        " (memory_format=torch.channels_last)"
    )
    return Finding(
        of_size(severity, time),
        f"{in_words(time, 'ns')} ({percent:.1f} % of device work) went into"
        f" {int(chosen.sum()):,} kernels that only change the layout of tensors: {advice}.",
        (_longest(kernels, chosen), Evidence("changes of layout", None, percent, "%")),
        "kernels.layout",
    )


def _single_precision(kernels: Kernels) -> Finding | None:
    """Products in single precision, on a device whose matrix units were left idle."""
    chosen = kernels.is_kernel & _named(kernels, _SINGLE)
    chosen &= np.isin(kernels.kind, (_KINDS.index(MATMUL), _KINDS.index(CONVOLUTION)))
    time, total = int(kernels.time_ns[chosen].sum()), kernels.total_ns
    percent = share(time, total)
    severity = _severity(percent, _SINGLE_SHARES)
    if severity is None:
        return None
    half = _named(kernels, _HALF_ALONE)[chosen].any()
    advice = "autocast to bfloat16, or torch.set_float32_matmul_precision('high'),"
    if half:
        advice = "autocast to float16"
    return Finding(
        of_size(severity, time),
        f"{in_words(time, 'ns')} ({percent:.1f} % of device work) went into products and"
        " convolutions in single precision without the device's matrix units, as the kernels'"
        f" names say: where less precision is enough, {advice} would use them.",
        (_longest(kernels, chosen), Evidence("products without matrix units", None, percent, "%")),
        "kernels.single_precision",
    )


def _attention_in_parts(kernels: Kernels) -> Finding | None:
    """Attention as two products and a softmax that writes all weights to memory."""
    if (kernels.kind == _KINDS.index(ATTENTION)).any():
        return None
    chosen = kernels.is_kernel & _named(kernels, _SOFTMAX)
    # Of the last layer, or of a loss, there is one a step; of attention one a layer.
    time, total = int(kernels.time_ns[chosen].sum()), kernels.total_ns
    percent = share(time, total)
    severity = _severity(percent, _SOFTMAX_SHARES)
    batched = kernels.is_kernel & (np.isin(kernels.operator, _codes(kernels, _BATCHED)))
    products = int(kernels.time_ns[batched].sum())
    if severity is None or int(chosen.sum()) < 4 or int(batched.sum()) < 2 * int(chosen.sum()):
        return None
    return Finding(
        of_size(severity, time),
        f"Attention ran in parts, with no kernel of its own: {in_words(time, 'ns')}"
        f" ({percent:.1f} % of device work) went into {int(chosen.sum()):,} softmax kernels, and"
        f" {in_words(products, 'ns')} ({share(products, total):.1f} %) into the batched products"
        " around them. torch.nn.functional.scaled_dot_product_attention does all of it in one"
        " kernel, without writing the weights to memory.",
        (_longest(kernels, chosen), _longest(kernels, batched)),
        "kernels.attention_in_parts",
    )


def _codes(kernels: Kernels, pattern: re.Pattern[str]) -> list[int]:
    return [code for code, name in enumerate(kernels.trace.names) if pattern.search(name)]


def _named(kernels: Kernels, pattern: re.Pattern[str]) -> Mask:
    codes = [c for c in np.unique(kernels.name).tolist() if pattern.search(kernels.trace.names[c])]
    return np.isin(kernels.name, codes)


def _longest(kernels: Kernels, chosen: Mask) -> Evidence:
    rows = kernels.rows[chosen]
    return evidence(kernels.trace, int(rows[kernels.time_ns[chosen].argmax()]))


def _severity(percent: float, shares: tuple[tuple[float, Severity], ...]) -> Severity | None:
    return next((severity for least, severity in shares if percent >= least), None)
