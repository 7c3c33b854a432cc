"""The change between two traces: figures that sum to the change, tables and findings."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from msgspec import structs

from stagespan.trace.compare import cost_table as parts
from stagespan.trace.compare.cost_table import DONE, Cells, CostCell
from stagespan.trace.derived.idle_causes import CAUSES, MEMORY_ALLOCATION, SYNCHRONISATION
from stagespan.trace.derived.kernel_kinds import KINDS
from stagespan.trace.derived.windows import Windows
from stagespan.trace.figures import Count, Figures, Ns
from stagespan.trace.kernel_names import kernel_label
from stagespan.trace.result import (
    LONGEST_NAME,
    Block,
    Changes,
    Chart,
    Evidence,
    Finding,
    Line,
    Severity,
    Table,
    Thresholds,
    Titled,
    counted,
    in_words,
    share,
    shortened,
)

TOP = 50
MOST_DRAWN = 12
# Percent of the time before: smaller changes are not reported.
_SHARES = Thresholds(10.0, 5.0, 2.0)
# On the first screen.
_PARTS_SHOWN, _KERNELS_SHOWN = 8, 5
# Means count as equal if they differ by less than this number of standard errors.
_ERRORS = 2.0
_NO_STAGE, _NO_LAYER, _NO_OPERATOR = "(no annotation)", "(no module)", "(unknown operator)"


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two traces."""

    path: str
    windows: Windows
    cells: Cells
    host: Cells
    """The same time, split by the work of the host's busiest thread; without a device, `cells`."""


class ChangeFigures(Figures, frozen=True):
    """A `Change` in JSON."""

    name: str
    before_ns: Ns
    after_ns: Ns
    change_ns: Ns
    before_count: float
    """Launches or calls in a step, on average."""
    after_count: float


class KernelChange(ChangeFigures, frozen=True):
    """The change of a kernel that an operator launched."""

    operator: str
    old_name: str | None


class RenamedKernel(ChangeFigures, frozen=True):
    """The change of a kernel that was matched under another name."""

    old_name: str


class SideFigures(Figures, frozen=True):
    """One of the two traces in JSON."""

    path: str
    steps: Count
    """0 if all of the trace is compared."""
    time_ns: Ns
    each_step_ns: list[Ns]


class ComparisonFigures(Figures, frozen=True):
    """What changed between two traces."""

    per: Literal["step", "trace"]
    before: SideFigures
    after: SideFigures
    change_ns: Ns
    change_percent: float | None
    within_variation: bool
    remarks: list[str]
    parts: list[ChangeFigures]
    """Their changes sum to `change_ns`."""
    stages: list[ChangeFigures]
    layers: list[ChangeFigures]
    operators: list[ChangeFigures]
    host: list[ChangeFigures]
    """Own times of operators on the host's busiest thread; they sum to `change_ns`, too."""
    waits: list[ChangeFigures]
    kernels: list[KernelChange]
    new_kernels: list[ChangeFigures]
    vanished_kernels: list[ChangeFigures]
    renamed_kernels: list[RenamedKernel]


@dataclass(frozen=True, slots=True)
class Change:
    """Times of one step (or of the whole trace, without steps) before and after, in ns."""

    name: str
    before_ns: int
    after_ns: int
    before_count: float = 0.0
    after_count: float = 0.0
    """Launches or calls in a step."""
    operator: str = ""
    """The operator that launched the kernel."""
    old_name: str = ""
    """The kernel's name in the first trace, if it was renamed."""

    @property
    def change_ns(self) -> int:
        """After minus before."""
        return self.after_ns - self.before_ns

    def figures(self) -> ChangeFigures:
        """For JSON."""
        return ChangeFigures(
            name=self.name,
            before_ns=self.before_ns,
            after_ns=self.after_ns,
            change_ns=self.change_ns,
            before_count=self.before_count,
            after_count=self.after_count,
        )


def part_name(cell: CostCell) -> str:
    """The printed name of a cell's part."""
    if cell.group == parts.IDLE:
        cause = "the host continued after the device's last work"
        return f"idle: {cause if cell.part == DONE else CAUSES[cell.part]}"
    if cell.group == parts.COMMUNICATING:
        return "communicating, nothing else"
    if cell.group == parts.COPYING:
        return "copying, nothing else"
    if cell.part == parts.OUTSIDE:
        return "outside of operators"
    return f"{'computing' if cell.group == parts.COMPUTING else 'operators'}: {KINDS[cell.part]}"


