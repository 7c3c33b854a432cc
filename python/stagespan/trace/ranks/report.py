"""The result of analysing the traces of many ranks: which rank the others wait for, and why."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated

from stagespan.pages.amounts import counted, in_percent
from stagespan.pages.figures import Count, Figures, Internal, Ns, one_of
from stagespan.pages.result import Block, Chart, Finding, Line, Table, Titled, share
from stagespan.trace.ranks.combined import (
    PARTS,
    Imbalance,
    JobTraces,
    most_often_last,
    most_waited_for,
)
from stagespan.trace.ranks.findings import findings, headline, verdict
from stagespan.trace.ranks.match import BY_COLLECTIVES, ONE_HOST, UNKNOWN_CLOCK
from stagespan.trace.ranks.stages import stage_table
from stagespan.trace.ranks.summary import UnreadableFile
from stagespan.trace.ranks.waits import REASONS, CollectiveInstance, bus_speed, by_op

TOP = 50
# On the first screen.
_ROWS_SHOWN = 8
_MOST_DRAWN = 256


class JobVerdict(Figures, frozen=True):
    """One word for the job, and one sentence."""

    verdict: str
    sentence: str


class RankFigures(Figures, frozen=True):
    """One rank."""

    rank: int | None
    path: str
    rank_from: Annotated[str, one_of(("metadata", "name"))] | None
    backend: str
    host: str | None
    window_ns: Ns
    steps: Count
    step_ns: Ns | None
    verdict: str
    verdict_sentence: str | None
    time_ns: Ns
    parts_ns: dict[Annotated[str, one_of(PARTS)], Ns]
    """They sum to `time_ns`."""
    idle_percent: float
    """Idle time in percent of `time_ns`."""
    exposed_percent: float
    """Exposed communication in percent of `time_ns`."""
    stage_ns: Ns | None
    """On Ascend, as in step_trace_time.csv."""
    stage_exposed_comm_ns: Ns | None
    pipeline_stage: Count | None
    span_ns: Ns | None
    busy_ns: Ns | None
    idle_ns: Ns | None
    compute_union_ns: Ns | None
    comm_union_ns: Ns | None
    exposed_comm_ns: Ns | None
    clock_offset_ns: Ns | None
    clock_error_ns: Ns | None
    clock_from: Annotated[str, one_of((ONE_HOST, BY_COLLECTIVES, UNKNOWN_CLOCK))]
    matched_collectives: Count
    last_in: Count | None
    caused_wait_ns: Ns | None
    """How long after the next slowest rank it came last, summed over these collectives."""
    waited_ns: Ns | None
    lost_ns: Ns | None
    """The part of `waited_ns` in which the rank did not compute."""
    waited_for_ns: Ns | None
    """The time that all ranks lost because this one came last."""
    late_because_ns: dict[Annotated[str, one_of(REASONS)], Ns] | None
    """The parts of `waited_for_ns`."""
    computed_ns: Ns | None


class CollectiveGroup(Figures, frozen=True):
    """All collectives of one operation in one process group."""

    op: str
    group: str | None
    count: Count
    pure_ns: Ns
    waited_ns: Ns
    lost_ns: Ns
    bus_gb_per_s: float | None
    """From the shortest duration on any rank, and the bytes that a link carries."""
    late_max_ns: Ns
    most_often_last: Count | None
    most_often_last_in: Count
    most_waited_for: Count | None
    most_waited_for_ns: Ns | None
    most_waited_for_in: Count
    waited_for: Internal[str]
    """The rank that was waited for most, in words."""


class RanksFigures(Figures, frozen=True):
    """What the traces of many ranks show together."""

    verdict: JobVerdict
    world_size: Count | None
    world_size_from: str | None
    found: list[int]
    missing: list[Count]
    duplicated: dict[str, list[str]]
    without_rank: list[str]
    unreadable: list[UnreadableFile]
    remarks: list[str]
    matched_collectives: Count
    waited_ns: Ns | None
    lost_ns: Ns | None
    lost_percent: float | None
    imbalance: Imbalance | None
    ranks: list[RankFigures]
    collectives: list[CollectiveGroup]
    worst: list[CollectiveInstance]
    """The collectives that cost the most waiting, at most 50."""


@dataclass(frozen=True)
class Ranks(JobTraces, Titled):
    """The result of analysing many ranks."""

    def figures(self) -> RanksFigures:
        """The job's verdict, its ranks, and their collectives."""
        some = bool(self.waits.instances)
        return RanksFigures.taken(
            self,
            verdict=JobVerdict(*self.title()),
            found=self.numbers,
            duplicated={str(rank): paths for rank, paths in self.duplicated.items()},
            remarks=list(self.remarks),
            matched_collectives=self.matched.count,
            waited_ns=int(self.waits.waited_ns.sum()) if some else None,
            lost_ns=self.lost_ns if some else None,
            lost_percent=share(self.lost_ns, self.common_ns) if self.common_ns else None,
            ranks=self.rank_figures,
            collectives=self.groups,
            worst=self.worst(TOP),
        )

    @cached_property
    def rank_figures(self) -> list[RankFigures]:
        """The figures of each rank, in ascending order."""
        return [self._rank(at) for at in range(len(self.summaries))]

    @cached_property
    def groups(self) -> list[CollectiveGroup]:
        """The collectives by operation and group; those with the longest waits come first."""
        found = by_op(self.waits.instances)
        return [self._group(op, group, each) for (op, group), each in found.items()]

    def findings(self) -> list[Finding]:
        """Waiting, late ranks, imbalance; the most severe first."""
        return findings(self)

    def title(self) -> tuple[str, str]:
        """The verdict of the job, and the sentence that explains it."""
        return verdict(self)

    def amount(self) -> str:
        """The number of ranks."""
        return counted(len(self.summaries), "rank")

    def head(self) -> list[Block]:
        """The verdict, the ranks, and what is known about their collectives."""
        shown = f", {_ROWS_SHOWN} of them shown" if len(self.summaries) > _ROWS_SHOWN else ""
        blocks: list[Block] = [
            Line(f"{Path(self.folder).name}: {self.amount()}{shown}", "strong"),
            Line(self.title()[1], "strong"),
            Line(headline(self)),
            *(Line(remark, "remark") for remark in self.remarks),
            # Without lengths, shares and clocks.
            _ranks(self).selected(
                _ROWS_SHOWN,
                (
                    *("rank", "verdict", "made others wait"),
                    *("computing", "waiting", "other communication", "idle"),
                ),
            ),
        ]
        if self.waits.instances:
            group = ("group",) if any(each.group for each in self.waits.instances) else ()
            headings = ("calls", "shortest on any rank", "waiting of all ranks", "waited for most")
            blocks.append(
                _collectives(self).selected(_ROWS_SHOWN, ("collective", *group, *headings))
            )
        return blocks

    def tables(self) -> list[Table]:
        """Ranks, collectives, and the single collectives with the longest waits."""
        return tables(self)

    def chart(self) -> Chart | None:
        """Return the parts of each rank's time, which add up to its time."""
        drawn = range(min(len(self.summaries), _MOST_DRAWN))
        usages = [self.usage(at) for at in drawn]
        parts = [(words, part, [usage[part] for usage in usages]) for part, words in PARTS.items()]
        if len(drawn) < 2 or not any(any(times) for *_, times in parts):
            return None
        left = len(self.summaries) - len(drawn)
        return {
            "kind": "ranks",
            "ranks": [self.summaries[at].rank for at in drawn],
            "parts": [part for part in parts if any(part[2])],
            "note": f"Not drawn: {counted(left, 'rank')}." if left else "",
        }

    def _rank(self, at: int) -> RankFigures:
        summary, waits, device = self.summaries[at], self.waits, self.summaries[at].device
        matched, compared = bool(waits.took_part[at]), bool(waits.compared[at])
        error = int(self.clocks.error_ns[at])
        known_clock = self.clocks.how[at] != UNKNOWN_CLOCK
        computing_known = matched and summary.collectives.computing_known
        reasons = zip(REASONS, waits.reasons_ns[at].tolist(), strict=True)
        return RankFigures.taken(
            summary,
            verdict=self.verdict_of(at),
            time_ns=summary.usage.time_ns,
            parts_ns=self.usage(at),
            idle_percent=share(summary.usage.idle_ns, summary.usage.time_ns),
            exposed_percent=share(summary.usage.communicating_ns, summary.usage.time_ns),
            stage_ns=summary.usage.stage_ns,
            stage_exposed_comm_ns=summary.usage.stage_communicating_ns,
            span_ns=None if device is None else device.span_ns,
            busy_ns=None if device is None else device.busy_ns,
            idle_ns=None if device is None else device.idle_ns,
            compute_union_ns=None if device is None else device.compute_ns,
            comm_union_ns=None if device is None else device.communication_ns,
            exposed_comm_ns=None if device is None else device.exposed_communication_ns,
            clock_offset_ns=int(self.clocks.offset_ns[at]) if known_clock else None,
            clock_error_ns=error if error >= 0 else None,
            clock_from=self.clocks.how[at],
            matched_collectives=int(waits.took_part[at]),
            last_in=int(waits.last[at]) if compared else None,
            caused_wait_ns=int(waits.caused_ns[at]) if compared else None,
            waited_ns=int(waits.waited_ns[at]) if compared else None,
            lost_ns=int(waits.lost_ns[at]) if compared else None,
            waited_for_ns=int(waits.waited_for_ns[at]) if compared else None,
            late_because_ns={reason: int(time) for reason, time in reasons} if compared else None,
            computed_ns=int(waits.computed_ns[at]) if computing_known else None,
        )

    def _group(
        self, op: str, group: str | None, instances: list[CollectiveInstance]
    ) -> CollectiveGroup:
        last, most = most_often_last(instances), most_waited_for(instances)
        return CollectiveGroup(
            op=op,
            group=group,
            count=len(instances),
            pure_ns=sum(each.pure_ns for each in instances),
            waited_ns=sum(each.waited_ns for each in instances),
            lost_ns=sum(each.lost_ns for each in instances),
            bus_gb_per_s=bus_speed(instances),
            late_max_ns=max(each.late_ns for each in instances),
            most_often_last=None if last is None else self.numbers[last[0]],
            most_often_last_in=0 if last is None else last[1],
            most_waited_for=None if most is None else self.numbers[most.rank],
            most_waited_for_ns=None if most is None else most.lost_ns,
            most_waited_for_in=0 if most is None else most.times,
            waited_for=_most_waited_for(self, instances),
        )


