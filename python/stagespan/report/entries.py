"""The types of a timing report, as `timing_report` returns it and ``timing.json`` contains it.

Times are in the unit of their name. None means unknown.
"""

from __future__ import annotations

from typing import Any, TypedDict

from stagespan.device.environment import Environment


class ParentEntry(TypedDict):
    """A stage's runs under one parent stage; ``parent`` is None for top-level runs."""

    parent: str | None
    count: int
    duration_ms: float


class StageEntry(TypedDict):
    """One stage of a report. ``duration_ms`` is ``children_ms`` + ``unattributed_ms``.

    ``percentage`` is None for a stage that only ran inside others. The device figures are sums and
    means over the ``device_runs`` runs with a known device time, and None without such runs.
    """

    duration_ms: float
    percentage: float | None
    count: int
    mean_ms: float
    min_ms: float
    max_ms: float
    p25_ms: float
    p50_ms: float
    p75_ms: float
    p95_ms: float
    p99_ms: float
    errors: int
    suspended_ms: float
    children_ms: float
    unattributed_ms: float
    device_runs: int | None
    device_elapsed_ms: float | None
    device_queue_ms: float | None
    device_tail_ms: float | None
    device_elapsed_mean_ms: float | None
    device_queue_mean_ms: float | None
    device_tail_mean_ms: float | None
    work: dict[str, float]
    work_per_s: dict[str, float | None]
    memory: dict[str, Any] | None
    parent: str | None
    parents: list[ParentEntry]
    signatures: list[dict[str, Any]]
    parallel_info: dict[str, Any] | None


class RequestStageEntry(TypedDict):
    """The figures of one stage in one request."""

    duration_ms: float
    count: int
    errors: int
    top_level_ms: float


class RequestEntry(TypedDict):
    """One finished request.

    ``total_stages_ms`` is None and ``complete`` is False if some of its spans were overwritten
    before they were read. ``status`` is ok, error, cancelled, discarded or abandoned; ``error`` is
    True for the status error.
    """

    request_number: int
    trace_id: str | None
    request_id: str
    begin_ns: int
    duration_ms: float
    total_stages_ms: float | None
    complete: bool
    error: bool
    status: str
    stages: dict[str, RequestStageEntry]
    metadata: dict[str, Any]


class TimingReport(TypedDict):
    """The report of one process."""

    schema_version: int
    request_id: str
    timestamp: str
    wall_clock_ms: float | None
    total_stages_ms: float
    num_stages: int
    rank: int
    world_size: int
    stages: dict[str, StageEntry]
    requests: list[RequestEntry]
    memory_snapshots: list[dict[str, Any]]
    metadata: dict[str, Any]
    environment: Environment
    lost: dict[str, int]