@dataclass(frozen=True, slots=True)
class Comparison(Titled):
    """The comparison; every list of changes sums to `after` minus `before`."""

    before: Side
    after: Side
    renamed: dict[str, str]
    """Kernels that were matched under another name: the old name by the new one."""
    remarks: tuple[str, ...]
    """Notes on the traces that limit what the figures mean."""
    on_device: bool
    alike: bool
    """Whether the traces are similar enough to be from the same program."""
    waits: tuple[Change, ...]
    """Idle time by the calls that wait or allocate, per step, over the whole of each trace."""

    @property
    def unit(self) -> Literal["step", "trace"]:
        """What the times refer to: "step" or "trace"."""
        return "step" if self.before.windows.steps else "trace"

    @property
    def before_ns(self) -> int:
        """The time of a step, or of the whole trace."""
        return self.before.cells.total_ns

    @property
    def after_ns(self) -> int:
        """The time of a step, or of the whole trace."""
        return self.after.cells.total_ns

    @property
    def change_ns(self) -> int:
        """After minus before."""
        return self.after_ns - self.before_ns

    def parts(self) -> list[Change]:
        """By kind of work and cause of idle time; they sum to the change."""
        return self._by(lambda cell: (part_name(cell), ""))

    def within(self, part: str) -> list[Change]:
        """The kernels (or operators) of one of `parts`; empty for idle time."""

        def key(cell: CostCell) -> tuple[str, str]:
            return (cell.kernel or cell.operator) if part_name(cell) == part else "", ""

        return [each for each in self._by(key, events_only=True) if each.name]

    def stages(self) -> list[Change]:
        """Device work (or operators) by annotation, without idle time."""
        return self._by(lambda cell: (cell.stage or _NO_STAGE, ""), events_only=True)

    def layers(self) -> list[Change]:
        """By module, if both traces have Python stacks."""
        return self._by(lambda cell: (cell.layer or _NO_LAYER, ""), events_only=True)

    def operators(self) -> list[Change]:
        """By the operator that launched the work, or that ran."""
        return self._by(lambda cell: (cell.operator or _NO_OPERATOR, ""), events_only=True)

    def host(self) -> list[Change]:
        """By operator, own time on the host's busiest thread; they sum to the change."""

        def key(cell: CostCell) -> tuple[str, str]:
            return (parts.OUTSIDE if cell.part == parts.OUTSIDE else cell.operator), ""

        return self._by(key, cells_of=lambda side: side.host)

    def kernels(self) -> list[Change]:
        """By kernel and the operator that launched it; empty without a device."""
        if not self.on_device:
            return []

        def key(cell: CostCell) -> tuple[str, str]:
            return cell.kernel, cell.operator or _NO_OPERATOR

        return self._by(key, events_only=True)

    def new_kernels(self) -> list[Change]:
        """Kernels that only the second trace has."""
        return [each for each in self._by_kernel() if not each.before_count]

    def vanished_kernels(self) -> list[Change]:
        """Kernels that only the first trace has."""
        return [each for each in self._by_kernel() if not each.after_count]

    def renamed_kernels(self) -> list[Change]:
        """Kernels that were matched under another name."""
        return [each for each in self._by_kernel() if each.old_name]

    def within_variation(self) -> bool:
        """Whether the change of the mean is within the variation of the steps."""
        error = self.error_ns()
        return error is not None and abs(self.change_ns) < error

    def error_ns(self) -> float | None:
        """Two standard errors of the change of the mean step; None for fewer than three steps."""
        errors = [_squared_error(side.windows) for side in (self.before, self.after)]
        if errors[0] is None or errors[1] is None:
            return None
        return _ERRORS * math.sqrt(errors[0] + errors[1])

    def figures(self) -> ComparisonFigures:
        """Both traces, and every list of changes."""
        return ComparisonFigures(
            per=self.unit,
            before=_side(self.before),
            after=_side(self.after),
            change_ns=self.change_ns,
            change_percent=share(self.change_ns, self.before_ns) if self.before_ns else None,
            within_variation=self.within_variation(),
            remarks=list(self.remarks),
            parts=_changes(self.parts()),
            stages=_changes(self.stages()),
            layers=_changes(self.layers()),
            operators=_changes(self.operators()),
            host=_changes(self.host()),
            waits=_changes(self.waits),
            kernels=[
                KernelChange(
                    **structs.asdict(each.figures()),
                    operator=each.operator,
                    old_name=each.old_name or None,
                )
                for each in self.kernels()
            ],
            new_kernels=_changes(self.new_kernels()),
            vanished_kernels=_changes(self.vanished_kernels()),
            renamed_kernels=[
                RenamedKernel(**structs.asdict(each.figures()), old_name=each.old_name)
                for each in self.renamed_kernels()
            ],
        )

    def chart(self) -> Chart | None:
        """The change of each part. Small parts are combined, so that the sum is complete."""
        parts = [
            (shortened(each.name, LONGEST_NAME), each.change_ns)
            for each in self.parts()
            if each.change_ns
        ]
        parts.sort(key=lambda part: -abs(part[1]))
        shown = parts[:MOST_DRAWN]
        rest = self.change_ns - sum(time for _, time in shown)
        if rest and len(parts) > MOST_DRAWN:
            shown.append((counted(len(parts) - MOST_DRAWN, "smaller part"), rest))
        if not shown:
            return None
        return {
            "kind": "change",
            "before": self.before_ns,
            "after": self.after_ns,
            "parts": shown,
            "per": self.unit,
        }

    def findings(self) -> list[Finding]:
        """The change, and the parts that caused it, if they are large enough."""
        return findings(self)

    def title(self) -> tuple[str, str]:
        """The change in a few words, and as a sentence."""
        return title(self), headline(self)

    def head(self) -> list[Block]:
        """The change, its parts with their sum, and the kernels or operators that changed most."""
        kernels = [each for each in self.kernels() or self.operators() if each.change_ns]
        changed = Changes(
            "kernel" if self.on_device else "operator",
            [
                (
                    f"{kernel_label(each.name)} (was {kernel_label(each.old_name)})"
                    if each.old_name
                    else each.name,
                    each.before_ns,
                    each.after_ns,
                )
                for each in kernels[:_KERNELS_SHOWN]
            ],
            self.before_ns,
        )
        before, after = _different_names(self.before.path, self.after.path)
        return [
            Line(f"{after} against {before}", "strong"),
            Line(headline(self), "strong"),
            *(Line(remark, "remark") for remark in self.remarks),
            self._changed_parts(),
            *([changed] if kernels else []),
        ]

    def _changed_parts(self) -> Changes:
        parts = self.parts()
        changed = [part for part in parts if part.change_ns]
        rest, same = changed[_PARTS_SHOWN:], [part for part in parts if not part.change_ns]
        sums = ((f"{len(rest)} more", rest), ("unchanged", same), ("all", parts))
        return Changes(
            "per step" if self.unit == "step" else "",
            [
                *((part.name, part.before_ns, part.after_ns) for part in changed[:_PARTS_SHOWN]),
                *(
                    (name, sum(p.before_ns for p in of), sum(p.after_ns for p in of))
                    for name, of in sums
                    if of
                ),
            ],
            self.before_ns,
            has_sum=True,
        )

    def tables(self) -> list[Table]:
        """The parts of the change, then changes by stage, layer, operator and kernel."""
        return tables(self)

    def _by_kernel(self) -> list[Change]:
        if not self.on_device:
            return []
        return self._by(lambda cell: (cell.kernel, ""), events_only=True)

    def _by(
        self,
        key: Callable[[CostCell], tuple[str, str]],
        events_only: bool = False,
        cells_of: Callable[[Side], Cells] = lambda side: side.cells,
    ) -> list[Change]:
        """Sums over cells with the same key, the largest change first."""
        sums: dict[tuple[str, str, str], list[float]] = {}
        new_names = {old: new for new, old in self.renamed.items()}
        for at, side in enumerate((self.before, self.after)):
            cells = cells_of(side)
            for cell, time in cells.time_ns.items():
                count = cells.count.get(cell)
                if events_only and count is None:
                    continue
                name, operator = key(cell)
                old = ""
                if name == cell.kernel:
                    # Both names of a renamed kernel go to one row.
                    name = new_names.get(name, name)
                    old = self.renamed.get(name, "")
                row = sums.setdefault((name, operator, old), [0, 0, 0.0, 0.0])
                row[at] += time
                row[2 + at] += (count or 0) / cells.per
        found = [
            Change(name, int(row[0]), int(row[1]), row[2], row[3], operator, old)
            for (name, operator, old), row in sums.items()
        ]
        return sorted(found, key=lambda each: (-abs(each.change_ns), each.name, each.operator))


