"""What the traces of a job's ranks show together: time by part, waiting, and imbalance."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import msgspec
import numpy as np

from stagespan.pages.figures import Count, Figures, Internal
from stagespan.pages.result import share
from stagespan.trace.analyses.host_verdict import COMPUTING, OUTSIDE
from stagespan.trace.ranks.match import Clocks, Matched, window_begin_ns
from stagespan.trace.ranks.stages import StageRuns
from stagespan.trace.ranks.summary import RankSummary, UnreadableFile
from stagespan.trace.ranks.waits import NOBODY, CollectiveInstance, CollectiveWaits

# A rank is late at a place in the step if it is last there this often, and for this percentage of
# the time lost there.
_LEAST_TIMES, _MOSTLY = 3, 200 / 3
# Terms below this part of a sum do not change its significant digits.
_NEGLIGIBLE = 1e-12

PARTS = {
    "computing": "computing",
    "waiting": "waiting for other ranks",
    "communicating": "other communication",
    "copying": "copying, nothing else",
    "idle": "idle",
}
"""The parts of a rank's time. Each moment belongs to the first part that applies."""


class Imbalance(Figures, frozen=True):
    """Ranks that computed longer than the others."""

    rank: Count
    """The rank that computed longest."""
    percent: float = msgspec.field(name="percent_over_mean")
    """By how much it exceeds the mean of all ranks."""
    ranks: list[Count]
    """The ranks that computed longer."""
    times: float | None = msgspec.field(name="times_the_others")
    """`mean_ns` divided by `others_mean_ns`; None if the others computed nothing."""
    above: Internal[list[int]]
    """The indices of the summaries of `ranks`."""
    below: Internal[list[int]]
    """The indices of the summaries of the others."""
    mean_ns: Internal[float]
    others_mean_ns: Internal[float]


def word_of(parts_ns: dict[str, int], on_device: bool) -> str:
    """Return the verdict for a time with these `PARTS`, according to the largest part."""
    computing, idle = parts_ns["computing"], parts_ns["idle"]
    communicating = parts_ns["waiting"] + parts_ns["communicating"]
    most = max(communicating, computing, idle)
    if most and most == idle and not on_device:
        return OUTSIDE
    if not most or most == idle:
        return "cannot tell"
    if most == communicating:
        return "communication-bound"
    return "device-busy" if on_device else COMPUTING


@dataclass(frozen=True)
class JobTraces:
    """The ranks of a job, in ascending order; times in ns."""

    folder: str
    summaries: Sequence[RankSummary]
    world_size: int | None
    world_size_from: str | None
    """Its source: "metadata", or the process groups, which give the least possible size."""
    missing: list[int]
    """Ranks of the job whose traces were not found."""
    duplicated: dict[int, list[str]]
    """The other files of a rank, by rank, which are skipped."""
    without_rank: list[str]
    """Traces without a rank, which are skipped."""
    unreadable: list[UnreadableFile]
    matched: Matched
    clocks: Clocks
    waits: CollectiveWaits
    remarks: tuple[str, ...]
    """Notes on the files, windows and clocks that limit what the figures mean."""

    @cached_property
    def numbers(self) -> list[int]:
        """The ranks' numbers, by index of the summary."""
        return [-1 if each.rank is None else each.rank for each in self.summaries]

    @cached_property
    def lost_ns(self) -> int:
        """Time that all ranks waited in collectives without computing."""
        return int(self.waits.lost_ns.sum())

    @cached_property
    def common_ns(self) -> int:
        """Time from the first collective to the end of the last, summed over comparable ranks."""
        return int(self.waits.common_ns[self.waits.compared > 0].sum())

    @cached_property
    def compared(self) -> list[int]:
        """Ranks (by index) whose computing time covers the same collectives; empty if unknown."""
        took = self.waits.took_part
        whole = np.flatnonzero((took == took.max(initial=0)) & (took > 1))
        return [int(at) for at in whole] if len(whole) > 1 else []

    @cached_property
    def computing(self) -> dict[int, tuple[int, int]]:
        """Computing time and total time of each comparable rank, by its index.

        Measured between the same collectives; or over the same number of steps, if a trace does
        not show what the rank computed between collectives.
        """
        if all(each.collectives.computing_known for each in self.summaries):
            computed, common = self.waits.computed_ns, self.waits.common_ns
            return {at: (int(computed[at]), int(common[at])) for at in self.compared}
        usages = [each.usage for each in self.summaries]
        if len(usages) < 2 or not usages[0].steps or len({each.steps for each in usages}) > 1:
            return {}
        return {at: (each.computing_ns, each.time_ns) for at, each in enumerate(usages)}

    @cached_property
    def imbalance(self) -> Imbalance | None:
        """The ranks that computed longest, and by how much; None if unknown."""
        if not self.computing:
            return None
        order = sorted(self.computing, key=lambda at: (-self.computing[at][0], at))
        times = [self.computing[at][0] for at in order]
        mean = sum(times) / len(times)
        if mean <= 0:
            return None
        gaps = [first - second for first, second in itertools.pairwise(times)]
        split = max(range(len(gaps)), key=lambda at: gaps[at])
        # The ranks form two groups if the largest gap exceeds all other gaps together.
        has_groups = gaps[split] > sum(gaps) - gaps[split]
        count = split + 1 if has_groups else 1
        above, below = times[:count], times[count:]
        others = sum(below) / len(below)
        mean_ns = sum(above) / len(above)
        longest = sorted(order[:count])
        return Imbalance(
            rank=self.numbers[order[0]],
            percent=share(times[0] - mean, mean),
            ranks=[self.numbers[at] for at in longest],
            times=mean_ns / others if others else None,
            above=longest,
            below=sorted(order[count:]),
            mean_ns=mean_ns,
            others_mean_ns=others,
        )

    def usage(self, at: int) -> dict[str, int]:
        """The time of a rank (by its index), split into `PARTS`, which sum to its time."""
        usage = self.summaries[at].usage
        waiting = min(int(self.waits.lost_ns[at]), usage.communicating_ns)
        times = (
            usage.computing_ns,
            waiting,
            usage.communicating_ns - waiting,
            usage.copying_ns,
            usage.idle_ns,
        )
        return dict(zip(PARTS, times, strict=True))

    def verdict_of(self, at: int) -> str:
        """The verdict of the rank's own page; otherwise the verdict on its largest part."""
        summary = self.summaries[at]
        return summary.verdict or word_of(self.usage(at), summary.backend != "cpu")

    @cached_property
    def exposed(self) -> tuple[int, int]:
        """Exposed communication of all ranks, and the time that it is a part of."""
        times = [each.usage.exposed for each in self.summaries]
        return sum(exposed for exposed, _ in times), sum(whole for _, whole in times)

    def rank_name(self, at: int) -> str:
        """The name of the rank whose summary has this index."""
        return "nobody" if at == NOBODY else f"rank {self.numbers[at]}"

    @cached_property
    def window_begin_ns(self) -> int:
        """The time at which the first trace begins, on the common clock."""
        return window_begin_ns(self.summaries, self.clocks)

    @cached_property
    def stage_times(self) -> list[dict[str, StageRuns]]:
        """The host's time in the stages of each rank."""
        return [each.stages for each in self.summaries]

    def worst(self, count: int) -> list[CollectiveInstance]:
        """The collectives in which the ranks waited longest."""
        return sorted(self.waits.instances, key=lambda each: -each.lost_ns)[:count]


