"""The recipes for requests across processes run, in real processes, as the page shows them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from recorded_process import recordings_in
from test_readme import ROOT, blocks_of

from running import ran
from stagespan import recording
from stagespan.recording.timelines import timelines

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent
BLOCKS = {
    (block.directive("file") or "").removeprefix("recipes/"): block.text
    for block in blocks_of((ROOT / "docs" / "requests_recipes.md").read_text())
}


@pytest.mark.parametrize("name", BLOCKS)
def test_recipes_are_short(name: str) -> None:
    lines = [line for line in BLOCKS[name].splitlines() if line.strip()]
    assert len([line for line in lines if not line.startswith("import ")]) <= 10


@pytest.mark.parametrize(
    ("name", "needs", "queues", "parts"),
    [
        ("web_and_queue", "uvicorn", ["tasks", "replies"], {("execution", "generate")}),
        (
            "scheduler",
            "zmq",
            ["tasks", "worker", "replies"],
            {("queue", "waiting"), ("execution", "forward")},
        ),
        (
            "replicas",
            "multiprocessing",
            ["pipe", "replies"],
            {("queue", "replica"), ("execution", "generate")},
        ),
        ("grpc_calls", "grpc", ["grpc", "replies"], {("execution", "generate")}),
        ("ray_actor", "ray", ["actor", "replies"], {("execution", "generate")}),
    ],
)
def test_recipes_show_queue_hand_off_and_execution(
    name: str,
    needs: str,
    queues: list[str],
    parts: set[tuple[str, str]],
    folder: Path,
    tmp_path: Path,
) -> None:
    pytest.importorskip(needs, reason=f"{needs} is not installed")
    for file, text in BLOCKS.items():
        (tmp_path / file).write_text(text)
    ran(
        [sys.executable, str(HERE / "recipe_processes.py"), name],
        timeout_s=240,
        status=0,
        PYTHONPATH=os.pathsep.join([str(tmp_path), str(HERE)]),
        STAGESPAN_RECORDING="keep",
    )
    found = timelines(recording.open(one.path) for one in recordings_in(folder))
    assert sorted(one.id for one in found) == ["r0", "r1", "r2", "r3"]
    for one in found:
        assert (one.status, one.causes) == ("ok", [])
        hops = [hop for hop in one.hops if hop.sender is not None]
        assert [hop.queue for hop in hops] == queues
        assert hops[-1].is_return
        assert sum(one.where.values()) == one.total_ns
        assert parts | {("execution", "render")} <= set(one.where)
        assert {("handoff", queue) for queue in queues} <= set(one.where)
