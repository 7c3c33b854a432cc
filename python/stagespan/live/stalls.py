"""Log a line when a span has been open for longer than STAGESPAN_STALL_S.

The service thread looks at the open spans. It reads the frames of other threads, takes none of
their locks and interrupts none of them. If a thread never releases Python's lock, the service
thread cannot run either. `stagespan ps --stalled` finds such a process from outside.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterable
from types import FrameType

from stagespan.contexts.requests import shown_id
from stagespan.live import lines, open_spans, service
from stagespan.process import forks, threads

_MOST_FRAMES = 20
_LEAST_BETWEEN_LINES_S = 60.0


class StallWatch:
    """Finds spans that have been open for too long, each once, and at most one a minute."""

    def __init__(self, stall_s: float) -> None:
        self._stall_s = stall_s
        self._reported: set[int] = set()
        self._last_line_s: float | None = None

    def check(self) -> None:
        """Log the span that has been open longest, of those not logged yet."""
        now_s = time.monotonic()
        spans = open_spans.open_spans()
        self._reported &= {span["id"] for span in spans}
        if self._last_line_s is not None and now_s - self._last_line_s < _LEAST_BETWEEN_LINES_S:
            return
        stalled = [span for span in spans if span["elapsed_ns"] >= self._stall_s * 1e9]
        # The innermost of nested spans says most, because the others wait for it. It can begin
        # later than they do, so one that has been open for half the time is waited for.
        outer = {span["parent"] for span in spans if span["elapsed_ns"] >= self._stall_s * 5e8}
        innermost = [span for span in stalled if span["id"] not in outer | self._reported]
        if not innermost:
            return
        longest = max(innermost, key=lambda span: span["elapsed_ns"])
        line = _line(longest, spans)
        self._last_line_s = now_s
        self._reported.add(longest["id"])
        service.warn(line)


def _line(span: open_spans.OpenSpan, spans: Iterable[open_spans.OpenSpan]) -> str:
    by_id = {each["id"]: each for each in spans}
    path = [lines.one_line(span["stage"])]
    outer = by_id.get(span["parent"])
    while outer is not None:
        path.append(lines.one_line(outer["stage"]))
        outer = by_id.get(outer["parent"])
    name = "' in '".join(path)
    request = ""
    if span["request"] is not None:
        request = f" for request {lines.one_line(shown_id(span['request']))}"
    line = f"[Profiler] '{name}' has been open for {span['elapsed_ns'] / 1e9:.1f} s{request}"
    if span["detached"]:
        return f"{line}; no thread runs it at the moment"
    thread = lines.one_line(span["thread_name"] or "")
    return f"{line} in thread {thread}: {_stack_of(span['thread'])}"


def _stack_of(thread: int) -> str:
    """Return the Python stack of a thread, innermost first, on one line."""
    running = threads.by_native_id().get(thread)
    frame = None if running is None else sys._current_frames().get(running.ident or 0)
    if frame is None:
        return "its Python stack is unknown"
    frames = list(itertools.islice(_frames(frame), _MOST_FRAMES + 1))
    places = [
        f"{each.f_code.co_filename}:{each.f_lineno} {each.f_code.co_name}"
        for each in frames[:_MOST_FRAMES]
    ]
    if len(frames) > _MOST_FRAMES:
        places.append("...")
    return lines.one_line(" < ".join(places))


def _frames(frame: FrameType | None) -> Iterable[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def watch(stall_s: float) -> None:
    """Check from now on, in the service thread of this process and of each forked child."""
    service.on_tick(StallWatch(stall_s).check)
    service.tick_every(min(stall_s / 4, 5.0))
    service.ensure_running()
    forks.once_ready_in_child(service.ensure_running)
