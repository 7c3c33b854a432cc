"""Structs of figures: their JSON in microseconds, and their JSON Schema."""

from __future__ import annotations

import json
from typing import Annotated

import msgspec
import numpy as np
import pytest

from stagespan.pages.figures import Count, Figures, Internal, Ns, one_of, schema_of
from stagespan.pages.result import Evidence, Finding, Table, Unavailable
from stagespan.trace.json_schema import figure_types, json_schema


class Part(Figures, frozen=True):
    name: str
    time_ns: Ns


class Node(Figures, frozen=True):
    own_ns: Ns
    children: list[Node]


class Pair(Figures, frozen=True):
    time_ns: Ns
    rows: Internal[np.ndarray]
    names: tuple[Part, ...] = ()


class Example(Figures, frozen=True):
    """An example."""

    total_ns: Ns
    host_ns_a_step: Ns | None
    count: Count
    parts_ns: dict[Annotated[str, one_of(("a", "b"))], Ns]
    largest: Part | None
    parts: list[Part]
    spread_ns: Part
    curve: list[tuple[Ns, int]]
    line: str = msgspec.field(name="python")


def example(largest: Part | None = None) -> Example:
    return Example(
        total_ns=1_500,
        host_ns_a_step=None,
        count=3,
        parts_ns={"a": 500, "b": 1_000},
        largest=largest,
        parts=[Part("p", 250)],
        spread_ns=Part("q", 1),
        curve=[(1_000, 7)],
        line="a.py(1)",
    )


def test_figures_of_findings_are_written_in_microseconds() -> None:
    shown = (Evidence("a kernel", None, 1_500, "ns"),)
    numbers = {"time_ns": 1_500, "percent": 50.0, "left_bytes": 8, "calls": 3}
    finding = Finding("low", "A sentence.", shown, "kernels.tiny", numbers=numbers)
    written = finding.to_dict()
    assert written["figures"] == {"time_us": 1.5, "percent": 50.0, "left_bytes": 8, "calls": 3}
    assert written["evidence"][0]["figure"] == 1.5


def test_times_are_written_in_microseconds_with_the_unit_in_the_key() -> None:
    assert example(Part("most", 2_000)).to_dict() == {
        "total_us": 1.5,
        "host_us_a_step": None,
        "count": 3,
        "parts_us": {"a": 0.5, "b": 1.0},
        "largest": {"name": "most", "time_us": 2.0},
        "parts": [{"name": "p", "time_us": 0.25}],
        "spread_us": {"name": "q", "time_us": 0.001},
        "curve": [[1.0, 7]],
        "python": "a.py(1)",
    }
    assert example().to_dict()["largest"] is None


def test_a_tree_of_any_depth_is_written() -> None:
    # GIVEN a tree that is deeper than Python's limit of recursion
    tree = Node(1_000, [])
    for _ in range(5_000):
        tree = Node(1_000, [tree])
    found, depth = tree.to_dict(), 0
    while found["children"]:
        (found,), depth = found["children"], depth + 1
    assert (found["own_us"], depth) == (1.0, 5_000)


def test_the_json_of_figures_fits_their_schema() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    (schema,), definitions = schema_of([Example])
    validator = jsonschema.Draft202012Validator({**schema, "$defs": definitions})
    written = json.loads(json.dumps(example(Part("most", 2_000)).to_dict()))
    assert not list(validator.iter_errors(written))
    for wrong in ({"count": -1}, {"parts_us": {"c": 1.0}}, {"total_us": None}):
        assert list(validator.iter_errors({**written, **wrong})), wrong


def test_internal_fields_are_not_written() -> None:
    # GIVEN a struct with a field of a type that JSON does not have, and one with a default
    pair = Pair(1_500, np.arange(3), (Part("p", 250),))
    assert pair.to_dict() == {"time_us": 1.5, "names": [{"name": "p", "time_us": 0.25}]}
    assert Pair(1_500, np.arange(3)).to_dict() == {"time_us": 1.5, "names": []}
    _, definitions = schema_of([Pair])
    assert definitions["Pair"]["required"] == ["time_us", "names"]
    assert definitions["Pair"]["properties"].keys() == {"time_us", "names"}


def test_the_schema_describes_every_result() -> None:
    schema = json_schema()
    assert figure_types().keys() == schema["properties"].keys() - {
        "schema_version", "trace", "findings",
    }  # fmt: skip
    for types in figure_types().values():
        assert types.__doc__


def test_the_code_of_a_missing_result_is_in_the_schema() -> None:
    written = Unavailable("A sentence.", "no_steps").to_dict()
    assert written == {"unknown": "A sentence.", "code": "no_steps"}
    schema = json_schema()
    definition = schema["$defs"]["UnknownFigures"]
    assert written["code"] in definition["properties"]["code"]["enum"]
    assert set(definition["required"]) == set(written)


def test_a_table_is_made_from_rows_of_figures() -> None:
    rows = [example(Part("most", 2_000)), example(Part("least", 1_000))]
    found = Table.of(
        "Examples",
        rows,
        ("largest.name", "name", ""),
        ("total_ns", "time", "ns"),
        (lambda row: 2 * row.count, "twice", ""),
        ("host_ns_a_step", "host", "ns"),
        note="A note.",
    )
    columns = (("name", ""), ("time", "ns"), ("twice", ""), ("host", "ns"))
    cells = [("most", 1_500, 6, None), ("least", 1_500, 6, None)]
    assert found == Table("Examples", columns, cells, "A note.")
