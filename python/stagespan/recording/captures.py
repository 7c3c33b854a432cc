"""Captures of runs of a stage by live processes, which do them when they are asked."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from stagespan.errors import StagespanError
from stagespan.pages.amounts import quoted
from stagespan.process.files import safe_name
from stagespan.process.imports import importing
from stagespan.profiling.capture_result import CaptureResult
from stagespan.recording import jobs
from stagespan.recording.asking import Asker
from stagespan.recording.reading import Recording

_MEASURE_S = 0.5
_LEAD_S = 3.0
"""How long before its start all ranks must know with which run a capture begins."""
_LEAST_LEAD = 2
Progress = Callable[[str, Mapping[str, Any]], None]
"""Is called with the label of a process, which is empty if there is only one, and an answer."""


class Member(NamedTuple):
    """A process of a job that captures."""

    label: str
    recording: Recording


def captured(which: str, arguments: Mapping[str, Any], progress: Progress) -> CaptureResult:
    """Have one process capture, with the arguments of `stagespan.capture`.

    Raises StagespanError if it refuses, does not answer, dies or is stopped.
    """
    with Asker(which) as asker:
        asker.ask("capture", **arguments)
        return _result(which, asker.wait(lambda answer: progress("", answer)))


def cancelled(which: str) -> str:
    """End the capture that a process does for another program, and return what has happened.

    Raises StagespanError if no capture is in progress there.
    """
    with Asker(which) as asker:
        if asker.cancel_others():
            return "The command of the other program ends."
        asker.ask("cancel_capture")
        return f"The capture of stage {asker.wait().get('stage')!r} has ended."


def members(job: str, rank: int | None = None) -> list[Member]:
    """Return the live ranks of a job, or its processes if it has none; only one with ``rank``.

    Raises StagespanError if there are none.
    """
    alive = [one for one in jobs.job(job).recordings if one.state == "alive"]
    ranks = [one for one in alive if one.rank is not None]
    if rank is not None:
        ranks = [one for one in ranks if one.rank == rank]
        if not ranks:
            raise StagespanError(f"The job {job!r} has no live process of rank {rank} here.")
    chosen = ranks or [one for one in alive if one.worker_of_rank is None]
    if not chosen:
        raise StagespanError(f"No process of the job {job!r} is alive on this machine.")
    return [
        Member(f"process {one.pid}" if one.rank is None else f"rank {one.rank}", one)
        for one in chosen
    ]


def captured_together(
    members: Sequence[Member], arguments: Mapping[str, Any], folder: str | None, progress: Progress
) -> list[CaptureResult]:
    """Have several processes capture the same runs, and return their results in the same order.

    Ranks begin with the same run, counted from the start of each. If one process refuses, or has
    passed this run, then none begins. Raises StagespanError with its reason.
    """
    stage = str(arguments["stage"])
    if arguments["probe"]:
        options = ("stage", "shapes", "stacks", "memory", "max_seconds")
        wish = {name: arguments[name] for name in options if name in arguments}
        _together(members, "prepare_capture", [wish] * len(members), progress)
    wishes = [{**arguments, "probe": False} for _ in members]
    if all(member.recording.rank is not None for member in members):
        first = _common_run(members, stage)
        wishes = [{**wish, "first": first} for wish in wishes]
    if folder is not None:
        for wish, member in zip(wishes, members, strict=True):
            name = safe_name(f"{stage}_{member.label.replace(' ', '')}_trace.json.gz")
            wish["output"] = os.path.join(folder, name)
    answers = _together(members, "capture", wishes, progress)
    return [_result(member.label, answer) for member, answer in zip(members, answers, strict=True)]


def _common_run(members: Sequence[Member], stage: str) -> int:
    """Return the number of a run that all ranks have before them. Raises StagespanError."""
    before = [_begun(member, stage) for member in members]
    time.sleep(_MEASURE_S)
    now = [_begun(member, stage) for member in members]
    for member, count in zip(members, now, strict=True):
        if not count:
            raise StagespanError(f"Stage {quoted([stage])} has not run in {member.label} yet.")
    most = max(after - earlier for after, earlier in zip(now, before, strict=True))
    return max(now) + max(_LEAST_LEAD, math.ceil(most * _LEAD_S / _MEASURE_S))


def _begun(member: Member, stage: str) -> int:
    copy = Recording(member.recording.path, everything=False)
    known = copy.snapshot().stages().get(stage)
    still_open = sum(span["stage"] == stage for span in copy.open_spans())
    return (0 if known is None else known.count) + still_open


@dataclass
class _Asked:
    """What several processes have answered."""

    askers: list[Asker] = field(default_factory=list)
    answers: dict[int, dict[str, Any]] = field(default_factory=dict)
    refusals: list[str] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)

    def cancel(self) -> None:
        for asker in self.askers:
            asker.cancel()


def _together(
    members: Sequence[Member], verb: str, wishes: Sequence[Mapping[str, Any]], progress: Progress
) -> list[dict[str, Any]]:
    """Ask several processes at once. If one refuses, the others end. Raises StagespanError."""
    asked = _Asked()

    def wait(number: int, label: str) -> None:
        try:
            answer = asked.askers[number].wait(lambda answer: progress(label, answer))
            asked.answers[number] = answer
        except StagespanError as error:
            asked.refusals.append(f"{label}: {error}")
            asked.cancel()
        except BaseException as error:
            asked.errors.append(error)
            asked.cancel()

    threads: list[threading.Thread] = []
    try:
        for member in members:
            asked.askers.append(Asker(member.recording.path))
        for asker, wish in zip(asked.askers, wishes, strict=True):
            asker.ask(verb, **wish)
        for number, member in enumerate(members):
            threads.append(threading.Thread(target=wait, args=(number, member.label)))
            threads[-1].start()
        for thread in threads:
            thread.join()
    except BaseException:
        asked.cancel()
        raise
    finally:
        for thread in threads:
            thread.join()
        for asker in asked.askers:
            asker.close()
    if asked.errors:
        raise asked.errors[0]
    if asked.refusals:
        raise StagespanError(f"{asked.refusals[0]} No other process has captured anything.")
    return [asked.answers[number] for number in range(len(members))]


def _result(which: str, answer: Mapping[str, Any]) -> CaptureResult:
    with importing():
        import msgspec
    try:
        return msgspec.convert(answer.get("result"), CaptureResult)
    except msgspec.ValidationError as error:
        raise StagespanError(f"The answer of {which} is damaged: {error}.") from None
