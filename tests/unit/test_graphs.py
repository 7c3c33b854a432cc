"""Replays of device graphs as stages."""

from __future__ import annotations

from typing import Any

import pytest

import stagespan


class Graph:
    """Has the attributes of torch.cuda.CUDAGraph that users of a captured graph need."""

    def __init__(self) -> None:
        self.replays = 0

    def replay(self) -> None:
        self.replays += 1

    def pool(self) -> tuple[int, int]:
        return (0, 1)


def counts(*stages: str) -> list[int]:
    found = stagespan.stats()
    return [found[stage].count if stage in found else 0 for stage in stages]


def test_each_batch_size_is_a_stage() -> None:
    graphs = {8: Graph(), 16: Graph()}
    timed = stagespan.graph_stages(graphs, "graphs.decode")
    before = counts("graphs.decode[8]", "graphs.decode[16]")

    for size in (8, 8, 16):
        timed[size].replay()

    after = counts("graphs.decode[8]", "graphs.decode[16]")
    assert [new - old for new, old in zip(after, before, strict=True)] == [2, 1]
    assert [graph.replays for graph in graphs.values()] == [2, 1]


def test_a_single_graph_has_the_name_and_the_attributes_of_a_graph() -> None:
    graph: Any = stagespan.graph_stages(Graph(), "graphs.alone")

    graph.replay()

    assert counts("graphs.alone") == [1]
    assert graph.pool() == (0, 1)
    assert "graphs.alone" in repr(graph)


def test_a_replay_that_raises_is_counted_as_an_error() -> None:
    class Broken(Graph):
        def replay(self) -> None:
            raise RuntimeError("device lost")

    with pytest.raises(RuntimeError, match="device lost"):
        stagespan.graph_stages(Broken(), "graphs.broken").replay()

    assert stagespan.stats()["graphs.broken"].errors == 1


def test_what_is_not_a_graph_is_refused() -> None:
    with pytest.raises(TypeError, match=r"int objects have no replay\(\): pass a captured graph"):
        stagespan.graph_stages({8: 8}, "decode")
