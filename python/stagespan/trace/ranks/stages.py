"""Finds the stages in which one rank spends longer than the others, and where these wait for it.

The ranks of a synchronous job wait for the slowest one, so what that one spends more in one stage,
the others spend more in another stage. A rank that waits is not slow. It is recognised by the time
in collectives if that is known, by the number of ranks that take longer, or by the times at which
the runs begin and end; never by the name of a stage.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
from msgspec import structs

from stagespan.pages.amounts import in_percent, in_words
from stagespan.pages.result import (
    Cell,
    Evidence,
    Finding,
    Gain,
    Table,
    Thresholds,
    share,
    shortened,
)

# A rank spends longer in a stage if a run takes this multiple of the median of the other ranks.
_LEAST_TIMES = 1.5
_LEAST_RUNS = 3
MANY_RUNS = 100
"""Of fewer runs of a stage, the median stands for a run, since the first one is often slow."""
# In percent of the rank's time: what it spends in the stage beyond the others.
_SHARES = Thresholds(25.0, 10.0, 5.0)
# The part of the extra time of a rank that the others must spend in another stage, to wait there.
_LEAST_WAITED = 0.3
_MOST_FINDINGS = 3
_MOST_ROWS = 50
_MOST_RANKS = 16


class StageRuns(msgspec.Struct, frozen=True):
    """The runs of a stage on one rank, without the stages inside them."""

    runs: int
    own_ns: int
    """Without `waited_ns`."""
    waited_ns: int = 0
    """The time in which the rank communicated and did not compute, if that is known."""
    median_ns: float | None = None
    """The median of the runs' own times, if it is known."""

    @property
    def run_ns(self) -> float:
        """The time of a run: the median, or else the mean."""
        if self.median_ns is not None:
            return self.median_ns
        return self.own_ns / self.runs if self.runs else 0.0


class Waiting(msgspec.Struct, frozen=True):
    """Where other ranks spend the time that a slower rank takes."""

    rank: int
    """The rank if there is one other rank, else -1."""
    stage: str
    run_ns: float
    """The time of a run beyond that of the slower rank."""


class Slower(msgspec.Struct, frozen=True):
    """A stage in which a rank (an index) spends longer than the others; times in ns."""

    rank: int
    stage: str
    run_ns: float
    others_ns: float
    """The median of the other ranks."""
    more_ns: float
    """The time that its runs take more than those of the others."""
    waiting: Waiting | None = None
    """Where the others spend that time, if they spend it in a stage."""
    is_cause: bool = True
    """False if it is not known which of the two ranks waits for the other."""

    def times(self) -> str:
        """How often the others' time fits into that of the rank, such as "15x as long"."""
        ratio = self.run_ns / self.others_ns if self.others_ns else float("inf")
        if ratio > 1000:
            return "more than 1,000x as long"
        return f"{ratio:.0f}x as long" if ratio >= 9.5 else f"{ratio:.1f}x as long"

    def spent(self) -> str:
        """The end of a sentence that begins with the rank."""
        return (
            f"spent {self.times()} in `{shortened(self.stage, 60)}` as the other ranks (a run took"
            f" {in_words(self.run_ns, 'ns')}, theirs {in_words(self.others_ns, 'ns')})"
        )

    def sentence(self, names: Sequence[str]) -> str:
        """A sentence about the rank and those that wait for it, without a full stop."""
        name = names[self.rank]
        waiting = self.waiting
        if not self.is_cause and waiting is not None:
            other = names[waiting.rank]
            return (
                f"{name[:1].upper()}{name[1:]} takes {in_words(self.run_ns - self.others_ns, 'ns')}"
                f" longer than {other} for each `{shortened(self.stage, 60)}`, and {other}"
                f" {in_words(waiting.run_ns, 'ns')} longer for each"
                f" `{shortened(waiting.stage, 60)}`: one of them waits there for the other"
            )
        text = f"{name[:1].upper()}{name[1:]} {self.spent()}"
        if waiting is not None:
            who = names[waiting.rank] if waiting.rank >= 0 else "the others"
            verb = "waits" if waiting.rank >= 0 else "wait"
            text += (
                f"; {who} {verb} about {in_words(waiting.run_ns, 'ns')} for it in"
                f" `{shortened(waiting.stage, 60)}`"
            )
        return text


IsWait = Callable[[int, str], "bool | None"]
"""Whether a rank (an index) waits for others in a stage; None if that is not known."""


def slower_stages(
    times: Sequence[Mapping[str, StageRuns]], is_wait: IsWait = lambda rank, stage: None
) -> list[Slower]:
    """Return the stages in which ranks are much slower than the others, the most time first.

    `times` has the stages of each rank by name. Stages of one rank only are left out, as are stages
    in which most ranks are slower than a few others, because these wait there.
    """
    # Without the time in collectives, what is left is not waiting.
    waits_are_known = any(runs.waited_ns for rank in times for runs in rank.values())
    slower: list[Slower] = []
    undecided: list[Slower] = []
    for stage in dict.fromkeys(name for candidate in times for name in candidate):
        runs = {
            at: candidate[stage]
            for at, candidate in enumerate(times)
            if stage in candidate and candidate[stage].runs >= _LEAST_RUNS
        }
        slow = [
            candidate
            for at in runs
            if (candidate := _slower(at, stage, runs)) and not is_wait(at, stage)
        ]
        if 2 * len(slow) > len(runs):
            continue
        for candidate in slow:
            candidate = structs.replace(candidate, waiting=_waiting(candidate, times))
            # Half of the ranks: either half may wait for the other.
            is_open = 2 * len(slow) == len(runs) and not waits_are_known
            is_open = is_open and is_wait(candidate.rank, stage) is None
            (undecided if is_open else slower).append(candidate)
    return sorted(
        [*slower, *_decided(undecided)],
        key=lambda candidate: (-candidate.more_ns, candidate.rank, candidate.stage),
    )


