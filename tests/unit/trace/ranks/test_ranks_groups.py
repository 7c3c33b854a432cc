"""The number of ranks in a job, from what its traces contain about process groups."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planted_ranks import Call, ranks_in, write_rank

from stagespan.trace.ranks.find import least_ranks
from stagespan.trace.read.columns import without_events

CALLS: list[Call] = [("AllReduce", 1_000.0 * n, 1_000.0 * n + 10) for n in range(1, 4)]


def with_arguments(path: Path, **more: Any) -> None:
    """Add arguments to a trace's collectives."""
    whole = json.loads(path.read_text())
    for event in whole["traceEvents"]:
        if event["name"].startswith("nccl"):
            event["args"] |= more
    path.write_text(json.dumps(whole))


@pytest.mark.parametrize(
    "config",
    [
        [{"pg_name": "0", "pg_size": 4, "ranks": [0, 1, 2, 3]}, {"pg_name": "1", "ranks": [1, 3]}],
        [{"pg_name": "0", "pg_size": 4}],
        [{"pg_name": "7", "ranks": [1, 3]}],
        '[{"pg_name": "0", "pg_desc": "default_pg", "ranks": [0, 1, 2, 3]}]',
    ],
    ids=["groups", "size", "members", "text"],
)
def test_the_process_groups_name_missing_ranks(config: object, tmp_path: Path) -> None:
    # GIVEN ranks 0 and 1 of a job whose size is only in the process groups
    for rank in range(2):
        write_rank(tmp_path, rank, CALLS, about={"pg_config": config}, host="node1")
    found = ranks_in(tmp_path)
    assert (found.world_size, found.missing) == (4, [2, 3])
    assert found.to_dict()["world_size_from"] == "pg_config"
    assert "pg_config" in found.remarks[0]


@pytest.mark.parametrize(
    "arguments",
    [{"Group size": 3}, {"Process Group Ranks": "[0, 1, 2]"}],
    ids=["size", "members"],
)
def test_the_collectives_name_missing_ranks(arguments: dict[str, Any], tmp_path: Path) -> None:
    for rank in range(2):
        path = write_rank(tmp_path, rank, CALLS, host="node1", name=f"rank{rank}.json")
        with_arguments(path, **arguments)
    assert ranks_in(tmp_path).missing == [2]


def test_the_world_size_has_priority_over_groups(tmp_path: Path) -> None:
    # GIVEN a job of three ranks, with a group in which a hostile trace names a thousandth
    for rank in range(3):
        write_rank(tmp_path, rank, CALLS, world=3, about={"pg_config": [{"ranks": [999]}]})
    found = ranks_in(tmp_path)
    assert (found.world_size, found.world_size_from, found.missing) == (3, "metadata", [])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6) | st.just("3-9"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=12,
)


@given(config=JSON, matrix=JSON)
def test_invalid_groups_give_a_number_or_none(config: Any, matrix: Any) -> None:
    # GIVEN any value instead of the groups
    trace = without_events("x")
    trace.metadata["distributedInfo"] = {"pg_config": config}
    found = least_ranks(trace, {"communication_matrix.json": matrix})
    assert found is None or 0 < found[0] <= 1_000_000
