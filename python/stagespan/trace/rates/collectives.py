"""Collectives: their operation, algorithm, bytes and ranks, and what each link carries."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from stagespan.trace.derived.device import COMMUNICATION, COMPUTE, device_work, launch_of
from stagespan.trace.derived.host_work import host_work
from stagespan.trace.derived.idle_causes import COMMUNICATES
from stagespan.trace.derived.kernel_kinds import COLLECTIVE
from stagespan.trace.derived.launch_sources import values_at
from stagespan.trace.derived.threads import ThreadIndex, named
from stagespan.trace.derived.trees import Nesting
from stagespan.trace.rates.calls import CostUnknownError, call_of
from stagespan.trace.read.groups import parts
from stagespan.trace.read.intervals import Cover, Numbers, Rows
from stagespan.trace.read.model import Trace
from stagespan.trace.read.view import once

_OPS = (
    ("all_reduce", r"all_?reduce"),
    ("all_gather", r"all_?gather"),
    ("reduce_scatter", r"reduce_?scatter"),
    ("all_to_all", r"all_?to_?all"),
    ("broadcast", r"broadcast"),
    ("barrier", r"barrier"),
    ("send_recv", r"send_?recv"),
    ("send", r"(?:^|:|_)i?send"),
    ("recv", r"(?:^|:|_)i?recv"),
    ("gather", r"gather"),
    ("scatter", r"scatter"),
    ("reduce", r"reduce"),
)
_COMPILED = tuple((op, re.compile(pattern, re.IGNORECASE)) for op, pattern in _OPS)
_SIZES = {
    **dict.fromkeys(("float", "int", "int32", "float32", "uint32"), 4),
    **dict.fromkeys(("double", "long", "int64", "float64", "complexfloat", "uint64"), 8),
    **dict.fromkeys(("half", "bfloat16", "short", "float16", "int16"), 2),
    **dict.fromkeys(("byte", "char", "bool", "int8", "uint8"), 1),
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"), 1),
}
"""Bytes of an element, by the name of its type in lower case."""
_MOST_MEMBERS = 10_000_000
_ON_HOST = re.compile(r"^(?:gloo|mpi|ucc|xccl):", re.IGNORECASE)
_OF_BACKENDS = re.compile(rf"^(?!c10d){COLLECTIVE}", re.IGNORECASE)
_CALLS = re.compile(r"^c10d::(?!barrier)")
_ALGORITHM = re.compile(r"_(RING|TREE|COLLNET_DIRECT|COLLNET_CHAIN|NVLS|NVLS_TREE|PAT)(?=_|\()")
_PROTOCOL = re.compile(r"_(LL128|LL|SIMPLE)(?![A-Za-z0-9])", re.IGNORECASE)


def op_of(name: str) -> str:
    """The collective in the name of a kernel, an annotation, or a record of the profiler."""
    return next((op for op, pattern in _COMPILED if pattern.search(name)), "other")


def numbered_ops(names: Sequence[str]) -> tuple[list[str], NDArray[np.int32]]:
    """The different operations in names of collectives, and the index of each name's operation."""
    of_name = {name: op_of(name) for name in set(names)}
    known: dict[str, int] = {}
    codes = [known.setdefault(of_name[name], len(known)) for name in names]
    return list(known), np.array(codes, dtype=np.int32)


def ops_of(trace: Trace, rows: Rows) -> tuple[list[str], NDArray[np.int32]]:
    """The different operations of some collectives, and the index of each one's operation.

    It is in the profiler's record of the kernel, or in the annotation around its launch. The name
    of the kernel counts last: NCCL can run a collective in a kernel with the name of another, and
    sends and receives for an all-to-all.
    """
    marks = annotations_of(trace, rows)
    codes = np.where(marks >= 0, trace.events.name[marks], trace.events.name[rows]).tolist()
    written, texts = argument_of(trace, rows, "Collective name")
    pairs = zip(written.tolist(), codes, strict=True)
    return numbered_ops([texts[text] if text >= 0 else trace.names[code] for text, code in pairs])


@once
def work_of(trace: Trace) -> tuple[Rows, Cover]:
    """The events that communicate, sorted by begin, and the times in which something computes.

    Collectives of the host count if no device runs one. Without a device, operators compute.
    """
    events, kind = trace.events, device_work(trace).kind
    rows, on_device = np.flatnonzero(kind == COMMUNICATION), bool(len(device_work(trace).rows))
    if len(rows) == 0:
        marks = trace.rows_of(["user_annotation", "cpu_op"])
        rows = np.flatnonzero(marks & named(trace, _ON_HOST))
        if len(rows) == 0 and not on_device:
            # The operators that call a collective, if the trace shows nothing of its run.
            rows = np.flatnonzero(marks & named(trace, _CALLS))
        rows = _outermost(trace, rows)
    if on_device:
        computes = np.flatnonzero(kind == COMPUTE)
        computing = Cover(events.begin_ns[computes], events.end_ns[computes])
    else:
        computing = host_work(trace).computing
    return rows[np.lexsort((events.end_ns[rows], events.begin_ns[rows]))], computing


