"""Every environment variable that stagespan reads, in one table."""

from __future__ import annotations

import logging
import os
from typing import Any, Literal, NamedTuple

from stagespan import _core
from stagespan.pages.escaping import escape_arguments

_LOGGER = logging.getLogger("stagespan")
_LOGGER.addFilter(escape_arguments)  # once, for all modules that use this logger


class Variable(NamedTuple):
    """One environment variable: its name, its other spellings, and its valid values."""

    name: str
    kind: Literal["switch", "text", "names", "count", "choice"]
    default: Any
    meaning: str
    choices: tuple[str, ...] = ()
    least: int = 1
    most: int = 10**9
    aliases: tuple[str, ...] = ()


VARIABLES: tuple[Variable, ...] = (
    Variable(
        "STAGESPAN_DEBUG",
        "switch",
        False,
        "debug mode: stages with ProfilingContext4Debug are timed, and the reports are written at "
        "exit",
        aliases=("TELEFUSER_PROFILE_DEBUG",),
    ),
    Variable(
        "STAGESPAN_PIPELINE_NAME",
        "text",
        "default",
        "name of the pipeline, which is part of the default output folder",
        aliases=("TELEFUSER_PIPELINE_NAME",),
    ),
    Variable(
        "STAGESPAN_JOB",
        "text",
        None,
        "name of the job that this process belongs to, such as a service with several workers; by "
        "default the id that torchrun or SLURM gives it",
    ),
    Variable(
        "STAGESPAN_REQUEST_FIELDS",
        "names",
        (),
        "metadata of requests that leave the process, at most eight names of 32 bytes: "
        "`stagespan requests`, exports and kept requests show them; read when the first request "
        "begins",
    ),
    Variable(
        "STAGESPAN_OTEL_CONTEXT",
        "switch",
        False,
        "whether spans of OpenTelemetry's SDK inside of a request are its children; use it if the "
        "requests of this process are exported to the same place",
    ),
    Variable(
        "STAGESPAN_LISTEN",
        "switch",
        False,
        "whether the recording exists from the import on and a thread waits for what commands such "
        "as `stagespan show PID --sample 5` ask; by default, a process notices them when a span "
        "opens",
    ),
    Variable(
        "STAGESPAN_EXCEPTION_MESSAGES",
        "switch",
        False,
        "whether recordings have the messages of exceptions beside their types, cut at 200 bytes",
    ),
    Variable(
        "STAGESPAN_PROCESS_NAME",
        "text",
        None,
        "what commands such as ps, top and requests call this process; by default its program and "
        "the first argument that is a plain word",
    ),
    Variable(
        "STAGESPAN_OUTPUT_DIR",
        "text",
        None,
        "output folder; by default work_dirs/profiler_output/{pipeline}/{YYYYMMDD_HHMM}",
        aliases=("TELEFUSER_PROFILER_OUTPUT_DIR",),
    ),
    Variable(
        "STAGESPAN_STAGES",
        "text",
        None,
        "functions to time in each process that imports stagespan, one a line, as `stagespan run "
        "--stage` takes them; the command sets it for the processes that its program starts",
    ),
    Variable(
        "STAGESPAN_PROFILER_NAMES",
        "names",
        (),
        "stages that run under torch.profiler; * means all stages",
        aliases=("ENABLE_PROFILER_NAMES",),
    ),
    Variable(
        "STAGESPAN_PROFILER_RUNS",
        "count",
        2,
        "how many runs of each stage in STAGESPAN_PROFILER_NAMES are profiled; the files show the "
        "last one",
    ),
    Variable(
        "STAGESPAN_PROFILER_SKIP",
        "count",
        0,
        "how many runs of each of these stages are skipped before the first one that is profiled",
        least=0,
    ),
    Variable(
        "STAGESPAN_PROFILER_ONE_TRACE",
        "switch",
        False,
        "whether one trace contains all profiled runs of a stage and what runs between them, "
        "instead of one trace for each run",
    ),
    Variable(
        "STAGESPAN_PROFILER_MAX_EVENTS",
        "count",
        100_000,
        "how many operators and annotations a profile of a running program records before it ends; "
        "0 means no limit",
        least=0,
    ),
    Variable(
        "STAGESPAN_PROFILER_RECORD_SHAPES",
        "switch",
        False,
        "whether the traces of these stages contain the shapes of each operator's inputs",
        aliases=("TELEFUSER_TORCH_PROFILER_RECORD_SHAPES",),
    ),
    Variable(
        "STAGESPAN_PROFILER_PROFILE_MEMORY",
        "switch",
        False,
        "whether the traces of these stages contain each allocation",
        aliases=("TELEFUSER_TORCH_PROFILER_PROFILE_MEMORY",),
    ),
    Variable(
        "STAGESPAN_PROFILER_WITH_STACK",
        "switch",
        False,
        "whether the traces of these stages contain Python stacks, which make them many times "
        "larger",
        aliases=("TELEFUSER_TORCH_PROFILER_WITH_STACK",),
    ),
    Variable(
        "STAGESPAN_PEAKS",
        "text",
        None,
        "CSV file with the highest rates of devices, for `stagespan analyze`; its rows replace "
        "those that stagespan knows",
    ),
    Variable(
        "STAGESPAN_LAUNCHES",
        "switch",
        False,
        "whether debug mode runs the second run of each signature of a stage under torch.profiler, "
        "and counts its launches for replays",
    ),
    Variable(
        "STAGESPAN_NPU_LEVEL",
        "choice",
        "1",
        "level of torch_npu.profiler; higher levels record more details of CANN and of each "
        "operator",
        ("none", "0", "1", "2"),
    ),
    Variable(
        "STAGESPAN_NPU_RESULT",
        "switch",
        False,
        "whether the result folder of torch_npu.profiler is kept, in npu/{stage} of the output "
        "folder",
    ),
    Variable(
        "STAGESPAN_ANNOTATE",
        "names",
        (),
        "stages that appear as ranges in the traces of the application's own torch.profiler; * "
        "means all stages",
    ),
    Variable(
        "STAGESPAN_TIMING_REPORT",
        "text",
        None,
        "path of the timing report that is written at exit, also outside of debug mode; by default "
        "timing.json in the output folder, in debug mode only",
        aliases=("TELEFUSER_TIMING_REPORT",),
    ),
    Variable(
        "STAGESPAN_REDACT",
        "choice",
        "secrets",
        "what files leave out; secrets means the text of fields with names such as password, "
        "api_key or authorization, strings means also all other strings, bytes and paths of "
        "signatures",
        ("none", "secrets", "strings"),
    ),
    Variable(
        "STAGESPAN_ENABLED",
        "switch",
        True,
        "whether the recorder is on when the process starts",
    ),
    Variable(
        "STAGESPAN_CPU_TIME",
        "switch",
        False,
        "whether all spans and contexts measure the CPU time of their thread beside their "
        "duration, which takes two system calls a span",
    ),
    Variable(
        "STAGESPAN_SYSTEM",
        "switch",
        False,
        "whether all spans and contexts measure the CPU time of their thread, and count its page "
        "faults and context switches, which takes four system calls and a lock a span",
    ),
    Variable(
        "STAGESPAN_PROPAGATE_TO_THREADS",
        "switch",
        False,
        "whether threads, and the tasks of thread pools, keep the request and the span of the code "
        "that starts or submits them",
    ),
    Variable(
        "STAGESPAN_CLOCK",
        "choice",
        "auto",
        "the recorder's clock; read when stagespan is imported",
        ("auto", "tsc", "monotonic"),
    ),
    Variable(
        "STAGESPAN_RING_SPANS",
        "count",
        _core.RING_SPANS_DEFAULT,
        "how many spans each thread's ring keeps, rounded up to a power of two; read when "
        "stagespan is imported",
        least=_core.RING_SPANS_LEAST,
        most=_core.RING_SPANS_MOST,
    ),
    Variable(
        "STAGESPAN_REQUESTS",
        "count",
        _core.REQUESTS_DEFAULT,
        "how many requests the recording shows, rounded up to a multiple of 64, a quarter of the "
        "links from batches to requests, and an eighth of the amounts of work of single spans; "
        "read when stagespan is imported",
        least=_core.REQUESTS_LEAST,
        most=_core.REQUESTS_MOST,
    ),
    Variable(
        "STAGESPAN_REQUEST_IDS",
        "choice",
        "plain",
        "how recordings, files and log lines show the ids of requests; hash means 16 "
        "hexadecimal digits of a hash; read when the first request begins",
        ("plain", "hash"),
    ),
    Variable(
        "STAGESPAN_STALL_S",
        "count",
        0,
        "seconds after which an open span is reported by a log line with the Python stack; 0 turns "
        "this off",
        least=0,
    ),
    Variable(
        "STAGESPAN_DEVICE_EVERY",
        "count",
        1,
        "measure the device time of every n-th span of a stage in a thread; 0 turns it off",
        least=0,
    ),
    Variable(
        "STAGESPAN_RECORDING",
        "choice",
        "on",
        "whether other processes can read the recording of this process, even after it was killed; "
        "keep means that the file also stays after a clean exit; memfd means memory that others "
        "can read while the process is alive, and that nobody can truncate; read when stagespan "
        "is imported",
        ("on", "off", "keep", "memfd"),
    ),
    Variable(
        "STAGESPAN_RECORDING_DIR",
        "text",
        None,
        "folder for recordings, on a tmpfs; by default /dev/shm/stagespan-UID if 256 MiB are "
        "free there; read when stagespan is imported",
    ),
)

