"""The JSON Schema of what `stagespan analyze --json` writes.

Keys may be added without a new `schema_version`, but none is renamed or removed without one. Times
are in microseconds; their key, or the key of the object that holds them, ends in `_us`. The
exception is `kernels.breakdown`, which is the breakdown file of a stage, in milliseconds. What the
trace cannot show is null.
"""

from __future__ import annotations

from typing import Any

from stagespan.trace.analyses.host import PARTS as PARTS_WITHOUT_DEVICE
from stagespan.trace.analyses.verdict import IDLE_CAUSES, VERDICT_PARTS, VERDICTS
from stagespan.trace.analysis import SCHEMA_VERSION
from stagespan.trace.ascend.free_time import PARTS as PARTS_OF_FREE_TIME
from stagespan.trace.ascend.steps import FILE, KERNELS, LANES, OPERATORS
from stagespan.trace.derived.compile_events import CLASSES, PHASES
from stagespan.trace.derived.gaps import ISSUED
from stagespan.trace.derived.idle_causes import CAUSES
from stagespan.trace.derived.kernel_kinds import KINDS
from stagespan.trace.derived.step_times import HOST_PARTS, PARTS
from stagespan.trace.ranks.clocks import COLLECTIVES, HOST, UNKNOWN_CLOCK
from stagespan.trace.ranks.report import PARTS as PARTS_OF_RANKS
from stagespan.trace.ranks.waits import REASONS
from stagespan.trace.result import SEVERITIES

_Schema = dict[str, Any]
_TEXT: _Schema = {"type": "string"}
_COUNT: _Schema = {"type": "integer", "minimum": 0}
_TIME: _Schema = {"type": "number"}
_MAYBE_TEXT: _Schema = {"type": ["string", "null"]}
_MAYBE_TIME: _Schema = {"type": ["number", "null"]}
_MAYBE_COUNT: _Schema = {"type": ["integer", "null"]}
_NULL: _Schema = {"type": "null"}


def _object(properties: dict[str, _Schema]) -> _Schema:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _rows(properties: dict[str, _Schema]) -> _Schema:
    return {"type": "array", "items": _object(properties)}


def _or_null(schema: _Schema) -> _Schema:
    return {"anyOf": [schema, _NULL]}