def tables(job: Ranks) -> list[Table]:
    """Ranks, collectives by operation, the single collectives with the longest waits, stages."""
    names = [job.rank_name(at) for at in range(len(job.summaries))]
    places = _places(job)
    worst = Table.of(
        "Collectives with the longest waits",
        job.worst(20),
        ("name", "collective", ""),
        ("index", "number", ""),
        ("time_ns", "last arrival", "ns"),
        (lambda each: job.rank_name(each.last_at), "last rank", ""),
        ("late_ns", "after the next slowest", "ns"),
        ("lost_ns", "waiting of all ranks", "ns"),
    )
    of_waits = (_collectives(job), places, worst) if job.waits.instances else ()
    found = (_ranks(job), *of_waits, stage_table(job.stage_times, names))
    return [table for table in found if table is not None]


def _collectives(job: Ranks) -> Table:
    """The collectives by operation and group."""
    return Table.of(
        "Collectives",
        job.groups[:TOP],
        ("op", "collective", ""),
        ("group", "group", ""),
        ("count", "calls", ""),
        ("pure_ns", "shortest on any rank", "ns"),
        ("lost_ns", "waiting of all ranks", "ns"),
        ("late_max_ns", "largest delay", "ns"),
        ("bus_gb_per_s", "bus", "GB/s"),
        ("waited_for", "waited for most", ""),
        note=_left(len(job.groups)),
    )


