"""What the traces of many ranks show: the verdict of the job, and what could be improved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from stagespan.pages.amounts import counted, in_percent, in_words, listed, three_digits
from stagespan.pages.result import Evidence, Finding, Gain, Thresholds, by_severity, share
from stagespan.trace.analyses.host_verdict import IN_STAGES, verdict_on_stages
from stagespan.trace.derived.gains import how_nothing_is_left
from stagespan.trace.ranks.combined import (
    PARTS,
    Imbalance,
    JobTraces,
    chance_of_being_last,
    place_in_step,
    word_of,
)
from stagespan.trace.ranks.stages import slower_stages, stage_findings
from stagespan.trace.ranks.waits import (
    BEFORE,
    HOST,
    NOT_KNOWN,
    REASONS,
    ROW,
    CollectiveInstance,
    by_op,
    name_of_collective,
)
from stagespan.trace.read.intervals import covered

# In percent of the ranks' time between their first and last common collective.
_WAITED = Thresholds(25.0, 10.0, 5.0)
_CAUSED = Thresholds(10.0, 5.0, 2.0)
# In percent above the mean of all ranks.
_IMBALANCE = Thresholds(50.0, 25.0, 10.0)
# In percent of the ranks' time or of their stages, without the waiting for each other.
_EXPOSED = Thresholds(25.0, 10.0, 5.0)
_OF_COMMON = "of the time between their first and last common collective"
_BETWEEN = "Between the first and last common collective"
# Percent of all waiting: from here on, waiting for ranks that began later is reported.
_MUCH_BEFORE = 25.0
# Percent of the collectives' time: from here on, time in which no data moved is reported.
_STILL = 50.0
# Percent of all waiting: from here on, one rank is the cause of it.
_MOSTLY = 50.0
# A rank is late at a place in the step, or if it is last more often than chance explains.
_CHANCE = 0.05


def verdict(job: JobTraces) -> tuple[str, str]:
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
        if word not in verdicts and sums["idle"] == max(sums.values()):
            word = _most_idle(job, verdicts)
        count = verdicts.count(word)
    if word == IN_STAGES:
        return word, _in_stages(job)
    whole = sum(sums.values())
    exposed = share(sums["waiting"] + sums["communicating"], whole)
    waiting = f" ({in_percent(share(sums['waiting'], whole))} waiting for each other)"
    parts = [
        f"{in_percent(share(sums['computing'], whole))} is computing",
        f"{in_percent(exposed)} exposed communication{waiting if ranks > 1 else ''}",
    ]
    if sums["copying"]:
        parts.append(f"{in_percent(share(sums['copying'], whole))} copying")
    whose = f"the {ranks:,} ranks'" if ranks > 1 else f"{job.rank_name(0)}'s"
    sentence = (
        f"{word.capitalize()}: of {whose} {in_words(whole, 'ns')}"
        f"{' together' if ranks > 1 else ''} {', '.join(parts)} and"
        f" {in_percent(share(sums['idle'], whole))} idle"
    )
    if 0 < count < ranks:
        sentence += f"; {count:,} of {ranks:,} ranks {'is' if count == 1 else 'are'} {word}"
    much = share(sums["waiting"], whole) >= _WAITED.medium
    late = next(iter(_late(job)), None) if much and job.matched.count else None
    if late is not None and (percent := late.numbers["waited_percent"]) >= _MOSTLY:
        at = job.numbers.index(int(late.numbers["rank"]))
        sentence += f"; {in_percent(percent)} of the waiting is for {job.rank_name(at)}"
    return word, f"{sentence}."


def _most_idle(job: JobTraces, verdicts: list[str]) -> str:
    """The verdict of the ranks that were idle for the longest time together."""
    idle: Counter[str] = Counter()
    for at, word in enumerate(verdicts):
        idle[word] += job.usage(at)["idle"]
    return idle.most_common(1)[0][0]


def _in_stages(job: JobTraces) -> str:
    """The shares of the stages of all ranks, for traces that contain nothing else."""
    times: dict[str, int] = {}
    for name, time in (item for each in job.summaries for item in each.stages.items()):
        times[name] = times.get(name, 0) + time.own_ns
    return verdict_on_stages(
        times, (0, 1), 0, f" of {counted(len(job.summaries), 'rank')}"
    ).sentence


def headline(job: JobTraces) -> str:
    """The ranks, their collectives and their waiting, in one sentence."""
    ranks = len(job.summaries)
    if ranks == 1:
        return (
            f"Only {job.rank_name(0)} has a trace. One trace does not show which rank the others"
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
        f" ({in_percent(percent)} {_OF_COMMON}){_hidden(job)}."
    )


def _hidden(job: JobTraces) -> str:
    """The part of the sentence on waiting during which the rank also computed."""
    hidden = int(job.waits.waited_ns.sum()) - job.lost_ns
    return (
        f", and another {in_words(hidden, 'ns')} during which they also computed" if hidden else ""
    )


def findings(job: JobTraces) -> list[Finding]:
    """Time lost waiting, late ranks, slower stages, exposed communication, uneven computing."""
    of_waits = [*_waiting(job), *_late(job)] if job.matched.count else []
    return by_severity([*of_waits, *_stages(job), *_exposed(job), *_imbalance(job)])


def _waiting(job: JobTraces) -> list[Finding]:
    percent = share(job.lost_ns, job.common_ns)
    severity = _WAITED.severity(percent)
    if severity is None or not job.waits.instances:
        return []
    (op, group), worst = next(iter(by_op(job.waits.instances).items()))
    lost = sum(each.lost_ns for each in worst)
    sentence = (
        f"The ranks waited for each other in collectives for {in_words(job.lost_ns, 'ns')}"
        f" ({in_percent(percent)} {_OF_COMMON}), mostly in {name_of_collective(op, group)}"
        f" ({in_words(lost, 'ns')} in {counted(len(worst), 'call')})."
    )
    before, caveat = int(job.waits.reasons_ns[:, ROW[BEFORE]].sum()), ""
    if share(before, job.lost_ns) >= _MUCH_BEFORE:
        if 2 * before >= job.lost_ns:
            severity = "medium" if severity == "high" else "low"
        caveat = (
            f"For {in_words(before, 'ns')} of this time they waited for ranks whose steps began"
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
    gain = _gain(_lost_by_each(job), "all ranks arrive when they do on average")
    return [Finding(severity, sentence, evidence, "ranks.waiting", numbers, gain, caveat=caveat)]


def _lost_by_each(job: JobTraces) -> float:
    """The waiting of the mean rank.

    As many ranks wait less as are earlier than the mean, and the others arrive as much sooner.
    """
    return job.lost_ns / max(int((job.waits.compared > 0).sum()), 1)


def _gain(time_ns: float, how: str) -> Gain | None:
    """The time that every rank wins at most, because all ranks wait for the slowest one."""
    return Gain(round(time_ns), at_most=True, how=how) if round(time_ns) else None


def _late(job: JobTraces) -> list[Finding]:
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
    late = [each for each in waits.instances if each.last_at == at]
    if place is None:
        came = f"{times:,} of {int(waits.took_part[at]):,} collectives"
    else:
        number = place.position + 1
        came = (
            f"{name_of_collective(place.op, place.group)}, collective {number:,} of a step, in"
            f" {place.times:,} of {place.of:,} steps"
        )
        late = [e for e in late if (e.group, e.position) == (place.group, place.position)]
    sentence = (
        f"The other ranks waited {in_words(lost, 'ns')} for {rank}"
        f" ({in_percent(share(lost, job.lost_ns))} of all waiting). It arrived last at {came}, in"
        f" total {in_words(caused, 'ns')} ({in_percent(share(caused, own_time))} of its time) after"
        " the next slowest rank."
    )
    slow = next(
        (e for e in slower_stages(job.stage_times) if e.rank == at and 2 * e.more_ns >= caused),
        None,
    )
    is_stage = slow is not None and why in (HOST, NOT_KNOWN, BEFORE)
    if slow is not None and is_stage:
        sentence += f" It {slow.spent()}."
    elif why != NOT_KNOWN:
        sentence += f" The main reason ({in_words(reasons[why], 'ns')}): {REASONS[why]}."
    # Changes to the traced work cannot save the part whose cause lies before the traces.
    shown = 1.0 - share(reasons[BEFORE], lost) / 100.0
    severity = _CAUSED.severity(share(caused * shown, own_time)) or "low"
    caveat = ""
    if job.missing:
        caveat = "One of the missing ranks may have been later."
        severity = "medium" if severity == "high" else "low"
    late.sort(key=lambda each: -each.lost_ns)
    evidence = tuple(_shown(job, late[:3], late=True))
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
    if why != NOT_KNOWN and not is_stage:
        numbers["reason_ns"] = reasons[why]
    gain = _gain(caused, "it arrives together with the next slowest rank")
    covers = _same_cause(job, at, caused)
    if is_stage and len(_stages(job)) == 1:
        covers += ("ranks.stage",)
    code = "ranks.late"
    return [
        Finding(severity, sentence, evidence, code, numbers, gain, caveat=caveat, covers=covers)
    ]


def _same_cause(job: JobTraces, at: int, late_ns: int) -> tuple[str, ...]:
    """Return the codes of findings whose cause is that a rank is late.

    If it comes shortly after others that are late too, it is not the cause of most of the waiting.
    """
    same = []
    for_it = share(int(job.waits.waited_for_ns[at]), job.lost_ns)
    if for_it >= _MOSTLY and 2 * late_ns >= _lost_by_each(job):
        same.append("ranks.waiting")
    if job.imbalance is not None and list(job.imbalance.above) == [at]:
        same.append("ranks.imbalance")
    return tuple(same)


def _before_and_since(instances: Sequence[CollectiveInstance], at: int) -> tuple[int, int]:
    """Return how long a rank was late, and the time from when it was late first to its last delay.

    Delays overlap if the rank was late in several groups, and the first may begin before the
    rank's own first collective.
    """
    mine = [each for each in instances if each.last_at == at]
    ends = np.array([each.time_ns for each in mine], dtype=np.int64)
    begins = ends - np.array([each.late_ns for each in mine], dtype=np.int64)
    return covered(begins, ends), int(ends.max() - begins.min())


def _stages(job: JobTraces) -> list[Finding]:
    """Stages in which a rank is slower, the most time first."""
    names = [job.rank_name(at) for at in range(len(job.summaries))]
    return stage_findings(job.stage_times, names, [e.window_ns for e in job.summaries])


def _exposed(job: JobTraces) -> list[Finding]:
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
        f" ({in_percent(share(exposed, whole))}{' of their stages' if staged else ''}) they"
        " communicated without computing"
    )
    if len(order) > 1:
        sentence += (
            f", from {in_percent(shares[order[-1]])} on {job.rank_name(order[-1])} to"
            f" {in_percent(shares[order[0]])} on {job.rank_name(order[0])}"
        )
    sentence += "."
    details = ""
    if job.waits.instances:
        details = f"{in_words(job.lost_ns, 'ns')} of this was spent waiting for other ranks."
    evidence = [
        Evidence(
            f"exposed communication of {job.rank_name(at)}",
            None,
            job.summaries[at].usage.exposed[0],
            "ns",
        )
        for at in order[:3]
    ]
    reason, more, still = _without_data(job)
    if not reason and job.missing:
        reason = f"Part of it may be waiting for the missing ranks ({listed(job.missing)})."
    action = "Smaller messages, a faster link, or computation that overlaps them would help."
    numbers = {
        "time_ns": exposed,
        "percent": share(exposed, whole),
        "whole_ns": whole,
        "least_percent": shares[order[-1]],
        "most_percent": shares[order[0]],
        "waiting_ns": job.lost_ns,
        **still,
    }
    seen = (*evidence, *more)
    return [
        Finding(
            severity,
            sentence,
            seen,
            "ranks.exposed_communication",
            numbers,
            _gain(*_hidden_or_shorter(job)),
            action="" if reason else action,
            details=" ".join(filter(None, (details, reason))),
        )
    ]


def _hidden_or_shorter(job: JobTraces) -> tuple[float, str]:
    """The exposed communication of the mean rank that is not waiting, and how it could vanish."""
    exposed = [each.usage.exposed[0] for each in job.summaries]
    moving = [max(a - int(b), 0) for a, b in zip(exposed, job.waits.lost_ns, strict=True)]
    room = sum(each.usage.computing_ns for each in job.summaries) / len(job.summaries)
    time = sum(moving) / len(moving)
    return time, how_nothing_is_left(room, time, " of a rank")


def _without_data(job: JobTraces) -> tuple[str, list[Evidence], dict[str, float]]:
    """Time in collectives after all ranks with a trace had arrived, in which no data moved.

    Returns a sentence, evidence, and the figures in the sentence.
    """
    with_still = [each for each in job.waits.instances if each.still_ns is not None]
    still = sum(each.still_ns or 0 for each in with_still)
    pure = sum(each.pure_ns for each in with_still)
    beyond = job.exposed[0] - job.lost_ns
    if share(still, pure) < _STILL or share(still * len(job.summaries), beyond) < _STILL:
        return "", [], {}
    with_still.sort(key=lambda each: -(each.still_ns or 0))
    worst = with_still[0]
    sentence = (
        f"After all ranks that have a trace had arrived, no data moved for {in_words(still, 'ns')}"
        f" of the {in_words(pure, 'ns')} that the collectives took"
        f" ({in_words(worst.still_ns, 'ns')} in {worst.name} number"
        f" {worst.index}):"
    )
    if job.missing:
        sentence += f" the ranks waited for ranks whose traces are missing ({listed(job.missing)})."
    else:
        sentence += " the link or the library was slow."
    evidence = [
        Evidence(
            f"{instance.name} number {instance.index}, no data moved after all arrived",
            instance.time_ns,
            instance.still_ns,
            "ns",
        )
        for instance in with_still[:2]
    ]
    numbers: dict[str, float] = {
        "still_ns": still,
        "together_ns": pure,
        "worst_still_ns": worst.still_ns or 0,
    }
    return sentence, evidence, numbers


def _imbalance(job: JobTraces) -> list[Finding]:
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
        numbers |= {
            "times": uneven.times,
            "mean_ns": uneven.mean_ns,
            "others_mean_ns": uneven.others_mean_ns,
        }
        sentence = (
            f"{_BETWEEN}, {_ranks_named(job, uneven.above)} computed {three_digits(uneven.times)}"
            f" times as long as {_ranks_named(job, uneven.below)}"
            f" (mean {in_words(uneven.mean_ns, 'ns')},"
            f" compared with {in_words(uneven.others_mean_ns, 'ns')})."
            f"{_of_pipeline(job, uneven)}"
        )
    else:
        sentence = (
            f"{_BETWEEN}, {job.rank_name(at)} computed for {in_words(computed, 'ns')},"
            f" {in_percent(uneven.percent)} longer than the mean of all ranks"
            f" ({job.rank_name(least)}: {in_words(computing[least][0], 'ns')}, the shortest)."
        )
    ranks = (at, least) if len(uneven.ranks) == 1 else (*uneven.above[:2], *uneven.below[:2])
    evidence = tuple(
        Evidence(f"computing on {job.rank_name(rank)}", None, computing[rank][0], "ns")
        for rank in ranks
    )
    gain = _gain(computed - mean, "all ranks compute for as long as they do on average")
    return [Finding(severity, sentence, evidence, "ranks.imbalance", numbers, gain)]


def _ranks_named(job: JobTraces, ranks: list[int]) -> str:
    names = listed(job.numbers[at] for at in ranks)
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {names}"


def _of_pipeline(job: JobTraces, uneven: Imbalance) -> str:
    """A sentence if the ranks that compute more are a stage of the pipeline; otherwise ""."""
    stages = {job.summaries[at].pipeline_stage for at in uneven.above}
    others = {job.summaries[at].pipeline_stage for at in uneven.below}
    (stage, *more) = stages
    if stage is None or more or stage in others:
        return ""
    return f" They are stage {stage} of the pipeline (counted from 0). Give it fewer layers."


def _shown(
    job: JobTraces, instances: list[CollectiveInstance], late: bool = False
) -> list[Evidence]:
    return [
        Evidence(
            f"{instance.name} number {instance.index}, {job.rank_name(instance.last_at)} last,"
            f" {'after the next slowest rank' if late else 'waiting of all ranks'}",
            instance.time_ns,
            instance.late_ns if late else instance.lost_ns,
            "ns",
        )
        for instance in instances
    ]
