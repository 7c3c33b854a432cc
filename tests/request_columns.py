"""Compares sums over requests, which come from columns, with the timelines of each."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from stagespan.live.quantiles import quantile
from stagespan.recording.partition import Part, pieces, time_by_owner
from stagespan.recording.request_sums import RequestSums
from stagespan.recording.spans import SYSTEM_COUNTS
from stagespan.recording.timelines import Timeline, Timelines


def check_columns(found: Timelines) -> None:
    """Assert that the sums over requests are those of their timelines."""
    sums = RequestSums(found)
    where: Counter[tuple[str, str]] = Counter()
    spent: dict[str, Counter[str]] = {"execution": Counter(), "queue": Counter()}
    durations_ns: defaultdict[str, list[int]] = defaultdict(list)
    running_ns: Counter[str] = Counter()
    any_ns: Counter[str] = Counter()
    batches = set()
    for one in found:
        runs: defaultdict[str, list[Part]] = defaultdict(list)
        for span in (span for stretch in one.segments for span in stretch.spans):
            if span.kind != "queue":
                running_ns[span.stage] += span.end_ns - span.begin_ns
                part = Part("execution", span.stage, span.begin_ns, span.end_ns)
                runs[span.stage].append(part)
        for stage, parts in runs.items():
            first_ns, last_ns = min(part[2] for part in parts), max(part[3] for part in parts)
            any_ns[stage] += time_by_owner(pieces(first_ns, last_ns, parts))["execution", stage]
        where.update(one.where)
        for (kind, stage), (_, ns) in one.spent.items():
            spent[kind][stage] += ns
        for stretch in one.segments:
            for span in stretch.spans:
                batch = stretch.recording.path, span.id
                if span.kind == "queue" or (span.kind == "batch" and batch in batches):
                    continue
                batches |= {batch} if span.kind == "batch" else set()
                durations_ns[span.stage].append(span.end_ns - span.begin_ns)
    assert sums.where == {key: ns for key, ns in where.items() if ns}
    assert (sums.executions_ns, sums.waits_ns) == (spent["execution"], spent["queue"])
    before_ns, between_ns, after_ns = (one.tolist() for one in sums.outside_ns)
    assert before_ns == [one.before_first_ns for one in found]
    assert after_ns == [one.after_last_ns for one in found]
    outside_ns = [sum(of) for of in zip(before_ns, between_ns, after_ns, strict=True)]
    assert outside_ns == [one.where_sum("unattributed") for one in found]
    assert sums.durations() == {
        stage: (len(ns), quantile(sorted(ns), 0.5), quantile(sorted(ns), 0.95), max(ns))
        for stage, ns in durations_ns.items()
    }
    assert sums.at_once() == {stage: running_ns[stage] / ns for stage, ns in any_ns.items() if ns}
    work = {key: sorted(numbers) for key, numbers in sums.work.items()}
    assert work == {key: sorted(numbers) for key, numbers in _work(found).items()}


def _work(found: Iterable[Timeline]) -> dict[tuple[str, str], list[int | float]]:
    """Return the work of each request and the size of each batch, from the spans of each."""
    work: defaultdict[tuple[str, str], list[int | float]] = defaultdict(list)
    sizes: dict[tuple[str, int], tuple[str, int]] = {}
    for one in found:
        of_request: Counter[str] = Counter()
        spans = [
            (stretch.recording.path, span) for stretch in one.segments for span in stretch.spans
        ]
        for path, span in spans:
            if span.kind == "batch":
                sizes.setdefault((path, span.id), (span.stage, span.size))
            else:
                counted = (span.work or {}).items()
                of_request.update({unit: n for unit, n in counted if unit not in SYSTEM_COUNTS})
        if one.chunks:
            of_request.setdefault("tokens", one.tokens)
        if not any(span.kind != "batch" and span.work is None for _, span in spans):
            for unit, number in of_request.items():
                work[one.pipeline, unit].append(number)
    for stage, size in sizes.values():
        work[stage, "requests"].append(size)
    return dict(work)
