"""The result of analysing the traces of many ranks: which rank the others wait for, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np

from stagespan.trace.analyses.host_verdict import IN_STAGES, verdict_on_stages
from stagespan.trace.figures import Count, Figures, Ns, one_of
from stagespan.trace.ranks.job import (
    PARTS,
    Imbalance,
    Job,
    chance_of_being_last,
    listed,
    most_often_last,
    most_waited_for,
    place_in_step,
    word_of,
)
from stagespan.trace.ranks.match import (
    BY_COLLECTIVES,
    ONE_HOST,
    UNKNOWN_CLOCK,
)
from stagespan.trace.ranks.stages import (
    StageTime,
    slower_stages,
    stage_findings,
    stage_table,
)
from stagespan.trace.ranks.waits import (
    BEFORE,
    HOST,
    NOBODY,
    NOT_KNOWN,
    REASONS,
    ROW,
    Instance,
    bus_speed,
    by_op,
)
from stagespan.trace.read.intervals import covered
from stagespan.trace.result import (
    Block,
    Cell,
    Chart,
    Evidence,
    Finding,
    Line,
    Table,
    Thresholds,
    Titled,
    by_severity,
    counted,
    in_words,
    share,
)

TOP = 50
# On the first screen.
_ROWS_SHOWN = 8
_MOST_DRAWN = 256


class JobVerdict(Figures, frozen=True):
    """One word for the job, and one sentence."""

    verdict: str
    sentence: str


class UnreadableFile(Figures, frozen=True):
    """A file that could not be read."""

    path: str
    reason: str


class ImbalanceFigures(Figures, frozen=True):
    """An `Imbalance` in JSON."""

    rank: Count
    """The rank that computed longest."""
    percent_over_mean: float
    ranks: list[Count]
    times_the_others: float | None


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


class CollectiveInstance(Figures, frozen=True):
    """One collective."""

    op: str
    group: str | None
    index: Count
    step: Count | None
    position: Count | None
    """Its index among the collectives of its group in the step."""
    time_ns: Ns
    ranks: Count
    last: Count | None
    late_ns: Ns
    waited_ns: Ns
    lost_ns: Ns
    pure_ns: Ns
    still_ns: Ns | None
    """The time after the last rank had arrived in which no data moved; None if unknown."""


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
    imbalance: ImbalanceFigures | None
    ranks: list[RankFigures]
    collectives: list[CollectiveGroup]
    worst: list[CollectiveInstance]
    """The collectives that cost the most waiting, at most 50."""


@dataclass(frozen=True)
class Ranks(Job, Titled):
    """The result of analysing many ranks."""

    def figures(self) -> RanksFigures:
        """The job's verdict, its ranks, and their collectives."""
        some = bool(self.waits.instances)
        return RanksFigures(
            verdict=JobVerdict(*self.title()),
            world_size=self.world_size,
            world_size_from=self.world_size_from,
            found=self.numbers,
            missing=self.missing,
            duplicated={str(rank): paths for rank, paths in self.duplicated.items()},
            without_rank=self.without_rank,
            unreadable=[UnreadableFile(each.path, each.reason) for each in self.unreadable],
            remarks=list(self.remarks),
            matched_collectives=self.matched.count,
            waited_ns=int(self.waits.waited_ns.sum()) if some else None,
            lost_ns=self.lost_ns if some else None,
            lost_percent=share(self.lost_ns, self.common_ns) if self.common_ns else None,
            imbalance=None if self.imbalance is None else self._imbalance(self.imbalance),
            ranks=[self._rank(at) for at in range(len(self.summaries))],
            collectives=[
                self._group(op, group, each)
                for (op, group), each in by_op(self.waits.instances).items()
            ],
            worst=[self._instance(each) for each in self.worst(TOP)],
        )

    def _imbalance(self, uneven: Imbalance) -> ImbalanceFigures:
        return ImbalanceFigures(
            rank=self.numbers[max(self.computing, key=lambda at: self.computing[at][0])],
            percent_over_mean=uneven.percent,
            ranks=[self.numbers[at] for at in uneven.ranks],
            times_the_others=uneven.times,
        )

    def findings(self) -> list[Finding]:
        """Waiting, late ranks, imbalance; the most severe first."""
        return findings(self)

    def title(self) -> tuple[str, str]:
        """The verdict of the job, and the sentence that explains it."""
        return verdict(self)

    def head(self) -> list[Block]:
        """The verdict, the ranks, and what is known about their collectives."""
        blocks: list[Block] = [
            Line(f"{Path(self.folder).name}: {len(self.summaries)} ranks", "strong"),
            Line(self.title()[1], "strong"),
            Line(headline(self)),
            *(Line(remark, "remark") for remark in self.remarks),
            # Without lengths, shares and clocks.
            _ranks(self).selected(
                _ROWS_SHOWN,
                (
                    *("", "verdict", "computing", "waiting", "other communication", "idle"),
                    "made others wait",
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
        shown = range(min(len(self.summaries), _MOST_DRAWN))
        usages = [self.usage(at) for at in shown]
        parts = [(words, part, [usage[part] for usage in usages]) for part, words in PARTS.items()]
        if len(shown) < 2 or not any(any(times) for *_, times in parts):
            return None
        left = len(self.summaries) - len(shown)
        return {
            "kind": "ranks",
            "ranks": [self.summaries[at].rank for at in shown],
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
        return RankFigures(
            rank=summary.rank,
            path=summary.path,
            rank_from=summary.rank_from,
            backend=summary.backend,
            host=summary.host,
            window_ns=summary.window_ns,
            steps=summary.steps,
            step_ns=summary.step_ns,
            verdict=self.verdict_of(at),
            verdict_sentence=summary.verdict_sentence,
            time_ns=summary.usage.time_ns,
            parts_ns=self.usage(at),
            idle_percent=share(summary.usage.idle_ns, summary.usage.time_ns),
            exposed_percent=share(summary.usage.communicating_ns, summary.usage.time_ns),
            stage_ns=summary.usage.stage_ns,
            stage_exposed_comm_ns=summary.usage.stage_communicating_ns,
            pipeline_stage=summary.pipeline_stage,
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

    def _group(self, op: str, group: str, instances: list[Instance]) -> CollectiveGroup:
        last, most = most_often_last(instances), most_waited_for(instances)
        return CollectiveGroup(
            op=op,
            group=group or None,
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
        )

    def _instance(self, each: Instance) -> CollectiveInstance:
        return CollectiveInstance(
            op=each.op,
            group=each.group or None,
            index=each.index,
            step=each.step,
            position=each.position,
            time_ns=each.begin_ns - self.window_begin_ns,
            ranks=each.ranks,
            last=None if each.last == NOBODY else self.numbers[each.last],
            late_ns=each.late_ns,
            waited_ns=each.waited_ns,
            lost_ns=each.lost_ns,
            pure_ns=each.pure_ns,
            still_ns=each.still_ns,
        )


# --- Findings and tables ---


# In percent of the ranks' time between their first and last common collective.
_WAITED = Thresholds(25.0, 10.0, 5.0)
_CAUSED = Thresholds(10.0, 5.0, 2.0)
# In percent above the mean of all ranks.
_IMBALANCE = Thresholds(50.0, 25.0, 10.0)
# In percent of the ranks' time or of their stages, without the waiting for each other.
_EXPOSED = Thresholds(25.0, 10.0, 5.0)
_OF_COMMON = "of the time between their first and last common collective"
# Percent of all waiting: from here on, waiting for ranks that began later is reported.
_MUCH_BEFORE = 25.0
# Percent of the collectives' time: from here on, time in which no data moved is reported.
_STILL = 50.0
# A rank is late at a place in the step, or if it is last more often than chance explains.
_CHANCE = 0.05


def verdict(job: Job) -> tuple[str, str]:
    """One word for the job, and one sentence on what its ranks spent their time on.

    The word is that of most ranks; if they differ, it names the largest part of all ranks' time.
    """
    ranks = len(job.summaries)
    sums = dict.fromkeys(PARTS, 0)
    for at in range(ranks):
        for part, time in job.usage(at).items():
            sums[part] += time
    verdicts = [job.verdict_of(at) for at in range(ranks)]
    word, count = Counter(verdicts).most_common(1)[0]
    if 2 * count <= ranks:
        word = word_of(sums, any(each.backend != "cpu" for each in job.summaries))
        count = verdicts.count(word)
    if word == IN_STAGES:
        return word, _in_stages(job)
    whole = sum(sums.values())
    exposed = share(sums["waiting"] + sums["communicating"], whole)
    waiting = f" ({share(sums['waiting'], whole):.1f} % waiting for each other)"
    parts = [
        f"{share(sums['computing'], whole):.1f} % is computing",
        f"{exposed:.1f} % exposed communication{waiting if ranks > 1 else ''}",
    ]
    if sums["copying"]:
        parts.append(f"{share(sums['copying'], whole):.1f} % copying")
    whose = f"the {ranks:,} ranks'" if ranks > 1 else f"{job.rank_name(0)}'s"
    sentence = (
        f"{word.capitalize()}: of {whose} {in_words(whole, 'ns')}"
        f"{' together' if ranks > 1 else ''} {', '.join(parts)} and"
        f" {share(sums['idle'], whole):.1f} % idle"
    )
    if count < ranks:
        sentence += f"; {count:,} of {ranks:,} ranks {'is' if count == 1 else 'are'} {word}"
    return word, f"{sentence}."


def _in_stages(job: Job) -> str:
    """The shares of the stages of all ranks, for traces that contain nothing else."""
    times: dict[str, int] = {}
    for name, time in (item for each in job.summaries for item in each.stages.items()):
        times[name] = times.get(name, 0) + time.own_ns
    return verdict_on_stages(
        times, (0, 1), 0, f" of {counted(len(job.summaries), 'rank')}"
    ).sentence


def headline(job: Job) -> str:
    """The ranks, their collectives and their waiting, in one sentence."""
    ranks = len(job.summaries)
    if ranks == 1:
        return (
            f"Only {job.rank_name(0)} was job. One trace does not show which rank the others"
            " wait for."
        )
    if not job.matched.count:
        return (
            f"{ranks} ranks. It is unknown which rank waited for which, because no collectives"
            " match."
        )
    if not job.waits.instances:
        return (
            f"{ranks} ranks, {job.matched.count:,} collectives. It is unknown which rank waited,"
            " because the offsets between the ranks' clocks are unknown."
        )
    percent = share(job.lost_ns, job.common_ns)
    return (
        f"{ranks} ranks, {job.matched.count:,} collectives. The ranks waited for each other in"
        f" collectives for {in_words(job.lost_ns, 'ns')}"
        f" ({percent:.1f} % {_OF_COMMON}){_hidden(job)}."
    )


def _hidden(job: Job) -> str:
    """The part of the sentence on waiting during which the rank also computed."""
    hidden = int(job.waits.waited_ns.sum()) - job.lost_ns
    return (
        f", and another {in_words(hidden, 'ns')} during which they also computed" if hidden else ""
    )


def findings(job: Job) -> list[Finding]:
    """Time lost waiting, late ranks, slower stages, exposed communication, uneven computing."""
    of_waits = [*_waiting(job), *_late(job)] if job.matched.count else []
    return by_severity([*of_waits, *_stages(job), *_exposed(job), *_imbalance(job)])


def _waiting(job: Job) -> list[Finding]:
    percent = share(job.lost_ns, job.common_ns)
    severity = _WAITED.severity(percent)
    if severity is None or not job.waits.instances:
        return []
    (op, group), worst = next(iter(by_op(job.waits.instances).items()))
    lost = sum(each.lost_ns for each in worst)
    sentence = (
        f"The ranks waited for each other in collectives for {in_words(job.lost_ns, 'ns')}"
        f" ({percent:.1f} % {_OF_COMMON}), mostly in {_named(op, group)}"
        f" ({in_words(lost, 'ns')} in {counted(len(worst), 'call')})."
    )
    before = int(job.waits.reasons_ns[:, ROW[BEFORE]].sum())
    if share(before, job.lost_ns) >= _MUCH_BEFORE:
        if 2 * before >= job.lost_ns:
            severity = "medium" if severity == "high" else "low"
        sentence += (
            f" For {in_words(before, 'ns')} of this time they waited for ranks whose steps began"
            " later; the traces do not show why."
        )
    evidence = tuple(_shown(job, job.worst(3)))
    numbers = {
        "time_ns": job.lost_ns,
        "percent": percent,
        "worst_ns": lost,
        "worst_calls": len(worst),
        "began_later_ns": before,
    }
    return [Finding(severity, sentence, evidence, "ranks.waiting", numbers=numbers)]


def _late(job: Job) -> list[Finding]:
    """The rank for which the others waited most, unless chance explains it."""
    waits = job.waits
    if not int(waits.last.sum()):
        return []
    at = int(waits.caused_ns.argmax())
    times, caused = int(waits.last[at]), int(waits.caused_ns[at])
    lost, own_time = int(waits.waited_for_ns[at]), int(waits.common_ns[at])
    if caused > own_time:
        caused, own_time = _before_and_since(waits.instances, at)
    severity = _CAUSED.severity(share(caused, own_time))
    place = place_in_step(job, at)
    by_chance = chance_of_being_last(times, int(waits.last.sum()), int((waits.compared > 0).sum()))
    if severity is None or (place is None and by_chance > _CHANCE):
        return []
    reasons = dict(zip(REASONS, waits.reasons_ns[at].tolist(), strict=True))
    why = max(reasons, key=lambda reason: int(reasons[reason]))
    rank = job.rank_name(at)
    mine = [each for each in waits.instances if each.last == at]
    if place is None:
        came = f"{times:,} of {int(waits.took_part[at]):,} collectives"
    else:
        number = place.position + 1
        came = (
            f"{_named(place.op, place.group)}, collective {number:,} of a step, in"
            f" {place.times:,} of {place.of:,} steps"
        )
        mine = [e for e in mine if (e.group, e.position) == (place.group, place.position)]
    sentence = (
        f"The other ranks waited {in_words(lost, 'ns')} for {rank}"
        f" ({share(lost, job.lost_ns):.1f} % of all waiting). It arrived last at {came}, in total"
        f" {in_words(caused, 'ns')} ({share(caused, own_time):.1f} % of its time) after the next"
        " slowest rank."
    )
    slow = next((e for e in slower_stages(_stage_times(job)) if e.rank == at), None)
    if slow is not None and why in (HOST, NOT_KNOWN, BEFORE):
        sentence += f" It {slow.spent()}."
    elif why != NOT_KNOWN:
        sentence += f" The main reason ({in_words(reasons[why], 'ns')}): {REASONS[why]}."
    # Changes to the traced work cannot save the part whose cause lies before the traces.
    shown = 1.0 - share(reasons[BEFORE], lost) / 100.0
    severity = _CAUSED.severity(share(caused * shown, own_time)) or "low"
    if job.missing:
        sentence += " One of the missing ranks may have been later."
        severity = "medium" if severity == "high" else "low"
    mine.sort(key=lambda each: -each.lost_ns)
    evidence = tuple(_shown(job, mine[:3], late=True))
    numbers: dict[str, float] = {
        "rank": job.numbers[at],
        "waited_ns": lost,
        "waited_percent": share(lost, job.lost_ns),
        "late_ns": caused,
        "late_percent": share(caused, own_time),
        "last": times if place is None else place.times,
        "of": int(waits.took_part[at]) if place is None else place.of,
    }
    if place is not None:
        numbers["collective_of_step"] = place.position + 1
    if why != NOT_KNOWN:
        numbers["reason_ns"] = reasons[why]
    return [Finding(severity, sentence, evidence, "ranks.late", numbers=numbers)]


def _before_and_since(instances: Sequence[Instance], at: int) -> tuple[int, int]:
    """Return how long a rank was late, and the time from when it was late first to its last delay.

    Delays overlap if the rank was late in several groups, and the first may begin before the
    rank's own first collective.
    """
    mine = [each for each in instances if each.last == at]
    ends = np.array([each.begin_ns for each in mine], dtype=np.int64)
    begins = ends - np.array([each.late_ns for each in mine], dtype=np.int64)
    return covered(begins, ends), int(ends.max() - begins.min())


def _stage_times(job: Job) -> list[dict[str, StageTime]]:
    return [each.stages for each in job.summaries]


def _stages(job: Job) -> list[Finding]:
    """Stages in which a rank is slower, the most time first."""
    names = [job.rank_name(at) for at in range(len(job.summaries))]
    return stage_findings(_stage_times(job), names, [e.window_ns for e in job.summaries])


def _exposed(job: Job) -> list[Finding]:
    """Exposed communication without the time in which the ranks waited for each other."""
    exposed, whole = job.exposed
    severity = _EXPOSED.severity(share(exposed - job.lost_ns, whole))
    if severity is None:
        return []
    shares = {at: share(*each.usage.exposed) for at, each in enumerate(job.summaries)}
    order = sorted(shares, key=lambda at: -shares[at])
    staged = all(each.usage.stage_ns for each in job.summaries)
    sentence = (
        f"For {in_words(exposed, 'ns')} of the ranks' {in_words(whole, 'ns')}"
        f" ({share(exposed, whole):.1f} %{' of their stages' if staged else ''}) they communicated"
        " without computing"
    )
    if len(order) > 1:
        sentence += (
            f", from {shares[order[-1]]:.1f} % on {job.rank_name(order[-1])} to"
            f" {shares[order[0]]:.1f} % on {job.rank_name(order[0])}"
        )
    sentence += "."
    if job.waits.instances:
        sentence += f" {in_words(job.lost_ns, 'ns')} of this was spent waiting for other ranks."
    evidence = [
        Evidence(
            f"exposed communication of {job.rank_name(at)}",
            None,
            job.summaries[at].usage.exposed[0],
            "ns",
        )
        for at in order[:3]
    ]
    reason, more = _without_data(job)
    if not reason and job.missing:
        reason = f" Part of it may be waiting for the missing ranks ({listed(job.missing)})."
    sentence += reason or (
        " Smaller messages, a faster link, or computation that overlaps them would help."
    )
    numbers = {
        "time_ns": exposed,
        "percent": share(exposed, whole),
        "whole_ns": whole,
        "least_percent": shares[order[-1]],
        "most_percent": shares[order[0]],
        "waiting_ns": job.lost_ns,
    }
    shown = (*evidence, *more)
    return [Finding(severity, sentence, shown, "ranks.exposed_communication", numbers=numbers)]


def _without_data(job: Job) -> tuple[str, list[Evidence]]:
    """Time in collectives after all ranks with a trace had arrived, in which no data moved."""
    known = [each for each in job.waits.instances if each.still_ns is not None]
    still = sum(each.still_ns or 0 for each in known)
    pure = sum(each.pure_ns for each in known)
    beyond = job.exposed[0] - job.lost_ns
    if share(still, pure) < _STILL or share(still * len(job.summaries), beyond) < _STILL:
        return "", []
    known.sort(key=lambda each: -(each.still_ns or 0))
    worst = known[0]
    sentence = (
        f" After all ranks that have a trace had arrived, no data moved for {in_words(still, 'ns')}"
        f" of the {in_words(pure, 'ns')} that the collectives took"
        f" ({in_words(worst.still_ns, 'ns')} in {_named(worst.op, worst.group)} number"
        f" {worst.index}):"
    )
    if job.missing:
        sentence += f" the ranks waited for ranks whose traces are missing ({listed(job.missing)})."
    else:
        sentence += " the link or the library was slow."
    begin = job.window_begin_ns
    evidence = [
        Evidence(
            f"{_named(each.op, each.group)} number {each.index}, no data moved after all arrived",
            each.begin_ns - begin,
            each.still_ns,
            "ns",
        )
        for each in known[:2]
    ]
    return sentence, evidence


def _imbalance(job: Job) -> list[Finding]:
    uneven = job.imbalance
    if uneven is None:
        return []
    severity = _IMBALANCE.severity(uneven.percent)
    if severity is None:
        return []
    computing = job.computing
    at = max(computing, key=lambda each: computing[each][0])
    computed, time = computing[at]
    # An imbalance of a small part of the time does not matter.
    mean = sum(each for each, _ in computing.values()) / len(computing)
    if share(computed - mean, time) < _CAUSED.low:
        return []
    least = min(computing, key=lambda each: computing[each][0])
    numbers: dict[str, float] = {"computing_ns": computed, "percent": uneven.percent}
    if len(uneven.ranks) > 1 and uneven.times is not None:
        numbers["times"] = uneven.times
        sentence = (
            f"{_ranks_named(job, uneven.ranks).capitalize()} computed {uneven.times:.2f} times as"
            f" long as {_ranks_named(job, uneven.others)} (mean {in_words(uneven.mean_ns, 'ns')},"
            f" compared with {in_words(uneven.others_mean_ns, 'ns')})."
            f"{_of_pipeline(job, uneven)}"
        )
    else:
        sentence = (
            f"{job.rank_name(at).capitalize()} computed for {in_words(computed, 'ns')},"
            f" {uneven.percent:.1f} % longer than the mean of all ranks"
            f" ({job.rank_name(least)}: {in_words(computing[least][0], 'ns')}, the shortest)."
        )
    shown = (at, least) if len(uneven.ranks) == 1 else (*uneven.ranks[:2], *uneven.others[:2])
    evidence = tuple(
        Evidence(f"computing on {job.rank_name(each)}", None, computing[each][0], "ns")
        for each in shown
    )
    return [Finding(severity, sentence, evidence, "ranks.imbalance", numbers=numbers)]


def _ranks_named(job: Job, ranks: list[int]) -> str:
    names = listed(job.numbers[at] for at in ranks)
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {names}"


def _of_pipeline(job: Job, uneven: Imbalance) -> str:
    """A sentence if the ranks that compute more are a stage of the pipeline; otherwise ""."""
    stages = {job.summaries[at].pipeline_stage for at in uneven.ranks}
    others = {job.summaries[at].pipeline_stage for at in uneven.others}
    (stage, *more) = stages
    if stage is None or more or stage in others:
        return ""
    return f" They are stage {stage} of the pipeline (counted from 0). Give it fewer layers."


def _shown(job: Job, instances: list[Instance], late: bool = False) -> list[Evidence]:
    begin = job.window_begin_ns
    return [
        Evidence(
            f"{_named(each.op, each.group)} number {each.index}, {job.rank_name(each.last)} last,"
            f" {'after the next slowest rank' if late else 'waiting of all ranks'}",
            each.begin_ns - begin,
            each.late_ns if late else each.lost_ns,
            "ns",
        )
        for each in instances
    ]


def _named(op: str, group: str) -> str:
    return f"{op} of group {group}" if group else op


def tables(job: Job) -> list[Table]:
    """Ranks, collectives by operation, the single collectives with the longest waits, stages."""
    shown = [_ranks(job)]
    names = [job.rank_name(at) for at in range(len(job.summaries))]
    stages = stage_table(_stage_times(job), names)
    instances = job.waits.instances
    if not instances:
        return [*shown, *([] if stages is None else [stages])]
    shown.append(_collectives(job))
    places = _places(job)
    if places is not None:
        shown.append(places)
    begin = job.window_begin_ns
    worst: list[tuple[Cell, ...]] = [
        (
            _named(each.op, each.group),
            each.index,
            each.begin_ns - begin,
            job.rank_name(each.last),
            each.late_ns,
            each.lost_ns,
        )
        for each in job.worst(20)
    ]
    worst_columns = (
        ("collective", ""), ("number", ""), ("last arrival", "ns"), ("last rank", ""),
        ("after the next slowest", "ns"), ("waiting of all ranks", "ns"),
    )  # fmt: skip
    shown.append(Table("Collectives with the longest waits", worst_columns, worst))
    return [*shown, *([] if stages is None else [stages])]


def _collectives(job: Job) -> Table:
    """The collectives by operation and group."""
    rows: list[tuple[Cell, ...]] = [
        (
            op,
            group or None,
            len(each),
            sum(one.pure_ns for one in each),
            sum(one.lost_ns for one in each),
            max(one.late_ns for one in each),
            bus_speed(each),
            _most_waited_for(job, each),
        )
        for (op, group), each in by_op(job.waits.instances).items()
    ]
    columns = (
        ("collective", ""), ("group", ""), ("calls", ""), ("shortest on any rank", "ns"),
        ("waiting of all ranks", "ns"), ("largest delay", "ns"), ("bus", "GB/s"),
        ("waited for most", ""),
    )  # fmt: skip
    return Table("Collectives", columns, rows[:TOP], _left(len(rows)))


def _most_waited_for(job: Job, instances: list[Instance]) -> str:
    """The rank that was waited for most, its share of the waiting, and in how many collectives."""
    most = most_waited_for(instances)
    if most is None:
        return "nobody"
    percent = share(most.lost_ns, sum(each.lost_ns for each in instances))
    return f"{job.rank_name(most.rank)} ({percent:.1f} %, {counted(most.times, 'time')})"


def _places(job: Job) -> Table | None:
    """The places in a step with the most waiting; None if steps do not repeat."""
    places: dict[tuple[str, str, int], list[Instance]] = {}
    for each in job.waits.instances:
        if each.position is not None:
            places.setdefault((each.op, each.group, each.position), []).append(each)
    if not any(len(each) > 1 for each in places.values()):
        return None
    order = sorted(places.items(), key=lambda item: -sum(each.lost_ns for each in item[1]))
    rows: list[tuple[Cell, ...]] = [
        (
            _named(op, group),
            position + 1,
            len(each),
            sum(one.lost_ns for one in each),
            _most_waited_for(job, each),
        )
        for (op, group, position), each in order
    ]
    columns = (
        ("collective", ""), ("number in the step", ""), ("steps", ""),
        ("waiting of all ranks", "ns"), ("waited for most", ""),
    )  # fmt: skip
    return Table("Collectives by their place in the step", columns, rows[:TOP], _left(len(rows)))


def _ranks(job: Job) -> Table:
    """The ranks; those that made others wait most come first."""
    waits = job.waits
    order = sorted(range(len(job.summaries)), key=lambda at: (-int(waits.caused_ns[at]), at))
    rows: list[tuple[Cell, ...]] = []
    for at in order[:TOP]:
        summary = job.summaries[at]
        compared = bool(waits.compared[at])
        parts = job.usage(at)
        rows.append(
            (
                job.rank_name(at),
                job.verdict_of(at),
                summary.usage.time_ns,
                summary.step_ns,
                parts["computing"],
                parts["waiting"] if compared else None,
                parts["communicating"],
                parts["copying"],
                parts["idle"],
                share(summary.usage.communicating_ns, summary.usage.time_ns),
                share(parts["idle"], summary.usage.time_ns),
                int(waits.last[at]) if compared else None,
                int(waits.caused_ns[at]) if compared else None,
                int(job.clocks.offset_ns[at]) if job.clocks.how[at] != UNKNOWN_CLOCK else None,
                int(job.clocks.error_ns[at]) if job.clocks.error_ns[at] >= 0 else None,
            )
        )
    columns = (
        ("", ""), ("verdict", ""), ("time", "ns"), ("mean step", "ns"), ("computing", "ns"),
        ("waiting", "ns"), ("other communication", "ns"), ("copying", "ns"), ("idle", "ns"),
        ("exposed communication", "%"), ("idle share", "%"), ("last", ""),
        ("made others wait", "ns"), ("clock ahead by", "ns"), ("within", "ns"),
    )  # fmt: skip
    note = " ".join([verdict(job)[1], headline(job), *job.remarks, _left(len(order))]).rstrip()
    return Table("Ranks", columns, rows, note)


def _left(count: int) -> str:
    return f"{count - TOP:,} more are in the JSON." if count > TOP else ""
