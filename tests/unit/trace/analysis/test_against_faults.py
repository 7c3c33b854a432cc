"""The comparison with a fault planted in it: its tests show it."""

from __future__ import annotations

from pathlib import Path

import test_against as planted
import test_against_closes as closes
from planted_faults import Fault, each, must_be_found

from stagespan.trace.comparison import (
    alignment,
    cells,
    likeness,
    renames,
    spent,
    structure,
    windows,
)
from stagespan.trace.comparison.against import Against

parts = planted.test_the_parts_explain_the_change
more_steps = planted.test_another_number_of_steps
renamed = planted.test_a_kernel_under_another_name
other_kind = planted.test_a_kernel_of_another_kind_is_not_taken_for_the_old
variation = planted.test_a_change_within_the_variation_of_the_steps
on_host = planted.test_without_a_device_operators_are_compared
two_operators = planted.test_one_kernel_of_two_operators
new = planted.test_new_and_vanished_kernels
different = planted.test_windows_without_steps_that_hold_different_work
calls = planted.test_calls_that_wait
other_shape = planted.test_a_kernel_for_other_shapes_is_not_taken_for_the_old
unlike = planted.test_unlike_programs_are_said_to_be


def overlaps(folder: Path) -> None:
    """Work that overlaps itself, other kinds, and the steps' ends."""
    work = [(1, 0, 0, 40, True), (1, 1, 20, 40, True), (2, 2, 10, 90, True), (3, 3, 90, 30, True)]
    trace = closes.trace_of(folder, work, [(50, 10), (50, 0)])
    stretch = windows.steps_of(trace)
    assert stretch is not None
    # The first step lasts to the end of its work, at 105 us, the second to 125.
    assert stretch.dur_ns.tolist() == [105_000, 20_000]
    found = spent.spent(trace, stretch)
    assert found.time_ns.tolist() == [40_000, 20_000, 40_000, 20_000]
    assert sum(found.idle_ns.values()) == 5_000


FAULTS: list[Fault] = [
    (spent.spent, "np.maximum(begin, reach)", "begin", overlaps),
    (spent.spent, "free = _less(free, Cover(begin, end))", "pass", overlaps),
    (spent._less, "hole.within", "-hole.within", overlaps),
    (spent._idle, "found.begin_ns, found.end_ns", "found.end_ns, found.begin_ns", parts),
    (spent._idle, "idle[DONE] = rest", "pass", parts),
    (spent._with_the_first, "first <= begin", "first >= begin", parts),
    (windows.steps_of, "begin = np.maximum(begin", "begin = np.minimum(begin", overlaps),
    (windows.steps_of, "launched = step >= 0", "launched = step < 0", overlaps),
    (cells._grouped, "* len(column.texts) +", "* 0 +", two_operators),
    (cells._per_step, "max(windows.steps, 1)", "1", more_steps),
    (cells.host_cells, "events.dur_ns[rows]).argmax", "events.dur_ns[rows]).argmin", on_host),
    (structure.Structure._paths, "else text", 'else ""', parts),
    (Against._by, "row[at] += time", "row[1 - at] += time", parts),
    (Against._by, "new_names.get(name, name)", "name", renamed),
    (Against.error_ns, "errors[0] + errors[1]", "errors[0] - errors[0]", variation),
    (Against.new_kernels, "not each.before_count", "not each.after_count", new),
    (renames._place, "cell.part, ", "", other_kind),
    (renames.renamed, "== shapes[1][name]", "is not None", other_shape),
    (alignment._waits, "group.idle_ns / per", "group.idle_ns", calls),
    (alignment.compare, "alike < _LEAST", "alike > _LEAST", different),
    (likeness._in_both, "min(n / wholes[0], second[what] / wholes[1])", "1", unlike),
]


@each(FAULTS)
def test_a_fault_in_the_comparison_is_found(fault: Fault, tmp_path: Path) -> None:
    must_be_found(fault, tmp_path)
