"""Times replays of device graphs as stages, with one stage for each graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, overload

from stagespan import _core

_KeyT = TypeVar("_KeyT")


class GraphStage:
    """A captured graph whose replays are timed. Other attributes are those of the graph."""

    __slots__ = ("_graph", "_span")

    def __init__(self, graph: Any, stage: str) -> None:
        if not callable(getattr(graph, "replay", None)):
            raise TypeError(
                f"{type(graph).__name__} objects have no replay(): pass a captured graph, such as "
                f"a torch.cuda.CUDAGraph, or a mapping with graphs as its values."
            )
        self._graph = graph
        self._span = _core.span(stage)

    def replay(self, *args: Any, **kwargs: Any) -> Any:
        """Replay the graph inside a span. Its device time is that of the whole graph."""
        with self._span:
            return self._graph.replay(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._graph, name)

    def __repr__(self) -> str:
        return f"<{self._graph!r}, timed as {self._span.name!r}>"


@overload
def graph_stages(graphs: Mapping[_KeyT, Any], name: str) -> dict[_KeyT, Any]: ...


@overload
def graph_stages(graphs: Any, name: str) -> Any: ...


def graph_stages(graphs: Any, name: str) -> Any:
    """Return graphs whose replays are spans.

    The kernels of a device graph cannot be timed individually while it runs, so each replay is one
    span, with host time and the device time of the whole graph. A mapping has one stage for each of
    its graphs: with the name "decode", ``{8: graph, 16: graph}`` has the stages ``decode[8]`` and
    ``decode[16]``.

    Args:
        graphs: A captured graph, or a mapping from sizes to graphs. It is not changed.
        name: Name of the stage, or its first part.

    Returns:
        A graph, or a dictionary of graphs, to use in place of those that were passed.

    Raises:
        TypeError: If an object has no method ``replay``.

    Example:
        ```python
        runner.graphs = stagespan.graph_stages(runner.graphs, "decode")
        runner.graphs[8].replay()
        ```
    """
    if isinstance(graphs, Mapping):
        return {key: GraphStage(graph, f"{name}[{key}]") for key, graph in graphs.items()}
    return GraphStage(graphs, name)
