"""Faults planted in the analyses of kernels and of torch.compile: the exact answers show each."""

from __future__ import annotations

from pathlib import Path

import test_compiled
import test_compiled_work
import test_kernel_findings
import test_kernels
import test_nesting
from planted_faults import Fault, each, must_be_found

from stagespan.trace.analysis import (
    compile_time,
    compiled_breaks,
    compiled_findings,
    compiled_forest,
    compiled_frames,
    compiled_work,
    forward,
    grouping,
    kernel_findings,
    kernel_tables,
    kernels,
    launchers,
    nesting,
    operators,
)
from stagespan.trace.analysis.compiled import Compiled
from stagespan.trace.analysis.compiled_forest import Forest
from stagespan.trace.analysis.nesting import Lanes, Nesting

all_figures = test_kernels.test_names_kinds_operators_stages_and_shapes
two_operators = test_kernels.test_a_kernel_of_two_operators
self_time = test_kernels.test_self_time_leaves_out_the_operators_within
graphs = test_kernels.test_a_graph_has_its_kernels_and_what_has_no_launch_is_counted
spans = test_kernels.test_spans_of_stages_are_stages
layout = test_kernel_findings.test_changes_of_layout
dominant = test_kernel_findings.test_a_kernel_that_takes_more_than_half
hidden = test_kernel_findings.test_half_of_a_sum_that_other_streams_hide_is_not_half_of_the_time
fusible = test_kernel_findings.test_much_elementwise_work_that_nothing_fused
breaks = test_compiled.test_graph_breaks_and_the_operators_between
within = test_compiled.test_a_frame_that_is_compiled_within_a_call_does_not_lengthen_it
variants = test_compiled.test_variants_from_before_the_window
linked = test_compiled.test_a_backward_graph_belongs_to_its_frame
one_piece = test_compiled.test_a_function_compiled_in_one_piece_has_no_finding
in_graphs = test_compiled_work.test_kernels_of_inductor_of_libraries_and_of_the_user
left = test_compiled_work.test_operators_that_inductor_left_to_aten


def crossing(_: Path) -> None:
    test_nesting.test_nested_and_crossing_events_against_every_moment()


def stretches(_: Path) -> None:
    test_nesting.test_the_innermost_chosen_one_and_the_one_around_a_stretch()


def arrows(tmp_path: Path) -> None:
    test_kernels.test_work_of_the_backward_pass_belongs_to_its_forward_operator(False, tmp_path)


def sequence(tmp_path: Path) -> None:
    test_kernels.test_work_of_the_backward_pass_belongs_to_its_forward_operator(True, tmp_path)


def compiling(tmp_path: Path) -> None:
    test_compiled.test_compiling_by_phase_and_recompilations(True, tmp_path)


def older(tmp_path: Path) -> None:
    test_compiled.test_compiling_by_phase_and_recompilations(False, tmp_path)


