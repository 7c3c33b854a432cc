"""Why a request was slow: the causes that what an exporter has noted supports."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from stagespan.pages.amounts import amount, duration, quoted
from stagespan.pages.figures import RecordedFigures
from stagespan.recording.slowness import Limit, RunSignature, Slowness, UsualRuns
from stagespan.recording.spans import SYSTEM_COUNTS, Span

if TYPE_CHECKING:
    from stagespan.recording.timelines import Stretch, Timeline

_LEAST_SHARE = 0.2
"""Of what a request took beyond the median. What explains less is not a cause."""
_LEAST_OF_ALL = 0.25
"""Of that share: what page faults and work explain at least of what a request took beyond the
median, if the thread waited for most of it."""
_LEAST_RATIO = 1.5
"""Between the work and what is usual."""
_LONGEST_FAULT_NS = 20_000
"""What one page fault explains at most of the time in the kernel."""
_LEAST_SWITCHES = 0.5
"""Context switches beyond the mean of the stage. Fewer are noise of the mean."""
_SAME_SHARE = 0.8
"""Of what a span around it has. Then the inner span is the place."""


class Cause(RecordedFigures, frozen=True):
    """Something that explains a part of what a request took beyond the usual."""

    code: str
    """``collection``, ``waited``, ``switched_out``, ``off_cpu`` if it is not known which of these
    two, ``page_faults`` or ``more_work``."""
    stage: str | None
    """Where it was; None if it was in all stages."""
    ns: int
    sentence: str
    """Without a full stop."""


class SlowFigures(RecordedFigures, frozen=True):
    """Why a request was kept as slow."""

    limit: Limit
    ratio: float
    """Between its time and the percentile."""
    causes: list[Cause]
    """The one with the longest time first; none if nothing explains a fifth of what it took beyond
    the median."""
    collected_ns: int | None
    """How long Python's garbage collector ran in its processes; None if it was not noted."""
    stage: str | None
    """The stage that took longest beyond its median."""
    signatures: list[RunSignature]
    """That of the run of this stage in each process, or of a run around it."""
    missing: list[str]

    @property
    def percentile(self) -> str:
        """Return the name of the percentile."""
        return f"p{100 * self.limit.quantile:g}"

    @property
    def in_words(self) -> str:
        """Return one sentence without a full stop."""
        limit = f"{self.ratio:.1f} x its {self.percentile}"
        return "; ".join([limit, *(cause.sentence for cause in self.causes)])


def slow_figures(timeline: Timeline) -> SlowFigures | None:
    """Return why a request was kept as slow; None if it was not."""
    noted = [(one, _noted(one)) for one in timeline.segments]
    limit = next((slowness.limit for _, slowness in noted if slowness.limit is not None), None)
    if limit is None:
        return None
    collected = [slowness.collected_ns for _, slowness in noted]
    times_ns = [ns for ns in collected if ns is not None]
    return SlowFigures(
        limit,
        timeline.total_ns / max(limit.percentile_ns, 1),
        _causes(timeline, limit, noted),
        sum(times_ns) if times_ns else None,
        _slow_stage(noted),
        [slowness.signature for _, slowness in noted if slowness.signature is not None],
        list(dict.fromkeys(text for _, slowness in noted for text in slowness.missing)),
    )


def _slow_stage(noted: list[tuple[Stretch, Slowness]]) -> str | None:
    """Return the stage of all processes that took longest beyond its median."""
    longest: tuple[int, str | None] = 0, None
    for stretch, slowness in noted:
        usual = slowness.usual.get(slowness.stage or "")
        for span in stretch.spans:
            if span.stage == slowness.stage:
                beyond_ns = span.end_ns - span.begin_ns - (0 if usual is None else usual.median_ns)
                longest = max(longest, (beyond_ns, span.stage), key=lambda one: one[0])
    return longest[1]


def _noted(stretch: Stretch) -> Slowness:
    return stretch.recording.slowness().get(stretch.segment["number"]) or Slowness()


