"""Ascend's analyses with a fault planted in them: exact answers of synthetic traces show it."""

from __future__ import annotations

from pathlib import Path

import test_ascend_folder as folders
import test_ascend_free as free
import test_ascend_steps as steps
import test_ascend_waits as waits
import test_head_overhead as head
from planted_faults import Fault, each, must_be_found

from stagespan.trace.analysis import (
    ascend_cores,
    ascend_free,
    ascend_host_waits,
    ascend_steps,
    ascend_waits,
    head_overhead,
    torchair_calls,
)
from stagespan.trace.analysis.head_overhead import HeadOverhead
from stagespan.trace.ascend import (
    api,
    arrows,
    cells,
    communication,
    host_operators,
    kernel_lanes,
    lanes,
    memory,
    operators,
    step_ranges,
    step_times,
    tables,
)

_Thread = torchair_calls._Thread
_look = ascend_waits._Look.wait
split = head.test_a_call_is_split_at_the_events_that_mark_its_parts
inputs = head.test_conversions_of_inputs_are_named
nearby = head.test_the_look_up_belongs_to_the_region_only_where_it_found_it
first = head.test_the_first_operator_is_the_graphs_own
again = head.test_a_further_call_of_a_region_begins_where_the_one_before_ended
compiled = head.test_calls_that_compiled_are_left_out
hidden = head.test_a_head_that_the_device_hides_is_no_finding
threads = head.test_threads_do_not_mix
same = steps.test_lanes_and_operators_give_the_same_steps
said = steps.test_the_file_agrees_or_its_difference_is_said
whole = steps.test_without_steps_all_is_one
queued = steps.test_what_a_queue_launches_belongs_to_the_step_that_asked
way = free.test_a_gap_is_split_along_the_next_operators_way
arrowed = free.test_level_0_shows_where_calls_began
cores = free.test_operators_of_the_ai_cpu_are_named
alone = folders.test_kernel_details_alone_give_the_steps
copies = free.test_copies_are_free_time_and_said_to_be
events = waits.test_event_waits_are_named_with_operator_and_time
ranks = waits.test_waits_for_other_ranks_are_told_apart
item = waits.test_item_and_to_are_named_with_their_waits
level_0 = waits.test_level_0_has_no_calls_then_the_operators_time_counts
other_to = waits.test_a_to_that_does_other_things_is_no_wait_where_calls_are_seen
beside = waits.test_an_operator_beside_one_whose_wait_is_seen
every = folders.test_every_file_of_a_folder_is_told
layouts = folders.test_other_layouts_and_units_of_tables
devices = folders.test_statistics_of_several_devices_are_summed
cut = folders.test_a_row_that_is_cut_off_is_said

