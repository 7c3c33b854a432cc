"""The processes of a job on this machine, and their statistics together."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from stagespan import _core
from stagespan.errors import StagespanError
from stagespan.live import statistics
from stagespan.live.history import History
from stagespan.live.span_kinds import number_of
from stagespan.recording.finding import recordings
from stagespan.recording.reading import REMOVED, Recording

if TYPE_CHECKING:
    from stagespan.live.span_kinds import Kind
    from stagespan.live.statistics import Stats


_MOST_STAGE_BYTES = 8192
"""More than a stage uses in a snapshot: its histogram takes at most 4 KB."""


class _Reading(NamedTuple):
    """The statistics of all processes of a job at one time."""

    time_ns: int
    by_path: dict[str, _core.Snapshot]

    @property
    def size_bytes(self) -> int:
        """An upper bound of the memory that the snapshots use."""
        stages = sum(len(snapshot.stages()) for snapshot in self.by_path.values())
        return stages * _MOST_STAGE_BYTES


class Job:
    """The processes of a job: the workers of a service, or the ranks of a training.

    `stagespan.recording.job` returns one.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._history: History[_Reading] = History()
        self.recordings: list[Recording] = []
        """Copies of the processes' recordings, as they were last read."""
        self._read(spans=False)

    def _read(self, *, spans: bool) -> _Reading:
        self.recordings = processes(self.name, spans=spans)
        known = [one.read_ns for one in self.recordings if one.read_ns is not None]
        by_path = {one.path: one.snapshot() for one in self.recordings}
        return _Reading(max(known, default=time.time_ns()), by_path)

    def stats(self, window_s: float | None = None, *, kind: Kind = "execution") -> Stats:
        """Read the processes again, and return the statistics of all of them together.

        Counts and times are sums, and percentiles are those of all runs. Without ``window_s``, they
        cover the whole life of the processes. A window covers about the last ``window_s`` seconds;
        `Stats.window_s` is its actual length. It begins at an earlier call of this method, if one
        was made at about that time. Otherwise, the figures are exactly those of the spans in the
        rings, and the window is shorter if a ring does not reach back so far; ``work`` is then
        empty. ``kind`` chooses what is counted, as in `stagespan.stats`.

        Raises ValueError if ``window_s`` is not above 0 or ``kind`` is unknown, and StagespanError
        if all recordings of the job are gone.
        """
        number = number_of(kind)
        if window_s is not None and not window_s > 0:
            raise ValueError(f"window_s is {window_s!r}: pass a number of seconds above 0.")
        now = self._read(spans=window_s is not None)
        earlier = None
        if window_s is not None:
            began_ns = now.time_ns - int(window_s * 1e9)
            earlier = self._history.nearest(began_ns)
            if earlier is not None and abs(earlier.time_ns - began_ns) > 0.25e9 * window_s:
                earlier = None
        self._history.add(now)
        if window_s is None:
            return self._lifetime(now, kind)
        if earlier is not None:
            return self._since(now, earlier, kind)
        if number >= number_of("part_first_chunk"):  # has no spans
            return self._lifetime(now, kind)
        return self._ringed(now, began_ns, kind)

    def _lifetime(self, now: _Reading, kind: Kind) -> Stats:
        began_ns = min(one.begin_ns for one in self.recordings)
        return statistics.merged(
            [one.stats(kind=kind) for one in self.recordings],
            max((now.time_ns - began_ns) / 1e9, 0.0),
            is_lifetime=True,
        )

    def _since(self, now: _Reading, earlier: _Reading, kind: Kind) -> Stats:
        parts = []
        for process in self.recordings:
            snapshot, before = now.by_path[process.path], earlier.by_path.get(process.path)
            # A process that was not there before has begun since.
            recent = snapshot if before is None else snapshot.since(before)
            parts.append(statistics.of_recording(recent, process.lost(), process.begin_ns, kind))
        window_s = (now.time_ns - earlier.time_ns) / 1e9
        return statistics.merged(parts, window_s, is_lifetime=False)

    def _ringed(self, now: _Reading, began_ns: int, kind: Kind) -> Stats:
        # Some threads may have had no ring.
        if any(process.lost()["threads"] for process in self.recordings):
            return self._lifetime(now, kind)
        complete_ns = (process.complete_ns for process in self.recordings if process.has_spans)
        first_ns = max(began_ns, *complete_ns)
        parts = [
            statistics.from_rings(
                *(process.spans(), process.stage_names(), process.lost(), first_ns, now.time_ns),
                number_of(kind),
            )
            for process in self.recordings
            if process.has_spans
        ]
        window_s = max(now.time_ns - first_ns, 0) / 1e9
        return statistics.merged(parts, window_s, is_lifetime=False)

    def __repr__(self) -> str:
        return f"<Job {self.name!r}, {len(self.recordings)} processes>"


def job(name: str) -> Job:
    """Return the processes of a job on this machine.

    The job is STAGESPAN_JOB, or else torchrun's run id, or SLURM's job id as ``slurm-ID``, or else
    ``MASTER_ADDR:MASTER_PORT``. Raises StagespanError if there is no recording of it.

    Example:
        ```python
        from stagespan import recording

        service = recording.job("svc")
        print(service.stats()["decode"].p99_ns, service.stats(window_s=10)["decode"].count)
        ```
    """
    return Job(name)


def processes(name: str, *, spans: bool, among: list[Recording] | None = None) -> list[Recording]:
    """Return the recordings of a job's processes, ordered by rank and then by begin.

    With ``among``, they are chosen from these recordings, which have been read already.

    Processes without a rank that ended before the first live one began belong to an earlier run of
    the job, and are left out. Raises StagespanError if there is no recording of the job.
    """
    among = recordings() if among is None else among
    in_job = [recording for recording in among if recording.job == name]
    if not in_job:
        jobs = sorted({recording.job for recording in among if recording.job})
        known = f"the jobs are {', '.join(jobs)}" if jobs else "no recording belongs to a job"
        raise StagespanError(f"There is no recording of the job {name!r}: {known}. {REMOVED}")
    begins = [recording.begin_ns for recording in in_job if recording.state in ("alive", "unknown")]
    if begins:
        in_job = [
            recording
            for recording in in_job
            if recording.state in ("alive", "unknown")
            or recording.rank is not None
            or (recording.end_ns or with_spans(recording).last_ns or recording.begin_ns)
            >= min(begins)
        ]
    if spans:
        in_job = [with_spans(recording) for recording in in_job]
    return sorted(in_job, key=lambda one: (one.rank is None, one.rank or 0, one.begin_ns, one.pid))


def with_spans(recording: Recording) -> Recording:
    """Return a copy with the finished spans, or the copy that was passed if the file is gone."""
    try:
        return Recording(recording.path)
    except StagespanError:
        return recording
