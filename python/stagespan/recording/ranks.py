"""Compares the ranks of one job: counts and times of each stage, and where each rank is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from stagespan.errors import StagespanError
from stagespan.live.span_kinds import RUNS, number_of
from stagespan.live.stage_figures import StageRunFigures
from stagespan.pages.amounts import duration
from stagespan.pages.figures import Count, RecordedFigures
from stagespan.recording import jobs
from stagespan.recording.source import State
from stagespan.recording.summary import LoadFigures, Position, finished_spans, positions, runs
from stagespan.trace.ranks.stages import MANY_RUNS, StageRuns, slower_stages

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stagespan.recording.reading import Recording

_MOST_NAMED = 8
# A rank is named only if it spends this share of its time in stages more than the others.
_LEAST_SHARE = 0.05
_LATEST_RUNS = 50
_LEAST_MATCHED = 3
_LEAST_STUCK_NS = 1_000_000_000  # ranks that make progress are in different stages for a short time


class Rank(NamedTuple):
    """One rank: how often it has finished each stage, and where its busiest thread is."""

    label: str
    recording: Recording
    counts: dict[str, int]
    position: Position | None
    self_ns: dict[str, int]
    """The time of each stage without that of the stages inside it."""


def of_job(job: str, *, spans: bool = True) -> list[Recording]:
    """Return the recordings of a job, the latest of each rank, ordered by rank.

    Workers of a rank are left out. Processes without a rank come last. Raises StagespanError if
    there is none, or if two live processes in different containers have the same rank.
    """
    in_job = jobs.processes(job, spans=spans)
    with_rank = {one.rank for one in in_job}
    latest: dict[int, Recording] = {}
    others = []
    for recording in in_job:
        if recording.rank is None:
            if recording.worker_of_rank is None or recording.worker_of_rank not in with_rank:
                others.append(recording)
            continue
        before = latest.get(recording.rank)
        both_live = before is not None and before.state == recording.state == "alive"
        if before is not None and both_live and before.pid_namespace != recording.pid_namespace:
            raise StagespanError(
                f"Two jobs in different containers are called {job!r}, as {before.path} and "
                f"{recording.path} are both its rank {recording.rank}: set STAGESPAN_JOB to "
                f"different names."
            )
        # A child that a rank forked can have its rank as well.
        if before is None or _preference(recording) > _preference(before):
            latest[recording.rank] = recording
    return [*(latest[rank] for rank in sorted(latest)), *others]


def _preference(recording: Recording) -> tuple[bool, int, int]:
    return recording.state == "alive", finished_spans(recording), recording.begin_ns


def ranks(job_recordings: list[Recording]) -> list[Rank]:
    """Return one `Rank` for each recording."""
    all_ranks: list[Rank] = []
    for recording in job_recordings:
        label = f"rank {recording.rank}" if recording.rank is not None else f"pid {recording.pid}"
        if recording.rank is None and recording.worker is not None:
            label = f"{recording.worker} ({label})"
        if label in {one.label for one in all_ranks}:  # in another container
            label += f" in pid namespace {recording.pid_namespace}"
        counts = {name: stage.count for name, stage in runs([recording]).items()}
        self_ns: Counter[str] = Counter()
        for kind in RUNS:
            for name, stage in recording.snapshot().stages(number_of(kind)).items():
                self_ns[name] += max(stage.total_ns - stage.children_ns, 0)
        all_ranks.append(
            Rank(label, recording, counts, next(iter(positions(recording)), None), self_ns)
        )
    return all_ranks


def stages(all_ranks: list[Rank]) -> list[str]:
    """Return the stages of all ranks, first those that the ranks have not finished equally often.

    Then come those that take the most different times.
    """
    names = {name: None for rank in all_ranks for name in rank.counts}

    def key(name: str) -> tuple[bool, float, str]:
        times = [rank.self_ns.get(name, 0) for rank in all_ranks]
        return _spread(all_ranks, name) == 0, min(times) - max(times), name

    return sorted(names, key=key)


def _spread(all_ranks: list[Rank], stage: str) -> int:
    counts = [rank.counts.get(stage, 0) for rank in all_ranks]
    return max(counts) - min(counts)


def findings(all_ranks: list[Rank]) -> list[str]:
    """Return a sentence for each rank that has ended, is behind, is elsewhere, or takes longer.

    Of processes without a rank, such as the workers of a service, which do not run in step with
    others, only those that have ended are named.
    """
    if len(all_ranks) < 2:
        return []
    sentences = [
        f"{rank.label} has {_ENDED[rank.recording.state]}{_where(rank, since=False)}."
        for rank in all_ranks
        if rank.recording.state in _ENDED
    ]
    all_ranks = [rank for rank in all_ranks if rank.recording.rank is not None]
    if len(all_ranks) < 2:
        return sentences
    behind, stage, usual = _behind(all_ranks)
    for rank in behind[:_MOST_NAMED]:
        count = rank.counts.get(stage, 0)
        sentences.append(
            f"{rank.label}{_where(rank, since=True)}; it finished `{stage}` {count:,} "
            f"{'time' if count == 1 else 'times'}, the others {usual:,}."
        )
    if not behind:
        sentences += _elsewhere(all_ranks)
    return sentences + _slower_ranks(all_ranks)


_ENDED = {"died": "died", "stopped": "ended", "exited": "ended"}


def _behind(all_ranks: list[Rank]) -> tuple[list[Rank], str, int]:
    """Return the ranks that have finished a stage less often than most others.

    Also returns that stage, and how often most others have finished it.
    """
    best: tuple[int, int, str] | None = None
    laggards: list[Rank] = []
    for stage in {name for rank in all_ranks for name in rank.counts}:
        counts = Counter(rank.counts.get(stage, 0) for rank in all_ranks)
        usual, ranks_there = max(counts.items(), key=lambda item: (item[1], item[0]))
        behind = [rank for rank in all_ranks if rank.counts.get(stage, 0) < usual]
        if not behind or len(behind) > ranks_there or 2 * len(behind) > len(all_ranks):
            continue
        # Prefer the stage with the fewest ranks behind, then the one with the fewest runs, which is
        # a step rather than a call inside it.
        candidate = (len(behind), usual, stage)
        if best is None or candidate < best:
            best, laggards = candidate, behind
    return ([], "", 0) if best is None else (laggards, best[2], best[1])


def _elsewhere(all_ranks: list[Rank]) -> list[str]:
    """Return a sentence for each rank that is in another stage than most ranks."""
    where = Counter(rank.position.stages[-1] if rank.position else "" for rank in all_ranks)
    usual, many = where.most_common(1)[0]
    others = [
        rank
        for rank in all_ranks
        if (rank.position.stages[-1] if rank.position else "") != usual and _is_stuck(rank)
    ]
    if not others or 2 * many <= len(all_ranks):
        return []
    where_most = f"in `{usual}`" if usual else "in no stage"
    return [
        f"{rank.label}{_where(rank, since=True)}; {many} ranks are {where_most}."
        for rank in others[:_MOST_NAMED]
    ]


def _slower_ranks(all_ranks: Sequence[Rank]) -> list[str]:
    """Return a sentence for each rank that takes longer in a stage than most other ranks do."""
    names = [rank.label for rank in all_ranks]
    times = [_stage_runs(rank) for rank in all_ranks]
    least_ns = [_LEAST_SHARE * sum(rank.self_ns.values()) for rank in all_ranks]
    slower = slower_stages(times, lambda at, stage: _waits(all_ranks, at, stage))
    return [
        f"{each.sentence(names)}."
        for each in slower[:_MOST_NAMED]
        if each.more_ns >= max(least_ns[each.rank], 1)
    ]


def _stage_runs(rank: Rank) -> dict[str, StageRuns]:
    stats = rank.recording.stats()
    runs = {}
    for name, count in rank.counts.items():
        own_ns, stage = rank.self_ns.get(name, 0), stats[name]
        has_children = own_ns != stage.total_ns
        median_ns = stage.p50_ns if count < MANY_RUNS and not has_children else None
        runs[name] = StageRuns(count, own_ns, median_ns=median_ns)
    return runs


def _waits(all_ranks: Sequence[Rank], at: int, stage: str) -> bool | None:
    """Return whether a rank waits for another one in a stage, by the times of the latest runs.

    It does if its runs begin before those of another rank and end together with them. None if the
    ranks are on different hosts, or if too few runs of both are in the recordings.
    """
    runs_here = _latest_runs(all_ranks[at], stage)
    answers = []
    for other in all_ranks:
        if other is all_ranks[at] or other.recording.host != all_ranks[at].recording.host:
            continue
        theirs = _latest_runs(other, stage)
        if min(len(runs_here), len(theirs)) < _LEAST_MATCHED:
            continue
        # A row each: begin and end. Each own run is compared with the one that ends nearest to it.
        after = np.clip(np.searchsorted(theirs[:, 1], runs_here[:, 1]), 1, len(theirs) - 1)
        nearest = np.where(
            np.abs(theirs[after - 1, 1] - runs_here[:, 1])
            < np.abs(theirs[after, 1] - runs_here[:, 1]),
            after - 1,
            after,
        )
        begins_later, ends_later = np.median(theirs[nearest] - runs_here, axis=0).tolist()
        longer = begins_later - ends_later
        answers.append(longer > 0 and begins_later > longer / 2 and abs(ends_later) < longer / 4)
    return any(answers) if answers else None


def _latest_runs(rank: Rank, stage: str) -> NDArray[np.int64]:
    """Return begin and end in Unix ns of the latest runs of a stage, a row each, by their end."""
    recording = rank.recording
    names = recording.stage_names() if recording.has_spans else []
    if stage not in names:
        return np.empty((0, 2), dtype=np.int64)
    spans = recording.spans()
    spans = spans[spans["stage"] == names.index(stage)]
    rows = np.column_stack([spans["begin_ns"], spans["end_ns"]]).astype(np.int64)
    return rows[np.argsort(rows[:, 1], kind="stable")][-_LATEST_RUNS:]


def _is_stuck(rank: Rank) -> bool:
    elapsed = None if rank.position is None else rank.position.elapsed_ns
    return elapsed is None or elapsed >= _LEAST_STUCK_NS


def _where(rank: Rank, *, since: bool) -> str:
    if rank.position is None:
        return " is in no stage" if since else ""
    stage = rank.position.stages[-1]
    if not since:
        return f" in `{stage}`"
    if rank.position.elapsed_ns is None:
        return f" was in `{stage}` when it ended"
    return f" has been in `{stage}` for {duration(rank.position.elapsed_ns)}"


class RankFigures(RecordedFigures, frozen=True):
    """Where one rank is."""

    rank: int | None
    pid: int
    program: str
    name: str
    state: State
    stage: str | None
    """The innermost open stage of its busiest thread."""
    path: list[str]
    """All open stages of that thread, outermost first."""
    since_ns: int | None
    """When that stage began, in Unix ns."""
    elapsed_ns: int | None

    @classmethod
    def of(cls, rank: Rank) -> RankFigures:
        """Return where a rank is."""
        position = rank.position
        return cls.taken(
            rank.recording,
            stage=position.stages[-1] if position else None,
            path=list(position.stages) if position else [],
            since_ns=position.begin_ns if position else None,
            elapsed_ns=position.elapsed_ns if position else None,
        )


class JobFigures(RecordedFigures, frozen=True):
    """The ranks or processes of a job."""

    job: str
    findings: list[str]
    ranks: list[RankFigures]
    counts: dict[str, dict[str, Count]]
    """How often each rank has finished each stage."""
    mean_ns: dict[str, dict[str, float | None]]
    load: LoadFigures
    stages: dict[str, StageRunFigures]
    """The statistics of all processes together."""


def mean_ns(rank: Rank, stage: str) -> float | None:
    """Return the mean time of a stage in one rank; None if it has not finished the stage."""
    found = runs([rank.recording]).get(stage)
    return None if found is None else found.mean_ns