@dataclass(frozen=True, slots=True)
class WaitedFor:
    """A rank (index of its summary) for which others waited."""

    rank: int
    lost_ns: int
    """The time that all ranks lost in the collectives to which it came last."""
    times: int
    """The number of these collectives."""


def most_waited_for(instances: Sequence[CollectiveInstance]) -> WaitedFor | None:
    """The rank for which the others lost most; None if no rank was last."""
    times, lost = _times_last(instances), Counter[int]()
    for instance in instances:
        lost[instance.last_at] += instance.lost_ns
    if not times:
        return None
    rank = max(times, key=lambda at: (lost[at], times[at], -at))
    return WaitedFor(rank, lost[rank], times[rank])


def most_often_last(instances: Sequence[CollectiveInstance]) -> tuple[int, int] | None:
    """The rank that was last most often, and how often; None if no rank was ever last."""
    counts = _times_last(instances).items()
    return max(counts, key=lambda item: (item[1], -item[0]), default=None)


def _times_last(instances: Sequence[CollectiveInstance]) -> Counter[int]:
    return Counter(each.last_at for each in instances if each.last_at != NOBODY)


@dataclass(frozen=True, slots=True)
class PlaceInStep:
    """A place in the step at which a rank mostly comes last."""

    op: str
    group: str | None
    position: int
    times: int
    """How often the rank came last there."""
    of: int
    """How many steps have a collective at this place."""


def place_in_step(job: JobTraces, at: int) -> PlaceInStep | None:
    """Return the place in the step at which the others wait most for a rank.

    Returns None if they do not wait mostly for this rank there.
    """
    places: dict[tuple[str | None, int], list[CollectiveInstance]] = {}
    for each in job.waits.instances:
        if each.position is not None:
            places.setdefault((each.group, each.position), []).append(each)
    best: tuple[int, PlaceInStep] | None = None
    for (group, position), instances in places.items():
        late = [each for each in instances if each.last_at == at]
        lost = sum(each.lost_ns for each in late)
        if (
            len(late) >= _LEAST_TIMES
            and share(lost, sum(each.lost_ns for each in instances)) >= _MOSTLY
            and (best is None or lost > best[0])
        ):
            best = lost, PlaceInStep(late[0].op, group, position, len(late), len(instances))
    if best is None or share(best[0], int(job.waits.waited_for_ns[at])) < _MOSTLY / 2:
        return None
    return best[1]


def chance_of_being_last(times: int, of: int, ranks: int) -> float:
    """Return the probability that a rank is last in at least `times` of `of` collectives by chance.

    Each of the `ranks` ranks is last with the same probability.
    """
    # The sum begins at its largest term: the one for `times` may be too small for a double.
    largest = max(times, of // ranks)
    # Logarithms are needed because the binomial coefficient overflows from 1,000 collectives on.
    ways = math.lgamma(of + 1) - math.lgamma(largest + 1) - math.lgamma(of - largest + 1)
    first = math.exp(ways - largest * math.log(ranks) + (of - largest) * math.log1p(-1 / ranks))
    term, chance = first, 0.0
    for n in range(largest, of + 1):
        chance += term
        term *= (of - n) / (n + 1) / (ranks - 1)
        if term <= _NEGLIGIBLE * chance:
            break
    term = first
    for n in range(largest, times, -1):
        term *= n * (ranks - 1) / (of - n + 1)
        chance += term
        if term <= _NEGLIGIBLE * chance:
            break
    return chance
