"""The JSON Schema of the analyses of kernels, operators and what torch.compile made of them."""

from __future__ import annotations

from typing import Any

from stagespan.trace.analysis.compile_time import PHASES
from stagespan.trace.analysis.compiled_work import CLASSES
from stagespan.trace.analysis.kinds import KINDS

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