FAULTS: list[Fault] = [
    # The head of compiled calls
    (_Thread._call, "begin - start", "begin + start", split),
    (_Thread._call, "entered - begin", "at - begin if at else 0", split),
    (_Thread._call, "at - entered", "end - entered", split),
    (_Thread._call, "end - at if graph", "end - begin if graph", split),
    (_Thread._start, "following == region", "True", nearby),
    (_Thread._start, "last > start", "last < start", again),
    (_Thread._start, "lookup + int", "lookup - int", split),
    (_Thread._outermost, ">= reach[:-1]", ">= 0 * reach[:-1]", inputs),
    (_Thread._outermost, "self._end[places] <= end", "self._end[places] > 0", inputs),
    (
        torchair_calls.compiled_calls,
        "events.tid[marked])",
        "events.pid[marked])",
        threads,
    ),
    (torchair_calls._with_first_operators, "(begin, call.end_ns)", "(0, call.end_ns)", first),
    (torchair_calls._with_first_operators, "int(events.begin_ns[row]) - begin", "begin", split),
    (HeadOverhead._known, "self.counted", "self.calls", compiled),
    (head_overhead._idle, "heads.begin - inside", "heads.begin", hidden),
    # Steps
    (lanes.minus, "state[:-1] == 1", "state[:-1] == -1", same),
    (lanes.lanes_from_events, "busy[1][:-1], busy[0][1:]", "busy[0][:-1], busy[1][1:]", same),
    (step_times._summed, "total[COMMUNICATING] - total", "total[COMMUNICATING] + total", same),
    (step_times._summed, "begin.min()) - total", "begin.min()) + total", same),
    (step_times._summed, "int(work.min()) -", "int(work.max()) -", same),
    (step_ranges.step_of, "begin_ns < each.end_ns", "begin_ns > each.end_ns", same),
    (step_ranges.step_ranges, "int(work[1].max())", "0", queued),
    (step_ranges.whole_range, "operators.min()", "operators.max() + 1", whole),
    (ascend_steps._apart, "_SHARE * abs(time_ns)", "abs(time_ns)", said),
    # Free time
    (ascend_free._parts, "asked - begin", "taken - begin", way),
    (ascend_free._parts, "taken - asked", "launched - asked", way),
    (ascend_free._way_of_next, "asked[through] =", "taken[through] =", way),
    (ascend_free.analyze, "free - int(", "free + int(", copies),
    (arrows.launched, "flows.begin_ns[start]", "flows.begin_ns[start] + 1", arrowed),
    (arrows.started_by, "known[order[at]] == wanted", "known[order[at]] != wanted", arrowed),
    (arrows.arrows, "hit = (at >= 0)", "hit = (at < 0)", arrowed),
    (ascend_free._around, "holds = (at >= 0)", "holds = (at < 0)", way),
    (ascend_cores.analyze, "events.dur_ns[mine].sum()), longest", "0), longest", cores),
    (kernel_lanes._lanes, "minus(talking, computing)", "talking", alone),
    # Waits
    (ascend_waits.analyze, "minus(waits[kind], computes)", "waits[kind]", events),
    (ascend_waits.analyze, "merged(begin[rows], end[rows])", "(begin[rows], end[rows])", ranks),
    (_look, "begin_ns[busy] >= end", "begin_ns[busy] >= 0", events),
    (_look, "end - begin - computed", "end - begin", events),
    (ascend_host_waits.analyze, "int(busy[mine].sum())", "int(busy.sum())", item),
    (ascend_host_waits._busy_within, "end_ns[device] - first", "end_ns[device]", item),
    (ascend_host_waits._operators_alone, "within(*mine) > 0", "within(*mine) < 0", beside),
    (ascend_host_waits._operators_alone, "dur_ns >= LONG_NS", "dur_ns >= 0", level_0),
    (ascend_host_waits._operators_alone, "if seen else SYNC", "if not seen else SYNC", other_to),
    # Files
    (cells.scaled, "* 1000 +", "* 1024 +", every),
    (cells.number, 'text.replace(",", "")', "text", layouts),
    (cells.heading, "found[1], found[2].lower()", 'found[1], "us"', layouts),
    (tables.read_table, "len(row) == width", "row", cut),
    (operators._of_kernels, "sum(all_)", "len(all_)", layouts),
    (operators._differences, "same.count != each.count", "same.count == each.count", every),
    (operators._of_statistic, "scaled(total, units[0])", "scaled(least, units[1])", devices),
    (operators._of_statistic, "number + other.count", "number", devices),
    (api._of_table, "scaled(total, unit)", "scaled(least, unit)", every),
    (communication._links, "source == target", "source != target", every),
    (communication.collectives, "name != _TOTAL", "True", every),
    (memory._peaks, "at - begin", "at", every),
    (memory._operators, "+= not release", "+= 1", every),
    (host_operators.host_operators, "(row[at] or 0) + time", "time", every),
]


@each(FAULTS)
def test_a_fault_in_the_analyses_of_ascend_is_found(fault: Fault, tmp_path: Path) -> None:
    must_be_found(fault, tmp_path)