def _causes(timeline: Timeline, limit: Limit, noted: list[tuple[Stretch, Slowness]]) -> list[Cause]:
    least_ns = max(_LEAST_SHARE * (timeline.total_ns - limit.median_ns), 1)
    total_ns = max(timeline.total_ns, 1)
    causes: list[Cause] = []
    for stretch, slowness in noted:
        spans = [span for span in stretch.spans if span.kind in ("execution", "batch")]
        offset_ns = stretch.recording.unix_offset_ns
        pauses = [
            _Pause(one.begin_ns - offset_ns, one.end_ns - offset_ns, one.thread)
            for one in slowness.collections or ()
        ]
        off_ns = {
            span.id: _off_cpu_ns(span, slowness.usual.get(span.stage), pauses) for span in spans
        }
        collected_ns = slowness.collected_ns or 0
        if collected_ns >= least_ns:
            words = f"GC ran for {duration(collected_ns)}"
            causes.append(Cause("collection", None, collected_ns, words))
        outermost = _outermost_measured(spans)
        ns = sum(off_ns[span.id] for span in outermost)
        for code, words, times_ns in _ways_off(spans, outermost, off_ns, slowness):
            off_so_ns = sum(times_ns[span.id] for span in outermost)
            if off_so_ns >= least_ns:
                stage = _place(spans, times_ns)
                where = f"for {100 * off_so_ns / total_ns:.0f} % of it, in {quoted([stage])}"
                causes.append(Cause(code, stage, off_so_ns, f"{words} {where}"))
        # Without a processor, a small part of the time is enough work for all of it.
        computed_ns = _computed_ns(outermost, slowness)
        if computed_ns is None:
            computed_ns = timeline.total_ns - limit.median_ns - ns
        least_computed_ns = max(_LEAST_SHARE * computed_ns, _LEAST_OF_ALL * least_ns)
        causes += _of_page_faults(spans, outermost, slowness, least_computed_ns)
        causes += _of_work(spans, slowness, least_computed_ns)
    return sorted(causes, key=lambda cause: -cause.ns)


class _Pause(NamedTuple):
    """A collection on the clock of the spans."""

    begin_ns: int
    end_ns: int
    thread: int


def _off_cpu_ns(span: Span, usual: UsualRuns | None, collections: Iterable[_Pause]) -> int:
    """Return how long the thread of a span did not run, beyond what is usual; 0 if unknown."""
    if span.cpu_ns is None:
        return 0
    off_ns = span.end_ns - span.begin_ns - span.cpu_ns
    # While another thread collects, this one waits for the interpreter.
    off_ns -= sum(
        max(min(one.end_ns, span.end_ns) - max(one.begin_ns, span.begin_ns), 0)
        for one in collections
        if one.thread != span.thread
    )
    if usual is not None and usual.cpu_ns is not None:
        # On a busy machine, a thread that computes for longer is also switched out for longer.
        longer = max(span.cpu_ns / max(usual.cpu_ns, 1), 1.0)
        off_ns -= int(max(usual.median_ns - usual.cpu_ns, 0) * longer)
    return max(off_ns, 0)


def _beyond_usual(span: Span, slowness: Slowness, count: str) -> float:
    """Return what the kernel has counted of a span beyond the mean of its stage; 0 if unknown."""
    usual = slowness.usual.get(span.stage)
    mean = 0.0 if usual is None else usual.work.get(count, 0.0)
    return max((span.work or {}).get(count, 0.0) - mean, 0.0)


def _ways_off(
    spans: list[Span], outermost: list[Span], off_ns: dict[int, int], slowness: Slowness
) -> Iterable[tuple[str, str, dict[int, int]]]:
    """Yield why the threads of spans did not run: a code, the words, and the times by span id."""
    delays_ns = {span.id: _run_delay_ns(span, slowness) for span in spans}
    if any(delays_ns[span.id] is None for span in outermost):
        yield "off_cpu", _why_off(outermost, slowness), off_ns
        return
    switched_ns = {id_: min(delays_ns[id_] or 0, ns) for id_, ns in off_ns.items()}
    yield "switched_out", "the thread was switched out", switched_ns
    waited_ns = {id_: ns - switched_ns[id_] for id_, ns in off_ns.items()}
    yield "waited", "the thread waited", waited_ns


