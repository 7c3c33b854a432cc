"""The JSON Schema of the analyses of Ascend's traces and folders."""

from __future__ import annotations

from typing import Any

from stagespan.trace.analysis.ascend_free import PARTS
from stagespan.trace.analysis.ascend_steps import FILE, KERNELS, LANES, OPERATORS

_Schema = dict[str, Any]
_TEXT: _Schema = {"type": "string"}
_MAYBE_TEXT: _Schema = {"type": ["string", "null"]}
_COUNT: _Schema = {"type": "integer", "minimum": 0}
_TIME: _Schema = {"type": "number"}
_MAYBE: _Schema = {"type": ["number", "null"]}
_FLAG: _Schema = {"type": "boolean"}


def _object(properties: dict[str, _Schema]) -> _Schema:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _list(items: _Schema) -> _Schema:
    return {"type": "array", "items": items}


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
_STEPS = _object(
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
_FREE_PARTS = _by_name(_TIME) | {"propertyNames": {"enum": list(PARTS)}}
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
_MEMORY = _object(
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
    "ascend_steps": _STEPS,
    "ascend_free": _FREE,
    "ascend_waits": _WAITS,
    "ascend_host_waits": _HOST_WAITS,
    "ascend_cores": _CORES,
    "ascend_operators": _OPERATORS,
    "ascend_api": _API,
    "ascend_collectives": _COLLECTIVES,
    "ascend_memory": _MEMORY,
    "ascend_host_operators": _HOST_OPERATORS,
    "ascend_files": _FILES,
}
