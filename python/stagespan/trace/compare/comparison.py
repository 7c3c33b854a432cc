"""The change between two traces: figures that sum to the change, tables and findings."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, TypeVar

import msgspec
from msgspec import structs

from stagespan.pages.amounts import counted, in_percent, in_words, signed_percent
from stagespan.pages.figures import Count, Figures, Internal, Ns
from stagespan.pages.kernel_names import kernel_label
from stagespan.pages.result import (
    LONGEST_NAME,
    Block,
    Changes,
    Chart,
    Column,
    Evidence,
    Finding,
    Line,
    Severity,
    StructResult,
    Table,
    Thresholds,
    Titled,
    share,
    shortened,
)
from stagespan.trace.compare import cost_table as parts
from stagespan.trace.compare.batch import BatchChange, batch_change
from stagespan.trace.compare.cost_table import DONE, Cells, CostCell
from stagespan.trace.compare.reasons import (
    COMMUNICATION,
    KINDS_OF_REASONS,
    Overlap,
    Reason,
    overlap,
    reasons,
)
from stagespan.trace.derived.idle_causes import CAUSES, MEMORY_ALLOCATION, SYNCHRONISATION
from stagespan.trace.derived.kernel_kinds import KINDS
from stagespan.trace.derived.windows import Windows

TOP = 50
MOST_DRAWN = 12
# Percent of the time before: smaller changes are not reported.
_SHARES = Thresholds(10.0, 5.0, 2.0)
# On the first screen.
_PARTS_SHOWN, _KERNELS_SHOWN = 8, 5
# Means count as equal if they differ by less than this number of standard errors.
_ERRORS = 2.0
_COMMUNICATING = "communicating, nothing else"
_NO_STAGE, _NO_LAYER, _NO_OPERATOR = "(no annotation)", "(no module)", "(unknown operator)"


class Side(Figures, frozen=True):
    """One of the two traces."""

    path: str
    steps: Count
    """0 if all of the trace is compared."""
    time_ns: Ns
    """The time of a step, or of the whole trace."""
    each_step_ns: list[Ns]
    windows: Internal[Windows]
    cells: Internal[Cells]
    host: Internal[Cells]
    """The same time, split by the work of the host's busiest thread; without a device, `cells`."""
    overlap: Internal[Overlap | None]
    """The communication of a step on a device; None if there is none."""

    @classmethod
    def of(
        cls, path: str, windows: Windows, cells: Cells, host: Cells, overlap: Overlap | None = None
    ) -> Side:
        """Return the side with the times of its steps."""
        steps = [int(time) for time in windows.dur_ns] if windows.steps else []
        return cls(path, windows.steps, cells.total_ns, steps, windows, cells, host, overlap)


class CostChange(Figures, frozen=True):
    """Times of one step (or of the whole trace, without steps) before and after."""

    name: str
    before_ns: Ns
    after_ns: Ns
    change_ns: Ns
    """After minus before."""
    before_count: float
    """Launches or calls in a step, on average."""
    after_count: float

    @property
    def label(self) -> str:
        """The name, and the old one of a renamed kernel."""
        return self.name


class KernelChange(CostChange, frozen=True):
    """The change of a kernel."""

    operator: str | None
    """The operator that launched it; None for a sum over all operators."""
    old_name: str | None
    """The kernel's name in the first trace, if it was matched under another name."""

    @property
    def label(self) -> str:
        """The name, and the old one of a renamed kernel."""
        return f"{self.name}, before: {self.old_name}" if self.old_name else self.name


def part_name(cell: CostCell) -> str:
    """The printed name of a cell's part."""
    if cell.group == parts.IDLE:
        cause = "the host continued after the device's last work"
        return f"idle: {cause if cell.part == DONE else CAUSES[cell.part]}"
    if cell.group == parts.COMMUNICATING:
        return _COMMUNICATING
    if cell.group == parts.COPYING:
        return "copying, nothing else"
    if cell.part == parts.OUTSIDE:
        return "outside of operators"
    return f"{'computing' if cell.group == parts.COMPUTING else 'operators'}: {KINDS[cell.part]}"


