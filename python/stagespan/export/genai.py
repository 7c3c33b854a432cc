"""The conventions of OpenTelemetry for generative AI: attributes of requests, and metrics.

The names are those of https://github.com/open-telemetry/semantic-conventions-genai, which may
still change them (their status is "Development").
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from stagespan.export.families import HISTOGRAMS
from stagespan.export.figures import Counts, Histogram
from stagespan.export.parts import Part
from stagespan.export.totals import Group

_OPERATION = "gen_ai.operation.name"
_PROVIDER = "gen_ai.provider.name"
_MODEL = "gen_ai.request.model"
_METRICS = dict(sorted((one.genai, one) for one in HISTOGRAMS if one.genai is not None))


class Durations(NamedTuple):
    """A distribution with its name and its attributes."""

    name: str
    attributes: dict[str, str]
    histogram: Histogram


def attributes_of(parts: Sequence[Part], operation: str) -> dict[str, str | int | float | bool]:
    """Return the attributes of the root of a request, from all ``parts`` of the request.

    What is not known is left out. The model is the name of the pipeline, if the process has set it.
    """
    root = next((part for part in parts if part.is_root), None)
    if root is None:
        return {}
    resource = root.resource
    attributes: dict[str, str | int | float | bool] = {
        **_common(Group(resource.service, resource.pipeline, resource.rank), operation)
    }
    segments = [part.segment for part in parts]
    of_root = segments[parts.index(root)]
    streamed = [segment for segment in segments if segment["chunks"]]
    attributes["gen_ai.request.stream"] = bool(streamed)
    if streamed:
        # A worker and the front may both count the chunks that they hand on.
        most = of_root if of_root["chunks"] else max(streamed, key=lambda one: one["chunks"])
        attributes["gen_ai.usage.output_tokens"] = most["chunk_amount"]
        firsts_ns = [
            segment["first_chunk_ns"]
            for part, segment in zip(parts, segments, strict=True)
            if segment["chunks"] and part.of.clock == root.of.clock
        ]
        known_ns = [first_ns for first_ns in firsts_ns if first_ns is not None]
        if known_ns:
            first_chunk_ns = min(known_ns) - root.begin_ns
            attributes["gen_ai.response.time_to_first_chunk"] = first_chunk_ns / 1e9
    if of_root["status"] not in ("ok", "unused"):
        attributes["error.type"] = of_root["exception"] or of_root["status"]
    return attributes


def durations(figures: Counts, group: Group, operation: str) -> Iterator[Durations]:
    """Yield the distributions of a group of processes."""
    for name, family in _METRICS.items():
        by_attributes: dict[tuple[Group, str], Histogram] = {}
        for label, histogram in figures.durations.get(family.key, {}).items():
            values = dict(zip(family.labels, family.values(label), strict=True))
            status = values.get("status", "ok")
            of = group._replace(pipeline=values.get("pipeline", group.pipeline))
            key = of, "" if status == "ok" else status
            known = by_attributes.get(key)
            by_attributes[key] = histogram.plus(known) if known else histogram
        for (of, error), histogram in by_attributes.items():
            more = {"error.type": error} if error else {}
            yield Durations(name, {**_common(of, operation), **more}, histogram)


def _common(group: Group, operation: str) -> dict[str, str]:
    attributes = {_OPERATION: operation, _PROVIDER: group.service}
    if group.pipeline != "default":
        attributes[_MODEL] = group.pipeline
    return attributes