def _squared_error(windows: Windows) -> float | None:
    """The squared standard error of the mean step; None for fewer than three steps."""
    if windows.steps < 3:
        return None
    return float(windows.dur_ns.var(ddof=1)) / windows.steps


def _side(side: Side) -> SideFigures:
    windows = side.windows
    return SideFigures(
        path=side.path,
        steps=windows.steps,
        time_ns=side.cells.total_ns,
        each_step_ns=[int(time) for time in windows.dur_ns] if windows.steps else [],
    )


def _changes(changes: Iterable[Change]) -> list[ChangeFigures]:
    return [each.figures() for each in changes]


def signed(time_ns: int) -> str:
    """A change as text, with its sign."""
    return f"{'+' if time_ns > 0 else ''}{in_words(time_ns, 'ns')}"


def evidence_of(change: Change, title: str | None = None) -> tuple[Evidence, Evidence]:
    """The figures before and after."""
    name = shortened(title or change.name, 70)
    return (
        Evidence(f"{name}, before", None, change.before_ns, "ns"),
        Evidence(f"{name}, after", None, change.after_ns, "ns"),
    )


def severity_of(change_ns: int, before_ns: int) -> Severity | None:
    """The severity of a change, "better" for an improvement; None for a small change."""
    if not change_ns:
        return None
    percent = abs(share(change_ns, before_ns)) if before_ns else 100.0
    severity = _SHARES.severity(percent)
    return "better" if severity is not None and change_ns < 0 else severity


