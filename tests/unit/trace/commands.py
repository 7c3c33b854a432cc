"""Run a verb, such as `analyze`, in the test's process; check results, their JSON and findings."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any, TypeVar

from click_runner import cli_runner
from stagespan.cli import command
from stagespan.pages.amounts import in_words
from stagespan.pages.result import Finding, Result, Unavailable
from stagespan.trace.json_schema import json_schema

R = TypeVar("R", bound=Result)
# Figures that a sentence gives in other words, or only if they are relevant.
_NOT_ALWAYS_STATED = {
    "ascend.host_bound": {"operators", "short_operators"},
    "ascend.host_waits": {"busy_percent"},
    "comparison": {"kernels", "change_ns"},
    "compiled.recompiled": {"frames"},
    "compiled.variants": {"frames"},
    "device_use": {"device"},
    "idle": {"allocations", "gaps", "releases"},
    "ranks.waiting": {"began_later_ns"},
    "ranks.imbalance": {"computing_ns", "percent", "times"},
    "ranks.exposed_communication": {"least_percent", "most_percent", "waiting_ns"},
}


def checked(found: Result | Unavailable, kind: type[R]) -> R:
    """Return the result of an analysis, which must be of a type and state all figures."""
    assert isinstance(found, kind), found
    assert unstated(found.findings()) == []
    return found


def unstated(findings: Iterable[Finding]) -> list[str]:
    """Return the figures of findings that are missing in their texts."""
    return [
        f"{each.code}: {name} = {_written(name, figure)}"
        for each in findings
        for name, figure in each.numbers.items()
        if name not in _optional(each.code) and _written(name, figure) not in each.text
    ]


def _optional(code: str) -> set[str]:
    analysis = code.split(".", maxsplit=1)[0]
    return _NOT_ALWAYS_STATED.get(code, _NOT_ALWAYS_STATED.get(analysis, set()))


def _written(name: str, figure: float) -> str:
    if name.endswith("percent"):
        return in_words(figure, "%")
    unit = next((unit for unit in ("ns", "bytes") if name.endswith(f"_{unit}")), "")
    return in_words(figure, unit)


def run(*arguments: object, verb: str = "analyze") -> tuple[int, str, str]:
    result = cli_runner().invoke(command, [verb, *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.stdout, result.stderr


@cache
def _definitions() -> dict[str, Any]:
    found: dict[str, Any] = json_schema()["$defs"]
    return found


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema itself, or the definition to which it refers."""
    if "$ref" in schema:
        return dict(_definitions()[schema["$ref"].removeprefix("#/$defs/")])
    return schema


def fits(value: Any, schema: dict[str, Any], at: str = "") -> None:
    """Check a value against the parts of JSON Schema that our schemas use."""
    schema = resolved(schema)
    unknown = schema.keys() - {
        "$schema", "$defs", "title", "description", "type", "properties", "required",
        "additionalProperties", "anyOf", "enum", "const", "items", "minItems", "maxItems",
        "prefixItems", "minimum", "propertyNames",
    }  # fmt: skip
    assert not unknown
    if "anyOf" in schema:
        problems = []
        for each in schema["anyOf"]:
            try:
                return fits(value, each, at)
            except AssertionError as problem:
                problems.append(str(problem))
        raise AssertionError("; ".join(problems))
    if "const" in schema:
        assert value == schema["const"], at
    if "enum" in schema:
        assert value in schema["enum"], at
    if "type" in schema:
        kinds = {
            "object": dict, "array": list, "string": str, "integer": int, "boolean": bool,
            "number": (int, float), "null": type(None),
        }  # fmt: skip
        wanted = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        assert any(isinstance(value, kinds[kind]) for kind in wanted), (at, value, wanted)
    if isinstance(value, dict):
        assert set(schema.get("required", ())) <= value.keys(), at
        for key, each in value.items():
            rest = schema.get("additionalProperties", {})
            fits(each, schema.get("properties", {}).get(key, rest), f"{at}/{key}")
            if "propertyNames" in schema:
                fits(key, schema["propertyNames"], at)
    if isinstance(value, list):
        assert len(value) >= schema.get("minItems", 0), at
        assert len(value) <= schema.get("maxItems", len(value)), at
        items = schema.get("prefixItems") or [schema.get("items", {})] * len(value)
        for number, (each, of_it) in enumerate(zip(value, items, strict=True)):
            fits(each, of_it, f"{at}/{number}")
    return None
