"""The JSON Schema of what `stagespan analyze B --against A --json` adds under `against`."""

from __future__ import annotations

from typing import Any

_Schema = dict[str, Any]
_TEXT: _Schema = {"type": "string"}
_TIME: _Schema = {"type": "number"}


def _object(properties: dict[str, _Schema]) -> _Schema:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _list(items: _Schema) -> _Schema:
    return {"type": "array", "items": items}


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
