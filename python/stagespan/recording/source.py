"""What requests are joined from: what a process has recorded, as columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple, TypedDict

from stagespan import _core
from stagespan.live.open_spans import AnyOpenSpan
from stagespan.live.span_kinds import KINDS, number_of
from stagespan.live.statistics import from_rings
from stagespan.process import imports
from stagespan.recording.spans import OPEN_NS, joined

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from stagespan.live.span_kinds import AnyKind
    from stagespan.live.statistics import Stats
    from stagespan.recording.segments import Details, Failures
    from stagespan.recording.slowness import Slowness
    from stagespan.recording.spans import Amounts, ReadSpans

State = Literal["alive", "exited", "stopped", "died", "unknown"]
"""`exited`: the process ended by its own exit. `stopped`: it was stopped by SIGTERM, SIGHUP or
SIGINT, or ended by a signal or os._exit while no span was open. `died`: it was killed, crashed, or
called os._exit inside a span. `unknown`: it belongs to another container, or /proc cannot be read,
for example because this process has no free descriptor, and nothing else tells."""


class RecordedOpenSpan(AnyOpenSpan):
    """A span that had not ended, as `stagespan.open_spans` returns it.

    ``elapsed_ns`` is None if the process is not alive, because its end is unknown.
    """

    elapsed_ns: int | None


class Thread(TypedDict):
    """A thread that has opened spans.

    ``thread`` is the id that the system gives it, ``spans`` is the number of finished spans.
    ``is_alive`` is False once the system has ended the thread. Before Python 3.13, that can be a
    moment after `threading.Thread.join` has returned.
    """

    thread: int
    name: str
    is_alive: bool
    spans: int


class Surroundings(NamedTuple):
    """What is known of all requests of a process, if a source has only some of them."""

    medians_ns: Mapping[tuple[str, str], float]
    """Of the runs of each stage that has run more than once, by kind and stage."""
    times_ns: tuple[NDArray[np.int64], NDArray[np.int64]] | None
    """When each request that began in the process was received, or else begun, and when it ended
    (the largest number if that is not known), in Unix time; None if earlier versions kept some."""


class Columns(NamedTuple):
    """The records of a process. Those of requests that have not ended are not among them."""

    read: ReadSpans
    """The spans of its requests, and the batches that served them."""
    segments: NDArray[np.void]
    """Its segments, and the hops that have come back to them."""
    details: Details
    links: NDArray[np.void]
    """Which requests batches have served: (span id, request number, size)."""
    slowness: Mapping[int, Slowness]
    """What an exporter has noted about slow requests, by number."""
    complete_ns: int
    """The Unix time from which there are all spans."""


@dataclass(eq=False, kw_only=True, repr=False)
class RequestSource:
    """What is known of a process whose requests have ended. A `Recording` is read from its file.

    Times are Unix times in ns.
    """

    path: str
    """The file that was read, or else what identifies the process for users."""
    identity: str
    """What identifies the process and its recording: no other one has the same text."""
    pid: int
    """The id of the process in its pid namespace."""
    host: str
    """The machine that it ran on."""
    program: str
    """The program: "python train.py", or "train.py, data loader worker 0 of rank 1"."""
    name: str
    """What commands call the process: STAGESPAN_PROCESS_NAME, or else the program with its first
    argument, if that is a plain word, as in "engine.py decode". Metrics never show it."""
    pipeline: str
    rank: int | None = None
    """Its rank in the job; None for a worker that a rank started, such as a data loader's."""
    worker_of_rank: int | None = None
    """The rank that started this worker; None if this is not the worker of a rank."""
    world_size: int | None = None
    job: str | None = None
    """The job that the process belongs to: STAGESPAN_JOB, torchrun's run id, SLURM's job id, or
    MASTER_ADDR:MASTER_PORT."""
    worker: str | None = None
    """What a worker is called, as in "worker 2"; None if the user started the process."""
    pid_namespace: int | None = None
    """The inode of its pid namespace, which differs between containers; None if unknown."""
    version: str = ""
    """The version of stagespan that wrote the recording; empty if unknown."""
    python_version: str = ""
    state: State = "unknown"
    """Whether the process is alive, or how it ended."""
    stop_signal: str | None = None
    """The signal, such as ``SIGTERM``, that ended the process or asked it to end; None if there
    was none that is known."""
    end_ns: int | None = None
    """When the process ended, if that was by its own exit or a signal that is known; else None."""
    read_ns: int | None = None
    """When this copy was made; None if the recording is from another boot or machine."""
    clock: int = 0
    """The identity of its CLOCK_MONOTONIC: equal in processes that share it, 0 if unknown."""
    unix_offset_ns: int = 0
    """What was added to CLOCK_MONOTONIC to get the Unix times of this copy."""
    columns: Columns
    read_surroundings: Callable[[], Surroundings] | None = None

    def __post_init__(self) -> None:
        """Find out what follows from the columns."""
        rows = self.columns.segments
        times_ns = (ns for name in ("received_ns", "begin_ns") for ns in rows[name].tolist())
        self.begin_ns = min((ns for ns in times_ns if ns != _core.UNKNOWN_NS), default=0)
        """When the process opened its first span, as far as that is known."""
        self.most_segments = len(rows) + 1  # no later request displaces one of them
        """How many segments and returned hops it has room for."""
        self.amounts_since_ns = self.columns.read.amounts_since_ns
        """The work of all spans that began after this Unix time is known; 0 without losses."""

    @cached_property
    def last_ns(self) -> int | None:
        """The latest begin or end of a span; None if there are no spans."""
        spans = self.spans()
        return int(spans["end_ns"].max()) if len(spans) else None

    @cached_property
    def complete_ns(self) -> int:
        """The Unix time from which `spans` contains all spans."""
        return self.columns.complete_ns

    @property
    def surroundings(self) -> Surroundings | None:
        """What is known of all requests of its process; None if it has all of them itself."""
        return None if self.read_surroundings is None else self.read_surroundings()

    def segment_rows(self) -> NDArray[np.void]:
        """Return the segments and returned hops."""
        return self.columns.segments

    def details(self, _: NDArray[np.void], /) -> Details:
        """Return what rows of segments refer to, besides names of stages."""
        return self.columns.details

    def stage_names(self) -> list[str]:
        """Return the names of all stages; the ``stage`` column of `spans` is an index into it."""
        return self.columns.read.names

    def spans(self) -> NDArray[np.void]:
        """Return the finished spans."""
        return self.columns.read.rows

    def open_spans(self) -> list[RecordedOpenSpan]:
        """Return the spans that had not ended."""
        return []

    def threads(self) -> list[Thread]:
        """Return the threads of the spans, whose names are not known."""
        numpy = imports.load("numpy")
        threads, counts = numpy.unique(self.spans()["thread"], return_counts=True)
        return [
            {"thread": thread, "name": "", "is_alive": False, "spans": number}
            for thread, number in zip(threads.tolist(), counts.tolist(), strict=True)
        ]

    def links(self) -> NDArray[np.void]:
        """Return which requests batches have served: (span id, request number, size)."""
        return self.columns.links

    def amounts(self) -> Amounts:
        """Return the work of spans by span id and unit, as far as it is known."""
        return self.columns.read.work

    def failures(self) -> Failures:
        """Return the exceptions of the latest spans that have failed, by span id."""
        return self.columns.read.errors

    def slowness(self) -> Mapping[int, Slowness]:
        """Return what an exporter has noted about slow requests, by number."""
        return self.columns.slowness

    @cached_property
    def _stats(self) -> dict[AnyKind, Stats]:
        return {}

    def stats(self, *, kind: AnyKind = "execution") -> Stats:
        """Return the statistics of all stages since the process began, as `stagespan.stats`."""
        if kind not in self._stats:
            self._stats[kind] = self._stats_of(kind)
        return self._stats[kind]

    def _stats_of(self, kind: AnyKind) -> Stats:
        until_ns = self.last_ns or self.begin_ns
        return from_rings(*self.columns.read[:2], self.lost(), 0, until_ns, number_of(kind))

    def lost(self) -> dict[str, int]:
        """Return what was lost, by cause, as `stagespan.lost` does; unknown counts are 0."""
        return Counter()


