"""The JSON Schema of what `stagespan analyze FOLDER --json` writes under `ranks`."""

from __future__ import annotations

from typing import Any

from stagespan.trace.ranks.clocks import COLLECTIVES, HOST, UNKNOWN_CLOCK
from stagespan.trace.ranks.late import REASONS
from stagespan.trace.ranks.report import PARTS

_Schema = dict[str, Any]
_TEXT: _Schema = {"type": "string"}
_TIME: _Schema = {"type": "number"}
_COUNT: _Schema = {"type": "integer", "minimum": 0}
_MAYBE_TEXT: _Schema = {"type": ["string", "null"]}
_MAYBE_TIME: _Schema = {"type": ["number", "null"]}
_MAYBE_COUNT: _Schema = {"type": ["integer", "null"], "minimum": 0}


def _object(properties: dict[str, _Schema]) -> _Schema:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _list(items: _Schema) -> _Schema:
    return {"type": "array", "items": items}


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
        "parts_us": _object(dict.fromkeys(PARTS, _TIME)),
        # Of `time_us`.
        "idle_percent": _TIME,
        "exposed_percent": _TIME,
        # On Ascend, as in step_trace_time.csv.
        "stage_us": _MAYBE_TIME,
        "stage_exposed_comm_us": _MAYBE_TIME,
        "pipeline_stage": _MAYBE_COUNT,
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
        "last_in": _MAYBE_COUNT,
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
        "most_often_last": _MAYBE_COUNT,
        "most_often_last_in": _COUNT,
        "most_waited_for": _MAYBE_COUNT,
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
        "step": _MAYBE_COUNT,
        "position": _MAYBE_COUNT,
        "time_us": _TIME,
        "ranks": _COUNT,
        "last": _MAYBE_COUNT,
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
        "world_size": _MAYBE_COUNT,
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
