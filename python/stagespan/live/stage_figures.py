"""The figures of stages as pages and JSON show them: durations, errors and work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stagespan.live.statistics import (
    DEVICE_FIGURES,
    QUANTILES,
    Durations,
    StageStats,
    amounts_text,
    work_text,
)
from stagespan.pages.figures import Count, RecordedFigures
from stagespan.pages.result import Table


class DurationFigures(RecordedFigures, frozen=True):
    """Durations of runs, in ns."""

    count: Count
    total_ns: float
    mean_ns: float
    min_ns: float
    max_ns: float
    p50_ns: float
    p95_ns: float
    p99_ns: float

    @classmethod
    def of(cls, durations: Durations) -> DurationFigures:
        """Return the figures of durations."""
        return cls.taken(durations, **_quantiles_of(durations))


def _quantiles_of(durations: Durations) -> dict[str, float]:
    return {f"{name}_ns": durations.quantile_ns(q) for name, q in QUANTILES.items()}


class AmountFigures(RecordedFigures, frozen=True):
    """What single runs or requests have done, in one unit."""

    count: Count
    total: float
    mean: float
    min: float
    max: float
    p50: float
    p95: float
    p99: float


class StageRunFigures(DurationFigures, frozen=True):
    """The runs of a stage: their durations on the host, and what else is known of them."""

    errors: Count
    suspended_ns: int
    cpu_total_ns: int | None
    """Of the runs that have measured their CPU time; None if none has."""
    cpu_count: Count
    """How many have."""
    work: dict[str, float]
    device_elapsed_ns: DurationFigures | None
    device_queue_ns: DurationFigures | None
    device_tail_ns: DurationFigures | None
    amounts: dict[str, AmountFigures]
    """What single runs have added, by unit."""
    batch_size: AmountFigures | None
    """The numbers of requests that batches have served."""

    @classmethod
    def of_stage(cls, stage: StageStats) -> StageRunFigures:
        """Return the figures of a stage."""
        device = {name: getattr(stage, name) for name in DEVICE_FIGURES}
        return cls.taken(
            stage,
            work=dict(stage.work),
            amounts={unit: AmountFigures.taken(of) for unit, of in stage.amounts.items()},
            batch_size=stage.batch_size and AmountFigures.taken(stage.batch_size),
            **_quantiles_of(stage),
            **{
                name: durations and DurationFigures.of(durations)
                for name, durations in device.items()
            },
        )


def stage_figures(stats: Mapping[str, StageStats]) -> dict[str, StageRunFigures]:
    """Return the figures of each stage."""
    return {name: StageRunFigures.of_stage(stage) for name, stage in stats.items()}


def stages_table(title: str, stats: Mapping[str, StageStats]) -> Table:
    """Return a table with the runs of each stage, the most important columns first."""

    def device(name: str) -> Any:
        return lambda stage: getattr(getattr(stage, name), "mean_ns", None)

    return Table.of(
        title,
        stats.values(),
        *(("name", "stage", ""), ("count", "count", "")),
        *((f"{name}_ns", name, "ns") for name in (*QUANTILES, "total")),
        ("errors", "errors", ""),
        *((f"{name}_ns", name, "ns") for name in ("mean", "max")),
        *(("cpu_mean_ns", "CPU mean", "ns"), (device("device_elapsed_ns"), "device mean", "ns")),
        (work_text, "work", ""),
        (amounts_text, "a run", ""),
        ("suspended_ns", "suspended", "ns"),
        (device("device_queue_ns"), "queue mean", "ns"),
        (device("device_tail_ns"), "tail mean", "ns"),
    ).filled()