_SUMS = {"time_us": _TIME, "percent": _TIME, "count": _COUNT}
_PART = _object({"count": _COUNT, "time_us": _TIME})
_KIND: _Schema = {"enum": list(KINDS)}
# The content of a stage's breakdown file, whose times are milliseconds.
_BREAKDOWN = _object(
    {
        "name": _TEXT,
        "total_kernel_time_ms": _TIME,
        "num_kernels": _COUNT,
        "num_launches": _COUNT,
        "top_kernels": _rows(
            {
                "name": _TEXT,
                "ms": _TIME,
                "cuda_ms": _TIME,
                "device_ms": _MAYBE_TIME,
                "cpu_ms": _MAYBE_TIME,
                "count": _COUNT,
            }
        ),
    }
)
_KERNELS = _object(
    {
        "on_device": {"type": "boolean"},
        "time_us": _TIME,
        "count": _COUNT,
        "names": _COUNT,
        "kernel_time_us": _MAYBE_TIME,
        "kernels": _MAYBE_COUNT,
        "without_launch": _or_null(_PART),
        "of_graphs": _or_null(_PART),
        "by_kind": _rows({"kind": _KIND, **_SUMS}),
        "top": _rows(
            {
                "name": _TEXT,
                "kind": _KIND,
                **_SUMS,
                "min_us": _TIME,
                "max_us": _TIME,
                "operator": _MAYBE_TEXT,
                "stage": _MAYBE_TEXT,
            }
        ),
        "by_stage": _rows({"stage": _MAYBE_TEXT, **_SUMS}),
        "by_shape": _or_null(
            _rows(
                {
                    "operator": _TEXT,
                    "shape": _TEXT,
                    "kernel": _MAYBE_TEXT,
                    **_SUMS,
                    "device_events": _MAYBE_COUNT,
                }
            )
        ),
        "by_forward_operator": _or_null(_rows({"operator": _TEXT, **_SUMS})),
        "operators_by_device_time": _or_null(
            _rows({"operator": _MAYBE_TEXT, **_SUMS, "calls": _MAYBE_COUNT})
        ),
        "operators_by_host_time": _or_null(
            _rows({"operator": _TEXT, "self_us": _TIME, "duration_us": _TIME, "count": _COUNT})
        ),
        "breakdown": _BREAKDOWN,
    }
)
_COUNTS: _Schema = {"type": "object", "additionalProperties": _COUNT}
_COMPILE_TIME = _object(
    {
        "time_us": _TIME,
        "percent_of_window": _TIME,
        "phases_us": {
            "type": "object",
            "additionalProperties": _TIME,
            "propertyNames": {"enum": list(PHASES)},
        },
        "steps": _rows({"step": _TEXT, "self_us": _TIME, "count": _COUNT}),
        "compilations": _rows(
            {
                "id": _MAYBE_TEXT,
                "begin_us": _TIME,
                "time_us": _TIME,
                "recompilation": {"type": ["boolean", "null"]},
                "refused": {"type": "boolean"},
                "ran": {"type": ["boolean", "null"]},
            }
        ),
    }
)
_COMPILED = _object(
    {
        "regions": _MAYBE_COUNT,
        "calls": _MAYBE_COUNT,
        "frames": _rows(
            {
                "frame": _MAYBE_TEXT,
                "function": _MAYBE_TEXT,
                "variants": _COUNTS,
                "calls": _COUNT,
                "time_us": _TIME,
                "graph_us": _TIME,
                "backward_calls": _COUNT,
                "backward_us": _TIME,
            }
        ),
        "graphs": _object({"forward": _COUNT, "backward": _COUNT, "backward_linked": _COUNT}),
        "graph_breaks": _or_null(
            _rows(
                {
                    "before": _TEXT,
                    "after": _TEXT,
                    "line": _MAYBE_TEXT,
                    "count": _COUNT,
                    "time_us": _MAYBE_TIME,
                    "operators": _or_null(_COUNTS),
                    "called": _COUNTS,
                }
            )
        ),
        "recompilations": _rows(
            {
                "frame": _TEXT,
                "times": _COUNT,
                "in_window": _COUNT,
                "before_window": _COUNT,
                "compiled": {"type": "array", "items": _TEXT},
                "time_us": _TIME,
                "variants_run": {"type": "array", "items": _TEXT},
            }
        ),
        "compile_time": _or_null(_COMPILE_TIME),
        "cache_lookups": _PART,
        "eager_calls": _MAYBE_COUNT,
        "in_graphs": _rows(
            {
                "of": {"enum": list(CLASSES)},
                "name": _TEXT,
                "calls": _COUNT,
                "host_us": _MAYBE_TIME,
                "device_us": _MAYBE_TIME,
            }
        ),
        "triton_kinds": {"type": "object", "additionalProperties": _PART},
    }
)
WORK = {"kernels": _KERNELS, "compiled": _COMPILED}
"""By the analysis' name."""


# --- Steps, stages, layers, memory ---


_FLAG: _Schema = {"type": "boolean"}
_WHOLE_OR_NULL: _Schema = {"type": ["integer", "null"], "minimum": 0}


def _list(items: _Schema) -> _Schema:
    return {"type": "array", "items": items}


