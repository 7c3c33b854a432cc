"""The parts of the JSON Schema about the program's structure: steps, stages, layers, memory."""

from __future__ import annotations

from typing import Any

from stagespan.trace.analysis.step_time import HOST_PARTS, PARTS

_Schema = dict[str, Any]
_TEXT: _Schema = {"type": "string"}
_MAYBE_TEXT: _Schema = {"type": ["string", "null"]}
_FLAG: _Schema = {"type": "boolean"}
_COUNT: _Schema = {"type": "integer", "minimum": 0}
_MAYBE_COUNT: _Schema = {"type": ["integer", "null"], "minimum": 0}
_TIME: _Schema = {"type": "number"}
_MAYBE_TIME: _Schema = {"type": ["number", "null"]}


def _object(properties: dict[str, _Schema]) -> _Schema:
    return {"type": "object", "properties": properties, "required": list(properties)}


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
                    "device_events": _MAYBE_COUNT,
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
                    "device_events": _MAYBE_COUNT,
                    "device_events_self": _MAYBE_COUNT,
                    "launches_self": _COUNT,
                    "device_idle_self_us": _MAYBE_TIME,
                    "steps": _MAYBE_COUNT,
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
                    "device_events": _MAYBE_COUNT,
                    "backward_device_us": _MAYBE_TIME,
                    "call_of_an_instance_us": _SPREAD,
                    "slowest": _TEXT,
                }
            )
        ),
        "modules_left_out": _COUNT,
        "device_events_outside": _MAYBE_COUNT,
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
        "bytes_at_peak": _MAYBE_COUNT,
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
