"""Recognises files of other tools, so that the error names the tool and the next step.

Sources: VizTracer 1.1 (`viztracer_metadata`), ONNX Runtime 1.32 (profiling.h: the categories), JAX
0.10 and TensorFlow (names of planes in trace.json.gz), Ray 2.60 (`ray timeline`), Nsight Systems
2025 (its SQLite schema), rocprofiler-sdk 1.0 (its JSON and the rocpd schema), Perfetto
(trace.proto).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from stagespan.trace.read.model import Trace

_RECORD = "record the program with torch.profiler (`stagespan run --profile STAGE`)"


def _for_viewer(what: str, viewer: str) -> str:
    return f"{what}: open it with {viewer}, or {_RECORD}"


_AS_TEXT = "parse its folder with export_type Text, which writes a trace, and pass the folder"
_OF_NSIGHT = _for_viewer("a report of Nsight Systems", "Nsight Systems")
_OF_PERFETTO = "a trace of Perfetto: convert it with Perfetto's `traceconv json FILE`"
_BY_SUFFIX = {
    ".nsys-rep": _OF_NSIGHT,
    ".qdrep": _OF_NSIGHT,
    ".ncu-rep": "a report of Nsight Compute: read it with `stagespan show FILE`",
    ".pftrace": _OF_PERFETTO,
    ".perfetto-trace": _OF_PERFETTO,
    ".pb": _for_viewer("a protobuf file, as JAX and TensorFlow write it", "XProf"),
}
# Names of tables, of which one is enough.
_BY_TABLE = (
    (
        re.compile(r"^(CUPTI_ACTIVITY_|TARGET_INFO_|NVTX_EVENTS$)"),
        _for_viewer("a database of Nsight Systems", "Nsight Systems"),
    ),
    (
        re.compile(r"^rocpd_"),
        _for_viewer("a database of rocprofv3 (rocpd)", "ROCm's `rocpd`"),
    ),
    (
        re.compile(r"^(TASK|CANN_API|PYTORCH_API|COMMUNICATION_OP|STEP_TIME)$"),
        f"a database of torch_npu.profiler: {_AS_TEXT}",
    ),
)
_OF_ROCPROF = re.compile(rb'^\s*\{\s*"rocprofiler-sdk-tool"\s*:')
# Categories of Kineto (ActivityType.cpp) and torch_npu.
_OF_TORCH = re.compile(
    r"^(cpu_op|(gpu_)?user_annotation|(concurrent_)?kernel|gpu_\w+|\w+_(runtime|driver)|python_function"
    r"|overhead|trace|\w*instant_event|fwd_?bwd|ac2g|async_\w+|collective_comm|\w+_queue|\w*memory\w*)$"
)
_PLANE = re.compile(r"^/(host|device):")
# Processes of tensorflow.python.client.timeline.
_OF_SESSION = re.compile(r"^/job:\S+ (Compute|Tensors)$")
_DRIVER_CALL = re.compile(r"^(cu|cuda|hip|hsa_|nccl|ze)[A-Z]\w+")


def what_bytes_are(path: Path, begin: bytes) -> str | None:
    """Return what a file that is not a trace is by its first bytes, and what to do, or None.

    The text continues "FILE is": "a report of Nsight Systems: open it with ...".
    """
    if begin.startswith(b"SQLite format 3\x00"):
        return _of_tables(_tables(path))
    if begin.lstrip()[:1] in (b"{", b"["):
        of_rocprof = _OF_ROCPROF.match(begin) is not None
        return _for_viewer("JSON of rocprofv3", "ROCm's tools") if of_rocprof else None
    return _BY_SUFFIX.get(path.suffix)


def what_events_are(trace: Trace) -> str | None:
    """Return the same for a trace whose events another tool has written, or None."""
    categories = set(trace.categories)
    if "viztracer_metadata" in trace.metadata or "fee" in categories:
        tool, viewer = "VizTracer", "`vizviewer`"
    elif categories & {"node", "session"} and categories <= {
        "",
        "node",
        "session",
        "kernel",
        "api",
    }:
        tool, viewer = "ONNX Runtime", "Perfetto"
    elif any(name.startswith("task:") for name in categories):
        tool, viewer = "Ray", "Perfetto"
    elif categories == {""} and any(map(_PLANE.match, trace.process_names.values())):
        tool, viewer = "JAX or TensorFlow", "XProf"
    elif any(map(_OF_SESSION.match, trace.process_names.values())):
        tool, viewer = "TensorFlow", "Perfetto"
    elif categories == {""} and any(map(_DRIVER_CALL.match, trace.names)):
        what = "a timeline of driver calls without the work of a device, as eBPF tools write it"
        return f"{what}: {_RECORD}"
    else:
        return None
    return _for_viewer(f"a trace of {tool}, not of torch.profiler", viewer)


def unknown_categories(trace: Trace) -> list[str]:
    """Return the categories of a trace; an empty list if torch.profiler writes one of them.

    The only one is "" if no event has a category.
    """
    names = [name for name in trace.categories if name]
    none = [""] if len(trace.events) else []
    return [] if any(map(_OF_TORCH.match, names)) else sorted(names) or none


def _of_tables(tables: Iterable[str]) -> str:
    for table in tables:
        for pattern, what in _BY_TABLE:
            if pattern.match(table):
                return what
    return "an SQLite database: pass the JSON file that the profiler exported"


def _tables(path: Path) -> list[str]:
    """Return the names of the tables of a database; an empty list if it cannot be read."""
    try:
        import sqlite3  # some builds of Python lack it
    except ImportError:
        return []
    try:
        address = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
        with closing(sqlite3.connect(address, uri=True)) as database:
            tables = "SELECT name FROM sqlite_master WHERE type = 'table'"
            rows = database.execute(tables).fetchall()
    except sqlite3.Error:
        return []
    return [name for (name,) in rows if isinstance(name, str)]