_PARTS: _Schema = {
    "type": "object",
    "additionalProperties": _TIME,
    "propertyNames": {"enum": list(dict.fromkeys([*PARTS, *HOST_PARTS]))},
}
_STEPS = _object(
    {
        "count": _COUNT,
        "told_from": {"enum": ["profiler", "annotation", "optimizer", "operators", "kernels"]},
        "how": _TEXT,
        "inferred": _FLAG,
        "step_us": _object(
            dict.fromkeys(
                ("mean", "min", "first_quartile", "median", "third_quartile", "max"), _TIME
            )
        ),
        "parts_us": _PARTS,
        "steps": _list(
            _object(
                {
                    "name": _TEXT,
                    "time_us": _TIME,
                    "step_us": _TIME,
                    "host_us": _MAYBE_TIME,
                    "parts_us": _PARTS,
                    "device_events": _WHOLE_OR_NULL,
                    "device_us": _MAYBE_TIME,
                    "after_host_us": _MAYBE_TIME,
                }
            )
        ),
        "steps_left_out": _COUNT,
        "between": _object(
            {
                "total_us": _TIME,
                "median_us": _MAYBE_TIME,
                "parts_us": _PARTS,
                "largest": _list(
                    _object(
                        {
                            "after": _TEXT,
                            "time_us": _TIME,
                            "gap_us": _TIME,
                            "parts_us": _PARTS,
                            "host_event": _MAYBE_TEXT,
                        }
                    )
                ),
            }
        ),
        "before_device_us": _TIME,
        "behind_device_us": _TIME,
        "outliers": _list(
            _object(
                {
                    "name": _TEXT,
                    "step_us": _TIME,
                    "part": {"enum": list(dict.fromkeys([*PARTS, *HOST_PARTS]))},
                    "part_us": _TIME,
                    "part_of_others_us": _TIME,
                    "event": _MAYBE_TEXT,
                }
            )
        ),
        "earlier_work_us": _MAYBE_TIME,
        "earlier_work_recorded": {"type": ["boolean", "null"]},
        "device_events_outside": _COUNT,
        "device_events_outside_us": _TIME,
    }
)
_STAGES = _object(
    {
        "stages": _list(
            _object(
                {
                    "path": _list(_TEXT) | {"minItems": 1},
                    "calls": _COUNT,
                    "host_us": _TIME,
                    "host_self_us": _TIME,
                    "device_us": _MAYBE_TIME,
                    "device_self_us": _MAYBE_TIME,
                    "device_events": _WHOLE_OR_NULL,
                    "device_events_self": _WHOLE_OR_NULL,
                    "launches_self": _COUNT,
                    "device_idle_self_us": _MAYBE_TIME,
                    "steps": _WHOLE_OR_NULL,
                    "host_us_a_step": _MAYBE_TIME,
                    "device_us_a_step": _MAYBE_TIME,
                }
            )
        ),
        "stages_left_out": _COUNT,
        "device_us": _MAYBE_TIME,
        "device_events_outside": _COUNT,
        "device_events_outside_us": _TIME,
        "device_events_told_by_time": _COUNT,
    }
)
_SPREAD = _object(dict.fromkeys(("min", "median", "max"), _TIME))
_LAYERS = _object(
    {
        "told_from": {"enum": ["modules", "repetition"]},
        "inferred": _FLAG,
        "modules": _list(
            _object(
                {
                    "path": _list(_TEXT) | {"minItems": 1},
                    "instances": _COUNT,
                    "calls": _COUNT,
                    "host_us": _TIME,
                    "host_self_us": _TIME,
                    "device_us": _MAYBE_TIME,
                    "device_self_us": _MAYBE_TIME,
                    "device_events": _WHOLE_OR_NULL,
                    "backward_device_us": _MAYBE_TIME,
                    "call_of_an_instance_us": _SPREAD,
                    "slowest": _TEXT,
                }
            )
        ),
        "modules_left_out": _COUNT,
        "device_events_outside": _WHOLE_OR_NULL,
        "device_events_outside_us": _MAYBE_TIME,
        "blocks": _list(
            _object(
                {
                    "first": _TEXT,
                    "heaviest": _TEXT,
                    "events": _COUNT,
                    "times": _COUNT,
                    "layers": _COUNT,
                    "time_us": _TIME,
                    "total_us": _TIME,
                    "block_us": _SPREAD,
                    "slowest": _COUNT,
                }
            )
        ),
        "blocks_of": {"enum": ["kernels", "operators", None]},
        "blocks_in_step": _MAYBE_TEXT,
    }
)
# Those within have the same keys, and so on.
_FRAME = _object(
    {
        "name": _TEXT,
        "self_us": _TIME,
        "total_us": _TIME,
        "children": _list({"type": "object"}),
    }
)
_FLAME = _object(
    {
        "told_from": {"enum": ["frames", "call_stack"]},
        "frames": _COUNT,
        "total_us": _TIME,
        "tree": _FRAME,
    }
)
_HOLDER = _object(
    {
        "operator": _MAYBE_TEXT,
        "stage": _MAYBE_TEXT,
        "python": _MAYBE_TEXT,
        "allocations": _COUNT,
        "allocated_bytes": _COUNT,
        "bytes_at_peak": _WHOLE_OR_NULL,
    }
)
_BYTES: _Schema = {"type": "integer"}
_MAYBE_BYTES: _Schema = {"type": ["integer", "null"]}
_MEMORY = _object(
    {
        "devices": _list(
            _object(
                {
                    "device": _TEXT,
                    "events": _COUNT,
                    "total_known": _FLAG,
                    "peak_bytes": _BYTES,
                    "peak_time_us": _TIME,
                    "peak_in_step": _MAYBE_TEXT,
                    "peak_by": {"anyOf": [{"type": "null"}, _HOLDER]},
                    "from_before_at_peak_bytes": _MAYBE_BYTES,
                    "first_bytes": _BYTES,
                    "last_bytes": _BYTES,
                    "reserved_at_peak_bytes": _MAYBE_BYTES,
                    "reserved_unused_at_peak_bytes": _MAYBE_BYTES,
                    "most_reserved_bytes": _MAYBE_BYTES,
                    "holders": _list(_HOLDER),
                    "steps": {
                        "anyOf": [
                            {"type": "null"},
                            _object(
                                {
                                    "steps": _list(
                                        _object(
                                            {
                                                "name": _TEXT,
                                                "peak_bytes": _BYTES,
                                                "end_bytes": _BYTES,
                                            }
                                        )
                                    ),
                                    "growing_steps": _COUNT,
                                    "left_bytes": _BYTES,
                                    "left_by": _MAYBE_TEXT,
                                }
                            ),
                        ]
                    },
                    "curve": _list(_list(_TIME)),
                }
            )
        ),
        "events_left_out": _COUNT,
    }
)
PROGRAM = {
    "steps": _STEPS,
    "stages": _STAGES,
    "layers": _LAYERS,
    "flame": _FLAME,
    "memory": _MEMORY,
}


