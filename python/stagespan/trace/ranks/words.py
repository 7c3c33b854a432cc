"""What many ranks say together, in sentences and tables."""

from __future__ import annotations

import math

from stagespan.trace.analysis.result import (
    Cell,
    Evidence,
    Finding,
    Severity,
    Table,
    gravest_first,
    in_words,
    share,
)
from stagespan.trace.ranks.clocks import UNKNOWN_CLOCK
from stagespan.trace.ranks.report import TOP, Ranks, most_often_last
from stagespan.trace.ranks.waits import Instance, bus_speed, by_op

# Of the ranks' time between their first and last common collective.
_WAITED: tuple[tuple[float, Severity], ...] = ((25.0, "high"), (10.0, "medium"), (5.0, "low"))
_CAUSED: tuple[tuple[float, Severity], ...] = ((10.0, "high"), (5.0, "medium"), (2.0, "low"))
# Over the mean rank.
_IMBALANCE: tuple[tuple[float, Severity], ...] = ((50.0, "high"), (25.0, "medium"), (10.0, "low"))
# A rank is a straggler when it is last too often for chance.
_CHANCE = 0.05
# A part of a sum that changes none of its digits that matter.
_NEGLIGIBLE = 1e-12


def headline(found: Ranks) -> str:
    """How the ranks did, in one sentence."""
    ranks = len(found.summaries)
    if ranks == 1:
        return (
            f"Only {found.rank_name(0)} is here: what ranks do to each other cannot be told from"
            " one trace."
        )
    if not found.matched.count:
        return f"{ranks} ranks; what they do to each other is unknown, as no collectives match."
    if not found.waits.instances:
        return (
            f"{ranks} ranks, {found.matched.count:,} collectives; who waited for whom is unknown,"
            " as nothing tells how far the ranks' clocks are apart."
        )
    percent = share(found.lost_ns, found.common_ns)
    return (
        f"{ranks} ranks, {found.matched.count:,} collectives:"
        f" {in_words(found.lost_ns, 'ns')} ({percent:.1f} %) of the ranks' time went to waiting for"
        f" each other in them{_hidden(found)}."
    )


def _hidden(found: Ranks) -> str:
    """What is said of waiting beside which the rank computed."""
    hidden = int(found.waits.waited_ns.sum()) - found.lost_ns
    return f", besides {in_words(hidden, 'ns')} beside which they computed" if hidden else ""


def findings(found: Ranks) -> list[Finding]:
    """Time lost waiting, ranks that mostly come last, imbalance of computing; gravest first."""
    if not found.matched.count:
        return []
    return gravest_first([*_waiting(found), *_stragglers(found), *_imbalance(found)])


def _severity(percent: float, shares: tuple[tuple[float, Severity], ...]) -> Severity | None:
    return next((severity for least, severity in shares if percent >= least), None)


def _waiting(found: Ranks) -> list[Finding]:
    percent = share(found.lost_ns, found.common_ns)
    severity = _severity(percent, _WAITED)
    if severity is None or not found.waits.instances:
        return []
    (op, group), worst = next(iter(by_op(found.waits.instances).items()))
    lost = sum(each.lost_ns for each in worst)
    sentence = (
        f"Waiting for each other in collectives took {in_words(found.lost_ns, 'ns')}"
        f" ({percent:.1f} %) of the ranks' time, most of it in {_named(op, group)}"
        f" ({in_words(lost, 'ns')} in {len(worst):,} calls)."
    )
    return [Finding(severity, sentence, tuple(_shown(found, found.worst(3))))]


def _stragglers(found: Ranks) -> list[Finding]:
    waits = found.waits
    with_last = int(waits.last.sum())
    if not with_last:
        return []
    at = int(waits.last.argmax())
    times, caused = int(waits.last[at]), int(waits.caused_ns[at])
    mine = [each for each in waits.instances if each.last == at]
    own_time = int(waits.common_ns[at])
    severity = _severity(share(caused, own_time), _CAUSED)
    by_chance = _by_chance(times, with_last, int((waits.compared > 0).sum()))
    if severity is None or by_chance > _CHANCE:
        return []
    sentence = (
        f"{found.rank_name(at).capitalize()} came last to {times:,} of"
        f" {int(waits.took_part[at]):,} collectives, and {in_words(caused, 'ns')}"
        f" ({share(caused, own_time):.1f} % of the time) later than the rank before it: what it"
        " does before them is what all others wait for."
    )
    mine.sort(key=lambda each: -each.late_ns)
    return [Finding(severity, sentence, tuple(_shown(found, mine[:3], late=True)))]


def _by_chance(times: int, of: int, ranks: int) -> float:
    """How likely it is that one of `ranks` alike is last at least so many `times` of all."""
    # By logarithms: the number of ways exceeds a double from a thousand collectives on.
    ways = math.lgamma(of + 1) - math.lgamma(times + 1) - math.lgamma(of - times + 1)
    chance = ways - times * math.log(ranks) + (of - times) * math.log1p(-1 / ranks)
    term, found = math.exp(chance), 0.0
    for n in range(times, of + 1):
        found += term
        term *= (of - n) / (n + 1) / (ranks - 1)
        if term <= _NEGLIGIBLE * found:
            break
    return found


