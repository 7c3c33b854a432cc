"""What exporters note about slow requests."""

from __future__ import annotations

from typing import Any

import msgspec

from stagespan.pages.figures import Count, RecordedFigures


class Limit(RecordedFigures, frozen=True):
    """The limit that a request has exceeded, from the latest ones of its pipeline."""

    factor: float
    quantile: float
    percentile_ns: int
    """That quantile."""
    median_ns: int
    compared: Count
    """How many requests they are of."""


class UsualRuns(RecordedFigures, frozen=True):
    """The runs of a stage in the process of the request, up to then."""

    count: Count
    median_ns: int
    cpu_ns: int | None
    """The mean CPU time; None if it was not measured."""
    work: dict[str, float]
    """The mean of each unit."""


class Collection(RecordedFigures, frozen=True):
    """A run of Python's garbage collector. No other Python thread runs meanwhile."""

    begin_ns: int
    """Unix time."""
    end_ns: int
    thread: int


class RunSignature(RecordedFigures, frozen=True):
    """The arguments of a call of a decorated function, without values."""

    span: int
    """The id of the run."""
    stage: str
    took_ns: int
    words: str
    signature: dict[str, Any]
    """As the entry of a stage in a signature file."""


class Slowness(RecordedFigures, frozen=True):
    """What an exporter has noted about the part of a slow request in one process."""

    limit: Limit | None = None
    """None where the request did not begin."""
    usual: dict[str, UsualRuns] = msgspec.field(default_factory=dict)
    """By the stage of its spans."""
    neighbours: Count | None = None
    """How many other requests that began in the process were open meanwhile."""
    collections: list[Collection] | None = None
    """The longest ones meanwhile; None if they were not noted."""
    collected_ns: int | None = None
    """The time of all of them in the request."""
    stage: str | None = None
    """The stage that took longest beyond its median; of those that contain each other, the inner
    one."""
    signature: RunSignature | None = None
    """That of its run, or of the run around it that has one."""
    missing: list[str] = msgspec.field(default_factory=list)
    """What is not known, in sentences without a full stop."""