# --- Ascend ---


_MAYBE: _Schema = {"type": ["number", "null"]}


def _by_name(values: _Schema) -> _Schema:
    return {"type": "object", "additionalProperties": values}


def _times(*names: str) -> dict[str, _Schema]:
    return dict.fromkeys(names, _TIME)


def _maybe(*names: str) -> dict[str, _Schema]:
    return dict.fromkeys(names, _MAYBE)


_SOURCE: _Schema = {"enum": [LANES, OPERATORS, FILE, KERNELS]}
_STEP = _object(
    {
        "device": _MAYBE_TEXT,
        "step": _MAYBE_TEXT,
        **_maybe(
            "computing_us",
            "communication_not_overlapped_us",
            "overlapped_us",
            "communication_us",
            "free_us",
            "stage_us",
            "bubble_us",
            "communication_not_overlapped_exclude_receive_us",
            "preparing_us",
        ),
    }
)
_ASCEND_STEPS = _object(
    {
        "source": _SOURCE,
        "steps": _list(_STEP),
        "checked_against": _by_name(_list(_STEP)),
        "differences": _list(
            _object(
                {
                    "step": _TEXT,
                    "figure": _TEXT,
                    "source": _SOURCE,
                    "time_us": _TIME,
                    "other": _SOURCE,
                    "other_us": _TIME,
                }
            )
        ),
    }
)
_FREE_PARTS = _by_name(_TIME) | {"propertyNames": {"enum": list(PARTS_OF_FREE_TIME)}}
_FREE = _object(
    {
        **_times("span_us", "free_us", "host_bound_us", "median_operator_us"),
        "parts_us": _FREE_PARTS,
        "gaps": _COUNT,
        "operators": _COUNT,
        "operators_below_10_us": _COUNT,
        "largest_gaps": _list(
            _object(
                {
                    **_times("time_us", "free_us"),
                    "parts_us": _FREE_PARTS,
                    "next_operator": _TEXT,
                }
            )
        ),
    }
)
_WAITS = _object(
    {
        "span_us": _TIME,
        "by_kind": _by_name(
            _object(
                {
                    "meaning": _TEXT,
                    "waits": _COUNT,
                    **_times("wait_us", "nothing_computed_us", "in_exposed_communication_us"),
                }
            )
        ),
        "largest": _list(
            _object(
                {
                    "kind": _TEXT,
                    "event": _TEXT,
                    **_times("time_us", "wait_us", "nothing_computed_us"),
                    "stream": _TEXT,
                    "operator": _MAYBE_TEXT,
                    "beside": _MAYBE_TEXT,
                }
            )
        ),
    }
)
_HOST_WAITS = _object(
    {
        **_times("window_us", "wait_us"),
        "waits": _list(
            _object(
                {
                    "operator": _MAYBE_TEXT,
                    "call": _MAYBE_TEXT,
                    "python": _MAYBE_TEXT,
                    "waits": _COUNT,
                    **_times("wait_us", "device_busy_us", "longest_us", "longest_at_us"),
                }
            )
        ),
        "longest": _list(
            _object({"operator": _MAYBE_TEXT, "event": _TEXT, **_times("time_us", "wait_us")})
        ),
    }
)
_CORES = _object(
    {
        "cores": _list(_object({"core": _TEXT, "operators": _COUNT, "total_us": _TIME})),
        "ai_cpu_operators": _list(_object({"name": _TEXT, "count": _COUNT, "total_us": _TIME})),
    }
)
_HEAD_PARTS = _maybe(
    "framework_us",
    "framework_cache_lookup_us",
    "framework_guards_us",
    "torchair_us",
    "torchair_python_us",
    "torchair_cpp_us",
    "ge_to_compiler_end_us",
    "ge_execute_us",
    "ge_to_first_operator_us",
    "graph_replay_us",
    "unknown_us",
)
_CONVERTED = _object({"operators": _COUNT, "time_us": _TIME})
_HEAD = _object(
    {
        "calls": _COUNT,
        "calls_that_compiled": _COUNT,
        "counted_calls": _COUNT,
        "head_us": _TIME,
        "device_idle_us": _MAYBE,
        "totals": _object(_HEAD_PARTS),
        "medians": _object(_HEAD_PARTS),
        "scalar_inputs": _CONVERTED,
        "non_contiguous_inputs": _CONVERTED,
        "other_events_us": _by_name(_TIME),
        "per_call": _list(
            _object(
                {
                    "time_us": _TIME,
                    "region": _MAYBE_TEXT,
                    "execute": _MAYBE_TEXT,
                    "head_us": _TIME,
                    **_HEAD_PARTS,
                    "first_operator": _MAYBE_TEXT,
                    "first_operator_by": {"enum": ["launch", "time", None]},
                    "compiled": _FLAG,
                    **_times("scalar_inputs_us", "non_contiguous_inputs_us"),
                }
            )
        ),
    }
)
_OPERATORS = _object(
    {
        "source": _TEXT,
        "operators": _COUNT,
        "total_us": _TIME,
        "unread_rows": _COUNT,
        "by_type": _list(
            _object(
                {
                    "type": _TEXT,
                    "core": _TEXT,
                    "count": _COUNT,
                    "total_us": _TIME,
                    **_maybe("total_of_kernel_details_us", "min_us", "avg_us", "max_us"),
                    "percent": _TIME,
                }
            )
        ),
        "compared": _FLAG,
        "differences": _list(_TEXT),
    }
)
_API = _object(
    {
        "source": _TEXT,
        "calls": _list(
            _object(
                {
                    "level": _MAYBE_TEXT,
                    "name": _TEXT,
                    "count": _COUNT,
                    "total_us": _TIME,
                    **_maybe("avg_us", "min_us", "max_us"),
                }
            )
        ),
        "unread_rows": _COUNT,
        "compared_functions": _COUNT,
        "differences": _list(_TEXT),
    }
)
_COLLECTIVES = _object(
    {
        "operations": _list(
            _object(
                {
                    "step": _TEXT,
                    "name": _TEXT,
                    **_maybe("elapse_us", "transit_us", "wait_us", "synchronization_us", "idle_us"),
                    "sent": _by_name(_object({"megabytes": _TIME, "gb_per_s": _MAYBE})),
                }
            )
        ),
        "links": _list(
            _object(
                {
                    **dict.fromkeys(("step", "from", "to", "transport"), _TEXT),
                    **_times("megabytes", "transit_us"),
                    "gb_per_s": _MAYBE,
                }
            )
        ),
        "compared_operations": _COUNT,
        "differences": _list(_TEXT),
    }
)
_ASCEND_MEMORY = _object(
    {
        "peaks": _list(
            _object(
                {
                    "component": _TEXT,
                    "device": _MAYBE_TEXT,
                    **_maybe("reserved_bytes", "allocated_bytes", "allocated_at_us"),
                    "records": _COUNT,
                }
            )
        ),
        "operators": _list(
            _object(
                {
                    "name": _TEXT,
                    **dict.fromkeys(("allocations", "total_bytes", "largest_bytes"), _COUNT),
                    "not_released": {"type": ["integer", "null"], "minimum": 0},
                }
            )
        ),
        "unread_rows": _COUNT,
    }
)
_HOST_OPERATORS = _object(
    {
        "operators": _list(
            _object(
                {
                    "name": _TEXT,
                    "calls": _COUNT,
                    **_maybe("host_self_us", "host_total_us", "device_self_us", "device_total_us"),
                }
            )
        ),
        "unread_rows": _COUNT,
    }
)
_FILES = _object(
    {
        "path": _TEXT,
        "output": _TEXT,
        "level": _MAYBE_TEXT,
        "rank": {"type": ["integer", "null"]},
        "read": _by_name(_COUNT),
        "missing": _list(_TEXT),
        "problems": _list(_TEXT),
    }
)
ASCEND = {
    "head_overhead": _HEAD,
    "ascend_steps": _ASCEND_STEPS,
    "ascend_free": _FREE,
    "ascend_waits": _WAITS,
    "ascend_host_waits": _HOST_WAITS,
    "ascend_cores": _CORES,
    "ascend_operators": _OPERATORS,
    "ascend_api": _API,
    "ascend_collectives": _COLLECTIVES,
    "ascend_memory": _ASCEND_MEMORY,
    "ascend_host_operators": _HOST_OPERATORS,
    "ascend_files": _FILES,
}