class TraceComparison(StructResult, Titled, frozen=True):
    """What changed between two traces; every list of changes sums to `after` minus `before`."""

    per: Literal["step", "trace"]
    """What the times refer to."""
    before: Side
    after: Side
    change_ns: Ns
    change_percent: float | None
    batch: BatchChange | None
    """None if the batch is as large as before, or if shapes do not show how large it is."""
    within_variation: bool
    """Whether the change of the mean is within the variation of the steps."""
    remarks: list[str]
    """Notes on the traces that limit what the figures mean."""
    parts: list[CostChange]
    """By kind of work and cause of idle time; they sum to `change_ns`."""
    stages: list[CostChange]
    """Device work (or operators) by annotation, without idle time."""
    layers: list[CostChange]
    """By module, if both traces have Python stacks."""
    operators: list[CostChange]
    """By the operator that launched the work, or that ran."""
    host: list[CostChange]
    """Own times of operators on the host's busiest thread; they sum to `change_ns`, too."""
    waits: list[CostChange]
    """Idle time by the calls that wait or allocate, per step, over the whole of each trace."""
    why: list[Reason]
    """Why operators changed: shapes, launches, time of a launch; and the communication's overlap.
    For each operator, they sum to its change in `operators`."""
    kernels: list[KernelChange]
    """By kernel and the operator that launched it; empty without a device."""
    whole_kernels: Internal[list[KernelChange]]
    """By kernel, whatever launched it: a device graph launches those of many operators."""
    new_kernels: list[KernelChange]
    """Kernels that only the second trace has."""
    vanished_kernels: list[KernelChange]
    """Kernels that only the first trace has."""
    renamed_kernels: list[KernelChange]
    """Kernels that were matched under another name."""
    costs: Internal[_Costs]
    on_device: Internal[bool]
    alike: Internal[bool]
    """Whether the traces are similar enough to be from the same program."""

    @property
    def before_ns(self) -> int:
        """The time of a step, or of the whole trace."""
        return self.before.time_ns

    @property
    def after_ns(self) -> int:
        """The time of a step, or of the whole trace."""
        return self.after.time_ns

    def changes_in(self, part: str) -> list[CostChange]:
        """The kernels (or operators) of one of `parts`; empty for idle time."""

        def key(cell: CostCell) -> str:
            return (cell.kernel or cell.operator) if part_name(cell) == part else ""

        return [each for each in self.costs.changes(key, events_only=True) if each.name]

    @property
    def is_one_sample(self) -> bool:
        """Whether each side is one step, or one whole trace."""
        return self.per == "trace" or max(self.before.steps, self.after.steps) == 1

    def why_of(self, part: str) -> list[Reason]:
        """Why one of `parts` changed, the largest change first; empty for idle time."""
        before, after = self.before.cells, self.after.cells
        if part == _COMMUNICATING:
            return [each for each in self.why if each.operator == COMMUNICATION]
        return reasons(before, after, lambda cell: part_name(cell) == part)

    def error_ns(self) -> float | None:
        """Two standard errors of the change of the mean step; None for fewer than three steps."""
        return _error_ns(self.before.windows, self.after.windows)

    def chart(self) -> Chart | None:
        """The change of each part. Small parts are combined, so that the sum is complete."""
        parts = [
            (shortened(each.name, LONGEST_NAME), each.change_ns)
            for each in self.parts
            if each.change_ns
        ]
        parts.sort(key=lambda part: -abs(part[1]))
        drawn = parts[:MOST_DRAWN]
        rest = self.change_ns - sum(time for _, time in drawn)
        if rest and len(parts) > MOST_DRAWN:
            drawn.append((counted(len(parts) - MOST_DRAWN, "smaller part"), rest))
        if not drawn:
            return None
        return {
            "kind": "change",
            "before": self.before_ns,
            "after": self.after_ns,
            "parts": drawn,
            "per": self.per,
        }

    def findings(self) -> list[Finding]:
        """The change, and the parts that caused it, if they are large enough."""
        return findings(self)

    def title(self) -> tuple[str, str]:
        """The change in a few words, and as a sentence."""
        return title(self), headline(self)

    def head(self) -> list[Block]:
        """The change, its parts with their sum, and the kernels or operators that changed most."""
        changes: Sequence[CostChange] = self.whole_kernels or self.operators
        changed = [each for each in changes if each.change_ns][:_KERNELS_SHOWN]
        rows = [(_short_label(each), each.before_ns, each.after_ns) for each in changed]
        kernels = Changes("kernel" if self.on_device else "operator", rows, self.before_ns)
        before, after = _different_names(self.before.path, self.after.path)
        return [
            Line(f"{after} against {before}", "strong"),
            Line(headline(self), "strong"),
            *(Line(remark, "remark") for remark in self.remarks),
            self._changed_parts(),
            *([kernels] if rows else []),
        ]

    def _changed_parts(self) -> Changes:
        parts = self.parts
        changed = [part for part in parts if part.change_ns]
        rest, same = changed[_PARTS_SHOWN:], [part for part in parts if not part.change_ns]
        sums = ((f"{len(rest)} more", rest), ("unchanged", same), ("all", parts))
        return Changes(
            "per step" if self.per == "step" else "",
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


class _Costs(msgspec.Struct, frozen=True):
    """The costs of both traces, from which the lists of changes are made."""

    before: Side
    after: Side
    renamed: dict[str, str]
    """Kernels that were matched under another name: the old name by the new one."""

    def changes(
        self,
        key: Callable[[CostCell], str],
        events_only: bool = False,
        cells_of: Callable[[Side], Cells] = lambda side: side.cells,
    ) -> list[CostChange]:
        """Return sums over cells with the same key, the largest change first."""
        sums = self._sums(lambda cell: (key(cell), ""), events_only, cells_of)
        return _largest_first([change_of(name, *row) for (name, _, _), row in sums.items()])

    def kernels(self, by_operator: bool) -> list[KernelChange]:
        """Return sums over the cells of each kernel, and of each operator if `by_operator`."""

        def key(cell: CostCell) -> tuple[str, str]:
            return cell.kernel, (cell.operator or _NO_OPERATOR) if by_operator else ""

        sums = self._sums(key, True, lambda side: side.cells)
        return _largest_first(
            [
                KernelChange(
                    **structs.asdict(change_of(name, *row)),
                    operator=operator or None,
                    old_name=old_name or None,
                )
                for (name, operator, old_name), row in sums.items()
            ]
        )

    def _sums(
        self,
        key: Callable[[CostCell], tuple[str, str]],
        events_only: bool,
        cells_of: Callable[[Side], Cells],
    ) -> dict[tuple[str, str, str], tuple[int, int, float, float]]:
        """Return times and counts before and after by name, operator and old name."""
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
        return {key: (int(row[0]), int(row[1]), row[2], row[3]) for key, row in sums.items()}


def change_of(
    name: str, before_ns: int, after_ns: int, before_count: float, after_count: float
) -> CostChange:
    """Return the change between two times."""
    change_ns = after_ns - before_ns
    return CostChange(name, before_ns, after_ns, change_ns, before_count, after_count)


_Changed = TypeVar("_Changed", bound=CostChange)


def _largest_first(changes: list[_Changed]) -> list[_Changed]:
    def order(change: CostChange) -> tuple[int, str, str]:
        operator = change.operator if isinstance(change, KernelChange) else None
        return -abs(change.change_ns), change.name, operator or ""

    return sorted(changes, key=order)


def comparison_of(
    before: Side,
    after: Side,
    renamed: dict[str, str],
    remarks: list[str],
    on_device: bool,
    alike: bool,
    waits: list[CostChange],
) -> TraceComparison:
    """Return the comparison of two sides. `renamed` has the old names of kernels by the new ones.

    `alike` is whether the traces are similar enough to be from the same program; `waits` are the
    changes of idle time by calls that wait or allocate.
    """
    costs = _Costs(before, after, renamed)
    change_ns = after.time_ns - before.time_ns
    error_ns = _error_ns(before.windows, after.windows)
    of_kernels = costs.kernels(by_operator=False) if on_device else []

    def host_key(cell: CostCell) -> str:
        return parts.OUTSIDE if cell.part == parts.OUTSIDE else cell.operator

    return TraceComparison(
        per="step" if before.steps else "trace",
        before=before,
        after=after,
        change_ns=change_ns,
        change_percent=share(change_ns, before.time_ns) if before.time_ns else None,
        batch=batch_change(before.cells, after.cells) if alike and before.steps else None,
        within_variation=error_ns is not None and abs(change_ns) < error_ns,
        remarks=remarks,
        parts=costs.changes(part_name),
        stages=costs.changes(lambda cell: cell.stage or _NO_STAGE, events_only=True),
        layers=costs.changes(lambda cell: cell.layer or _NO_LAYER, events_only=True),
        operators=costs.changes(lambda cell: cell.operator or _NO_OPERATOR, events_only=True),
        host=costs.changes(host_key, cells_of=lambda side: side.host),
        waits=_largest_first(waits),
        why=_why(before, after),
        kernels=costs.kernels(by_operator=True) if on_device else [],
        whole_kernels=of_kernels,
        new_kernels=[each for each in of_kernels if not each.before_count],
        vanished_kernels=[each for each in of_kernels if not each.after_count],
        renamed_kernels=[each for each in of_kernels if each.old_name],
        costs=costs,
        on_device=on_device,
        alike=alike,
    )


def _why(before: Side, after: Side) -> list[Reason]:
    """Return the reasons of the changes, the largest change first."""
    of_overlap = []
    if before.overlap is not None and after.overlap is not None:
        of_overlap = overlap(before.overlap, after.overlap)
    found = [*reasons(before.cells, after.cells), *of_overlap]
    return sorted(found, key=lambda each: -abs(each.change_ns))


def _error_ns(before: Windows, after: Windows) -> float | None:
    """Two standard errors of the change of the mean step; None for fewer than three steps."""
    if before.steps < 3 or after.steps < 3:
        return None
    squared = (float(each.dur_ns.var(ddof=1)) / each.steps for each in (before, after))
    return _ERRORS * math.sqrt(sum(squared))


def signed(time_ns: int) -> str:
    """A change as text, with its sign."""
    return f"{'+' if time_ns > 0 else ''}{in_words(time_ns, 'ns')}"


def evidence_of(change: CostChange, title: str | None = None) -> tuple[Evidence, Evidence]:
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


def _short_label(change: CostChange) -> str:
    """Return the name for the first screen, and the old one of a renamed kernel."""
    old_name = change.old_name if isinstance(change, KernelChange) else None
    if not old_name:
        return change.name
    return f"{kernel_label(change.name)} (was {kernel_label(old_name)})"


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


def headline(comparison: TraceComparison) -> str:
    """The change in one sentence."""
    what = "A step" if comparison.per == "step" else "The whole trace"
    change, before = comparison.change_ns, comparison.before_ns
    if change == 0:
        return f"{what} takes {in_words(comparison.after_ns, 'ns')}, as before."
    than = "less" if change < 0 else "more"
    percent = f", {signed_percent(change / before)}" if before else ""
    text = (
        f"{what} takes {in_words(comparison.after_ns, 'ns')}, {in_words(abs(change), 'ns')} {than}"
        f" than before ({in_words(before, 'ns')}{percent})."
    )
    if comparison.batch is not None:
        text += f" {comparison.batch.sentence}"
    if comparison.alike and comparison.within_variation:
        error = in_words(comparison.error_ns(), "ns")
        text += f" This may be chance: two standard errors of the steps' means are {error}."
    elif comparison.alike and comparison.is_one_sample:
        text += " This is one sample of each, so it may be chance."
    elif comparison.alike and comparison.error_ns() is None:
        text += (
            f" There are {counted(comparison.before.steps, 'step')} before and"
            f" {comparison.after.steps:,} after, which are too few to rule out chance."
        )
    return text


def title(comparison: TraceComparison) -> str:
    """The change in a few words: "A step takes 20.6 % less time"."""
    what = "A step" if comparison.per == "step" else "The whole trace"
    if not comparison.alike:
        return "The traces may be of different programs"
    if comparison.change_ns == 0 or comparison.before_ns == 0:
        return f"{what} takes as long as before"
    percent = abs(share(comparison.change_ns, comparison.before_ns))
    chance = ", perhaps by chance" if comparison.within_variation else ""
    if comparison.is_one_sample:
        chance = " in one sample of each"
    than = "less" if comparison.change_ns < 0 else "more"
    return f"{what} takes {in_percent(percent)} {than} time{chance}"


def findings(comparison: TraceComparison) -> list[Finding]:
    """The change of the total, and of each part that is large enough."""
    change_ns, batch = comparison.change_ns, comparison.batch
    if batch is not None:
        change_ns = batch.as_many_ns - batch.before_ns
    severity = severity_of(change_ns, comparison.before_ns)
    # Parts take longer for a larger batch: only the time of a sample shows whether that is good.
    noise = comparison.within_variation or not comparison.alike or batch is not None
    findings_: list[Finding] = []
    if severity is not None:
        sentence = headline(comparison)
        if not comparison.alike:
            sentence += f" {comparison.remarks[0]}"
        elif not noise:
            sentence += _mostly(comparison)
        code = f"comparison.{comparison.per}"
        reached: Severity = "low" if noise and batch is None else severity
        numbers = _numbers(comparison.change_ns, comparison.before_ns, comparison.after_ns)
        findings_.append(Finding(reached, sentence, _rests_on(comparison), code, numbers=numbers))
    codes = _codes(comparison)
    for part in comparison.parts:
        large = severity_of(part.change_ns, comparison.before_ns)
        if large is None:
            continue
        name = part.name[0].upper() + part.name[1:]
        than = "less" if part.change_ns < 0 else "more"
        sentence = (
            f"{name}: {in_words(abs(part.change_ns), 'ns')} {than}{_per_step(comparison)}"
            f" ({in_words(part.before_ns, 'ns')} before, {in_words(part.after_ns, 'ns')} after)."
            f"{_because(comparison.why_of(part.name), part.change_ns)}"
        )
        evidence = tuple(_most(comparison, part))
        reached = "low" if noise else large
        numbers = _numbers(part.change_ns, part.before_ns, part.after_ns)
        findings_.append(Finding(reached, sentence, evidence, codes[part.name], numbers=numbers))
    findings_ += _kernels(comparison, "low" if noise else None)
    return findings_


def _numbers(change_ns: float, before_ns: float, after_ns: float) -> dict[str, float]:
    return {"change_ns": change_ns, "before_ns": before_ns, "after_ns": after_ns}


def _rests_on(comparison: TraceComparison) -> tuple[Evidence, ...]:
    """Return evidence with the number of steps of each mean, and their variation."""
    sides = ((comparison.before, "before"), (comparison.after, "after"))
    if comparison.per == "trace":
        return tuple(
            Evidence(when, None, sum(side.cells.count.values()), "events") for side, when in sides
        )
    counts = tuple(Evidence(when, None, side.windows.steps, "steps") for side, when in sides)
    error = comparison.error_ns()
    if error is None:
        return counts
    return (*counts, Evidence("two standard errors of the difference", None, error, "ns"))


def _codes(comparison: TraceComparison) -> dict[str, str]:
    """A code for each part, such as "comparison.idle.data_loading"."""
    cells = (*comparison.before.cells.time_ns, *comparison.after.cells.time_ns)
    return {
        part_name(cell): f"comparison.{cell.group}.{cell.part.replace(' ', '_')}" for cell in cells
    }


def _most(comparison: TraceComparison, part: CostChange) -> list[Evidence]:
    """The largest changes in a part: of kernels or operators, or of calls that wait or allocate."""
    inside = comparison.changes_in(part.name)
    if part.name.endswith(_OF_CALLS):
        inside = list(comparison.waits)
    inside = [each for each in inside if each.change_ns * part.change_ns > 0]
    if not inside:
        figure = abs(share(part.change_ns, comparison.before_ns)) if comparison.before_ns else None
        return [Evidence(f"of the {comparison.per} before", None, figure, "%")]
    way = "less" if part.change_ns < 0 else "more"
    return [
        Evidence(f"{shortened(each.name, 70)}, {way}", None, abs(each.change_ns), "ns")
        for each in inside[:_INSIDE]
    ]


def _per_step(comparison: TraceComparison) -> str:
    return " per step" if comparison.per == "step" else ""


def _mostly(comparison: TraceComparison) -> str:
    """The parts that caused the change, and those that changed in the other direction."""
    same = [p for p in comparison.parts if p.change_ns * comparison.change_ns > 0]
    other = [p for p in comparison.parts if p.change_ns * comparison.change_ns < 0]
    least = abs(comparison.change_ns) / 10

    def listed(parts: list[CostChange]) -> str:
        large = [p for p in parts if abs(p.change_ns) >= least][:3]
        return "; ".join(f"{p.name} ({signed(p.change_ns)})" for p in large)

    text = f" Largest parts: {listed(same)}." if listed(same) else ""
    text += _because(comparison.why, comparison.change_ns)
    return text + (f" In the other direction: {listed(other)}." if listed(other) else "")


def _because(why: Sequence[Reason], change_ns: int) -> str:
    """Return a sentence with the reasons of most of a change; "" if there are none."""
    same = [each for each in why if each.change_ns * change_ns > 0]
    large = [each for each in same if abs(each.change_ns) >= abs(change_ns) / 5][:2]
    texts = [f"{each.sentence} ({signed(each.change_ns)})" for each in large]
    return f" Reasons: {'; '.join(texts)}." if texts else ""


def _kernels(comparison: TraceComparison, at_most: Severity | None) -> list[Finding]:
    """New, removed and renamed kernels, as one finding each, if they take enough time."""
    findings_ = []
    for kernels, what, code in (
        (comparison.new_kernels, "new", "comparison.new_kernels"),
        (comparison.vanished_kernels, "removed", "comparison.vanished_kernels"),
    ):
        time = sum(renamed.change_ns for renamed in kernels)
        severity = severity_of(time, comparison.before_ns)
        if severity is None:
            continue
        most = kernels[0]
        sentence = (
            f"{counted(len(kernels), f'{what} kernel')}, {in_words(abs(time), 'ns')}"
            f"{_per_step(comparison)}. The largest is {shortened(most.name)}."
        )
        evidence = tuple(
            Evidence(renamed.name, None, abs(renamed.change_ns), "ns") for renamed in kernels[:3]
        )
        numbers: dict[str, float] = {"kernels": len(kernels), "change_ns": time}
        findings_.append(Finding(at_most or severity, sentence, evidence, code, numbers=numbers))
    for renamed in comparison.renamed_kernels:
        severity = severity_of(renamed.change_ns, comparison.before_ns)
        if severity is not None:
            sentence = (
                f"{shortened(renamed.name)} is matched with"
                f" {shortened(renamed.old_name or '')}, which it replaces:"
                f" {signed(renamed.change_ns)}{_per_step(comparison)}."
            )
            code = "comparison.renamed_kernel"
            numbers = {"change_ns": renamed.change_ns}
            evidence = evidence_of(renamed)
            findings_.append(
                Finding(at_most or severity, sentence, evidence, code, numbers=numbers)
            )
    return findings_


def _whole(count: float) -> int | float:
    return int(count) if float(count).is_integer() else round(count, 2)


_NAME: tuple[Column, ...] = (("label", "name", ""),)
_KERNEL: tuple[Column, ...] = (("label", "kernel", ""), ("operator", "launched by", ""))
_TIMES: tuple[Column, ...] = (
    ("before_ns", "before", "ns"),
    ("after_ns", "after", "ns"),
    ("change_ns", "change", "ns"),
)
_COUNTS: tuple[Column, ...] = (
    (lambda change: _whole(change.before_count), "calls before", ""),
    (lambda change: _whole(change.after_count), "calls after", ""),
)


def tables(comparison: TraceComparison) -> list[Table]:
    """The parts with their sum, then stages, layers, operators and kernels."""
    whole = change_of("all", comparison.before_ns, comparison.after_ns, 0, 0)
    tables_ = [
        Table.of(
            f"What explains the change{', per step' if comparison.per == 'step' else ''}",
            [*comparison.parts, whole],
            ("name", "", ""),
            *_TIMES,
            (lambda each: share(each.change_ns, comparison.change_ns), "of the change", "%"),
            note=" ".join([headline(comparison), *comparison.remarks]),
        )
    ]
    if comparison.why:
        tables_.append(
            Table.of(
                f"Why operators changed{', per step' if comparison.per == 'step' else ''}",
                comparison.why[:TOP],
                ("operator", "operator", ""),
                (lambda each: KINDS_OF_REASONS[each.kind], "reason", ""),
                ("before", "before", ""),
                ("after", "after", ""),
                ("change_ns", "change", "ns"),
            )
        )
    steps = _steps(comparison)
    if steps is not None:
        tables_.append(steps)
    device = "device time" if comparison.on_device else "own time"
    host = "Change by operator, own time on the host's busiest thread"
    calls = "Idle time by calls that wait or allocate"
    optional: tuple[tuple[str, Sequence[CostChange], int, tuple[Column, ...]], ...] = (
        (f"Change by stage, {device}", comparison.stages, 2, _NAME),
        (f"Change by layer, {device}", comparison.layers, 2, _NAME),
        (f"Change by operator, {device}", comparison.operators, 2, _NAME),
        (host, comparison.host if comparison.on_device else [], 2, _NAME),
        ("Change by kernel", comparison.whole_kernels, 1, _NAME),
        ("Change by kernel and operator", comparison.kernels, 1, _KERNEL),
        (calls, comparison.waits, 1, (("label", "operator, call and line", ""),)),
        ("New kernels", comparison.new_kernels, 1, _NAME),
        ("Removed kernels", comparison.vanished_kernels, 1, _NAME),
        ("Kernels matched under another name", comparison.renamed_kernels, 1, _NAME),
    )
    for title, changes, least, columns in optional:
        if len(changes) >= least:
            note = _left(changes)
            tables_.append(Table.of(title, changes[:TOP], *columns, *_TIMES, *_COUNTS, note=note))
    return tables_


def _steps(comparison: TraceComparison) -> Table | None:
    """The steps one by one, if both traces have the same number."""
    before, after = comparison.before.windows, comparison.after.windows
    if before.steps != after.steps or not 1 < before.steps <= TOP:
        return None
    pairs = zip(before.dur_ns.tolist(), after.dur_ns.tolist(), strict=True)
    rows: list[tuple[str | int | float | None, ...]] = [
        (number, old, new, new - old) for number, (old, new) in enumerate(pairs, 1)
    ]
    columns = (("step", ""), ("before", "ns"), ("after", "ns"), ("change", "ns"))
    return Table("Steps, in their order", columns, rows)


def _left(changes: Sequence[CostChange]) -> str:
    hidden = changes[TOP:]
    if not hidden:
        return ""
    change = sum(each.change_ns for each in hidden)
    return f"The other {len(hidden)} changed by {signed(change)} in total."