def _slower(at: int, stage: str, runs: Mapping[int, StageRuns]) -> Slower | None:
    """Return how much slower a rank is in a stage; None if it is not."""
    if len(runs) < 2:
        return None
    # The higher one of two medians: a rank is not slow if half of the others take as long.
    others = statistics.median_high(each.run_ns for other, each in runs.items() if other != at)
    run_ns = runs[at].run_ns
    if run_ns <= 0 or run_ns < _LEAST_TIMES * others:
        return None
    return Slower(at, stage, run_ns, others, (run_ns - others) * runs[at].runs)


def _waiting(slower: Slower, times: Sequence[Mapping[str, StageRuns]]) -> Waiting | None:
    """Return the stage in which the other ranks spend what this one takes longer."""
    of_rank = times[slower.rank]
    others = [at for at in range(len(times)) if at != slower.rank]
    best: tuple[float, str, float] | None = None
    for stage, here in of_rank.items():
        if stage == slower.stage:
            continue
        extra, each_run = [], []
        for at in others:
            theirs = times[at].get(stage)
            if theirs is not None and theirs.runs:
                more = theirs.own_ns + theirs.waited_ns - here.own_ns - here.waited_ns
                extra.append(float(more))
                each_run.append(more / theirs.runs)
        if 2 * len(extra) > len(others):
            middle = statistics.median(extra)
            if best is None or middle > best[0]:
                best = (middle, stage, statistics.median(each_run))
    if best is None or best[0] < _LEAST_WAITED * slower.more_ns:
        return None
    return Waiting(others[0] if len(others) == 1 else -1, best[1], best[2])


def _decided(undecided: Iterable[Slower]) -> list[Slower]:
    """Return stages of which it is open which rank waits, each pair of stages once."""
    kept: dict[frozenset[str], Slower] = {}
    for suspect in sorted(undecided, key=lambda suspect: (-suspect.more_ns, suspect.rank)):
        # If nobody spends that time elsewhere, nobody waits.
        pair = frozenset(
            (suspect.stage, suspect.waiting.stage if suspect.waiting else f"{suspect.rank}")
        )
        kept.setdefault(pair, structs.replace(suspect, is_cause=suspect.waiting is None))
    return list(kept.values())


def stage_findings(
    times: Sequence[Mapping[str, StageRuns]], names: Sequence[str], whole_ns: Sequence[int]
) -> list[Finding]:
    """Return findings about slower ranks; `names` and `whole_ns` are those of all ranks."""
    findings = []
    for slower in slower_stages(times):
        percent = share(slower.more_ns, whole_ns[slower.rank])
        severity = _SHARES.severity(percent)
        if severity is None:
            continue
        sentence = (
            f"{slower.sentence(names)}, {in_words(slower.more_ns, 'ns')} more in total"
            f" ({in_percent(percent)} of its time)."
        )
        items = tuple(
            Evidence(f"{slower.stage} on {names[at]}", None, times[at][slower.stage].own_ns, "ns")
            for at in sorted(
                (at for at in range(len(times)) if slower.stage in times[at]),
                key=lambda at: -times[at][slower.stage].own_ns,
            )[:3]
        )
        numbers = {
            "mean_ns": slower.run_ns,
            "others_ns": slower.others_ns,
            "more_ns": slower.more_ns,
            "percent": percent,
        }
        how = "its runs take as long as those of the other ranks"
        if not slower.is_cause:
            how = "the rank that the other one waits for is as fast as that one"
        gain = Gain(round(slower.more_ns), at_most=True, how=how)
        findings.append(Finding(severity, sentence, items, "ranks.stage", numbers, gain))
    return findings[:_MOST_FINDINGS]


def stage_table(times: Sequence[Mapping[str, StageRuns]], names: Sequence[str]) -> Table | None:
    """Return the time in each stage on each rank; None without stages."""
    totals: dict[str, int] = {}
    for each in times:
        for stage, time in each.items():
            totals[stage] = totals.get(stage, 0) + time.own_ns + time.waited_ns
    if not totals:
        return None
    columns_shown = range(min(len(times), _MOST_RANKS))
    rows: list[tuple[Cell, ...]] = [
        (stage, *(_whole_ns(times[at], stage) for at in columns_shown))
        for stage in sorted(totals, key=lambda name: -totals[name])[:_MOST_ROWS]
    ]
    note = "Time in each stage, without the stages inside it."
    if len(times) > len(columns_shown):
        note += f" Not shown: {len(times) - len(columns_shown):,} ranks."
    columns = (("stage", ""), *((names[at], "ns") for at in columns_shown))
    return Table("Stages by rank", columns, rows, note)


def _whole_ns(stages: Mapping[str, StageRuns], stage: str) -> int | None:
    return stages[stage].own_ns + stages[stage].waited_ns if stage in stages else None