# --- Comparisons ---


_FIGURES: dict[str, _Schema] = {
    "name": _TEXT,
    "before_us": _TIME,
    "after_us": _TIME,
    "change_us": _TIME,
    # Launches or calls in a step, on average.
    "before_count": {"type": "number", "minimum": 0},
    "after_count": {"type": "number", "minimum": 0},
}
_CHANGE = _object(_FIGURES)
_SIDE = _object(
    {
        "path": _TEXT,
        # 0 where all of the trace is compared.
        "steps": {"type": "integer", "minimum": 0},
        "time_us": _TIME,
        "each_step_us": _list(_TIME),
    }
)
AGAINST = _object(
    {
        "per": {"enum": ["step", "trace"]},
        "before": _SIDE,
        "after": _SIDE,
        "change_us": _TIME,
        "change_percent": {"type": ["number", "null"]},
        "within_variation": {"type": "boolean"},
        "remarks": _list(_TEXT),
        # Their changes sum to `change_us`; those of `host`, own times of operators on the host's
        # busiest thread, do too.
        "parts": _list(_CHANGE),
        **dict.fromkeys(
            ("stages", "layers", "operators", "host", "waits", "new_kernels", "vanished_kernels"),
            _list(_CHANGE),
        ),
        "kernels": _list(
            _object({**_FIGURES, "operator": _TEXT, "old_name": {"type": ["string", "null"]}})
        ),
        "renamed_kernels": _list(_object({**_FIGURES, "old_name": _TEXT})),
    }
)