def _imbalance(found: Ranks) -> list[Finding]:
    told = found.imbalance
    if told is None:
        return []
    at, percent = told
    severity = _severity(percent, _IMBALANCE)
    if severity is None:
        return []
    computed = found.waits.computed_ns
    # Little computing cannot matter, however uneven it is.
    mean = float(computed[found.compared].mean())
    if share(float(computed[at]) - mean, float(found.waits.common_ns[at])) < _CAUSED[-1][0]:
        return []
    least = min(found.compared, key=lambda each: int(computed[each]))
    sentence = (
        f"{found.rank_name(at).capitalize()} computed {percent:.1f} % longer than the mean of the"
        f" ranks between the same collectives ({in_words(int(computed[at]), 'ns')}, the least is"
        f" {in_words(int(computed[least]), 'ns')} on {found.rank_name(least)})."
    )
    evidence = tuple(
        Evidence(f"computing on {found.rank_name(each)}", None, int(computed[each]), "ns")
        for each in (at, least)
    )
    return [Finding(severity, sentence, evidence)]


def _shown(found: Ranks, instances: list[Instance], late: bool = False) -> list[Evidence]:
    begin = found.window_begin_ns()
    return [
        Evidence(
            f"{_named(each.op, each.group)} number {each.index}, {found.rank_name(each.last)} last,"
            f" {'later than the rank before it' if late else 'waiting of all ranks'}",
            each.begin_ns - begin,
            each.late_ns if late else each.lost_ns,
            "ns",
        )
        for each in instances
    ]


def _named(op: str, group: str) -> str:
    return f"{op} of group {group}" if group else op


def tables(found: Ranks) -> list[Table]:
    """Ranks, collectives by operation, and the single ones that cost most waiting."""
    shown = [_ranks(found)]
    instances = found.waits.instances
    if not instances:
        return shown
    rows: list[tuple[Cell, ...]] = []
    for (op, group), each in by_op(instances).items():
        last = most_often_last(each)
        rows.append(
            (
                op,
                group or None,
                len(each),
                sum(one.pure_ns for one in each),
                sum(one.lost_ns for one in each),
                max(one.late_ns for one in each),
                bus_speed(each),
                "nobody"
                if last is None
                else f"{found.rank_name(last[0])} ({last[1]:,} time{'' if last[1] == 1 else 's'})",
            )
        )
    columns = (
        ("collective", ""), ("group", ""), ("calls", ""), ("shortest on any rank", "ns"),
        ("waiting of all ranks", "ns"), ("latest by", "ns"), ("bus", "GB/s"),
        ("most often last", ""),
    )  # fmt: skip
    shown.append(Table("Collectives", columns, rows[:TOP], _left(len(rows))))
    begin = found.window_begin_ns()
    worst: list[tuple[Cell, ...]] = [
        (
            _named(each.op, each.group),
            each.index,
            each.begin_ns - begin,
            found.rank_name(each.last),
            each.late_ns,
            each.lost_ns,
        )
        for each in found.worst(20)
    ]
    worst_columns = (
        ("collective", ""), ("number", ""), ("the last came at", "ns"), ("who", ""),
        ("later than the one before", "ns"), ("waiting of all ranks", "ns"),
    )  # fmt: skip
    shown.append(Table("Collectives that cost most waiting", worst_columns, worst))
    return shown


def _ranks(found: Ranks) -> Table:
    """Those that made others wait most first."""
    waits = found.waits
    order = sorted(range(len(found.summaries)), key=lambda at: (-int(waits.caused_ns[at]), at))
    rows: list[tuple[Cell, ...]] = []
    for at in order[:TOP]:
        summary = found.summaries[at]
        matched, compared = bool(waits.took_part[at]), bool(waits.compared[at])
        rows.append(
            (
                found.rank_name(at),
                summary.window_ns,
                summary.step_ns,
                int(waits.computed_ns[at]) if matched else summary.use.compute_ns,
                int(waits.lost_ns[at]) if compared else None,
                int(waits.last[at]) if compared else None,
                int(waits.caused_ns[at]) if compared else None,
                int(found.clocks.offset_ns[at]) if found.clocks.how[at] != UNKNOWN_CLOCK else None,
                int(found.clocks.error_ns[at]) if found.clocks.error_ns[at] >= 0 else None,
            )
        )
    columns = (
        ("", ""), ("trace", "ns"), ("mean step", "ns"), ("computing", "ns"), ("waiting", "ns"),
        ("last", ""), ("made others wait", "ns"), ("clock ahead by", "ns"), ("within", "ns"),
    )  # fmt: skip
    note = " ".join([headline(found), *found.remarks, _left(len(order))]).rstrip()
    return Table("Ranks", columns, rows, note)


def _left(count: int) -> str:
    return f"{count - TOP:,} more are in the JSON." if count > TOP else ""
