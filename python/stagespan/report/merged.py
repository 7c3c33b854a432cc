"""The stages of several processes together, with the figures that a report needs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stagespan.live.statistics import DEVICE_FIGURES, Distribution, Durations

if TYPE_CHECKING:
    from stagespan import _core

_DIGITS = 4
"""Significant digits of merged buckets. Each process has its own unit of time, so the same bucket
of two of them differs by a small fraction."""


@dataclass(frozen=True)
class MergedStage:
    """The figures of one stage, as `_core.StageSummary` has them for one process."""

    name: str
    host: Distribution
    errors: int
    suspended_ns: int
    children_ns: int
    parents: Mapping[str | None, tuple[int, int]]
    """The number of runs and their time in ns, by parent stage."""
    work: Mapping[str, float]
    device_elapsed_ns: Distribution | None
    device_queue_ns: Distribution | None
    device_tail_ns: Distribution | None

    def __getattr__(self, figure: str) -> Any:
        """Return a figure of the durations on the host: count, total_ns, p50_ns, and so on."""
        if figure.startswith("_"):
            raise AttributeError(figure)
        return getattr(self.host, figure)


Stages = Mapping[str, "_core.StageSummary | MergedStage"]


def merged(processes: Iterable[Stages]) -> dict[str, MergedStage]:
    """Return the stages of several processes by name: counts, times and histograms add up."""
    by_name: dict[str, list[_core.StageSummary | MergedStage]] = {}
    for stages in processes:
        for name, stage in stages.items():
            by_name.setdefault(name, []).append(stage)
    return {name: _merged_stage(name, parts) for name, parts in by_name.items()}


def _merged_stage(name: str, parts: Sequence[_core.StageSummary | MergedStage]) -> MergedStage:
    work: Counter[str] = Counter()
    parents: dict[str | None, tuple[int, int]] = {}
    for part in parts:
        work.update(part.work)
        for parent, (count, ns) in part.parents.items():
            before = parents.get(parent, (0, 0))
            parents[parent] = before[0] + count, before[1] + ns
    device = (
        [figure for part in parts if (figure := getattr(part, key)) is not None]
        for key in DEVICE_FIGURES
    )
    return MergedStage(
        name,
        _together([getattr(part, "host", part) for part in parts]),
        sum(part.errors for part in parts),
        sum(part.suspended_ns for part in parts),
        sum(part.children_ns for part in parts),
        parents,
        dict(work),
        *(_together(known) if known else None for known in device),
    )


def _together(parts: Sequence[Durations]) -> Distribution:
    whole = Distribution.together(parts)
    counts: Counter[float] = Counter()
    for duration, count in whole.buckets_ns():
        counts[float(f"{duration:.{_DIGITS}g}")] += count
    return Distribution(whole.total_ns, whole.min_ns, whole.max_ns, whole.count, counts.items())


# --- as JSON, for another process ----------------------------------------------------------------


def encoded(stages: Stages) -> str:
    """Return stages as JSON."""
    return json.dumps(
        [
            {
                "name": name,
                "host": _listed(stage),
                "parents": [[parent, *figures] for parent, figures in stage.parents.items()],
                "work": dict(stage.work),
                **{key: getattr(stage, key) for key in ("errors", "suspended_ns", "children_ns")},
                **{key: _listed(getattr(stage, key)) for key in DEVICE_FIGURES},
            }
            for name, stage in stages.items()
        ]
    )


def decoded(text: str | bytes) -> dict[str, MergedStage]:
    """Return the stages that `encoded` wrote. Raises ValueError if the text is something else."""
    try:
        stages = [_from_json(fields) for fields in json.loads(text)]
    except (TypeError, KeyError, IndexError, ZeroDivisionError) as error:
        raise ValueError(f"these are not the figures of stages: {error}") from None
    return {stage.name: stage for stage in stages}


def _listed(durations: Any) -> list[Any] | None:
    if durations is None:
        return None
    figures = (durations.total_ns, durations.min_ns, durations.max_ns, durations.count)
    return [*figures, durations.buckets_ns()]


def _from_json(fields: dict[str, Any]) -> MergedStage:
    parents = {parent: (count, ns) for parent, count, ns in fields.pop("parents")}
    listed = {
        key: None if fields[key] is None else Distribution(*fields[key])
        for key in ("host", *DEVICE_FIGURES)
    }
    return MergedStage(**{**fields, **listed, "parents": parents})
