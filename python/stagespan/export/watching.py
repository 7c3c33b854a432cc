"""Notes why requests were slow: from their recordings, and by asking their processes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from stagespan.errors import StagespanError
from stagespan.pages.amounts import quoted
from stagespan.pages.escaping import one_line
from stagespan.recording.asking import Asker
from stagespan.recording.segments import open_meanwhile
from stagespan.recording.slowness import Collection, RunSignature, Slowness, UsualRuns
from stagespan.signature import describe, watch

if TYPE_CHECKING:
    from stagespan.export.parts import Part
    from stagespan.export.totals import Exported
    from stagespan.recording.reading import Recording
    from stagespan.recording.spans import Span

Answer = dict[str, Any]
Ask = Callable[["Recording", Answer, bool], Answer]
"""Asks a process to watch, and waits for the answer if the last argument is True."""
WATCH_S = 60.0
_RENEW_S = 15.0
_SILENT_S = 10.0
"""A process that did not answer is not asked again for this long."""
_LONGEST_ROUND_S = 4.0
"""How long one round of questions may take, so that the exporter goes on."""
_FEWEST_RUNS = 100
"""Of a stage, before it is known what is usual."""
_NOTED = "collections of garbage, and signatures"
_MOST_SPANS = 16
"""That a process is asked for: the slow one, and those around it."""
_SAME_SHARE = 0.8
"""Of the longest time beyond the usual. Then the inner span is the slow one."""


class Watcher:
    """Keeps the processes of an exporter noting what makes requests slow."""

    def __init__(self, exported: Exported, ask: Ask | None = None) -> None:
        """``ask`` asks a process, by default through its recording."""
        self._exported = exported
        self._ask_process = _ask_other if ask is None else ask
        self._asked_s: dict[str, float] = {}
        """When each process was last asked, by identity."""
        self._silent: dict[str, tuple[float, str]] = {}
        """When a process did not answer, and why."""

    def watch(self) -> None:
        """Let all live processes note it for the next minute."""
        live = self._exported.live()
        self._asked_s = {one: s for one, s in self._asked_s.items() if one in live}
        self._silent = {one: why for one, why in self._silent.items() if one in live}
        until_s = time.monotonic() + _LONGEST_ROUND_S
        for identity, recording in live.items():
            now_s = time.monotonic()
            if now_s > until_s:
                break
            is_due = now_s - self._asked_s.get(identity, -_RENEW_S) >= _RENEW_S
            # A process without requests has nothing to note.
            if is_due and recording.segment_keys:
                self._asked_s[identity] = now_s
                with contextlib.suppress(StagespanError):  # it has ended, or others are asking it
                    self._ask_process(recording, {"seconds": WATCH_S}, False)

    def note(
        self,
        requests: Iterable[list[Part]],
        is_over: Callable[[], bool] = lambda: False,
        *,
        at_end: bool = False,
    ) -> None:
        """Note why slow requests were slow in each part; ``at_end`` without asking."""
        live = self._exported.live()
        until_s = time.monotonic() + _LONGEST_ROUND_S
        for parts in requests:
            if all(part.slowness is None for part in parts):
                continue
            for part in parts:
                why = "too many requests were slow at once" if time.monotonic() > until_s else ""
                if at_end or is_over():
                    why = "the exporter was ending"
                self._note_part(part, live.get(part.resource.identity), why)

    def _note_part(self, part: Part, recording: Recording | None, why: str) -> None:
        slowness = part.slowness or Slowness()
        if recording is None:
            missing = [f"{_NOTED}, since the process {part.resource.pid} has ended"]
            part.slowness = msgspec.structs.replace(slowness, missing=missing)
            return
        spans = part.spans
        slowness = msgspec.structs.replace(
            slowness,
            usual=_usual(recording, {span.stage for span in spans}),
            neighbours=open_meanwhile(
                recording.segment_rows(), part.segment["number"], part.begin_ns, part.end_ns
            ),
        )
        answer: Answer = {}
        slow = _slow_spans(spans, slowness.usual)
        if not why:
            answer, why = self._ask(recording, part, slow)
        if not why and answer["since_ns"] > part.begin_ns:
            why = "the process noted them only from a later time on"
        missing = [f"{_NOTED}: {why}"] if why else []
        figures: dict[str, Any] = {"stage": slow[0].stage if slow else None}
        if not why:
            figures["collections"] = msgspec.convert(answer["collections"], list[Collection])
            figures["collected_ns"] = int(answer["collected_ns"])
        if not why and (described := answer["described"]) is not None:
            figures["signature"] = _signature(slow, described)
            if described["why"]:
                missing.append(f"the signature of {quoted([slow[0].stage])}: {described['why']}")
        part.slowness = msgspec.structs.replace(slowness, **figures, missing=missing)

    def _ask(self, recording: Recording, part: Part, slow: Sequence[Span]) -> tuple[Answer, str]:
        """Return what a process has noted, or else why it cannot say."""
        identity = recording.identity
        silent_s, why = self._silent.get(identity, (-_SILENT_S, ""))
        if time.monotonic() - silent_s < _SILENT_S:
            return {}, why
        wish = {
            "seconds": WATCH_S,
            "begin_ns": part.begin_ns,
            "end_ns": part.end_ns,
            "spans": [span.id for span in slow[:_MOST_SPANS]],
        }
        try:
            answer = self._ask_process(recording, wish, True)
        except StagespanError as error:
            why = str(error).rstrip(".")
            if "Another program is asking" not in why:
                self._silent[identity] = time.monotonic(), why
            return {}, why
        return answer, ""


def _ask_other(recording: Recording, wish: Answer, waits: bool) -> Answer:
    with Asker(recording.path) as asker:
        if asker.recording.identity != recording.identity:
            raise StagespanError(f"The process {recording.pid} has ended.")
        asker.ask("watch", **wish)
        # A process in which no span opens at the moment notices it with its next span.
        return asker.wait() if waits else {}


def ask_here(recording: Recording, wish: Answer, waits: bool) -> Answer:
    """Ask this process."""
    wish = dict(wish)
    watch.start(wish.pop("seconds"))
    return watch.noted(**wish) if waits else {}


def _usual(recording: Recording, stages: set[str]) -> dict[str, UsualRuns]:
    """Return the usual runs of stages, from the figures of their process."""
    usual = {}
    for name, stage in recording.snapshot().stages().items():
        if name in stages and stage.count >= _FEWEST_RUNS:
            cpu_ns = (
                None if not stage.cpu_count else int((stage.cpu_total_ns or 0) / stage.cpu_count)
            )
            work = {unit: total / stage.count for unit, total in stage.work.items()}
            usual[name] = UsualRuns(stage.count, int(stage.quantile_ns(0.5)), cpu_ns, work)
    return usual


def _slow_spans(spans: Sequence[Span], usual: dict[str, UsualRuns]) -> list[Span]:
    """Return the run that took longest beyond its usual time, and those around it, inside out."""
    runs = [span for span in spans if span.kind == "execution"]
    if not runs:
        return []
    beyond_ns = {
        span.id: span.end_ns
        - span.begin_ns
        - (usual[span.stage].median_ns if span.stage in usual else 0)
        for span in runs
    }
    most_ns = max(beyond_ns.values())
    least_ns = min(_SAME_SHARE * most_ns, most_ns)  # it is negative if no run was slow
    longest = (span for span in runs if beyond_ns[span.id] >= least_ns)
    slow = [max(longest, key=lambda span: (span.depth, beyond_ns[span.id]))]
    by_id = {span.id: span for span in runs}
    while (above := by_id.pop(slow[-1].parent, None)) is not None:
        slow.append(above)
    return slow


def _signature(slow: Sequence[Span], described: Answer) -> RunSignature | None:
    """Return the signature that a process has answered with."""
    if "signature" not in described:
        return None
    signature: dict[str, Any] = described["signature"]
    (span,) = (one for one in slow if one.id == described["span"])
    inputs = signature["input_signatures"]
    words = ", ".join(f"{one_line(name)} {describe(node)}" for name, node in inputs.items())
    took_ns = span.end_ns - span.begin_ns
    return RunSignature(span.id, span.stage, took_ns, words or "no arguments", signature)
