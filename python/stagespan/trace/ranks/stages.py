"""Finds the stages in which one rank spends longer than the others."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stagespan.text.amounts import in_words
from stagespan.trace.result import (
    Cell,
    Evidence,
    Finding,
    Gain,
    Table,
    Thresholds,
    share,
    shortened,
)

# A rank spends longer in a stage if its mean is this multiple of the median of the other ranks.
_LEAST_TIMES = 1.5
# In percent of the rank's time: what it spends in the stage beyond the others.
_SHARES = Thresholds(25.0, 10.0, 5.0)
_MOST_FINDINGS = 3
_MOST_ROWS = 50
_MOST_RANKS = 16


@dataclass(frozen=True, slots=True)
class StageRuns:
    """The runs of a stage on one rank, without the stages inside them."""

    runs: int
    own_ns: int

    @property
    def mean_ns(self) -> float:
        """The mean of a run."""
        return self.own_ns / self.runs if self.runs else 0.0


@dataclass(frozen=True, slots=True)
class Slower:
    """A stage in which a rank (an index) spends longer than the others; times in ns."""

    rank: int
    stage: str
    mean_ns: float
    others_ns: float
    """The median of the other ranks' means."""
    more_ns: float
    """The time that its runs take more than those of the others."""

    def times(self) -> str:
        """How often the others' time fits into that of the rank, such as "15x as long"."""
        ratio = self.mean_ns / self.others_ns if self.others_ns else float("inf")
        if ratio > 1000:
            return "more than 1,000x as long"
        return f"{ratio:.0f}x as long" if ratio >= 9.5 else f"{ratio:.1f}x as long"

    def spent(self) -> str:
        """The end of a sentence that begins with the rank."""
        return (
            f"spent {self.times()} in `{shortened(self.stage, 60)}` as the other ranks (a run took"
            f" {in_words(self.mean_ns, 'ns')}, theirs {in_words(self.others_ns, 'ns')})"
        )


def slower_stages(times: Sequence[Mapping[str, StageRuns]]) -> list[Slower]:
    """Return for each stage the rank that is much slower than the others, the most time first.

    `times` has the stages of each rank by name. Stages of one rank only are left out.
    """
    found = []
    for stage in dict.fromkeys(name for each in times for name in each):
        means = {at: each[stage].mean_ns for at, each in enumerate(times) if stage in each}
        if len(means) < 2:
            continue
        rank = max(means, key=lambda at: means[at])
        others = statistics.median(mean for at, mean in means.items() if at != rank)
        if means[rank] >= _LEAST_TIMES * others and means[rank] > 0:
            more = (means[rank] - others) * times[rank][stage].runs
            found.append(Slower(rank, stage, means[rank], others, more))
    return sorted(found, key=lambda each: -each.more_ns)


def stage_findings(
    times: Sequence[Mapping[str, StageRuns]], names: Sequence[str], whole_ns: Sequence[int]
) -> list[Finding]:
    """Return findings about slower ranks; `names` and `whole_ns` are those of all ranks."""
    found = []
    for each in slower_stages(times):
        percent = share(each.more_ns, whole_ns[each.rank])
        severity = _SHARES.severity(percent)
        if severity is None:
            continue
        name = names[each.rank]
        sentence = (
            f"{name[:1].upper()}{name[1:]} {each.spent()}, {in_words(each.more_ns, 'ns')} more in"
            f" total ({percent:.1f} % of its time)."
        )
        shown = tuple(
            Evidence(f"{each.stage} on {names[at]}", None, times[at][each.stage].own_ns, "ns")
            for at in sorted(
                (at for at in range(len(times)) if each.stage in times[at]),
                key=lambda at: -times[at][each.stage].own_ns,
            )[:3]
        )
        numbers = {
            "mean_ns": each.mean_ns,
            "others_ns": each.others_ns,
            "more_ns": each.more_ns,
            "percent": percent,
        }
        how = "its runs take as long as those of the other ranks"
        gain = Gain(round(each.more_ns), at_most=True, how=how)
        found.append(Finding(severity, sentence, shown, "ranks.stage", numbers, gain))
    return found[:_MOST_FINDINGS]


def stage_table(times: Sequence[Mapping[str, StageRuns]], names: Sequence[str]) -> Table | None:
    """Return the time in each stage on each rank; None without stages."""
    totals: dict[str, int] = {}
    for each in times:
        for stage, time in each.items():
            totals[stage] = totals.get(stage, 0) + time.own_ns
    if not totals:
        return None
    shown = range(min(len(times), _MOST_RANKS))
    rows: list[tuple[Cell, ...]] = [
        (stage, *(times[at][stage].own_ns if stage in times[at] else None for at in shown))
        for stage in sorted(totals, key=lambda name: -totals[name])[:_MOST_ROWS]
    ]
    note = "Time in each stage, without the stages inside it."
    if len(times) > len(shown):
        note += f" Not shown: {len(times) - len(shown):,} ranks."
    columns = (("stage", ""), *((names[at], "ns") for at in shown))
    return Table("Stages by rank", columns, rows, note)
