"""What the traces of many ranks say together: who waits for whom, and who computes more."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from stagespan.trace.analysis.result import Finding, Table, share
from stagespan.trace.ranks.clocks import UNKNOWN_CLOCK, Clocks
from stagespan.trace.ranks.late import REASONS
from stagespan.trace.ranks.match import Matched
from stagespan.trace.ranks.summary import RankSummary, Unreadable
from stagespan.trace.ranks.waits import NOBODY, Instance, Waits, bus_speed, by_op

TOP = 50


PARTS = ("computing", "waiting", "communicating", "copying", "idle")
"""What the time of a rank goes to; the first that applies."""


@dataclass(frozen=True, slots=True)
class Imbalance:
    """Ranks (indices of summaries) that computed longer than the others; times in ns."""

    ranks: list[int]
    others: list[int]
    percent: float
    """By how much the one that computed most exceeds the mean of all."""
    mean_ns: float
    others_mean_ns: float

    @property
    def times(self) -> float | None:
        """How many times as long as the others; None if those computed nothing."""
        return self.mean_ns / self.others_mean_ns if self.others_mean_ns else None


def word_of(parts_ns: dict[str, int], on_device: bool) -> str:
    """The verdict on a time with these `PARTS`, by the largest of them."""
    computing, idle = parts_ns["computing"], parts_ns["idle"]
    communicating = parts_ns["waiting"] + parts_ns["communicating"]
    most = max(communicating, computing, idle)
    if not most or most == idle:
        return "cannot tell"
    if most == communicating:
        return "communication-bound"
    return "device-busy" if on_device else "computing"


@dataclass(frozen=True)
class Ranks:
    """The result; ranks are in ascending order, times in ns."""

    folder: str
    summaries: Sequence[RankSummary]
    world_size: int | None
    world_size_from: str | None
    """What says so: "metadata", or the process groups that say it is at least that."""
    missing: list[int]
    """Ranks of the job whose traces are not there."""
    duplicated: dict[int, list[str]]
    """By rank the further files of it, which are left out."""
    without_rank: list[str]
    """Traces that do not tell their rank, which are left out."""
    unreadable: list[Unreadable]
    matched: Matched
    clocks: Clocks
    waits: Waits
    remarks: tuple[str, ...]
    """What to know before the figures are used."""

    @cached_property
    def numbers(self) -> list[int]:
        """The ranks' numbers, by index of the summary."""
        return [-1 if each.rank is None else each.rank for each in self.summaries]

    @cached_property
    def lost_ns(self) -> int:
        """Waiting of all ranks in collectives while they computed nothing."""
        return int(self.waits.lost_ns.sum())

    @cached_property
    def common_ns(self) -> int:
        """Time of the ranks with known clocks from their first collective to the last's end."""
        return int(self.waits.common_ns[self.waits.compared > 0].sum())

    @cached_property
    def compared(self) -> list[int]:
        """Ranks (by index) whose computing is over the same collectives, or none."""
        took = self.waits.took_part
        whole = np.flatnonzero((took == took.max(initial=0)) & (took > 1))
        return [int(at) for at in whole] if len(whole) > 1 else []

    @cached_property
    def computing(self) -> dict[int, tuple[int, int]]:
        """By rank (its index) how long it computed, and of how long; of ranks that compare.

        Between the same collectives; or in as many steps, if a trace does not show what the rank
        computed between collectives.
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
        """Which ranks computed most, and by how much; None if unknown."""
        if not self.computing:
            return None
        order = sorted(self.computing, key=lambda at: (-self.computing[at][0], at))
        times = [self.computing[at][0] for at in order]
        mean = sum(times) / len(times)
        if mean <= 0:
            return None
        gaps = [first - second for first, second in itertools.pairwise(times)]
        split = max(range(len(gaps)), key=lambda at: gaps[at])
        # Ranks that are alike: what parts them from the others exceeds all their differences.
        apart = gaps[split] > sum(gaps) - gaps[split]
        count = split + 1 if apart else 1
        above, below = times[:count], times[count:]
        others = sum(below) / len(below)
        return Imbalance(
            ranks=sorted(order[:count]),
            others=sorted(order[count:]),
            percent=share(times[0] - mean, mean),
            mean_ns=sum(above) / len(above),
            others_mean_ns=others,
        )

    def usage(self, at: int) -> dict[str, int]:
        """What the time of a rank (by its index) went to, by `PARTS`; the parts sum to its time."""
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
        """That of the rank's own page; else what most of its time went to."""
        summary = self.summaries[at]
        return summary.verdict or word_of(self.usage(at), summary.backend != "cpu")

    @cached_property
    def exposed(self) -> tuple[int, int]:
        """Exposed communication of all ranks, and the time that it is a share of."""
        times = [each.usage.exposed for each in self.summaries]
        return sum(exposed for exposed, _ in times), sum(whole for _, whole in times)

    def rank_name(self, at: int) -> str:
        """Of the summary at an index."""
        return "nobody" if at == NOBODY else f"rank {self.numbers[at]}"

    def window_begin_ns(self) -> int:
        """Where the first trace begins, on the common clock."""
        return min(
            each.begin_ns - int(offset)
            for each, offset in zip(self.summaries, self.clocks.offset_ns, strict=True)
        )

    def to_dict(self) -> dict[str, Any]:
        """For JSON, in microseconds."""
        imbalance = self.imbalance
        return {
            "verdict": dict(zip(("verdict", "sentence"), self.verdict(), strict=True)),
            "world_size": self.world_size,
            "world_size_from": self.world_size_from,
            "found": self.numbers,
            "missing": self.missing,
            "duplicated": {str(rank): paths for rank, paths in self.duplicated.items()},
            "without_rank": self.without_rank,
            "unreadable": [{"path": e.path, "reason": e.reason} for e in self.unreadable],
            "remarks": list(self.remarks),
            "matched_collectives": self.matched.count,
            "waited_us": int(self.waits.waited_ns.sum()) / 1000 if self.waits.instances else None,
            "lost_us": self.lost_ns / 1000 if self.waits.instances else None,
            "lost_percent": share(self.lost_ns, self.common_ns) if self.common_ns else None,
            "imbalance": None
            if imbalance is None
            else {
                "rank": self.numbers[max(self.computing, key=lambda at: self.computing[at][0])],
                "percent_over_mean": imbalance.percent,
                "ranks": [self.numbers[at] for at in imbalance.ranks],
                "times_the_others": imbalance.times,
            },
            "ranks": [self._rank(at) for at in range(len(self.summaries))],
            "collectives": [
                self._group(op, group, each)
                for (op, group), each in by_op(self.waits.instances).items()
            ],
            "worst": [self._instance(each) for each in self.worst(TOP)],
        }

    def worst(self, count: int) -> list[Instance]:
        """The collectives that cost most waiting."""
        return sorted(self.waits.instances, key=lambda each: -each.lost_ns)[:count]

    def verdict(self) -> tuple[str, str]:
        """One word for the job, and what its ranks' time went to in one sentence."""
        from stagespan.trace.ranks.words import verdict

        return verdict(self)

    def findings(self) -> list[Finding]:
        """Waiting, stragglers, imbalance; the gravest first."""
        from stagespan.trace.ranks.words import findings

        return findings(self)

    def title(self) -> tuple[str, str]:
        """The verdict of the job, and the sentence that explains it."""
        return self.verdict()

    def tables(self) -> list[Table]:
        """Ranks, collectives, and the single ones that cost most."""
        from stagespan.trace.ranks.words import tables

        return tables(self)

    def _rank(self, at: int) -> dict[str, Any]:
        summary, found = self.summaries[at], self.waits
        use = {} if summary.device is None else summary.device.to_dict()
        matched, compared = bool(found.took_part[at]), bool(found.compared[at])
        error = int(self.clocks.error_ns[at])
        return {
            "rank": summary.rank,
            "path": summary.path,
            "rank_from": summary.rank_from,
            "backend": summary.backend,
            "host": summary.host,
            "window_us": summary.window_ns / 1000,
            "steps": summary.steps,
            "step_us": None if summary.step_ns is None else summary.step_ns / 1000,
            "verdict": self.verdict_of(at),
            "verdict_sentence": summary.verdict_sentence,
            "time_us": summary.usage.time_ns / 1000,
            "parts_us": {part: time / 1000 for part, time in self.usage(at).items()},
            "idle_percent": share(summary.usage.idle_ns, summary.usage.time_ns),
            "exposed_percent": share(summary.usage.communicating_ns, summary.usage.time_ns),
            "stage_us": None if summary.usage.stage_ns is None else summary.usage.stage_ns / 1000,
            "stage_exposed_comm_us": None
            if summary.usage.stage_communicating_ns is None
            else summary.usage.stage_communicating_ns / 1000,
            "pipeline_stage": summary.pipeline_stage,
            **{
                key: use.get(name)
                for key, name in (
                    ("span_us", "span"),
                    ("busy_us", "busy"),
                    ("idle_us", "idle"),
                    ("compute_union_us", "compute"),
                    ("comm_union_us", "comm"),
                    ("exposed_comm_us", "exposed_comm"),
                )
            },
            "clock_offset_us": int(self.clocks.offset_ns[at]) / 1000
            if self.clocks.how[at] != UNKNOWN_CLOCK
            else None,
            "clock_error_us": error / 1000 if error >= 0 else None,
            "clock_from": self.clocks.how[at],
            "matched_collectives": int(found.took_part[at]),
            "last_in": int(found.last[at]) if compared else None,
            "made_others_wait_us": int(found.caused_ns[at]) / 1000 if compared else None,
            "waited_us": int(found.waited_ns[at]) / 1000 if compared else None,
            "lost_us": int(found.lost_ns[at]) / 1000 if compared else None,
            "waited_for_us": int(found.waited_for_ns[at]) / 1000 if compared else None,
            "late_because_us": {
                reason: int(time) / 1000
                for reason, time in zip(REASONS, found.reasons_ns[at], strict=True)
            }
            if compared
            else None,
            "computed_us": int(found.computed_ns[at]) / 1000
            if matched and summary.collectives.computing_known
            else None,
        }

    def _group(self, op: str, group: str, instances: list[Instance]) -> dict[str, Any]:
        last, most = most_often_last(instances), most_waited_for(instances)
        lost = sum(each.lost_ns for each in instances)
        return {
            "op": op,
            "group": group or None,
            "count": len(instances),
            "pure_us": sum(each.pure_ns for each in instances) / 1000,
            "waited_us": sum(each.waited_ns for each in instances) / 1000,
            "lost_us": lost / 1000,
            "bus_gb_per_s": bus_speed(instances),
            "late_max_us": max(each.late_ns for each in instances) / 1000,
            "most_often_last": None if last is None else self.numbers[last[0]],
            "most_often_last_in": 0 if last is None else last[1],
            "most_waited_for": None if most is None else self.numbers[most.rank],
            "most_waited_for_us": None if most is None else most.lost_ns / 1000,
            "most_waited_for_in": 0 if most is None else most.times,
        }

    def _instance(self, each: Instance) -> dict[str, Any]:
        return {
            "op": each.op,
            "group": each.group or None,
            "index": each.index,
            "step": each.step,
            "position": each.position,
            "time_us": (each.begin_ns - self.window_begin_ns()) / 1000,
            "ranks": each.ranks,
            "last": None if each.last == NOBODY else self.numbers[each.last],
            "late_us": each.late_ns / 1000,
            "waited_us": each.waited_ns / 1000,
            "lost_us": each.lost_ns / 1000,
            "pure_us": each.pure_ns / 1000,
            "still_us": None if each.still_ns is None else each.still_ns / 1000,
        }


@dataclass(frozen=True, slots=True)
class WaitedFor:
    """A rank (index of its summary) for which others waited."""

    rank: int
    lost_ns: int
    """What all ranks lost in the collectives to which it came last."""
    times: int
    """How many these are."""


def most_waited_for(instances: Sequence[Instance]) -> WaitedFor | None:
    """For which rank the others lost most; None when nobody was last."""
    lost: dict[int, int] = {}
    times: dict[int, int] = {}
    for each in instances:
        if each.last != NOBODY:
            lost[each.last] = lost.get(each.last, 0) + each.lost_ns
            times[each.last] = times.get(each.last, 0) + 1
    if not lost:
        return None
    rank = max(lost, key=lambda at: (lost[at], times[at], -at))
    return WaitedFor(rank, lost[rank], times[rank])


def most_often_last(instances: Sequence[Instance]) -> tuple[int, int] | None:
    """Which rank was last most often, and how often; None when nobody ever was."""
    counts: dict[int, int] = {}
    for each in instances:
        if each.last != NOBODY:
            counts[each.last] = counts.get(each.last, 0) + 1
    if not counts:
        return None
    return max(counts.items(), key=lambda item: (item[1], -item[0]))
