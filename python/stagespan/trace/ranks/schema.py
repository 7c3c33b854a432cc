"""The JSON Schema of what `stagespan analyze FOLDER --json` writes under `ranks`."""

from __future__ import annotations

from typing import Any

from stagespan.trace.ranks.clocks import COLLECTIVES, HOST, UNKNOWN_CLOCK

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
    }
)
_INSTANCE = _object(
    {
        "op": _TEXT,
        "group": _MAYBE_TEXT,
        "index": _COUNT,
        "time_us": _TIME,
        "ranks": _COUNT,
        "last": _MAYBE_COUNT,
        "late_us": _TIME,
        "waited_us": _TIME,
        "lost_us": _TIME,
        "pure_us": _TIME,
    }
)
RANKS = _object(
    {
        "world_size": _MAYBE_COUNT,
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
            "anyOf": [{"type": "null"}, _object({"rank": _COUNT, "percent_over_mean": _TIME})]
        },
        "ranks": _list(_RANK),
        "collectives": _list(_GROUP),
        # The single collectives that cost most waiting, at most 50.
        "worst": _list(_INSTANCE),
    }
)
