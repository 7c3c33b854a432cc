"""Lowers the severity of findings that rest on times in which a device's work is unknown."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from msgspec import structs

from stagespan.pages.result import SEVERITIES, Finding, share
from stagespan.trace.derived.step_ranges import step_ranges
from stagespan.trace.derived.step_times import steps_without_work
from stagespan.trace.evidence import window_of
from stagespan.trace.read.intervals import Cover
from stagespan.trace.read.model import Trace

# Percent of a finding's time: it rests on unknown work if at least this part is unknown.
_LEAST_SHARE = 10.0


def with_doubt(trace: Trace, findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings; those that rest on unknown work are one grade less severe.

    A finding rests on unknown work if this work lasted for a tenth of the finding's time, or of the
    time of an event that is evidence.
    """
    doubtful, window = list(findings), window_of(trace)
    unknown = _unknown(trace)
    if unknown is None or window is None:
        return doubtful
    return [
        structs.replace(finding, severity=_LOWER[finding.severity])
        if _rests_on(finding, unknown, window[0])
        else finding
        for finding in doubtful
    ]


_LOWER = dict(zip(SEVERITIES, (*SEVERITIES[1:3], *SEVERITIES[2:]), strict=True))


def _unknown(trace: Trace) -> Cover | None:
    """Return the times in which the device's work is unknown; None if there are none."""
    begin, end = trace.doubtful[:, 0], trace.doubtful[:, 1]
    steps, ranges = steps_without_work(trace), step_ranges(trace)
    if ranges is not None and len(steps):
        begin = np.concatenate((begin, ranges.begin_ns[steps]))
        end = np.concatenate((end, ranges.end_ns[steps]))
    return Cover(begin, end) if len(begin) else None


def _rests_on(finding: Finding, unknown: Cover, origin_ns: int) -> bool:
    time = finding.numbers.get("time_ns", 0)
    total = int((unknown.end - unknown.begin).sum())
    if share(total, time) >= _LEAST_SHARE:
        return True
    for item in finding.evidence:
        if item.time_ns is None or item.unit != "ns" or not item.figure:
            continue
        begin = origin_ns + item.time_ns
        length = int(item.figure)
        within = unknown.length(np.array([begin]), np.array([begin + length]))
        if share(int(within[0]), length) >= _LEAST_SHARE:
            return True
    return False
