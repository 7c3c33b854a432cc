"""Calls of stagespan in the engine, with the engine's own stamps before and after each of them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine_calls import WithStagespan
from served_engine import Carrier


def hop_of(carrier: Carrier) -> str:
    """Return the id of a hop, which names what is stamped in its receiver."""
    return carrier["traceparent"].split("-")[2]


class Stamped(WithStagespan):
    """Writes a line of JSON for each call: what, the requests, ns before and after, attempt."""

    def __init__(self, role: str) -> None:
        super().__init__(role)
        folder = os.environ["ENGINE_STAMPS"]
        # Each line is written at once, because a worker may be killed after it.
        path = Path(folder, f"{role}-{os.getpid()}")
        self._file = path.open("a", buffering=1)

    def _around(self, what: str, keys: list[str], call: Callable[..., Any], *given: Any) -> Any:
        before = time.monotonic_ns()
        result = call(*given)
        after = time.monotonic_ns()
        if isinstance(result, dict):
            keys = [hop_of(result)]
        self._file.write(json.dumps([what, keys, before, after]) + "\n")
        return result

    def begin(self, id_: str) -> Any:
        request = self._around("begin", [id_], super().begin, id_)
        request.metadata["key"] = id_
        return request

    def end(self, request: Any, status: str) -> None:
        self._around("end", _keys(request), super().end, request, status)

    def send(self, request: Any, queue: str, attempt: int = 1) -> Carrier:
        carrier: Carrier = self._around("send", [], super().send, request, queue, attempt)
        return carrier

    def receive(self, carrier: Carrier) -> Any:
        key = hop_of(carrier)
        remote = self._around("receive", [key], super().receive, carrier)
        # A hop that has come back shares the metadata of its root.
        remote.metadata = {**remote.metadata, "key": key}
        return remote

    def enter(self, request: Any) -> None:
        self._around("enter", _keys(request), super().enter, request)

    def leave(self, request: Any, status: str = "ok") -> None:
        self._around("leave", _keys(request), super().leave, request, status)

    def wait(self, request: Any) -> Any:
        return self._around("begin waiting", _keys(request), super().wait, request)

    def waited(self, request: Any, token: Any) -> None:
        self._around("end waiting", _keys(request), super().waited, request, token)

    def open(self, request: Any, stage: str) -> Any:
        self._stage = stage
        return self._around(f"begin {stage}", _keys(request), super().open, request, stage)

    def close(self, request: Any, token: Any) -> None:
        self._around(f"end {self._stage}", _keys(request), super().close, request, token)

    def begin_batch(self, stage: str, requests: list[Any]) -> Any:
        keys = [key for one in requests for key in _keys(one)]
        return self._around(f"begin {stage}", keys, super().begin_batch, stage, requests)

    def end_batch(self, requests: list[Any], token: Any) -> None:
        keys = [key for one in requests for key in _keys(one)]
        self._around("end forward", keys, super().end_batch, requests, token)

    def chunk(self, request: Any) -> None:
        self._around("chunk", _keys(request), super().chunk, request)


def _keys(request: Any) -> list[str]:
    return [request.metadata["key"]]
