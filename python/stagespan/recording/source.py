"""What requests are joined from: the recording of a process, or what was kept of one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from stagespan.live.span_kinds import Kind
    from stagespan.live.statistics import Stats
    from stagespan.recording.reading import Amounts, RecordedOpenSpan, State, Thread
    from stagespan.recording.segments import Details, Failures
    from stagespan.recording.slowness import Slowness


class Surroundings(NamedTuple):
    """What is known of all requests of a process, if a source has only some of them."""

    medians_ns: Mapping[tuple[str, str], float]
    """Of the runs of each stage that has run more than once, by kind and stage."""
    times_ns: tuple[NDArray[np.int64], NDArray[np.int64]] | None
    """When each request that began in the process was received, or else begun, and when it ended
    (the largest number if that is not known), in Unix time; None if earlier versions kept some."""


class RequestSource(Protocol):
    """The members of a `Recording` that timelines, summaries and traces of requests use."""

    @property
    def path(self) -> str:
        """What identifies it for users."""

    @property
    def identity(self) -> str:
        """What identifies the process and its recording."""

    @property
    def state(self) -> State:
        """Whether the process is alive, or how it ended."""

    @property
    def stop_signal(self) -> str | None:
        """The signal that ended the process or asked it to end."""

    @property
    def pid(self) -> int:
        """The id of the process in its pid namespace."""

    @property
    def pid_namespace(self) -> int | None:
        """The inode of that namespace."""

    @property
    def program(self) -> str:
        """The program that the process runs."""

    @property
    def name(self) -> str:
        """What commands call the process."""

    @property
    def worker(self) -> str | None:
        """What a worker is called."""

    @property
    def rank(self) -> int | None:
        """The rank of the process in its job."""

    @property
    def worker_of_rank(self) -> int | None:
        """The rank that started this worker."""

    @property
    def world_size(self) -> int | None:
        """The number of ranks of the job."""

    @property
    def job(self) -> str | None:
        """The job that the process belongs to."""

    @property
    def pipeline(self) -> str:
        """The pipeline of the process."""

    @property
    def host(self) -> str:
        """The machine that the process ran on."""

    @property
    def version(self) -> str:
        """The version of stagespan that wrote the recording; empty if unknown."""

    @property
    def python_version(self) -> str:
        """The version of Python that the process ran; empty if unknown."""

    @property
    def begin_ns(self) -> int:
        """When the process opened its first span, as far as that is known."""

    @property
    def end_ns(self) -> int | None:
        """When the process ended."""

    @property
    def read_ns(self) -> int | None:
        """When the copy was made."""

    @property
    def last_ns(self) -> int | None:
        """The latest begin or end of a span."""

    @property
    def clock(self) -> int:
        """The identity of the process's CLOCK_MONOTONIC; 0 if unknown."""

    @property
    def unix_offset_ns(self) -> int:
        """What was added to CLOCK_MONOTONIC to get the Unix times."""

    @property
    def complete_ns(self) -> int:
        """The Unix time from which `spans` contains all spans."""

    @property
    def amounts_since_ns(self) -> int:
        """The work of all spans that began after this Unix time is known."""

    @property
    def surroundings(self) -> Surroundings | None:
        """What is known of all requests of its process; None if it has all of them itself."""

    @property
    def most_segments(self) -> int:
        """How many segments and returned hops it has room for."""

    def segment_rows(self) -> NDArray[np.void]:
        """Return the segments and returned hops."""

    def details(self, rows: NDArray[np.void], /) -> Details:
        """Return what rows of segments refer to."""

    def stage_names(self) -> list[str]:
        """Return the names of the stages; the ``stage`` column of `spans` is an index into it."""

    def spans(self) -> NDArray[np.void]:
        """Return the finished spans."""

    def open_spans(self) -> list[RecordedOpenSpan]:
        """Return the spans that had not ended."""

    def threads(self) -> list[Thread]:
        """Return the threads that have opened spans."""

    def links(self) -> NDArray[np.void]:
        """Return which requests batches have served: (span id, request number, size)."""

    def amounts(self, spans: set[int] | None = None) -> Amounts:
        """Return the work of spans by span id and unit."""

    def failures(self) -> Failures:
        """Return the exceptions of spans by span id."""

    def slowness(self) -> Mapping[int, Slowness]:
        """Return what an exporter has noted about slow requests, by number."""

    def stats(self, *, kind: Kind = "execution") -> Stats:
        """Return the statistics of all stages."""

    def lost(self) -> dict[str, int]:
        """Return what was lost, by cause."""


def latest_ns(recording: RequestSource) -> int:
    """Return the latest time that is known of a process: when it ended, or last recorded."""
    times_ns = [recording.begin_ns, recording.end_ns or 0, recording.last_ns or 0]
    rows = recording.segment_rows()
    names = "received_ns", "begin_ns", "end_ns", "last_chunk_ns"
    # What is unknown is the least number.
    return max(*times_ns, *(int(rows[name].max(initial=0)) for name in names))
