"""The JSON Schema of what `stagespan analyze --json` writes, derived from the structs of figures.

Keys may be added without a new `schema_version`. None is renamed or removed without one. Times are
in microseconds: their key, or the key of the object that contains them, ends in `_us`. The
exception is `kernels.breakdown`, which is the breakdown file of a stage, in milliseconds. What the
trace cannot show is null.
"""

from __future__ import annotations

from typing import Any, get_type_hints

from stagespan.pages.figures import Figures, schema_of
from stagespan.pages.result import Finding, Result, UnknownFigures
from stagespan.trace.analysis import SCHEMA_VERSION, TraceFigures, result_types
from stagespan.trace.compare.comparison import TraceComparison
from stagespan.trace.ranks.report import Ranks

LACKS = (
    "damaged_times",
    "device_not_recorded",
    "different_activities",
    "different_work",
    "has_device",
    "no_annotations",
    "no_communication",
    "no_compiled_graphs",
    "no_counters",
    "no_device",
    "no_durations",
    "no_files",
    "no_graphs",
    "no_launch_calls",
    "no_layers",
    "no_memory_events",
    "no_operators",
    "no_shapes",
    "no_stacks",
    "no_steps",
    "no_training",
    "no_waits",
    "not_compiled",
    "nothing_repeats",
    "shared_correlations",
    "too_many_events",
)
"""Why an analysis has no result. The codes never change."""


def figure_types() -> dict[str, type[Figures]]:
    """Return the figures of every result, by its key in the JSON."""
    results: dict[str, type[Result]] = {
        "against": TraceComparison,
        "ranks": Ranks,
        **result_types(),
    }
    return {name: _figures_of(each) for name, each in results.items()}


def _figures_of(result: type[Result]) -> type[Figures]:
    """Return the struct that describes the JSON of a result; many results are structs."""
    if issubclass(result, Figures):
        return result
    figures: type[Figures] = get_type_hints(result.figures)["return"]
    return figures


def json_schema() -> dict[str, Any]:
    """Return the schema, for draft 2020-12."""
    named = figure_types()
    types: list[type[Figures]] = [TraceFigures, Finding, UnknownFigures, *named.values()]
    (trace, finding, unknown, *analyses), definitions = schema_of(types)
    definitions["UnknownFigures"]["properties"]["code"]["enum"] = list(LACKS)
    results = dict(zip(named, analyses, strict=True))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "The analyses of a trace",
        "type": "object",
        "required": ["schema_version", "trace", "findings"],
        "properties": {
            "schema_version": {"const": SCHEMA_VERSION},
            "trace": trace,
            "findings": {"type": "array", "items": finding},
            **{name: {"anyOf": [unknown, result]} for name, result in results.items()},
        },
        # Every other analysis is also an object.
        "additionalProperties": {"type": "object"},
        "$defs": definitions,
    }