def _different_names(*paths: str) -> list[str]:
    """Return the names of the files, with enough folders to make them different."""
    parts = [Path(path).parts for path in paths]
    for count in range(1, max(map(len, parts)) + 1):
        names = ["/".join(each[-count:]) for each in parts]
        if len(set(names)) == len(names):
            break
    return [shortened(name, 60) for name in names]


# --- Findings and tables ---


_INSIDE = 3
# Idle time that is caused by calls.
_OF_CALLS = tuple(CAUSES[cause] for cause in (SYNCHRONISATION, MEMORY_ALLOCATION))


def headline(found: Comparison) -> str:
    """The change in one sentence."""
    what = "A step" if found.unit == "step" else "The whole trace"
    change, before = found.change_ns, found.before_ns
    if change == 0:
        return f"{what} takes {in_words(found.after_ns, 'ns')}, as before."
    than = "less" if change < 0 else "more"
    percent = f", {100 * change / before:+.1f} %" if before else ""
    return (
        f"{what} takes {in_words(found.after_ns, 'ns')}, {in_words(abs(change), 'ns')} {than} than"
        f" before ({in_words(before, 'ns')}{percent})."
    )


def title(found: Comparison) -> str:
    """The change in a few words: "A step takes 20.6 % less time"."""
    what = "A step" if found.unit == "step" else "The whole trace"
    if not found.alike:
        return "Two different programs"
    if found.change_ns == 0 or found.before_ns == 0:
        return f"{what} takes as long as before"
    percent = abs(share(found.change_ns, found.before_ns))
    if found.within_variation():
        return f"{what} takes about as long as before"
    return f"{what} takes {percent:.1f} % {'less' if found.change_ns < 0 else 'more'} time"


def findings(found: Comparison) -> list[Finding]:
    """The change of the total, and of each part that is large enough."""
    severity = severity_of(found.change_ns, found.before_ns)
    noise = found.within_variation() or not found.alike
    shown: list[Finding] = []
    if severity is not None:
        sentence = headline(found)
        if not found.alike:
            sentence += f" {found.remarks[0]}"
        elif noise:
            sentence += " This may be chance, because the steps vary by as much."
        else:
            sentence += _mostly(found)
        code = f"comparison.{found.unit}"
        own: Severity = "low" if noise else severity
        numbers = _numbers(found.change_ns, found.before_ns, found.after_ns)
        shown.append(Finding(own, sentence, _rests_on(found), code, numbers=numbers))
    codes = _codes(found)
    for part in found.parts():
        large = severity_of(part.change_ns, found.before_ns)
        if large is None:
            continue
        name = part.name[0].upper() + part.name[1:]
        than = "less" if part.change_ns < 0 else "more"
        sentence = (
            f"{name}: {in_words(abs(part.change_ns), 'ns')} {than}{_each(found)}"
            f" ({in_words(part.before_ns, 'ns')} before, {in_words(part.after_ns, 'ns')} after)."
        )
        evidence = tuple(_most(found, part))
        own = "low" if noise else large
        numbers = _numbers(part.change_ns, part.before_ns, part.after_ns)
        shown.append(Finding(own, sentence, evidence, codes[part.name], numbers=numbers))
    shown += _kernels(found, "low" if noise else None)
    return shown


