"""Gauges: the latest values of what a program observes itself."""

from __future__ import annotations

from stagespan import _core


def gauge(name: str, value: float) -> None:
    """Record the latest value of something, such as the free blocks of a cache.

    `stagespan.recording.Recording.gauges` and the metric ``stagespan_gauge{name}`` show it. A
    process has at most 64 names of 56 bytes. Values of further names, and those that are not
    finite, are counted in `stagespan.lost` as ``work``.

    Raises:
        TypeError: If ``name`` is not a text, or ``value`` not a number.

    Example:
        ```python
        stagespan.gauge("kv_blocks_free", 1_204)
        ```
    """
    _core.gauge_set(name, value)