def _run_delay_ns(span: Span, slowness: Slowness) -> int | None:
    """Return for how long a thread had no processor beyond what is usual; None if unknown."""
    delay_us = (span.work or {}).get("run_delay_us")
    if delay_us is None or span.cpu_ns is None:
        return None
    usual = slowness.usual.get(span.stage)
    if usual is not None and usual.cpu_ns is not None:
        longer = max(span.cpu_ns / max(usual.cpu_ns, 1), 1.0)
        delay_us -= usual.work.get("run_delay_us", 0.0) * longer
    return max(int(1000 * delay_us), 0)


def _why_off(spans: list[Span], slowness: Slowness) -> str:
    """Return what the thread did while it did not run, as its context switches tell it."""
    waited, switched_out = (
        sum(_beyond_usual(span, slowness, count) for span in spans)
        for count in ("voluntary_switches", "involuntary_switches")
    )
    if waited >= _LEAST_SWITCHES:
        is_both = switched_out >= _LEAST_SWITCHES
        return f"the thread waited{' or was switched out' if is_both else ''}"
    # It may be switched out as often as usual, and for longer.
    is_switched_out = any((span.work or {}).get("involuntary_switches") for span in spans)
    return "the thread was switched out" if is_switched_out else "the thread did not run"


def _computed_ns(spans: list[Span], slowness: Slowness) -> int | None:
    """Return how much more CPU time spans took than usual; None if unknown."""
    longer_ns = 0
    for span in spans:
        usual = slowness.usual.get(span.stage)
        if span.cpu_ns is None or usual is None or usual.cpu_ns is None:
            return None
        longer_ns += span.cpu_ns - usual.cpu_ns
    return longer_ns if spans else None


def _of_page_faults(
    spans: list[Span], outermost: list[Span], slowness: Slowness, least_ns: float
) -> Iterable[Cause]:
    """Yield that the kernel had more page faults to serve, and took longer than usual."""

    def longer_ns(span: Span) -> int:
        faults_ns = _beyond_usual(span, slowness, "page_faults") * _LONGEST_FAULT_NS
        return int(min(faults_ns, 1000 * _beyond_usual(span, slowness, "system_us")))

    times_ns = {span.id: longer_ns(span) for span in spans}
    ns = sum(times_ns[span.id] for span in outermost)
    if ns >= least_ns:
        faults = sum((span.work or {}).get("page_faults", 0) for span in outermost)
        stage = _place(spans, times_ns)
        yield Cause("page_faults", stage, ns, f"{faults:,.0f} page faults, in {quoted([stage])}")


def _outermost_measured(spans: list[Span]) -> list[Span]:
    """Return the spans with a CPU time that are inside no other such span of their thread."""
    by_id = {span.id: span for span in spans}

    def is_inside(span: Span) -> bool:
        above = by_id.get(span.parent)
        while above is not None:
            if above.cpu_ns is not None and above.thread == span.thread:
                return True
            above = by_id.get(above.parent) if above.parent != above.id else None
        return False

    return [span for span in spans if span.cpu_ns is not None and not is_inside(span)]


def _place(spans: list[Span], times_ns: dict[int, int]) -> str:
    """Return the stage of the innermost span that has most of a time."""
    most_ns = max(times_ns.values())
    with_most = [span for span in spans if times_ns[span.id] >= _SAME_SHARE * most_ns]
    return max(with_most, key=lambda span: (span.depth, times_ns[span.id])).stage


def _of_work(spans: list[Span], slowness: Slowness, least_ns: float) -> Iterable[Cause]:
    """Yield that a stage had more to do, if it also computed longer than usual."""

    def longer_ns(span: Span) -> int:
        usual = slowness.usual.get(span.stage)
        if usual is None:
            return 0
        if span.cpu_ns is not None and usual.cpu_ns is not None:
            return span.cpu_ns - usual.cpu_ns
        return span.end_ns - span.begin_ns - usual.median_ns

    for span in spans:
        usual = slowness.usual.get(span.stage)
        for unit, number in (span.work or {}).items():
            mean = 0.0 if usual is None else usual.work.get(unit, 0.0)
            if unit in SYSTEM_COUNTS:
                continue
            if mean <= 0 or number < _LEAST_RATIO * mean or (ns := longer_ns(span)) < least_ns:
                continue
            words = f"{quoted([span.stage])} did {number / mean:.1f} x its usual {unit}"
            yield Cause("more_work", span.stage, ns, f"{words} ({amount(number)})")