FAULTS: list[Fault] = [
    (grouping.grouped, "-columns[1]", "columns[1]", all_figures),
    (grouping.grouped, "np.append(firsts, len(code))", "np.append(firsts, 0)", all_figures),
    (grouping.prevailing, "best.setdefault(", "best.__setitem__(", two_operators),
    (nesting.joined, "flows.id[starts[at[hit]]] == ", "flows.id[starts[at[hit]]] != ", arrows),
    (Lanes.places, "lane >= 0, self", "lane < 0, self", arrows),
    (Nesting.at, 'side="right") - 1', 'side="right") - 2', all_figures),
    (Nesting.own_ns, "time - within", "time + within", self_time),
    (Nesting._climb, "<= place", ">= place", self_time),
    (Nesting._parents_of_crossing, "last = at", "last = -1", crossing),
    (Nesting._parents, "self.end[parent[inner]] >= self.end[inner]", "True", crossing),
    (Nesting.first_around, "found[other] = found[found[other]]", "found[other] = -1", stretches),
    (operators.host_operators, "own[rows]", "own[rows[::-1]]", self_time),
    (launchers.launchers, "_at(forest.first_around(work), inside)", "inside[::-1]", all_figures),
    (launchers.stage_marks, "& ~named(trace, _NO_STAGE)", "", all_figures),
    (launchers.stages, "len(with_stages) == 1", "len(with_stages) == 7", arrows),
    (launchers.stages, "program[count.argmax()]", "process", spans),
    (forward._by_arrows, "return target, source", "return source, target", arrows),
    (forward._by_sequence, ", side=\"right\") - 1", ", side=\"right\") - 2", sequence),
    (forward._by_sequence, "first_around(backward) < 0", "first_around(backward) >= 0", sequence),
    (kernels.analyze, "np.where(found.of_graph, -1, shape)", "-1 - shape", all_figures),
    (kernels.analyze, "np.where(found.of_graph, _names(trace, found.calls), operator)", "operator",
     graphs),
    (kernels._kinds, "np.where(", "np.where(~", two_operators),
    (kernels._shapes, "table[found.codes]", "table[found.codes[::-1]]", all_figures),
    (kernel_tables.as_dict, "launched.calls < 0", "launched.calls >= 0", graphs),
    (kernel_tables._by_shape, "operator[known] * size", "operator[known] + size", all_figures),
    (kernel_findings._dominant, "min(percent, of_busy)", "max(percent, of_busy)", hidden),
    (kernel_findings._dominant, "of_busy = share(covered", "of_busy = -share(covered", dominant),
    (kernel_findings._fusible, "& ~_named(kernels, _FUSED)", "& _named(kernels, _FUSED)", fusible),
    (kernel_findings._layout, "share(time, total)", "share(total, time)", layout),
    (Forest.own_ns, "chosen | without", "chosen", within),
    (Forest._above, "parent >= 0", "parent >= 9**9", breaks),
    (compiled_forest.frame_of, 'int(found["variant"])', '0', variants),
    (compiled_breaks.breaks_of, "== REGION\n    inside", "!= REGION\n    inside", breaks),
    (compiled_breaks.breaks_of, "gap_end - gap_begin - ", "gap_end - gap_begin + ", within),
    (compiled_breaks.breaks_of, "np.roll(nodes.end[inside], 1)", "nodes.end[inside]", breaks),
    (compiled_breaks._operators_between, "nodes.end[held] <=", "nodes.end[held] >", breaks),
    (compiled_frames.frames_of, "entry.time_ns += time\n", "entry.time_ns -= time\n", breaks),
    (compiled_frames.frames_of, "entry.graph_ns += time\n", "entry.graph_ns = 0\n", one_piece),
    (compiled_frames.frames_of, "around[regions] < 0", "around[regions] >= 0", breaks),
    (compiled_frames._forward_nodes, "node[rows]", "node[rows[::-1]]", linked),
    (compile_time.compile_time, "timed.own_ns()", "timed.end - timed.begin", compiling),
    (compile_time._ids, 'side="right")) - 1', 'side="right"))', compiling),
    (compile_time._ids, "regions[at : at + 1]", "regions[at - 1 : at]", older),
    (Compiled._recompilations, "most == 0", "most == 1", compiling),
    (compiled_work._add_kernels, "in_graph & (under >= 0)", "~in_graph", in_graphs),
    (compiled_work._add_kernels, "& ~by_aten", "& by_aten", in_graphs),
    (compiled_work._class_of, "NO_WORK.match(operator)", "CLASSES.get(operator)", in_graphs),
    (compiled_work.triton_by_kind, "time + group.time_ns", "group.time_ns - time - 1", in_graphs),
    (compiled_findings._fallbacks, "share(time, total)", "share(time, 9**9 * total)", left),
    (compiled_findings._variants, "len(frame.variants) > 1", "len(frame.variants) > 2", variants),
    (compiled_findings._recompiled, "if each.variant]", "if not each.variant]", compiling),
]  # fmt: skip


@each(FAULTS)
def test_a_planted_fault_in_an_analysis_of_work(fault: Fault, tmp_path: Path) -> None:
    must_be_found(fault, tmp_path)
