"""Notes why requests were slow: from their recordings, and by asking their processes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from stagespan.errors import StagespanError
from stagespan.recording.asking import Asker
from stagespan.recording.reading import began_here
from stagespan.recording.slowness import Collection, Slowness, UsualRuns
from stagespan.signature import watch

if TYPE_CHECKING:
    from stagespan.export.requests import Part
    from stagespan.export.totals import Exported
    from stagespan.recording.reading import Recording

Answer = dict[str, Any]
Ask = Callable[["Recording", Answer, bool], Answer]
"""Asks a process to watch, and waits for the answer if the last argument is True."""
_WATCH_S = 60.0
_RENEW_S = 15.0
_SILENT_S = 10.0
"""A process that did not answer is not asked again for this long."""
_LONGEST_ROUND_S = 4.0
"""How long one round of questions may take, so that the exporter goes on."""
_FEWEST_RUNS = 100
"""Of a stage, before it is known what is usual."""
_COLLECTIONS = "collections of garbage"


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
                    self._ask_process(recording, {"seconds": _WATCH_S}, False)

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
            missing = [f"{_COLLECTIONS}, since the process {part.resource.pid} has ended"]
            part.slowness = msgspec.structs.replace(slowness, missing=missing)
            return
        slowness = msgspec.structs.replace(
            slowness,
            usual=_usual(recording, {span.stage for span in part.spans}),
            neighbours=_neighbours(recording, part),
        )
        answer: Answer = {}
        if not why:
            answer, why = self._ask(recording, part)
        if not why and answer["since_ns"] > part.begin_ns:
            why = "the process noted them only from a later time on"
        missing = [f"{_COLLECTIONS}: {why}"] if why else []
        known: dict[str, Any] = {}
        if not why:
            known["collections"] = msgspec.convert(answer["collections"], list[Collection])
            known["collected_ns"] = int(answer["collected_ns"])
        part.slowness = msgspec.structs.replace(slowness, **known, missing=missing)

    def _ask(self, recording: Recording, part: Part) -> tuple[Answer, str]:
        """Return what a process has noted, or else why it cannot say."""
        identity = recording.identity
        silent_s, why = self._silent.get(identity, (-_SILENT_S, ""))
        if time.monotonic() - silent_s < _SILENT_S:
            return {}, why
        wish = {"seconds": _WATCH_S, "begin_ns": part.begin_ns, "end_ns": part.end_ns}
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
    found = {}
    for name, stage in recording.snapshot().stages().items():
        if name in stages and stage.count >= _FEWEST_RUNS:
            cpu_ns = (
                None if not stage.cpu_count else int((stage.cpu_total_ns or 0) / stage.cpu_count)
            )
            work = {unit: total / stage.count for unit, total in stage.work.items()}
            found[name] = UsualRuns(stage.count, int(stage.quantile_ns(0.5)), cpu_ns, work)
    return found


def _neighbours(recording: Recording, part: Part) -> int:
    """Return how many other requests that began in the process were open meanwhile."""
    return sum(
        one["number"] != part.segment["number"]
        and began_here(one)
        and (one["received_ns"] or one["begin_ns"] or part.end_ns) < part.end_ns
        and (one["end_ns"] or part.end_ns) > part.begin_ns
        for one in recording.segments()
    )
