"""The JSON Schema of what `stagespan analyze --json` writes.

Keys may be added without a new `schema_version`; none is renamed or removed without one. Times end
in `_us`, or stand under a key that does, and are microseconds (but for `kernels.breakdown`, which
is the file of a stage, in milliseconds); null is what the trace cannot show.
"""

from __future__ import annotations

from typing import Any

from stagespan.trace.analysis import SCHEMA_VERSION
from stagespan.trace.analysis.causes import CAUSES
from stagespan.trace.analysis.gaps import ISSUED
from stagespan.trace.analysis.host import PARTS
from stagespan.trace.analysis.json_schema_ascend import ASCEND
from stagespan.trace.analysis.json_schema_program import PROGRAM
from stagespan.trace.analysis.json_schema_work import WORK
from stagespan.trace.analysis.result import SEVERITIES
from stagespan.trace.analysis.verdict import IDLE_CAUSES, VERDICT_PARTS, VERDICTS
from stagespan.trace.comparison.schema import AGAINST
from stagespan.trace.ranks.schema import RANKS

_Schema = dict[str, Any]
_TEXT: _Schema = {"type": "string"}
_COUNT: _Schema = {"type": "integer", "minimum": 0}
_TIME: _Schema = {"type": "number"}
_MAYBE_TEXT: _Schema = {"type": ["string", "null"]}
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


def _object(properties: dict[str, _Schema]) -> _Schema:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _list(items: _Schema) -> _Schema:
    return {"type": "array", "items": items}


def _by_name(values: _Schema, names: list[str] | None = None) -> _Schema:
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
        "left_out": _by_name(_COUNT),
        "adjusted": _by_name(_COUNT),
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
        "times_us": _by_name(_TIME, list(VERDICTS)),
        "parts_us": _by_name(_TIME, list(VERDICT_PARTS)),
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
        "gpu_events": _by_name(_COUNT),
        "n_streams": _COUNT,
        "gpu_events_without_launch_in_trace": _COUNT,
        "triton_kernels": _COUNT,
        "per_stream_busy_us": _by_name(_TIME),
        "per_device_us": _by_name(_DEVICE_TIME),
        "per_stream_us": _by_name(_DEVICE_TIME),
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
        "parts_us": _by_name(_TIME, list(CAUSES)),
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
        "by_cause": _by_name(
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
                        "by_cause_us": _by_name(_TIME, list(CAUSES)),
                    }
                ),
            ]
        },
    }
)
_FIGURES: _Schema = {
    "anyOf": [{"type": "null"}, _object({"median": _TIME, "p90": _TIME, "max": _TIME})]
}
_LAUNCHES = _object(
    {
        "launched": _COUNT,
        "without_launch": _COUNT,
        "launch_delay_us": _FIGURES,
        "launch_call_us": _FIGURES,
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
        "parts_us": _by_name(_TIME, list(PARTS)),
        "operators": _COUNT,
        "median_operator_us": _TIME,
        "instead_of_operators_us": _by_name(_by_name(_TIME), list(PARTS)),
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