# --- Ranks ---


_COUNT_OR_NULL: _Schema = {"type": ["integer", "null"], "minimum": 0}


_RANK = _object(
    {
        "rank": _COUNT,
        "path": _TEXT,
        "rank_from": {"enum": ["metadata", "name"]},
        "backend": _TEXT,
        "host": _MAYBE_TEXT,
        "window_us": _TIME,
        "steps": _COUNT,
        "step_us": _MAYBE_TIME,
        "verdict": _TEXT,
        "verdict_sentence": _MAYBE_TEXT,
        "time_us": _TIME,
        # They sum to `time_us`.
        "parts_us": _object(dict.fromkeys(PARTS_OF_RANKS, _TIME)),
        # Of `time_us`.
        "idle_percent": _TIME,
        "exposed_percent": _TIME,
        # On Ascend, as in step_trace_time.csv.
        "stage_us": _MAYBE_TIME,
        "stage_exposed_comm_us": _MAYBE_TIME,
        "pipeline_stage": _COUNT_OR_NULL,
        **dict.fromkeys(
            (
                "span_us",
                "busy_us",
                "idle_us",
                "compute_union_us",
                "comm_union_us",
                "exposed_comm_us",
                "clock_offset_us",
                "clock_error_us",
                "made_others_wait_us",
                # What all ranks lost where it came last.
                "waited_for_us",
                "waited_us",
                # Of it, with nothing computed meanwhile.
                "lost_us",
                "computed_us",
            ),
            _MAYBE_TIME,
        ),
        "clock_from": {"enum": [HOST, COLLECTIVES, UNKNOWN_CLOCK]},
        "matched_collectives": _COUNT,
        "last_in": _COUNT_OR_NULL,
        # The parts of `waited_for_us`, by why it was late.
        "late_because_us": {"anyOf": [{"type": "null"}, _object(dict.fromkeys(REASONS, _TIME))]},
    }
)
_GROUP = _object(
    {
        "op": _TEXT,
        "group": _MAYBE_TEXT,
        "count": _COUNT,
        "pure_us": _TIME,
        "waited_us": _TIME,
        "lost_us": _TIME,
        # Of the shortest duration on any rank, by the bytes that a link carries.
        "bus_gb_per_s": _MAYBE_TIME,
        "late_max_us": _TIME,
        "most_often_last": _COUNT_OR_NULL,
        "most_often_last_in": _COUNT,
        "most_waited_for": _COUNT_OR_NULL,
        "most_waited_for_us": _MAYBE_TIME,
        "most_waited_for_in": _COUNT,
    }
)
_INSTANCE = _object(
    {
        "op": _TEXT,
        "group": _MAYBE_TEXT,
        "index": _COUNT,
        # Of the step, and of the collective among the step's of its group.
        "step": _COUNT_OR_NULL,
        "position": _COUNT_OR_NULL,
        "time_us": _TIME,
        "ranks": _COUNT,
        "last": _COUNT_OR_NULL,
        "late_us": _TIME,
        "waited_us": _TIME,
        "lost_us": _TIME,
        "pure_us": _TIME,
        # After the last rank had come, without any data that moved.
        "still_us": _MAYBE_TIME,
    }
)
RANKS = _object(
    {
        "verdict": _object({"verdict": _TEXT, "sentence": _TEXT}),
        "world_size": _COUNT_OR_NULL,
        "world_size_from": _MAYBE_TEXT,
        "found": _list(_COUNT),
        "missing": _list(_COUNT),
        "duplicated": {"type": "object", "additionalProperties": _list(_TEXT)},
        "without_rank": _list(_TEXT),
        "unreadable": _list(_object({"path": _TEXT, "reason": _TEXT})),
        "remarks": _list(_TEXT),
        "matched_collectives": _COUNT,
        "waited_us": _MAYBE_TIME,
        "lost_us": _MAYBE_TIME,
        "lost_percent": _MAYBE_TIME,
        "imbalance": {
            "anyOf": [
                {"type": "null"},
                _object(
                    {
                        "rank": _COUNT,
                        "percent_over_mean": _TIME,
                        "ranks": _list(_COUNT),
                        "times_the_others": _MAYBE_TIME,
                    }
                ),
            ]
        },
        "ranks": _list(_RANK),
        "collectives": _list(_GROUP),
        # The single collectives that cost most waiting, at most 50.
        "worst": _list(_INSTANCE),
    }
)