@once
def unseen_calls(trace: Trace) -> Rows:
    """The calls of collectives that run on a device, if no event of the device shows a run.

    Their annotations last until the call returns or is waited for, which tells nothing about runs.
    """
    kind = device_work(trace).kind
    if not len(device_work(trace).rows) or (kind == COMMUNICATION).any():
        return np.empty(0, dtype=np.intp)
    marks = trace.rows_of(["user_annotation", "cpu_op"]) & named(trace, _OF_BACKENDS)
    # Until it is waited for, a call can have others in it.
    return _outermost(trace, np.flatnonzero(marks & ~named(trace, _ON_HOST)), of_name=True)


def _outermost(trace: Trace, rows: Rows, *, of_name: bool = False) -> Rows:
    """The rows that are not within another one, as a host's collective can be marked twice.

    With ``of_name``, those not directly within one of the same name.
    """
    index = ThreadIndex(trace, rows)
    if len(rows) == 0 or not index.fits:
        return rows
    nesting = Nesting.of(trace, index.axis, rows, index.of[0])
    is_outer = nesting.parent < 0
    if of_name:
        names = trace.events.name[nesting.rows]
        is_outer |= names != names[nesting.parent]
    return nesting.rows[is_outer]


def exposed_calls(
    trace: Trace, rows: Rows, computes: Cover, window: tuple[int, int]
) -> tuple[Rows, Numbers]:
    """Some collectives, and the time in ns of each within an interval in which nothing computed."""
    events = trace.events
    begin, end = (np.clip(each[rows], *window) for each in (events.begin_ns, events.end_ns))
    return rows, end - begin - computes.length(begin, end)


def algorithm_of(kernel: str) -> str | None:
    """The algorithm and protocol in the name of a kernel of NCCL or RCCL, such as "RING_LL".

    None if the name does not contain them. NCCL 2.20 and later chooses the algorithm within a
    kernel, so its names contain it only for some.
    """
    algorithm, protocol = _ALGORITHM.search(kernel), _PROTOCOL.search(kernel)
    if algorithm is None:
        return None
    return f"{algorithm[1]}_{protocol[1].upper()}" if protocol else algorithm[1]


def bytes_in(trace: Trace, rows: Rows) -> Numbers:
    """The bytes of each collective's input on this rank; -1 if the trace does not contain them.

    They are arguments of a kernel with newer versions of torch. Otherwise they follow from the
    shapes of the annotation around its launch, or of the collective itself on a host.
    """
    elements = number_of(trace, rows, "In msg nelems")
    code, types = argument_of(trace, rows, "dtype")
    size = np.array([*(_SIZES.get(each.lower(), -1) for each in types), -1], dtype=np.int64)[code]
    moved = np.where((elements >= 0) & (size > 0), elements * size, -1)
    missing = np.flatnonzero(moved < 0)
    if len(missing):
        moved[missing] = _bytes_of_shapes(trace, annotations_of(trace, rows[missing]))
    return moved


def annotations_of(trace: Trace, rows: Rows) -> Rows:
    """The annotation of the host (`nccl:all_reduce`) of each collective, or -1."""
    events = trace.events
    marks = trace.rows_of(["user_annotation", "cpu_op"]) & named(trace, COMMUNICATES)
    calls = launch_of(trace, rows)
    annotation = np.where(marks[rows], rows, -1)
    chosen, with_call = np.flatnonzero(marks), np.flatnonzero((calls >= 0) & (annotation < 0))
    index = ThreadIndex(trace, chosen, calls[with_call])
    if len(chosen) == 0 or len(with_call) == 0 or not index.fits:
        return annotation
    nesting = Nesting.of(trace, index.axis, chosen, index.of[0])
    around = nesting.at(index.axis.place(index.of[1], events.begin_ns[calls[with_call]]))
    # `record_param_comms` has shapes of its arguments, which are not those of the message.
    named_so = named(trace, _WITH_SHAPES, nesting.rows)
    around = values_at(nesting.first_around(named_so), around)
    annotation[with_call] = values_at(nesting.rows, around)
    return annotation


_WITH_SHAPES = re.compile(rf"^{COLLECTIVE}")


