"""What the traces of many ranks say together: who waits for whom, and who computes more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from stagespan.trace.analysis.result import Finding, Table, many, share
from stagespan.trace.ranks.clocks import UNKNOWN_CLOCK, Clocks
from stagespan.trace.ranks.match import Matched
from stagespan.trace.ranks.summary import RankSummary, Unreadable
from stagespan.trace.ranks.waits import NOBODY, Instance, Waits, bus_speed, by_op

TOP = 50


@dataclass(frozen=True)
class Ranks:
    """The result; ranks are in ascending order, times in ns."""

    folder: str
    summaries: Sequence[RankSummary]
    world_size: int | None
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
    def imbalance(self) -> tuple[int, float] | None:
        """Which rank computed most, and by how many percent more than the mean; None if unknown."""
        if not self.compared:
            return None
        computed = self.waits.computed_ns[self.compared]
        mean = float(computed.mean())
        if mean <= 0:
            return None
        most = int(computed.argmax())
        return self.compared[most], share(float(computed[most]) - mean, mean)

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
            "world_size": self.world_size,
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
            else {"rank": self.numbers[imbalance[0]], "percent_over_mean": imbalance[1]},
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

    def findings(self) -> list[Finding]:
        """Waiting, stragglers, imbalance; the gravest first."""
        from stagespan.trace.ranks.words import findings

        return findings(self)

    def title(self) -> tuple[str, str]:
        """How many ranks, and what is most to be said about them."""
        from stagespan.trace.ranks.words import headline

        return many(len(self.summaries), "rank"), headline(self)

    def tables(self) -> list[Table]:
        """Ranks, collectives, and the single ones that cost most."""
        from stagespan.trace.ranks.words import tables

        return tables(self)

    def _rank(self, at: int) -> dict[str, Any]:
        summary, found = self.summaries[at], self.waits
        use = summary.use.to_dict()
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
            **{
                key: use[key]
                for key in (
                    "span_us",
                    "busy_us",
                    "idle_us",
                    "compute_union_us",
                    "comm_union_us",
                    "exposed_comm_us",
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
            "computed_us": int(found.computed_ns[at]) / 1000 if matched else None,
        }

    def _group(self, op: str, group: str, instances: list[Instance]) -> dict[str, Any]:
        last = most_often_last(instances)
        return {
            "op": op,
            "group": group or None,
            "count": len(instances),
            "pure_us": sum(each.pure_ns for each in instances) / 1000,
            "waited_us": sum(each.waited_ns for each in instances) / 1000,
            "lost_us": sum(each.lost_ns for each in instances) / 1000,
            "bus_gb_per_s": bus_speed(instances),
            "late_max_us": max(each.late_ns for each in instances) / 1000,
            "most_often_last": None if last is None else self.numbers[last[0]],
            "most_often_last_in": 0 if last is None else last[1],
        }

    def _instance(self, each: Instance) -> dict[str, Any]:
        return {
            "op": each.op,
            "group": each.group or None,
            "index": each.index,
            "time_us": (each.begin_ns - self.window_begin_ns()) / 1000,
            "ranks": each.ranks,
            "last": None if each.last == NOBODY else self.numbers[each.last],
            "late_us": each.late_ns / 1000,
            "waited_us": each.waited_ns / 1000,
            "lost_us": each.lost_ns / 1000,
            "pure_us": each.pure_ns / 1000,
        }


def most_often_last(instances: Sequence[Instance]) -> tuple[int, int] | None:
    """Which rank was last most often, and how often; None when nobody ever was."""
    counts: dict[int, int] = {}
    for each in instances:
        if each.last != NOBODY:
            counts[each.last] = counts.get(each.last, 0) + 1
    if not counts:
        return None
    return max(counts.items(), key=lambda item: (item[1], -item[0]))