def latest_ns(recording: RequestSource) -> int:
    """Return the latest time that is known of a process: when it ended, or last recorded."""
    times_ns = [recording.begin_ns, recording.end_ns or 0, recording.last_ns or 0]
    rows = recording.segment_rows()
    names = "received_ns", "begin_ns", "end_ns", "last_chunk_ns"
    # What is unknown is the least number.
    return max(*times_ns, *(int(rows[name].max(initial=0)) for name in names))


def with_open(recording: RequestSource) -> NDArray[np.void]:
    """Return the finished spans ordered by begin, then the open ones, which end at `OPEN_NS`."""
    finished, left_open = recording.spans(), recording.open_spans()
    if not left_open:
        return finished
    numpy = imports.load("numpy")
    codes = {name: code for code, name in enumerate(recording.stage_names())}
    rows = numpy.zeros(len(left_open), finished.dtype)
    rows["stage"] = [codes[span["stage"]] for span in left_open]
    for name in ("thread", "begin_ns", "id", "parent", "depth"):
        rows[name] = [span[name] for span in left_open]
    rows["end_ns"] = OPEN_NS
    rows["request"] = [span["request_number"] or 0 for span in left_open]
    rows["flags"] = [KINDS.index(span["kind"]) << _core.KIND_SHIFT for span in left_open]
    for name in ("device_elapsed_ns", "device_queue_ns", "device_tail_ns", "cpu_ns"):
        rows[name] = numpy.nan
    return joined((finished, rows))