def _numbers(change_ns: float, before_ns: float, after_ns: float) -> dict[str, float]:
    return {"change_ns": change_ns, "before_ns": before_ns, "after_ns": after_ns}


def _rests_on(found: Comparison) -> tuple[Evidence, ...]:
    """Return evidence with the number of steps of each mean, and their variation."""
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


def _codes(found: Comparison) -> dict[str, str]:
    """A code for each part, such as "comparison.idle.data_loading"."""
    cells = (*found.before.cells.time_ns, *found.after.cells.time_ns)
    return {
        part_name(cell): f"comparison.{cell.group}.{cell.part.replace(' ', '_')}" for cell in cells
    }


def _most(found: Comparison, part: Change) -> list[Evidence]:
    """The largest changes in a part: of kernels or operators, or of calls that wait or allocate."""
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


def _each(found: Comparison) -> str:
    return " per step" if found.unit == "step" else ""


def _mostly(found: Comparison) -> str:
    """The parts that caused the change, and those that changed in the other direction."""
    same = [p for p in found.parts() if p.change_ns * found.change_ns > 0]
    other = [p for p in found.parts() if p.change_ns * found.change_ns < 0]
    least = abs(found.change_ns) / 10

    def listed(parts: list[Change]) -> str:
        large = [p for p in parts if abs(p.change_ns) >= least][:3]
        return "; ".join(f"{p.name} ({signed(p.change_ns)})" for p in large)

    text = f" Largest parts: {listed(same)}." if listed(same) else ""
    return text + (f" In the other direction: {listed(other)}." if listed(other) else "")


def _kernels(found: Comparison, at_most: Severity | None) -> list[Finding]:
    """New, removed and renamed kernels, as one finding each, if they take enough time."""
    shown = []
    for kernels, what, code in (
        (found.new_kernels(), "new", "comparison.new_kernels"),
        (found.vanished_kernels(), "removed", "comparison.vanished_kernels"),
    ):
        time = sum(each.change_ns for each in kernels)
        severity = severity_of(time, found.before_ns)
        if severity is None:
            continue
        most = kernels[0]
        sentence = (
            f"{counted(len(kernels), f'{what} kernel')}, {in_words(abs(time), 'ns')}"
            f"{_each(found)}. The largest is {shortened(most.name)}."
        )
        evidence = tuple(
            Evidence(each.name, None, abs(each.change_ns), "ns") for each in kernels[:3]
        )
        numbers: dict[str, float] = {"kernels": len(kernels), "change_ns": time}
        shown.append(Finding(at_most or severity, sentence, evidence, code, numbers=numbers))
    for each in found.renamed_kernels():
        severity = severity_of(each.change_ns, found.before_ns)
        if severity is not None:
            sentence = (
                f"{shortened(each.name)} is matched with {shortened(each.old_name)}, which it"
                f" replaces: {signed(each.change_ns)}{_each(found)}."
            )
            code = "comparison.renamed_kernel"
            numbers = {"change_ns": each.change_ns}
            evidence = evidence_of(each)
            shown.append(Finding(at_most or severity, sentence, evidence, code, numbers=numbers))
    return shown


def tables(found: Comparison) -> list[Table]:
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
        ("Removed kernels", found.vanished_kernels()),
        ("Kernels matched under another name", found.renamed_kernels()),
    ):
        if changes:
            shown.append(_table(title, (("name", ""), *head[:3], *counts), changes))
    return shown


def _steps(found: Comparison) -> Table | None:
    """The steps one by one, if both traces have the same number."""
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
    return f"The other {len(rest)} changed by {signed(change)} in total."
