"""Requests that cross processes: send them, receive them, and run batches of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any

from stagespan import _core
from stagespan.contexts import carriers
from stagespan.contexts.dynamo import compiling
from stagespan.contexts.requests import (
    STATUSES,
    current_request,
    open_roots,
    request,
    shown_id,
)
from stagespan.process import forks, run

_HALF = (1 << 64) - 1
_ROOT, _REMOTE, _RETURN, _REPEATED = range(4)
_MOST_HOPS = 4096
_received_hops: OrderedDict[int, None] = OrderedDict()
"""The latest hops that this process has received, to notice a carrier that comes twice."""
_UNUSED = STATUSES.index("unused")


def inject(
    carrier: dict[str, str] | None = None,
    *,
    queue: str | None = None,
    attempt: int = 1,
    branch: str | None = None,
) -> dict[str, str]:
    """Write the current request to a carrier, immediately before it is sent to another process.

    The carrier is a dict of short ASCII texts, which can be HTTP headers, gRPC metadata, or part of
    an object that is pickled. The receiver passes it to `extract`. Call this once for each message:
    each hop has its own id. Outside of requests, and while the recorder is off, nothing is written,
    except that what was received is passed on unchanged.

    Args:
        carrier: A dict to write to, such as the headers of an HTTP request; a new one by default.
        queue: What the receiver calls the wait from received to entered; by default its pipeline's
            name.
        attempt: 2 for the first retry, and so on.
        branch: The name of one of several ways that are tried at once.

    Returns:
        The carrier.

    Raises:
        ValueError: If ``attempt`` is not from 1 to 65,535.

    Example:
        ```python
        with stagespan.request("req-1"):
            tasks.put((prompt, stagespan.inject(queue="decode")))
        ```
    """
    current = current_request()
    if current is None:
        return {} if carrier is None else carrier
    return current.inject(carrier, queue=queue, attempt=attempt, branch=branch)


def extract(carrier: Any, *, trusted: bool = True) -> Remote:
    """Read a request from a carrier, immediately after it was received from another process.

    Use the result as ``with remote:`` where the work starts. The time from here to there is the
    queue, and the time from `inject` to here is the hand-off. A carrier that cannot be read gives a
    request of its own; nothing is raised for its content.

    Args:
        carrier: A mapping, or pairs of names and values: what `inject` wrote, or the headers of an
            HTTP request.
        trusted: Whether the sender is part of the same system. If not, only the keys of W3C Trace
            Context are read, and the request gets an id of this process.

    Raises:
        TypeError: If ``carrier`` is neither a mapping nor pairs.

    Example:
        ```python
        prompt, carrier = tasks.get()
        remote = stagespan.extract(carrier)
        with remote, stagespan.span("decode"):
            decode(prompt)
        ```
    """
    found = carriers.taken_from(carrier)
    if not trusted:
        found.pop("stagespan", None)
    return Remote(found)


class Remote(request):
    """A request that another process has sent; `extract` returns it.

    It can be entered several times, for example once to start the work and once to send the
    result. It then lasts from the first entry to the last exit. A batch that it is passed to
    enters it too.
    """

    def __init__(self, carrier: Mapping[str, str], request_id: str = "") -> None:
        """Read a carrier; ``request_id`` is used if it has no id."""
        parent = carriers.parent_in(carrier.get("traceparent"))
        sent = carriers.sent_in(carrier.get("stagespan")) if parent is not None else None
        super().__init__(request_id if sent is None else sent.id)
        self._original = {
            key: value
            for key, value in carrier.items()
            if parent is not None or key == "tracestate"
        }
        self.attempt = 1 if sent is None else sent.attempt
        """1 for the first attempt, 2 for the first retry."""
        self.branch: str | None = None if sent is None else sent.branch or None
        """The name of the branch that it belongs to, or None."""
        self.queue = (sent.queue if sent is not None else "") or run.stable_pipeline_name()
        """What the wait from received to entered is called."""
        self._is_started = False
        self._hop_shown = -1
        self._hop_number = 0
        if parent is not None:
            self.trace_id, self._parent_hop, self._trace_flags = parent
            self._trace_state = carriers.state_in(carrier.get("tracestate"))
        owner = open_roots.get(parent.trace_id) if parent is not None and sent is not None else None
        self._owner = owner
        if owner is not None:
            # The hop has come back: its spans belong to the request that is open here.
            self.number, self.id, self.metadata = owner.number, owner.id, owner.metadata
        if _core.is_enabled() and not compiling():
            self._receive(sent)

    def _receive(self, sent: carriers.Sent | None) -> None:
        origin = _REMOTE if self._owner is None else _RETURN
        if self.trace_id is None:
            self._join_trace()
        if self._parent_hop:
            if self._parent_hop in _received_hops:
                origin = _REPEATED
            _received_hops[self._parent_hop] = None
            while len(_received_hops) > _MOST_HOPS:
                _received_hops.popitem(last=False)
        trace = int(self.trace_id or "0", 16)
        self._segment = _core.segment_random_id() if self._owner is None else self._owner._segment
        self._hop_number = self.number
        self._hop_shown = _core.segment_receive(
            self.number,
            shown_id(self.id),
            trace >> 64,
            trace & _HALF,
            self._segment,
            self._parent_hop,
            self._trace_flags,
            0 if sent is None else sent.segment,
            origin,
            self.attempt,
            self.branch or "",
            self.queue,
            *((0, 0, 0) if sent is None else (sent.monotonic_ns, sent.unix_ns, sent.clock)),
        )
        self._shown = self._hop_shown if self._owner is None else self._owner._shown

    def start(self) -> None:
        """End the wait in the queue without making the request current, as a batch does."""
        if not self._is_started:
            self._enter_segment()

    def _begin(self) -> None:
        self._begin_ns = _core.now_ns()
        self._enter_segment()

    def _enter_segment(self) -> None:
        if self._hop_shown < 0:  # the recorder was off when it was received
            self._receive(None)
        self._is_started = True
        _core.segment_enter(self._hop_number, self._hop_shown, self.queue)

    def _end(self, status: int) -> None:
        if self._owner is None:
            super()._end(status)
        elif self._begin_ns:
            _core.segment_end(self._hop_number, self._hop_shown, status)

    def inject(
        self,
        carrier: dict[str, str] | None = None,
        *,
        queue: str | None = None,
        attempt: int = 1,
        branch: str | None = None,
    ) -> dict[str, str]:
        """Write this request to a carrier; see `stagespan.inject`.

        A request that was received and not entered is passed on unchanged.
        """
        if not self._is_started:
            return self._forward({} if carrier is None else carrier)
        return super().inject(carrier, queue=queue, attempt=attempt, branch=branch)

    def _forward(self, carrier: dict[str, str]) -> dict[str, str]:
        carrier.update(self._original)
        return carrier

    def __del__(self) -> None:
        if getattr(self, "_hop_shown", -1) >= 0 and not self._is_started:
            _core.segment_end(self._hop_number, self._hop_shown, _UNUSED)

    def __repr__(self) -> str:
        return super().__repr__().replace("<request", "<remote request", 1)


class batch:
    """One execution that serves several requests: ``with batch("forward", requests) as b:``.

    It is one span of kind batch, which `stats(kind="batch")` counts once, with a link to each
    request. ``b`` is the span, so ``b.add(tokens=512)`` counts work. Requests that were received
    and wait are entered. Raises TypeError if ``requests`` contains anything but requests.
    """

    def __init__(self, name: str, requests: Iterable[request]) -> None:
        self.requests = list(requests)
        """The requests that it serves."""
        for one in self.requests:
            if not isinstance(one, request):
                raise TypeError(
                    f"batch() takes requests, such as current_request() and what extract() "
                    f"returned, not {type(one).__name__}"
                )
        self._span = _core.batch_span(name)

    def __enter__(self) -> _core.Span:
        self._span.__enter__()
        if _core.is_enabled() and not compiling():
            for one in self.requests:
                if isinstance(one, Remote):
                    one.start()
            if self.requests:
                _core.segment_link([one.number for one in self.requests])
        return self._span

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        self._span.__exit__(kind, error, traceback)

    async def __aenter__(self) -> _core.Span:
        return self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        self.__exit__(kind, error, traceback)


forks.after_in_child(_received_hops.clear)