def _most_waited_for(job: JobTraces, instances: list[CollectiveInstance]) -> str:
    """The rank that was waited for most, its share of the waiting, and in how many collectives."""
    most = most_waited_for(instances)
    if most is None:
        return "nobody"
    percent = share(most.lost_ns, sum(each.lost_ns for each in instances))
    return f"{job.rank_name(most.rank)} ({in_percent(percent)}, {counted(most.times, 'time')})"


def _places(job: JobTraces) -> Table | None:
    """The places in a step with the most waiting; None if steps do not repeat."""
    places: dict[tuple[str, int], list[CollectiveInstance]] = {}
    for each in job.waits.instances:
        if each.position is not None:
            places.setdefault((each.name, each.position), []).append(each)
    if not any(len(each) > 1 for each in places.values()):
        return None

    def lost_ns(place: tuple[tuple[str, int], list[CollectiveInstance]]) -> int:
        return sum(each.lost_ns for each in place[1])

    return Table.of(
        "Collectives by their place in the step",
        sorted(places.items(), key=lambda place: -lost_ns(place))[:TOP],
        (lambda place: place[0][0], "collective", ""),
        (lambda place: place[0][1] + 1, "number in the step", ""),
        (lambda place: len(place[1]), "steps", ""),
        (lost_ns, "waiting of all ranks", "ns"),
        (lambda place: _most_waited_for(job, place[1]), "waited for most", ""),
        note=_left(len(places)),
    )


def _ranks(job: Ranks) -> Table:
    """The ranks; those that made others wait most come first."""
    ranks = sorted(job.rank_figures, key=lambda each: -(each.caused_wait_ns or 0))

    def waiting_ns(rank: RankFigures) -> int | None:
        return None if rank.caused_wait_ns is None else rank.parts_ns["waiting"]

    return Table.of(
        "Ranks",
        ranks[:TOP],
        (lambda each: str(each.rank), "rank", ""),
        ("verdict", "verdict", ""),
        ("time_ns", "time", "ns"),
        ("step_ns", "mean step", "ns"),
        (lambda each: each.parts_ns["computing"], "computing", "ns"),
        (waiting_ns, "waiting", "ns"),
        (lambda each: each.parts_ns["communicating"], "other communication", "ns"),
        (lambda each: each.parts_ns["copying"], "copying", "ns"),
        (lambda each: each.parts_ns["idle"], "idle", "ns"),
        ("exposed_percent", "exposed communication", "%"),
        ("idle_percent", "idle share", "%"),
        ("last_in", "last", ""),
        ("caused_wait_ns", "made others wait", "ns"),
        ("clock_offset_ns", "clock ahead by", "ns"),
        ("clock_error_ns", "within", "ns"),
        note=" ".join([verdict(job)[1], headline(job), *job.remarks, _left(len(ranks))]).rstrip(),
    )


def _left(count: int) -> str:
    return f"{count - TOP:,} more are in the JSON." if count > TOP else ""