_BY_NAME = {variable.name: variable for variable in VARIABLES}
# Only the tests and builds of this project read these.
_NOT_SETTINGS = ("STAGESPAN_TEST_", "STAGESPAN_TRACES")
# The extension reads variables by the same rules before Python runs: csrc/stagespan/variables.h.
_BLANKS = " \t\n\r\f\v"
_TRUE = frozenset(("1", "true", "yes", "on"))
_FALSE = frozenset(("0", "false", "no", "off"))
_warned: set[tuple[str, str]] = set()


def get(name: str, default: Any = None) -> Any:
    """Return the value of the variable ``name`` (its ``STAGESPAN_`` spelling), read now.

    An empty value counts as not set. An invalid value gives the default and one warning per
    process. ``default`` replaces the default of the table if it is not None. Raises KeyError if
    ``name`` is not in the table.
    """
    variable = _BY_NAME[name]
    if default is not None:
        variable = variable._replace(default=default)
    for spelling in (variable.name, *variable.aliases):
        text = os.environ.get(spelling, "").strip(_BLANKS)
        if text:
            return _parse(variable, spelling, text)
    return variable.default


def unset(name: str) -> None:
    """Remove the variable ``name`` from the environment of this process, in all its spellings."""
    variable = _BY_NAME[name]
    for spelling in (variable.name, *variable.aliases):
        os.environ.pop(spelling, None)


