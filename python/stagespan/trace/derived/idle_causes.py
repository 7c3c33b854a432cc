"""The causes of idle time, and the names and rows of the events that show them."""

from __future__ import annotations

import re
from typing import Annotated, Literal, NamedTuple

from stagespan.device.table import CALLS_LIKE_CUDA
from stagespan.pages.figures import one_of
from stagespan.trace.derived.kernel_kinds import COLLECTIVE
from stagespan.trace.derived.threads import among, named
from stagespan.trace.read.intervals import Mask
from stagespan.trace.read.model import Trace
from stagespan.trace.read.view import once

LAUNCH = "launch"
SYNCHRONISATION = "synchronisation"
BETWEEN_STEPS = "between_steps"
HOST_WORK = "host_work"
HOST_UNSEEN = "host_unseen"
DATA_LOADING = "data_loading"
MEMORY_ALLOCATION = "memory_allocation"
COMPILATION = "compilation"
FIRST_COMPILATION = "first_compilation"
KERNEL_LOADING = "kernel_loading"
PROFILER = "profiler"
START_UP = "start_up"
LOADER_START = "loader_start"
GRAPH_CAPTURE = "graph_capture"
RUNTIME_CALL = "runtime_call"
DEPENDENCY = "dependency"
GRAPH = "graph"
QUEUED = "queued"
UNSEEN_WAIT = "unseen_wait"
NOT_TRACED = "not_traced"
EARLIER_WORK = "earlier_work"


class CauseRow(NamedTuple):
    """What is known about a cause of idle time."""

    meaning: str
    """The end of a sentence."""
    colour: str
    """In charts: a colour, or the name of one of the page's colours."""
    where: Literal["host", "device", "once", "profiler", "unknown", "outside"]
    """Who caused it: the host, where a change of the program can remove it; the device, because the
    launch was in time; the host, but only once in a program; the profiler; what was before the
    trace."""
    is_pace: bool = False
    """Whether the host works, and launches too slowly. Only the length of the gaps and of the calls
    distinguishes these causes, so that one finding is about all of them."""
    is_slowed_by_stacks: bool = False
    """Whether the host worked, so that recorded stacks make it longer."""
    is_explained: bool = True
    """Whether the trace shows a reason that a change could remove."""
    code: str = ""
    """The code of the finding, if it is not that of the cause."""


ROWS: dict[str, CauseRow] = {
    # The launching thread was preparing the next launch.
    LAUNCH: CauseRow("the host could not launch work fast enough", "#e2674a", "host", True, True),
    # It waited for the device, or had just waited.
    SYNCHRONISATION: CauseRow(
        "the next work was launched only after a wait for the device",
        "#d9a21b",
        "host",
        is_slowed_by_stacks=True,
    ),
    # It did other work than launching, between two steps or within one.
    BETWEEN_STEPS: CauseRow(
        "the host did other work between steps", "#7d6bd0", "host", is_slowed_by_stacks=True
    ),
    HOST_WORK: CauseRow("the host did work other than launching", "#4f9fb5", "host", True, True),
    # It launched nothing for a long time, and the trace has no host event in this time.
    HOST_UNSEEN: CauseRow(
        "the host launched nothing, and the trace does not show what it did", "#a8c4cc", "host"
    ),
    DATA_LOADING: CauseRow(
        "the host waited for the data loader",
        "#c2528b",
        "host",
        is_slowed_by_stacks=True,
        code="idle.data_loader",
    ),
    MEMORY_ALLOCATION: CauseRow("the host allocated or freed device memory", "#8b6f47", "host"),
    COMPILATION: CauseRow("the host compiled again", "#5f8f3e", "host", is_slowed_by_stacks=True),
    # Lost once in a program: a trace that begins after a warm-up does not have it.
    FIRST_COMPILATION: CauseRow("the host compiled for the first time", "#7fa860", "once"),
    KERNEL_LOADING: CauseRow("the host loaded kernels at their first use", "#b36ad1", "once"),
    START_UP: CauseRow(
        "the program started up: its first calls created a context, loaded modules or connected"
        " ranks",
        "#c9b458",
        "once",
    ),
    LOADER_START: CauseRow(
        "the data loader started its workers and loaded their first batch", "#d68ab0", "once"
    ),
    GRAPH_CAPTURE: CauseRow("the host captured a device graph", "#6fae9a", "once"),
    PROFILER: CauseRow("the profiler itself took the time", "#9a9a9a", "profiler"),
    # Another call took long.
    RUNTIME_CALL: CauseRow("calls of the runtime took long", "#cc7a2e", "host", True, True),
    # The launch was in time.
    DEPENDENCY: CauseRow(
        "work that was launched in time had to wait for another stream", "#3f78c9", "device"
    ),
    GRAPH: CauseRow(
        "a device graph was running, and the trace does not show what it waited for",
        "#56a68b",
        "device",
        is_explained=False,
    ),
    QUEUED: CauseRow("the device switched from one kernel to the next", "#b8bcc4", "device"),
    UNSEEN_WAIT: CauseRow(
        "work that was launched in time waited for something outside the trace",
        "soft",
        "device",
        is_explained=False,
    ),
    # The launch is unknown.
    NOT_TRACED: CauseRow(
        "the trace does not show why",
        "#868d97",
        "unknown",
        is_explained=False,
        code="idle.unexplained",
    ),
    # Before the device's first work in the trace.
    EARLIER_WORK: CauseRow(
        "the host waited for work that the trace does not contain",
        "#6b7a8f",
        "outside",
        is_explained=False,
    ),
}
"""What is known about each cause. A new cause needs a row, and the code in `gaps` that finds it."""
CAUSES = {cause: row.meaning for cause, row in ROWS.items()}
"""Every cause with its meaning."""
Cause = Annotated[str, one_of(CAUSES)]
"""The name of a cause, for structs of figures."""


