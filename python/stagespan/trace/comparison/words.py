"""A comparison in sentences and tables."""

from __future__ import annotations

from stagespan.trace.analysis.causes import CAUSES, MEMORY_ALLOCATION, SYNCHRONISATION
from stagespan.trace.analysis.result import (
    Evidence,
    Finding,
    Severity,
    Table,
    in_words,
    many,
    share,
    shortened,
)
from stagespan.trace.comparison.against import (
    TOP,
    Against,
    Change,
    evidence_of,
    part_name,
    severity_of,
    signed,
)

_INSIDE = 3
# Idle time that calls are to blame for.
_OF_CALLS = tuple(CAUSES[cause] for cause in (SYNCHRONISATION, MEMORY_ALLOCATION))


def headline(found: Against) -> str:
    """The change in one sentence."""
    what = "A step" if found.unit == "step" else "All of it"
    change, before = found.change_ns, found.before_ns
    if change == 0:
        return f"{what} takes {in_words(found.after_ns, 'ns')}, as before."
    than = "less" if change < 0 else "more"
    percent = f"{100 * change / before:+.1f} %" if before else "from nothing"
    return (
        f"{what} takes {in_words(found.after_ns, 'ns')}, {in_words(abs(change), 'ns')} {than} than"
        f" before ({in_words(before, 'ns')}, {percent})."
    )


def title(found: Against) -> str:
    """The change in a few words: "A step takes 20.6 % less time"."""
    what = "A step" if found.unit == "step" else "All of it"
    if not found.alike:
        return "Two different programs"
    if found.change_ns == 0 or found.before_ns == 0:
        return f"{what} takes as long as before"
    percent = abs(share(found.change_ns, found.before_ns))
    if found.within_variation():
        return f"{what} takes about as long as before"
    return f"{what} takes {percent:.1f} % {'less' if found.change_ns < 0 else 'more'} time"


def findings(found: Against) -> list[Finding]:
    """The change of the total, and of each part that is a good share of it."""
    severity = severity_of(found.change_ns, found.before_ns)
    noise = found.within_variation() or not found.alike
    shown: list[Finding] = []
    if severity is not None:
        sentence = headline(found)
        if not found.alike:
            sentence += f" {found.remarks[0]}"
        elif noise:
            sentence += " The steps vary so much that this may be chance."
        else:
            sentence += _mostly(found)
        code = f"comparison.{found.unit}"
        shown.append(Finding("low" if noise else severity, sentence, _rests_on(found), code))
    codes = _codes(found)
    for part in found.parts():
        own = severity_of(part.change_ns, found.before_ns)
        if own is None:
            continue
        name = part.name[0].upper() + part.name[1:]
        than = "less" if part.change_ns < 0 else "more"
        sentence = (
            f"{name}: {in_words(abs(part.change_ns), 'ns')} {than}{_each(found)}"
            f" ({in_words(part.before_ns, 'ns')} before, {in_words(part.after_ns, 'ns')} after)."
        )
        evidence = tuple(_most(found, part))
        shown.append(Finding("low" if noise else own, sentence, evidence, codes[part.name]))
    shown += _kernels(found, "low" if noise else None)
    return shown


def _rests_on(found: Against) -> tuple[Evidence, ...]:
    """How many steps the means are of, and how much these vary."""
    sides = ((found.before, "before"), (found.after, "after"))
    if found.unit == "trace":
        return tuple(
            Evidence(when, None, sum(side.cells.count.values()), "events") for side, when in sides
        )
    counts = tuple(Evidence(when, None, side.windows.steps, "steps") for side, when in sides)
    error = found.error_ns()
    if error is None:
        return counts
    return (*counts, Evidence("two standard errors of the difference", None, error, "ns"))


def _codes(found: Against) -> dict[str, str]:
    """Of each part a code: "comparison.idle.data_loading"."""
    cells = (*found.before.cells.time_ns, *found.after.cells.time_ns)
    return {
        part_name(cell): f"comparison.{cell.group}.{cell.part.replace(' ', '_')}" for cell in cells
    }


def _most(found: Against, part: Change) -> list[Evidence]:
    """What changed most in a part: kernels or operators, or calls that wait or allocate."""
    inside = found.within(part.name)
    if part.name.endswith(_OF_CALLS):
        inside = list(found.waits)
    inside = [each for each in inside if each.change_ns * part.change_ns > 0]
    if not inside:
        figure = abs(share(part.change_ns, found.before_ns)) if found.before_ns else None
        return [Evidence(f"of the {found.unit} before", None, figure, "%")]
    way = "less" if part.change_ns < 0 else "more"
    return [
        Evidence(f"{shortened(each.name, 70)}, {way}", None, abs(each.change_ns), "ns")
        for each in inside[:_INSIDE]
    ]


def _each(found: Against) -> str:
    return " a step" if found.unit == "step" else ""


def _mostly(found: Against) -> str:
    """Which parts made the change, and which went against it."""
    same = [p for p in found.parts() if p.change_ns * found.change_ns > 0]
    other = [p for p in found.parts() if p.change_ns * found.change_ns < 0]
    least = abs(found.change_ns) / 10

    def told(parts: list[Change]) -> str:
        large = [p for p in parts if abs(p.change_ns) >= least][:3]
        return "; ".join(f"{p.name} ({signed(p.change_ns)})" for p in large)

    text = f" What made it: {told(same)}." if told(same) else ""
    return text + (f" Against it: {told(other)}." if told(other) else "")


