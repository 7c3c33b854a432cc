"""Requests that other processes have sent."""

from __future__ import annotations

from typing import Any

from stagespan import _core
from stagespan.contexts.requests import request


def extract(carrier: Any, *, trusted: bool = True, size_bytes: int | None = None) -> Remote:
    """Read a request from a carrier, immediately after it was received from another process.

    Use the result as ``with remote:`` where the work starts. The time from here to there is the
    queue, and the time from `inject` to here is the hand-off. A carrier that cannot be read gives a
    request of its own; nothing is raised for its content.

    Args:
        carrier: A mapping, or pairs of names and values: what `inject` wrote, or the headers of an
            HTTP request.
        trusted: Whether the sender is part of the same system. If not, only the keys of W3C Trace
            Context are read, and the request gets an id of this process.
        size_bytes: The size of the message, if you want it to be counted: the work ``bytes`` of the
            queue, ``stats(kind="queue")[name].work``.

    Raises:
        TypeError: If ``carrier`` is neither a mapping nor pairs, or ``size_bytes`` not a number.

    Example:
        ```python
        prompt, carrier = tasks.get()
        remote = stagespan.extract(carrier)
        with remote, stagespan.span("decode"):
            decode(prompt)
        ```
    """
    remote = Remote(carrier, trusted=trusted)
    if size_bytes is not None and remote._counted_queue is not None:
        _core.queued(remote._counted_queue).add(bytes=size_bytes)
    return remote


@_core.remote_class
class Remote(request):
    """A request that another process has sent; `extract` returns it.

    It can be entered several times, for example once to start the work and once to send the
    result. It then lasts from the first entry to the last exit. A batch that it is passed to
    enters it too.
    """

    def __init__(
        self, carrier: Any, request_id: str = "", *, trusted: bool = True, entry: str | None = None
    ) -> None:
        """Read a carrier, as `extract` does.

        ``request_id`` is used if it has no id, and ``entry`` if it does not name the queue; by
        default that is the pipeline.
        """
        self._receive(carrier, request_id, trusted, entry)

    def __repr__(self) -> str:
        return super().__repr__().replace("<request", "<remote request", 1)
