"""Each analysis with a fault planted in it: the exact answers of the planted programs show it."""

from __future__ import annotations

from pathlib import Path

import test_host
import test_idle_causes as causes
import test_use_and_launches as use
from planted_faults import Fault, each, must_be_found

from stagespan.trace.analysis import (
    device_time,
    device_use,
    gaps,
    host,
    idle,
    launches,
    split_idle,
    verdict,
    where,
)
from stagespan.trace.analysis.axis import Cover, quiet_stretches
from stagespan.trace.analysis.host_time import HostTime

_Splitter = split_idle._Splitter
dependency = causes.test_a_dependency_on_another_stream
between_steps = causes.test_a_sleep_between_steps
takes_over = causes.test_a_thread_that_takes_over_is_not_blamed_for_the_one_before
at_work = causes.test_a_thread_at_work_as_the_gap_begins_is_alone_to_blame
many_things = causes.test_many_things_in_one_gap_are_told_apart
compiling = causes.test_compiling_and_a_long_call_of_the_runtime
tiny = causes.test_hundreds_of_tiny_operators_are_launch_bound
item = causes.test_item_in_a_loop_is_a_wait_named_by_operator_and_line
small_operators = causes.test_many_small_operators_on_the_host_are_no_launching
late_graph = causes.test_a_graph_that_is_launched_late_is_launched_late
host_sleep = test_host.test_a_sleep_between_steps_and_one_within


def host_collective(tmp_path: Path) -> None:
    test_host.test_communication_that_nothing_hides("gloo:all_reduce", tmp_path)


queue = use.test_a_queue_that_grows
exposed = use.test_communication_that_nothing_hides
devices = use.test_several_devices_are_told_apart
at_odds = use.test_communication_is_not_hidden_by_what_another_device_computes
differs = use.test_a_device_that_differs_from_most_is_named
turns = use.test_devices_that_take_turns
half_idle = use.test_a_device_that_was_idle_as_long_as_it_computed_is_not_named
idle_together = use.test_devices_that_are_idle_together
apart = use.test_time_between_the_work_of_two_devices_counts_once
custom = use.test_kernels_that_communicate_without_nccl
no_stream = use.test_a_gap_is_where_no_stream_runs

FAULTS: list[Fault] = [
    # (function, what stands in it, what is put there, the test that must fail)
    (gaps.gaps, "begin[1:] > reach[:-1]", "begin[1:] > end[:-1]", no_stream),
    (gaps.gaps, "call_begin >= gap_begin", "call_begin < gap_begin", tiny),
    (gaps.gaps, "call_end <= gap_begin", "call_end > gap_begin", dependency),
    (gaps._later_in_graph, "later[firsts] = False", "later[firsts] = True", late_graph),
    (Cover._until, "- self.begin[at]", "+ self.begin[at]", many_things),
    (Cover.__or__, "self.end, other.end", "self.end, other.begin", compiling),
    (Cover.next_from, "self.end[at - 1] > place", "self.end[at - 1] < place", at_work),
    (quiet_stretches, "edges[1:][quiet]", "edges[:-1][quiet]", between_steps),
    (HostTime.blocked_at, "events.end_ns[row] >= time_ns", "events.end_ns[row] < time_ns", item),
    (HostTime.time_in, "cover.within", "-cover.within", item),
    (_Splitter._split_launched, "launch += self", "launch -= self", tiny),
    (_Splitter._split_launched, "classified(there, begin", "classified(here, begin", takes_over),
    (_Splitter._book, "preparing > LONGEST", "preparing < LONGEST", small_operators),
    (_Splitter._book, "column[causes.SYNCHRONISATION]", "column[causes.LAUNCH]", item),
    (_Splitter._queued, "~latency & crosses", "latency & crosses", dependency),
    (_Splitter._crosses, "> step(gaps.last", "< step(gaps.last", between_steps),
    (idle.sums_by_cause, "parts.parts.sum(axis=0)", "parts.parts[1:].sum(axis=0)", tiny),
    (where.waiting_operators, "end[1:] > reach[:-1]", "end[1:] < reach[:-1]", item),
    (verdict.analyze, "idle_ns > busy", "idle_ns < busy", tiny),
    (verdict.analyze, "several and name !=", "several and name ==", at_odds),
    (verdict.analyze, "waiting[CANNOT_TELL] += beside", "pass", turns),
    (verdict._idle_by_cause, "np.maximum(times, 1)", "np.minimum(times, 1)", apart),
    (verdict._idle_by_cause, "times == 0", "times > 0", apart),
    (verdict._most, "name == wanted", "name != wanted", half_idle),
    (verdict._idle_by_cause, "parts.parts * np", "parts.parts // np", idle_together),
    (verdict._differing, "own == wanted", "own != wanted", differs),
    (device_time._time, "not_copying - compute", "not_copying", exposed),
    (device_time.device_rows, "rows[mine[at]]", "rows[mine[0]]", at_odds),
    (device_time.custom_communication, "== kinds.COMM", "!= kinds.COMM", custom),
    (device_use._overlap, "[1, -1]", "[-1, 1]", exposed),
    (device_use._overlap, "busy[:-1] >= 2", "busy[:-1] >= 1", exposed),
    (device_time._time, "end.max() - begin", "end.max() + begin", devices),
    (host.analyze, "ends - begins > QUIET", "begins - ends > QUIET", host_sleep),
    (host.analyze, "begins[which], ends[which]", "ends[which], begins[which]", host_sleep),
    (host.analyze, "& ~communicates", "| communicates", host_collective),
    (launches.analyze, "begin - issued", "issued - begin", queue),
    (launches._queue, "order - np", "order + np", queue),
]


@each(FAULTS)
def test_a_planted_fault_is_found(fault: Fault, tmp_path: Path) -> None:
    must_be_found(fault, tmp_path)