def _kernels(found: Against, at_most: Severity | None) -> list[Finding]:
    """New, vanished and renamed kernels, as one finding each, where they take enough time."""
    shown = []
    for kernels, verb, code in (
        (found.new_kernels(), "came", "comparison.new_kernels"),
        (found.vanished_kernels(), "vanished", "comparison.vanished_kernels"),
    ):
        time = sum(each.change_ns for each in kernels)
        severity = severity_of(time, found.before_ns)
        if severity is None:
            continue
        most = kernels[0]
        sentence = (
            f"{many(len(kernels), 'kernel')} {verb}, with"
            f" {in_words(abs(time), 'ns')}{_each(found)}: the largest is"
            f" {shortened(most.name)}."
        )
        evidence = tuple(
            Evidence(each.name, None, abs(each.change_ns), "ns") for each in kernels[:3]
        )
        shown.append(Finding(at_most or severity, sentence, evidence, code))
    for each in found.renamed_kernels():
        severity = severity_of(each.change_ns, found.before_ns)
        if severity is not None:
            sentence = (
                f"{shortened(each.name)} is taken for {shortened(each.old_name)}, which it stands"
                f" in the place of: {signed(each.change_ns)}{_each(found)}."
            )
            code = "comparison.renamed_kernel"
            shown.append(Finding(at_most or severity, sentence, evidence_of(each), code))
    return shown


def tables(found: Against) -> list[Table]:
    """The parts with their sum, then stages, layers, operators and kernels."""
    head = (("before", "ns"), ("after", "ns"), ("change", "ns"), ("of the change", "%"))
    counts = (("calls before", ""), ("calls after", ""))
    parts: list[tuple[str | int | float | None, ...]] = [
        (p.name, p.before_ns, p.after_ns, p.change_ns, share(p.change_ns, found.change_ns))
        for p in found.parts()
    ]
    parts.append(("all", found.before_ns, found.after_ns, found.change_ns, 100.0))
    shown = [
        Table(
            f"What explains the change{', per step' if found.unit == 'step' else ''}",
            (("", ""), *head),
            parts,
            " ".join([headline(found), *found.remarks]),
        )
    ]
    steps = _steps(found)
    if steps is not None:
        shown.append(steps)
    device = "device time" if found.on_device else "own time"
    for title, changes in (
        (f"Change by stage, {device}", found.stages()),
        (f"Change by layer, {device}", found.layers()),
        (f"Change by operator, {device}", found.operators()),
    ):
        if len(changes) > 1:
            shown.append(_table(title, (("name", ""), *head[:3], *counts), changes))
    host = found.host()
    if found.on_device and len(host) > 1:
        title = "Change by operator, own time on the host's busiest thread"
        shown.append(_table(title, (("name", ""), *head[:3], *counts), host))
    kernels = found.kernels()
    if kernels:
        rows: list[tuple[str | int | float | None, ...]] = [
            (_renamed(k), k.operator, k.before_ns, k.after_ns, k.change_ns, *_counts(k))
            for k in kernels[:TOP]
        ]
        columns = (("kernel", ""), ("launched by", ""), *head[:3], *counts)
        shown.append(Table("Change by kernel", columns, rows, _left(kernels)))
    if found.waits:
        heads = (("operator, call and line", ""), *head[:3], *counts)
        shown.append(_table("Idle time by calls that wait or allocate", heads, [*found.waits]))
    for title, changes in (
        ("New kernels", found.new_kernels()),
        ("Vanished kernels", found.vanished_kernels()),
        ("Kernels taken for the same under another name", found.renamed_kernels()),
    ):
        if changes:
            shown.append(_table(title, (("name", ""), *head[:3], *counts), changes))
    return shown


def _steps(found: Against) -> Table | None:
    """Step by step, where both traces have as many."""
    before, after = found.before.windows, found.after.windows
    if before.steps != after.steps or not 1 < before.steps <= TOP:
        return None
    pairs = zip(before.dur_ns.tolist(), after.dur_ns.tolist(), strict=True)
    rows: list[tuple[str | int | float | None, ...]] = [
        (number, old, new, new - old) for number, (old, new) in enumerate(pairs, 1)
    ]
    columns = (("step", ""), ("before", "ns"), ("after", "ns"), ("change", "ns"))
    return Table("Steps, in their order", columns, rows)


def _table(title: str, columns: tuple[tuple[str, str], ...], changes: list[Change]) -> Table:
    rows: list[tuple[str | int | float | None, ...]] = [
        (_renamed(c), c.before_ns, c.after_ns, c.change_ns, *_counts(c)) for c in changes[:TOP]
    ]
    return Table(title, columns, rows, _left(changes))


def _renamed(change: Change) -> str:
    return f"{change.name}, before: {change.old_name}" if change.old_name else change.name


def _counts(change: Change) -> tuple[int | float, int | float]:
    return _whole(change.before_count), _whole(change.after_count)


def _whole(count: float) -> int | float:
    return int(count) if float(count).is_integer() else round(count, 2)


def _left(changes: list[Change]) -> str:
    rest = changes[TOP:]
    if not rest:
        return ""
    change = sum(each.change_ns for each in rest)
    return f"{len(rest)} more changed by {signed(change)} together."