def check(*, unknown_names: bool) -> None:
    """Read every variable once, to warn early about invalid values and unknown names."""
    for variable in VARIABLES:
        get(variable.name)
    _check_recording_dir()
    if not unknown_names:
        return
    for name in sorted(os.environ):
        if (
            name.startswith("STAGESPAN_")
            and name not in _BY_NAME
            and not name.startswith(_NOT_SETTINGS)
        ):
            warn_once(name, "", _unknown(name))


def _check_recording_dir() -> None:
    folder = get("STAGESPAN_RECORDING_DIR")
    if folder is None or get("STAGESPAN_RECORDING") in ("off", "memfd"):
        return
    # As bytes, because a path can contain bytes that are not text.
    why = _core.recording_why_not_in(os.fsencode(os.path.abspath(folder)))
    if why is not None:
        warn_once(
            "STAGESPAN_RECORDING_DIR",
            folder,
            # Commands such as `stagespan ps`, which do not record, also log this.
            f"STAGESPAN_RECORDING_DIR={folder!r} is not used for new recordings because {why}. "
            "Until this is fixed, the recording of a process is lost when the process dies.",
        )


def _unknown(name: str) -> str:
    import difflib

    close = difflib.get_close_matches(name, _BY_NAME, n=1, cutoff=0.75)
    hint = f"did you mean {close[0]}?" if close else "docs/settings.md lists the variables."
    return f"{name} is ignored because stagespan has no variable of this name; {hint}"


def _parse(variable: Variable, spelling: str, text: str) -> Any:
    if variable.kind == "text":
        return text
    if variable.kind == "names":
        return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if variable.kind == "switch":
        if text.lower() in _TRUE | _FALSE:
            return text.lower() in _TRUE
        expected = "true or false"
    elif variable.kind == "choice":
        if text.lower() in variable.choices:
            return text.lower()
        expected = f"{', '.join(variable.choices[:-1])} or {variable.choices[-1]}"
    else:
        number = whole_number(text)
        if number is not None and variable.least <= number <= variable.most:
            return number
        expected = f"a whole number from {variable.least:,} to {variable.most:,}"
    warn_once(
        spelling,
        text,
        f"{spelling}={text!r} cannot be used: set it to {expected}. "
        f"The default {variable.default!r} is used.",
    )
    return variable.default


def whole_number(text: str) -> int | None:
    """Return the integer that ``text`` contains, by the rules of the extension, or None.

    ``int()`` also accepts "1_000" and digits of other scripts.
    """
    digits = text.strip(_BLANKS).removeprefix("+")
    is_number = digits.isascii() and digits.isdigit() and len(digits) <= 18
    return int(digits) if is_number else None


def warn_once(spelling: str, text: str, sentence: str) -> None:
    """Log a warning, unless it was already logged for this variable and value."""
    if (spelling, text) not in _warned:
        _warned.add((spelling, text))
        _LOGGER.warning("[Profiler] %s", sentence)
