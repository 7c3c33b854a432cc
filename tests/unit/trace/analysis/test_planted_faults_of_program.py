"""Faults planted in the analyses of steps, stages, layers, memory and stacks: each is found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import test_flame
import test_layers
import test_memory_in_traces
import test_stages_in_traces
import test_step_ranges
import test_steps
from planted_faults import Fault, each, must_be_found

from stagespan.trace.analysis import (
    call_tree,
    flame,
    layer_modules,
    layer_repeats,
    layers,
    memory,
    memory_events,
    memory_growth,
    memory_place,
    repeats,
    stage_tree,
    stages,
    step_gaps,
    step_outliers,
    step_ranges,
    step_time,
    steps,
)
from stagespan.trace.analysis.call_tree import Tree
from stagespan.trace.analysis.flame import Flame
from stagespan.trace.analysis.memory_events import MemoryEvents
from stagespan.trace.analysis.memory_growth import Growth
from stagespan.trace.analysis.stages import Stages
from stagespan.trace.analysis.step_gaps import Edge

by_us = test_steps.test_parts_are_those_of_every_microsecond
by_hand = test_steps.test_one_step_by_hand
late = test_steps.test_work_behind_the_mark_belongs_to_the_step_that_launched_it
slow = test_steps.test_a_slow_step_is_named_with_what_differs_in_it
slept = test_steps.test_a_step_in_which_python_slept
slow_kernel = test_steps.test_a_step_whose_kernels_are_slow
sleep_before = test_steps.test_a_sleep_before_the_device_has_work
empty_mark = test_steps.test_a_profiler_mark_without_work_is_left_out
host_alone = test_steps.test_the_host_alone
annotated = test_step_ranges.test_an_annotation_that_repeats
following = test_step_ranges.test_annotations_that_follow_each_other
overlapping = test_step_ranges.test_requests_that_overlap_on_several_threads_are_no_steps
optimizer = test_step_ranges.test_from_one_end_of_the_optimizer_to_the_next
decoding = test_step_ranges.test_operators_that_repeat_with_a_wait_in_each
begins_within = test_step_ranges.test_a_trace_that_begins_in_a_step
decoding_on_host = test_step_ranges.test_decoding_on_the_host_alone
no_steps = test_step_ranges.test_layers_that_repeat_are_no_steps
of_kernels = test_step_ranges.test_kernels_that_repeat_with_a_copy_in_each
nested = test_stages_in_traces.test_own_and_nested_time
backward_stage = test_stages_in_traces.test_backward_counts_to_the_stage_that_called_it
spans = test_stages_in_traces.test_spans_of_stagespan_hold_annotations
by_time = test_stages_in_traces.test_spans_of_several_threads_are_told_by_time
crossing = test_stages_in_traces.test_idle_time_of_stages_that_cross
idle_within = test_stages_in_traces.test_idle_time_within_stages
small_work = test_stages_in_traces.test_a_stage_of_many_small_kernels_is_named
on_host = test_stages_in_traces.test_a_stage_that_works_on_the_host_is_not_blamed_for_its_launches
graph = test_stages_in_traces.test_a_graph_is_one_launch
modules = test_layers.test_modules_with_their_own_time_and_what_they_hold
slow_layer = test_layers.test_a_layer_that_takes_longer_than_its_like
backward = test_layers.test_backward_counts_to_the_module_of_its_forward
block = test_layers.test_a_block_of_kernels_that_repeats
interrupted = test_layers.test_what_interrupts_the_layers_does_not_make_two_of_them
peak = test_memory_in_traces.test_the_peak_and_who_held_it
not_reserved = test_memory_in_traces.test_an_event_that_does_not_say_what_is_reserved
no_totals = test_memory_in_traces.test_without_totals_figures_are_above_the_begin
curve = test_memory_in_traces.test_the_curve_of_many_events_keeps_the_peak
leak = test_memory_in_traces.test_a_leak_is_found_with_who_allocates
stacks = test_flame.test_stacks_with_own_times
many_frames = test_flame.test_of_very_many_frames_the_short_ones_are_summed_up
wrappers = test_flame.test_wrappers_belong_to_the_line_that_called_them


def old_stacks(folder: Path) -> None:
    def write(events: list[Any]) -> Path:
        path = folder / "old.json"
        path.write_text(json.dumps(events))
        return path

    test_flame.test_the_stacks_of_old_profilers(write)


def no_layer(folder: Path) -> None:
    for names in ("a" * 40, "abcabcabc", "a" * 30 + "bcd" + "a" * 30):
        test_layers.test_what_is_no_layer(names, folder)


def no_leak(folder: Path) -> None:
    for leaks in ({0, 1}, {5, 6, 7}, {0, 2, 4, 6}, {7}):
        test_memory_in_traces.test_what_is_no_leak(leaks, folder)


_Parts = step_time._Parts
FAULTS: list[Fault] = [
    # (function, what stands in it, what is put there, the test that must fail)
    (step_time.step_times, "np.maximum(ranges.end_ns, work_end)", "ranges.end_ns", late),
    (step_time.step_times, "np.maximum.accumulate(np.maximum", "np.negative(np.maximum", late),
    (step_time.step_times, "(ranges.begin_ns[:1], end[:-1])", "(end[:1], end[:-1])", by_hand),
    (step_time.step_times, "gap_end - gap_begin", "gap_begin - gap_end", by_hand),
    (step_time.step_times, "np.maximum(late_begin[here], host_end)", "late_begin[here]", by_hand),
    (step_time._steps_of, "ranges.at(events.begin_ns[calls])", "ranges.at(events.begin_ns[rows])",
     late),
    (step_time._gaps, "last, ranges.end_ns)[:-1]", "first, ranges.end_ns)[:-1]", by_hand),
    (step_time._gaps, "first, ranges.begin_ns)[1:]", "last, ranges.begin_ns)[1:]", by_hand),
    (step_time._extent, "np.maximum.at(last, step, end)", "np.maximum.at(last, step, begin)", late),
    (_Parts.__init__, "kind == COMMUNICATION", "kind == COMPUTE", by_us),
    (_Parts.__init__, "self._nested[-1] | self._cover(each)", "self._cover(each)", by_us),
    (_Parts.__init__, "operators & ~communicates", "operators | communicates", host_alone),
    (_Parts.split, "end_ns - self._origin", "end_ns", by_hand),
    (steps.analyze, "times.step_of < 0", "times.step_of >= 0", late),
    (steps._rows, "times.end_ns[at] - times.begin_ns[at]", "times.end_ns[at]", by_hand),
    (step_outliers.outliers, "durations > least", "durations < least", slow),
    (step_outliers.outliers, "slow[0] &=", "slow[0] |=", late),
    (step_outliers._explained, "max(excess", "min(excess", slow_kernel),
    (step_outliers._culprit, "mine - average", "average - mine", slow),
    (step_time.StepTimes.longest_rest, "stops - starts)", "starts - stops)", slept),
    (step_outliers._culprit, "others //", "mine //", slow),
    (step_gaps.edges_of, "- times.begin_ns).sum()", "+ times.begin_ns).sum()", sleep_before),
    (Edge.finding, "percent >= least", "percent < least", sleep_before),
    (step_gaps.filled_by, "np.argmin(events", "np.argmax(events", sleep_before),
    (step_ranges._of_profiler, "rows = rows[:-1]", "rows = rows[1:]", empty_mark),
    (step_ranges._apart, "start >= last", "start < last", by_hand),
    (step_ranges._of_annotations, "range(3)", "range(1)", following),
    (step_ranges._blocks, "begin + repeat.length - 1", "begin", following),
    (step_ranges._blocks, "repeat.length == 1)", "repeat.length != 1)", following),
    (step_ranges._overlaps, "lane[1:] != lane[:-1]", "lane[1:] == lane[:-1]", overlapping),
    (step_ranges._of_optimizer, "ends[:-1], ends[1:]", "ends[1:], ends[:-1]", optimizer),
    (step_ranges._of_operators, "not _in_each(exchanges, edges) or", "", no_steps),
    (step_ranges._of_operators, ">= reach[:-1]", "< reach[:-1]", decoding),
    (step_ranges._turned, "int(within[-1]) + 1", "int(within[-1])", begins_within),
    (step_ranges._of_operators, "on_device and not", "not", decoding_on_host),
    (step_ranges._of_kernels, "edges[:-1], edges[1:]", "edges[1:], edges[:-1]", of_kernels),
    (step_ranges._in_each, "counts > 0", "counts == 0", decoding),
    (Tree.stretches, "np.append(self._time[1:], self._time[-1:])", "self._time", idle_within),
    (Tree.at, "at >= 0, self._owner", "at < 0, self._owner", by_time),
    (call_tree.with_those_below, "own.copy()", "0 * own", stacks),
    (stage_tree.stage_tree, "exclusive(events.begin_ns[rows], events.end_ns[rows], lane)",
     "events.dur_ns[rows]", nested),
    (call_tree.with_those_below, "total[here])", "0 * total[here])", nested),
    (stage_tree._idle, "sums(owner, idle", "sums(owner, end - begin", crossing),
    (stage_tree._lanes, "np.where(lane == spans[0], same[0], lane)", "lane", spans),
    (call_tree.Tree.in_one_lane, "count[at] == 1", "count[at] >= 1", by_time),
    (stage_tree._stages_of, "(stage < 0) & _backward", "(stage >= 0) & _backward", backward_stage),
    (stages._per_step, "device = tree.inclusive(device)", "device = +device", nested),
    (Stages.findings, "stage.host_self_ns > _MOST", "0 > _MOST", on_host),
    (Stages.findings, "2 * idle <", "2 * idle >", small_work),
    (Stages.findings, "stage.calls_made < _LEAST", "launched < _LEAST", graph),
    (layer_modules.modules_of, "paths.inclusive(own)", "own.copy()", modules),
    (layer_modules.modules_of, "np.where(forward < 0, of_forward, -1)", "of_forward * 0 - 1",
     backward),
    (layer_modules._spread, "sums(of, of_call, len(cells)) //", "of_call.sum() //", modules),
    (call_tree.with_those_below, "np.add.at(total", "np.subtract.at(total", modules),
    (layers.Layers.findings, "most <= _TIMES * median", "most > _TIMES * median", slow_layer),
    (layer_repeats._alike, "same_block(codes", "not same_block(codes", interrupted),
    (layer_repeats._block, ".sum(axis=1)", ".max(axis=1)", block),
    (repeats.longest_repeat, "not _is_shorter(", "True or (", no_layer),
    (repeats.longest_repeat, "(run + length) // length", "run // length", block),
    (repeats._runs, "edges[1::2] - edges[::2]", "edges[::2] - edges[1::2]", block),
    (memory_events.memory_events, "np.cumsum(sizes)", "sizes", no_totals),
    (memory_events.memory_events, "reserved[0][mine], -1)", "reserved[0][mine], 0)", not_reserved),
    (memory_events._freed_at, "sizes[then] < 0", "sizes[then] > 0", peak),
    (MemoryEvents.live_at, "self.freed_at > index", "self.freed_at < index", peak),
    (memory._device, "- events.bytes[live].sum()", "+ events.bytes[live].sum()", peak),
    (memory._holders, "events.bytes[allocates]).astype", "of).astype", peak),
    (memory._curve, "-sizes, stretch", "sizes, stretch", curve),
    (memory_place._Forest.__init__, "~named(trace", "named(trace", peak),
    (memory_place.Place.stages, "np.where(own >= 0, own, only)", "own * 0", peak),
    (memory_growth.growth_of, "np.diff(at_end) > 0", "np.diff(at_end) >= 0", no_leak),
    (memory_growth.growth_of, "[-1 - growing]", "[-growing]", leak),
    (memory_growth._allocated_in, "live >= first", "live < first", leak),
    (Growth.finding, "self.growing < _LEAST_STEPS", "self.growing < 1", no_leak),
    (flame._of_frames, "np.isin(lane, with_frames)", "lane >= 0", stacks),
    (flame._below, "forest.parent + len(threads), roots", "roots, roots", stacks),
    (flame._of_stacks, "frames[::-1]", "frames", old_stacks),
    (flame._of_stacks, "own[operators] = exclusive(", "own[operators] = -exclusive(", old_stacks),
    (flame._nested, "short.setdefault(parent, []).append(frame)", "pass", many_frames),
    (Flame._threads_that_work, "root[frame] = root[parent]", "pass", stacks),
    (Flame.tables, "own[self.parent[frame]] += own[frame]", "pass", wrappers),
]  # fmt: skip


@each(FAULTS)
def test_a_planted_fault_is_found(fault: Fault, tmp_path: Path) -> None:
    must_be_found(fault, tmp_path)
