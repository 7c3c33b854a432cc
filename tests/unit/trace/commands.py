"""Run `stagespan analyze` in the test's process, and check its JSON against its schema."""

from __future__ import annotations

from functools import cache
from typing import Any

from click.testing import CliRunner

from stagespan.cli import command
from stagespan.trace.render.json_schema import json_schema


def run(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(command, ["analyze", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.stdout, result.stderr


@cache
def _definitions() -> dict[str, Any]:
    found: dict[str, Any] = json_schema()["$defs"]
    return found


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema itself, or the definition to which it refers."""
    if "$ref" in schema:
        return dict(_definitions()[schema["$ref"].removeprefix("#/$defs/")])
    return schema


def fits(value: Any, schema: dict[str, Any], at: str = "") -> None:
    """Check a value against the parts of JSON Schema that ours uses."""
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
