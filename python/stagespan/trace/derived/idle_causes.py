"""The causes of idle time, and the names and rows of the events that show them."""

from __future__ import annotations

import re
from typing import Annotated

from stagespan.pages.figures import one_of
from stagespan.trace.derived.kernel_kinds import COLLECTIVE
from stagespan.trace.derived.threads import named
from stagespan.trace.read.intervals import Mask
from stagespan.trace.read.model import Trace
from stagespan.trace.read.view import once

# The launching thread was preparing the next launch.
LAUNCH = "launch"
# It waited for the device, or had just waited.
SYNCHRONISATION = "synchronisation"
MEMORY_ALLOCATION = "memory_allocation"
DATA_LOADING = "data_loading"
COMPILATION = "compilation"
KERNEL_LOADING = "kernel_loading"
PROFILER = "profiler"
# Another call took long.
RUNTIME_CALL = "runtime_call"
# It did other work than launching, between two steps or within one.
BETWEEN_STEPS = "between_steps"
HOST_WORK = "host_work"
# It launched nothing for a long time, and the trace has no host event in this time.
HOST_UNSEEN = "host_unseen"
# The launch was in time.
DEPENDENCY = "dependency"
GRAPH = "graph"
QUEUED = "queued"
UNSEEN_WAIT = "unseen_wait"
# The launch is unknown.
NOT_TRACED = "not_traced"

CAUSES: dict[str, str] = {
    LAUNCH: "the host could not launch work fast enough",
    SYNCHRONISATION: "the host waited for the device before it launched the next work",
    BETWEEN_STEPS: "the host did other work between steps",
    HOST_WORK: "the host did work other than launching",
    HOST_UNSEEN: "the host launched nothing, and the trace does not show what it did",
    DATA_LOADING: "the host waited for the data loader",
    MEMORY_ALLOCATION: "the host allocated or freed device memory",
    COMPILATION: "the host compiled",
    KERNEL_LOADING: "the host loaded kernels at their first use",
    PROFILER: "the profiler itself took the time",
    RUNTIME_CALL: "calls of the runtime took long",
    DEPENDENCY: "work that was launched in time had to wait for another stream",
    GRAPH: "a device graph was running, and the trace does not show what it waited for",
    QUEUED: "the device switched from one kernel to the next",
    UNSEEN_WAIT: "work that was launched in time waited for something outside the trace",
    NOT_TRACED: "the trace does not show why",
}
"""Every cause with its meaning, as the end of a sentence."""
Cause = Annotated[str, one_of(CAUSES)]
"""The name of a cause, for structs of figures."""
STARVED = (
    LAUNCH,
    SYNCHRONISATION,
    BETWEEN_STEPS,
    HOST_WORK,
    HOST_UNSEEN,
    DATA_LOADING,
    MEMORY_ALLOCATION,
    COMPILATION,
    KERNEL_LOADING,
    RUNTIME_CALL,
)
"""The causes on the host, which a change of the program can remove."""
PACE = (LAUNCH, HOST_WORK, RUNTIME_CALL)
"""The causes of one kind: the host works, and launches too slowly. Only the length of the gaps and
of the calls distinguishes them."""
WAITING = (DEPENDENCY, GRAPH, QUEUED, UNSEEN_WAIT)
"""The causes that are not on the host, because the launch was in time."""

# A copy without Async in its name returns when it is done; hipMemcpyWithStream too.
WAITS = re.compile(
    r"synchroni[sz]e|^(?:cuda|hip|cu|aclrt|musa)Memcpy(?!.*(?:Async|Peer))|QueueFinish|"
    r"^(?:ur|pi)Events?Wait$|^AscendCL@aclrtMemcpy(?!.*Async)",
    re.IGNORECASE,
)
"""Runtime and driver calls in which the host waits for the device."""
COPIES = re.compile(r"memcpy", re.IGNORECASE)
"""Calls that copy. Those that last until the end of their copy wait for the device."""
ALLOCATES = re.compile(
    r"^(?:AscendCL@)?(?:cuda|hip|cu|aclrt|musa)(?:Ext)?(?:Mem)?(?:Host|Pool)?"
    r"(?:Malloc|Alloc|Free|Create|Map|Unmap|Release|AddressReserve|AddressFree)"
    r"(?:Host|Async|Managed|Pitch|Array|FromPool|Physical|Align32|Cached|_v2)*"
    r"|^(?:ur|pi)(?:ext)?USM(?:Device|Host|Shared)?(?:Alloc|Free)|^zeMem(?:Alloc|Free)",
)
"""Runtime and driver calls that allocate or free memory."""
GRAPH_LAUNCHES = re.compile(r"GraphLaunch|GraphExec|aclmdl(?:RI)?Execute", re.IGNORECASE)
"""Calls that each launch many kernels."""
SINGLE_LAUNCHES = re.compile(
    r"Memcpy|Memset|MemFill|USMFill|Launch\w*Kernel|KernelLaunch|Launch(?:Cooperative|Host)"
    r"|^(?:cu|hip)Launch(?:Grid)?(?:Async)?$|aclop|aclnn",
    re.IGNORECASE,
)
"""Calls of one kernel, copy or memset, which the device may do in several parts."""
_LOADS_DATA = re.compile(
    r"^enumerate\(DataLoader\)#|DataLoaderIter\.__next__|dataloader\w*[._ ]next"
    r"|(?:next|get|load|fetch|prepare)[_ ](?:next[_ ])?(?:data|batch)(?:es)?\b"
    r"|data[_ ]?load(?:ing)?\b",
    re.IGNORECASE,
)
"""Annotations of loading data, by torch's loader, Lightning, and users."""
_LOADS_DATA_FRAME = re.compile(r"torch/utils/data/dataloader\.py\(\d+\): __next__$")
MARKS = re.compile(r"#")
"""Annotations, which are operators in old traces: ProfilerStep#1, Optimizer.step#SGD.step."""
COMPILES = re.compile(r" \(dynamo_timed\)$")
LOADS_KERNELS = re.compile(r"Lazy Function Loading|ModuleLoad|LibraryLoad")
"""Among the events of category `overhead`; the others are the profiler's own."""
WAITING_OPERATORS = ("aten::item", "aten::_local_scalar_dense", "aten::is_nonzero")
"""Operators that wait, for traces without waiting calls."""
SYNC_OPERATORS = (
    "aten::item",
    "aten::is_nonzero",
    "aten::_local_scalar_dense",
    "aten::nonzero",
    "aten::masked_select",
    "aten::unique_dim",
    "aten::_unique2",
    "aten::equal",
    "aten::to",
    "aten::_to_copy",
    "aten::copy_",
    "aten::cpu",
    "aten::repeat_interleave",
)
"""Operators that are known to wait for the device. Findings name the outermost one."""
COMMUNICATES = re.compile(rf"^{COLLECTIVE}|^record_param_comms$")


@once
def loads_data(trace: Trace) -> Mask:
    """Return the annotations and Python frames in which the program loads data."""
    marks = trace.rows_of(["user_annotation", "cpu_op"]) & named(trace, _LOADS_DATA)
    frames = trace.rows_of(["python_function"]) & named(trace, _LOADS_DATA_FRAME)
    return marks | frames
