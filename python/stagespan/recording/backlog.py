"""Messages that requests have sent, and that no process has received yet."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stagespan.recording.reading import Recording, SentMessage


class Backlog:
    """The messages between the processes of some recordings, as they were read.

    A message waits while the request that has sent it is open, if its queue is one from which a
    process has received before. Otherwise its receiver may be one that does not record.
    """

    def __init__(
        self,
        recordings: Iterable[Recording],
        queues: Iterable[str] = (),
        most: Callable[[str], int] | None = None,
    ) -> None:
        """Find the messages.

        Args:
            recordings: Those of all processes that may receive messages.
            queues: Names of queues from which processes have received that have ended since.
            most: How many messages to a queue can be unreceived, as all of its messages were
                counted. It decides of those that were sent before a process has used an entry
                again, which can have shown that it has received them; without it, they are left
                out.
        """
        self._recordings = list(recordings)
        self._queues = frozenset(queues)
        self._most = most

    @cached_property
    def queues(self) -> frozenset[str]:
        """The queues from which a process has received."""
        names = {
            name
            for one in self._recordings
            for name, kind in zip(one.stage_names(), one.stage_kinds(), strict=True)
            if kind == "handoff"
        }
        return self._queues | names

    def unreceived(self, recording: Recording) -> list[SentMessage]:
        """Return what open requests of a process have sent, and nobody has received."""
        return self._unreceived.get(recording.path, [])

    def waiting(self, recording: Recording) -> list[SentMessage]:
        """Return those of them that wait in a queue."""
        return [one for one in self.unreceived(recording) if one.queue in self.queues]

    @cached_property
    def _unreceived(self) -> Mapping[str, list[SentMessage]]:
        """By the path of the recording."""
        sent = [
            (message, recording.path)
            for recording in self._recordings
            if recording.state in ("alive", "unknown")
            for message in _sent_by_open(recording)
        ]
        messages: defaultdict[str, list[SentMessage]] = defaultdict(list)
        if not sent:
            return messages
        received = set().union(*(one.received_messages() for one in self._recordings))
        counts: defaultdict[str, int] = defaultdict(int)
        since_ns = max(map(_complete_since_ns, self._recordings))
        for message, path in sorted(sent, key=lambda one: one[0].sent_ns, reverse=True):
            if message.hop in received:
                continue
            counts[message.queue] += 1
            most = 0 if self._most is None else self._most(message.queue)
            if message.sent_ns >= since_ns or counts[message.queue] <= most:
                messages[path].append(message)
        return messages


def _sent_by_open(recording: Recording) -> list[SentMessage]:
    sent = recording.sent_messages()
    numbers = {one["number"] for one in recording.open_segments} if sent else set()
    return [one for one in sent if one.request in numbers]


def _complete_since_ns(recording: Recording) -> float:
    """Return when the last request ended whose entry may have been used again."""
    if recording.has_free_entries:
        return -math.inf
    ends_ns = [one["end_ns"] for one in recording.segments() if one["end_ns"] is not None]
    return min(ends_ns, default=math.inf)