def causes_of(where: str) -> tuple[str, ...]:
    """Return the causes in the column `where` of the table."""
    return tuple(cause for cause, row in ROWS.items() if row.where == where)


def colour_of(cause: str) -> str:
    """Return the colour of a cause, or of idle time before and after all work of the device."""
    return ROWS[cause].colour if cause in ROWS else "soft"


# A copy without Async in its name returns when it is done; hipMemcpyWithStream too.
WAITS = re.compile(
    rf"synchroni[sz]e|^(?:{CALLS_LIKE_CUDA}|musa)Memcpy(?!.*(?:Async|Peer))|QueueFinish|"
    r"^(?:ur|pi)Events?Wait$|^AscendCL@aclrtMemcpy(?!.*Async)",
    re.IGNORECASE,
)
"""Runtime and driver calls in which the host waits for the device."""
COPIES = re.compile(r"memcpy", re.IGNORECASE)
"""Calls that copy. Those that last until the end of their copy wait for the device."""
ALLOCATES = re.compile(
    rf"^(?:AscendCL@)?(?:{CALLS_LIKE_CUDA}|musa)(?:Ext)?(?:Mem)?(?:Host|Pool)?"
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
STEP_MARKS = re.compile(r"^ProfilerStep[#*]")
"""The profiler's annotations of whole steps."""
COMPILES = re.compile(r" \(dynamo_timed\)$")
PREPARES_COMPILED = re.compile(
    r"^(?:TorchDynamo Cache Lookup|Pregraph bytecode|AOTDispatcher Runtime Wrapper Prologue)$"
)
"""Events of category cpu_op before the operators of compiled code."""
_COMPILES_FRAME = re.compile(
    r"triton/compiler/compiler\.py\(\d+\): compile$"
    r"|torch/utils/cpp_extension\.py\(\d+\): (?:load|load_inline|_jit_compile)$"
)
"""Python frames in which Triton or the extension loader of torch compiles."""
CAPTURE_BEGINS = re.compile(r"(?:Stream|ThreadExchange\w*)BeginCapture", re.IGNORECASE)
CAPTURE_ENDS = re.compile(r"StreamEndCapture|GraphInstantiate", re.IGNORECASE)
"""The calls between which a device graph is captured."""
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
    marks = among(trace.rows_of(["user_annotation", "cpu_op"]), trace, _LOADS_DATA)
    frames = trace.rows_of(["python_function"]) & named(trace, _LOADS_DATA_FRAME)
    return marks | frames


@once
def compiles(trace: Trace) -> Mask:
    """Return the events in which a compiler runs: those of torch.compile, and Python frames."""
    marks = among(trace.rows_of(["user_annotation", "cpu_op"]), trace, COMPILES)
    frames = trace.rows_of(["python_function"]) & named(trace, _COMPILES_FRAME)
    return marks | frames
