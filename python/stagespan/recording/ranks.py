"""The ranks of one job side by side: which stages each has finished, and where each of them is."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from stagespan.errors import StagespanError
from stagespan.recording.reading import recordings
from stagespan.recording.summary import Stand, stands

if TYPE_CHECKING:
    from stagespan.recording.reading import Recording

_MOST_NAMED = 8
_LEAST_STAND_NS = 1_000_000_000  # ranks that go on are in different stages at any moment


class Rank(NamedTuple):
    """One rank: how often it has finished each stage, and where its busiest thread is."""

    label: str
    recording: Recording
    counts: dict[str, int]
    stand: Stand | None


def of_job(job: str, *, spans: bool = True) -> list[Recording]:
    """Return the recordings of a job, the latest of each rank, ordered by rank.

    Raises StagespanError if there is none.
    """
    found = recordings(spans=spans)
    of_it = [recording for recording in found if recording.job == job]
    if not of_it:
        jobs = sorted({recording.job for recording in found if recording.job})
        known = f"the jobs are {', '.join(jobs)}" if jobs else "no recording belongs to a job"
        raise StagespanError(f"there is no recording of the job {job!r}: {known}.")
    latest: dict[tuple[int | None, int], Recording] = {}
    for recording in of_it:
        # Workers of a rank, such as those of a data loader, have its rank as well.
        key = (recording.rank, recording.pid if recording.rank is None else 0)
        before = latest.get(key)
        if before is None or _preference(recording) > _preference(before):
            latest[key] = recording
    return sorted(latest.values(), key=lambda one: (one.rank is None, one.rank or 0, one.pid))


def _preference(recording: Recording) -> tuple[bool, int, int]:
    finished = sum(stage.count for stage in recording.stats().values())
    return recording.state == "alive", finished, recording.begin_ns


def ranks(of_it: list[Recording]) -> list[Rank]:
    """Each recording as a rank."""
    found = []
    for recording in of_it:
        label = f"rank {recording.rank}" if recording.rank is not None else f"pid {recording.pid}"
        counts = {name: stage.count for name, stage in recording.stats().items()}
        of_threads = stands(recording)
        found.append(Rank(label, recording, counts, of_threads[0] if of_threads else None))
    return found


def stages(of_it: list[Rank]) -> list[str]:
    """The stages of all ranks: those that some rank has finished less often come first."""
    names = {name: None for rank in of_it for name in rank.counts}
    return sorted(names, key=lambda name: (_spread(of_it, name) == 0, name))


def _spread(of_it: list[Rank], stage: str) -> int:
    counts = [rank.counts.get(stage, 0) for rank in of_it]
    return max(counts) - min(counts)


def findings(of_it: list[Rank]) -> list[str]:
    """Say in a sentence each which ranks are behind, and where; empty if none is."""
    if len(of_it) < 2:
        return []
    found = [
        f"{rank.label} has {_ENDED[rank.recording.state]}{_where(rank, since=False)}."
        for rank in of_it
        if rank.recording.state in _ENDED
    ]
    behind, stage = _behind(of_it)
    for rank in behind[:_MOST_NAMED]:
        others = [other for other in of_it if other not in behind]
        most = Counter(other.counts.get(stage, 0) for other in others).most_common(1)[0][0]
        found.append(
            f"{rank.label}{_where(rank, since=True)}; it finished `{stage}` "
            f"{_times(rank.counts.get(stage, 0))}, the others {_times(most)[:-6]}."
        )
    if behind:
        return found
    return found + _elsewhere(of_it)


_ENDED = {"died": "died", "exited": "ended"}


def _behind(of_it: list[Rank]) -> tuple[list[Rank], str]:
    """The ranks that have finished a stage less often than most others, and that stage."""
    best: tuple[int, int, str] | None = None
    for stage in sorted({name for rank in of_it for name in rank.counts}):
        counts = Counter(rank.counts.get(stage, 0) for rank in of_it)
        usual, ranks_there = max(counts.items(), key=lambda item: (item[1], item[0]))
        behind = sum(rank.counts.get(stage, 0) < usual for rank in of_it)
        if behind == 0 or behind >= ranks_there + 1 or 2 * behind > len(of_it):
            continue
        # The stage that tells apart the fewest ranks, and has run most seldom: a step, not a call.
        candidate = (behind, usual, stage)
        if best is None or candidate < best:
            best = candidate
    if best is None:
        return [], ""
    stage = best[2]
    counts = Counter(rank.counts.get(stage, 0) for rank in of_it)
    usual = max(counts.items(), key=lambda item: (item[1], item[0]))[0]
    return [rank for rank in of_it if rank.counts.get(stage, 0) < usual], stage


def _elsewhere(of_it: list[Rank]) -> list[str]:
    """Ranks that are in another stage than most."""
    where = Counter(rank.stand.stages[-1] if rank.stand else "" for rank in of_it)
    usual, many = where.most_common(1)[0]
    others = [
        rank
        for rank in of_it
        if (rank.stand.stages[-1] if rank.stand else "") != usual and _stands(rank)
    ]
    if not others or 2 * many <= len(of_it):
        return []
    place = f"in `{usual}`" if usual else "in no stage"
    return [
        f"{rank.label}{_where(rank, since=True)}; {many} ranks are {place}."
        for rank in others[:_MOST_NAMED]
    ]


def _stands(rank: Rank) -> bool:
    elapsed = None if rank.stand is None else rank.stand.elapsed_ns
    return elapsed is None or elapsed >= _LEAST_STAND_NS


def _where(rank: Rank, *, since: bool) -> str:
    if rank.stand is None:
        return " is in no stage" if since else ""
    stage = rank.stand.stages[-1]
    if not since:
        return f" in `{stage}`"
    if rank.stand.elapsed_ns is None:
        return f" was in `{stage}` when it ended"
    return f" has been in `{stage}` for {duration(rank.stand.elapsed_ns)}"


def _times(count: int) -> str:
    return f"{count:,} times"


def duration(ns: int) -> str:
    """A time in words: ``1.2 us``, ``340 ms``, ``42.1 s``, ``3 min 20 s``, ``2 h 5 min``."""
    if ns <= 0:
        return "0 us"
    seconds = ns / 1e9
    for unit, length in (("us", 1e3), ("ms", 1e6)):
        if ns < 1000 * length:
            return f"{ns / length:,.{1 if ns < 10 * length else 0}f} {unit}"
    if seconds < 120:
        return f"{seconds:,.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 120:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def as_dict(of_it: list[Rank]) -> dict[str, Any]:
    """The ranks side by side, ready for JSON."""
    return {
        "findings": findings(of_it),
        "ranks": [
            {
                "rank": rank.recording.rank,
                "pid": rank.recording.pid,
                "state": rank.recording.state,
                "stage": rank.stand.stages[-1] if rank.stand else None,
                "path": list(rank.stand.stages) if rank.stand else [],
                "since_ns": rank.stand.begin_ns if rank.stand else None,
                "elapsed_ns": rank.stand.elapsed_ns if rank.stand else None,
            }
            for rank in of_it
        ],
        "counts": {
            stage: {rank.label: rank.counts.get(stage, 0) for rank in of_it}
            for stage in stages(of_it)
        },
    }