# --- The document ---


_MAYBE_NUMBER: _Schema = {"type": ["number", "null"]}


def json_schema() -> dict[str, Any]:
    """The schema, for draft 2020-12."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "What a trace says",
        "type": "object",
        "required": ["schema_version", "trace", "findings"],
        "properties": {
            "schema_version": {"const": SCHEMA_VERSION},
            "trace": _TRACE,
            "findings": _list(_FINDING),
            **{name: {"anyOf": [_UNKNOWN, part]} for name, part in _ANALYSES.items()},
        },
        # Every other analysis is an object too.
        "additionalProperties": {"type": "object"},
    }


def _counts_by_name(values: _Schema, names: list[str] | None = None) -> _Schema:
    schema: _Schema = {"type": "object", "additionalProperties": values}
    return schema | ({"propertyNames": {"enum": names}} if names else {})


_UNKNOWN = _object({"unknown": _TEXT})
_EVIDENCE = _object(
    {"event": _TEXT, "time_us": _MAYBE_NUMBER, "figure": _MAYBE_NUMBER, "unit": _TEXT}
)
_FINDING = _object(
    {
        "code": _TEXT,
        "severity": {"enum": list(SEVERITIES)},
        "sentence": _TEXT,
        "evidence": _list(_EVIDENCE) | {"minItems": 1},
    }
)
_TRACE = _object(
    {
        "path": _TEXT,
        "entries": _COUNT,
        "window_begin_ns": {"type": ["integer", "null"]},
        "window_us": _MAYBE_NUMBER,
        "incomplete": _MAYBE_TEXT,
        "left_out": _counts_by_name(_COUNT),
        "adjusted": _counts_by_name(_COUNT),
    }
)
_VERDICT = _object(
    {
        "verdict": {"enum": list(VERDICTS)},
        "sentence": _TEXT,
        "base": _object(
            {
                "of": {"enum": ["steps", "trace"]},
                "steps": _COUNT,
                "time_us": _TIME,
                "whole_us": _TIME,
                "unrecorded_work_us": _TIME,
            }
        ),
        "whole_us": _TIME,
        "span_us": _TIME,
        "time_us": _TIME,
        "percent": _TIME,
        "times_us": _counts_by_name(_TIME, list(VERDICTS)),
        "parts_us": _counts_by_name(_TIME, list(VERDICT_PARTS)),
        "cause": {"enum": [*IDLE_CAUSES, None]},
        "preparing": _MAYBE_TEXT,
    }
)
_DEVICE_TIME = _object(
    dict.fromkeys(
        (
            "busy",
            "idle",
            "span",
            "compute",
            "comm",
            "exposed_comm",
            "memcpy",
            "exposed_memcpy",
        ),
        _TIME,
    )
)
_DEVICE_USE = _object(
    {
        "events": _COUNT,
        "gpu_events": _counts_by_name(_COUNT),
        "n_streams": _COUNT,
        "gpu_events_without_launch_in_trace": _COUNT,
        "triton_kernels": _COUNT,
        "per_stream_busy_us": _counts_by_name(_TIME),
        "per_device_us": _counts_by_name(_DEVICE_TIME),
        "per_stream_us": _counts_by_name(_DEVICE_TIME),
        "hidden_comm_percent": _MAYBE_NUMBER,
        **dict.fromkeys(
            (
                "span_us",
                "busy_us",
                "idle_us",
                "compute_union_us",
                "comm_union_us",
                "exposed_comm_us",
                "memcpy_union_us",
                "exposed_memcpy_us",
                "kernel_dur_sum_us",
                "overlap_us",
                "hidden_comm_us",
                "custom_comm_us",
                "gpu_events_without_launch_us",
            ),
            _TIME,
        ),
    }
)
_GAP = _object(
    {
        "time_us": _TIME,
        "idle_us": _TIME,
        "cause": {"enum": list(CAUSES)},
        "parts_us": _counts_by_name(_TIME, list(CAUSES)),
        "next_launch_issued": {"enum": list(ISSUED)},
        "culprit": _MAYBE_TEXT,
        "python": _MAYBE_TEXT,
        "launch": _MAYBE_TEXT,
        "previous_on_device": _TEXT,
        "next_on_device": _TEXT,
        "between_steps": {"type": "boolean"},
        "waited_for": _MAYBE_TEXT,
    }
)
_IDLE = _object(
    {
        "span_us": _TIME,
        "idle_us": _TIME,
        "idle_percent": _TIME,
        "gaps": _COUNT,
        "by_cause": _counts_by_name(
            _object({"meaning": _TEXT, "idle_us": _TIME, "percent_of_idle": _TIME, "gaps": _COUNT}),
            list(CAUSES),
        ),
        "blocking_calls": _list(
            _object(
                {
                    "cause": {"enum": list(CAUSES)},
                    "operator": _MAYBE_TEXT,
                    "call": _TEXT,
                    "python": _MAYBE_TEXT,
                    "idle_us": _TIME,
                    "in_call_us": _TIME,
                    "calls": _COUNT,
                    "waited_for": _MAYBE_TEXT,
                }
            )
        ),
        "largest_gaps": _list(_GAP),
        "patterns": _list(
            _object(
                {
                    "cause": {"enum": list(CAUSES)},
                    "next_on_device": _TEXT,
                    "gaps": _COUNT,
                    "idle_us": _TIME,
                    "least_us": _TIME,
                    "most_us": _TIME,
                    "every_us": _MAYBE_NUMBER,
                    "one_a_step": {"type": "boolean"},
                    "launched_before": _COUNT,
                    "launched_later": _COUNT,
                    "launch_unknown": _COUNT,
                    "begun_after_launch_us": _MAYBE_NUMBER,
                    "stream_wait": _MAYBE_TEXT,
                    "host_call": _MAYBE_TEXT,
                    "host_call_in_gaps": _COUNT,
                    "host_call_us": _MAYBE_NUMBER,
                    "host_operator": _MAYBE_TEXT,
                    "host_annotation": _MAYBE_TEXT,
                    "python": _MAYBE_TEXT,
                }
            )
        ),
        "start_up": {
            "anyOf": [
                {"type": "null"},
                _object(
                    {
                        "in": _TEXT,
                        "idle_us": _TIME,
                        "gaps": _COUNT,
                        "by_cause_us": _counts_by_name(_TIME, list(CAUSES)),
                    }
                ),
            ]
        },
    }
)
_TRACE_FIGURES: _Schema = {
    "anyOf": [{"type": "null"}, _object({"median": _TIME, "p90": _TIME, "max": _TIME})]
}
_LAUNCHES = _object(
    {
        "launched": _COUNT,
        "without_launch": _COUNT,
        "launch_delay_us": _TRACE_FIGURES,
        "launch_call_us": _TRACE_FIGURES,
        "queue_depth": {"anyOf": [{"type": "null"}, _object({"mean": _TIME, "max": _COUNT})]},
        "launches_to_empty_device": _COUNT,
        "graphs": _list(
            _object(
                {"call": _TEXT, "launches": _COUNT, "device_events": _COUNT, "device_us": _TIME}
            )
        ),
    }
)
_HOST = _object(
    {
        "span_us": _TIME,
        "parts_us": _counts_by_name(_TIME, list(PARTS_WITHOUT_DEVICE)),
        "operators": _COUNT,
        "median_operator_us": _TIME,
        "instead_of_operators_us": _counts_by_name(
            _counts_by_name(_TIME), list(PARTS_WITHOUT_DEVICE)
        ),
    }
)
_ANALYSES = {
    "against": AGAINST,
    "ranks": RANKS,
    "verdict": _VERDICT,
    "device_use": _DEVICE_USE,
    "idle": _IDLE,
    "launches": _LAUNCHES,
    "host": _HOST,
    **PROGRAM,
    **WORK,
    **ASCEND,
}