def _bytes_of_shapes(trace: Trace, rows: Rows) -> Numbers:
    dims, shapes = argument_of(trace, rows, "Input Dims")
    types, names = argument_of(trace, rows, "Input type")
    dims, types = np.where(rows >= 0, dims, -1), np.where(rows >= 0, types, -1)
    bytes_of: dict[tuple[int, int], int] = {}
    moved = []
    for pair in zip(dims.tolist(), types.tolist(), strict=True):
        if pair not in bytes_of:
            bytes_of[pair] = -1 if min(pair) < 0 else _bytes_of(shapes[pair[0]], names[pair[1]])
        moved.append(bytes_of[pair])
    return np.array(moved, dtype=np.int64)


def _bytes_of(shapes: str, types: str) -> int:
    call = call_of("", shapes, types, "", "")
    tensors = [] if call is None else call.all_tensors()
    try:
        return int(sum(each.bytes for each in tensors)) if tensors else -1
    except CostUnknownError:
        return -1


def members(trace: Trace, rows: Rows) -> Numbers:
    """The number of ranks in each collective's group; -1 if the trace does not contain it."""
    sizes_in_events = number_of(trace, rows, "Group size")
    sizes = group_sizes(trace)
    if not sizes or not (sizes_in_events < 0).any():
        return sizes_in_events
    several = {size for size in sizes.values() if size > 1}
    only = several.pop() if len(several) == 1 else -1
    code, names = argument_of(trace, rows, "Process Group Name")
    of_name = np.array([*(sizes.get(each, -1) for each in names), only], dtype=np.int64)
    return np.where(sizes_in_events < 0, of_name[code], sizes_in_events)


@once
def group_sizes(trace: Trace) -> dict[str, int]:
    """The sizes of the process groups by name, from `distributedInfo`; empty if unknown."""
    config = distributed_info(trace).get("pg_config")
    if isinstance(config, str):
        try:
            config = msgspec.json.decode(config)
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
            return {}
    groups = [each for each in config if isinstance(each, dict)] if isinstance(config, list) else []
    size_of = {}
    for each in groups:
        name, size = each.get("pg_name"), each.get("pg_size")
        if isinstance(name, str) and type(size) is int and 0 < size <= _MOST_MEMBERS:
            size_of[name] = size
    return size_of


def distributed_info(trace: Trace) -> dict[str, object]:
    """Return the trace's `distributedInfo`, which some versions write as a string.

    The traces of `stagespan dump` have the same facts in `otherData`.
    """
    info = trace.metadata.get("distributedInfo")
    other = trace.metadata.get("otherData")
    if info is None and isinstance(other, dict):
        info = other.get("stagespan")
    if isinstance(info, str):
        rank = re.search(r"['\"]rank['\"]:\s*(\d{1,9})\b", info)
        world = re.search(r"['\"]world_size['\"]:\s*(\d{1,9})\b", info)
        found = {"rank": rank, "world_size": world}
        return {key: int(match[1]) for key, match in found.items() if match}
    return info if isinstance(info, dict) else {}


def bus_bytes(op: str, bytes_in: int, members: int) -> float | None:
    """Bytes over each rank's link; None if unknown.

    Counted as in NCCL's tests, so that the bus bandwidth can be compared with that of the link
    (https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md). `bytes_in` is the input
    of one rank, which for an all-gather is one of `members` parts.
    """
    if bytes_in < 0 or members < 2:
        return None
    factor = {
        "all_reduce": 2 * (members - 1) / members,
        "reduce_scatter": (members - 1) / members,
        "all_to_all": (members - 1) / members,
        "all_gather": float(members - 1),
        "broadcast": 1.0,
        "reduce": 1.0,
    }.get(op)
    return None if factor is None else factor * bytes_in


def number_of(trace: Trace, rows: Rows, key: str) -> Numbers:
    """The numeric argument of each row; -1 for rows without it."""
    values = np.full(len(rows), -1, dtype=np.int64)
    argument = trace.argument(key) if len(rows) else None
    if argument is not None and argument.numbers is not None:
        for some in parts(len(rows)):
            at, hit = _looked_up(argument.rows, rows[some])
            values[some][hit] = argument.numbers[at[hit]].astype(np.int64)
    return values


def argument_of(trace: Trace, rows: Rows, key: str) -> tuple[Numbers, list[str]]:
    """The code of each row's argument (-1 for rows without it), and the texts."""
    argument = trace.argument(key) if len(rows) else None
    codes = np.full(len(rows), -1, dtype=np.int64)
    if argument is None:
        return codes, []
    at, hit = _looked_up(argument.rows, rows)
    if argument.numbers is None:
        codes[hit] = argument.codes[at[hit]]
        return codes, argument.texts
    values, code = np.unique(argument.numbers, return_inverse=True)
    codes[hit] = code.reshape(-1)[at[hit]]
    return codes, [str(value) for value in values.tolist()]


def _looked_up(ordered: Numbers, rows: Rows) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    at = np.minimum(np.searchsorted(ordered, rows), len(ordered) - 1)
    return at, ordered[at] == rows
