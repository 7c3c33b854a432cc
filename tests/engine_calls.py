"""How the engine of served_engine.py calls stagespan."""

from __future__ import annotations

from typing import Any

import stagespan
from served_engine import Calls, Carrier


class WithStagespan(Calls):
    """Records everything with stagespan."""

    def begin(self, id_: str) -> Any:
        return stagespan.request(id_).__enter__()

    def end(self, request: Any, status: str) -> None:
        request.set_status(status)
        request.__exit__(None, None, None)

    def send(self, request: Any, queue: str, attempt: int = 1) -> Carrier:
        return stagespan.inject(queue=queue, attempt=attempt)

    def receive(self, carrier: Carrier) -> Any:
        return stagespan.extract(carrier)

    def enter(self, request: Any) -> None:
        request.__enter__()

    def leave(self, request: Any, status: str = "ok") -> None:
        if status != "ok":
            request.set_status(status)
        request.__exit__(None, None, None)

    def wait(self, request: Any) -> Any:
        return stagespan.begin("waiting", kind="queue")

    def waited(self, request: Any, token: Any) -> None:
        stagespan.end(token)

    def open(self, request: Any, stage: str) -> Any:
        return stagespan.begin(stage)

    def close(self, request: Any, token: Any) -> None:
        stagespan.end(token)

    def begin_batch(self, stage: str, requests: list[Any]) -> Any:
        batch = stagespan.batch(stage, requests)
        batch.__enter__()
        return batch

    def end_batch(self, requests: list[Any], token: Any) -> None:
        token.__exit__(None, None, None)

    def chunk(self, request: Any) -> None:
        request.chunk()


class WithStagespanOff(WithStagespan):
    """Calls stagespan while the recorder is off."""

    def __init__(self, role: str) -> None:
        super().__init__(role)
        stagespan.disable()
