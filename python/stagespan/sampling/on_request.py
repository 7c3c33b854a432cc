"""Samples of this process for some seconds, because another program has asked for them."""

from __future__ import annotations

import contextlib
import os
import time

from stagespan import _core
from stagespan.errors import StagespanError
from stagespan.process import sampler
from stagespan.process.commands import Work
from stagespan.process.files import write_whole
from stagespan.sampling.result import encoded, sampled
from stagespan.sampling.stacks import read_process, since

_TURN_S = 0.25
_LONGEST_S = 3600.0


def sample(seconds: float, interval_ms: float) -> Work:
    """Sample for some seconds, and write the result to a file beside the recording.

    The answer has its ``path``. If the process is sampled already, its samples are used.
    """
    if not 0 < seconds <= _LONGEST_S:
        raise StagespanError(f"Samples are taken for at most {_LONGEST_S:g} s, not {seconds:g} s.")
    folder = _folder()
    began_s = time.monotonic()
    is_own = not sampler.is_on()
    if is_own:
        sampler.start("", sampler.MAIN, interval_ms)
    try:
        before = _core.sampler_text() or ""
        while (left_s := began_s + seconds - time.monotonic()) > 0:
            done = f"samples for {seconds:g} s, {max(left_s, 0):.0f} s left"
            yield {"doing": done}, min(left_s, _TURN_S)
        after = _core.sampler_text()
    finally:
        if is_own:
            sampler.stop()
    if after is None:
        raise StagespanError("The program has ended the samples: ask again.")
    result = sampled([since(read_process(before), read_process(after))])
    if result is None:
        raise StagespanError(f"No sample was taken within {seconds:g} s: ask for more seconds.")
    path = os.path.join(folder, f".{os.getpid()}-{time.monotonic_ns()}.answer")
    try:
        write_whole(path, encoded(result), private=True)
    except OSError as error:
        raise StagespanError(f"The samples cannot be written to {folder} ({error}).") from None
    _remove_later(path)
    return {"path": path}


def _folder() -> str:
    """Return the folder of the recording. Raises StagespanError if it has none."""
    place = _core.recording_place()
    if place["path"] is None:
        raise StagespanError(
            "The recording of the process is in no folder, so there is no place for an answer:"
            f" {place['why'] or 'it is only in memory'}."
        )
    return os.path.dirname(str(place["path"]))


_unread: list[str] = []


def _remove_later(path: str) -> None:
    """Remove the answers before this one, in case that nobody has read them."""
    while _unread:
        with contextlib.suppress(OSError):
            os.unlink(_unread.pop())
    _unread.append(path)
