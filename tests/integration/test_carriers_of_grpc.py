"""The metadata of gRPC as carriers, of calls and of their answers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import stagespan

grpc = pytest.importorskip("grpc", reason="gRPC is not installed")

pytestmark = pytest.mark.usefixtures("fresh")


class Handler(grpc.GenericRpcHandler):  # type: ignore[misc, unused-ignore]
    """Answers each call with the carrier of its request, in the metadata at both ends."""

    def __init__(self) -> None:
        self.seen: list[stagespan.Remote] = []

    def service(self, details: Any) -> Any:
        async def serve(message: bytes, context: Any) -> bytes:
            with stagespan.extract(context.invocation_metadata()) as remote:
                self.seen.append(remote)
            await context.send_initial_metadata(tuple(remote.inject(queue="first").items()))
            context.set_trailing_metadata(tuple(remote.inject(queue="replies").items()))
            return message

        return grpc.unary_unary_rpc_method_handler(serve)


async def call(channel: Any) -> list[stagespan.Remote]:
    """Return what a client reads from the answer, in each form that the metadata has."""
    with stagespan.request("req-1"):
        carrier = stagespan.inject(queue="grpc")
        answer = channel.unary_unary("/s/m")(b"x", metadata=tuple(carrier.items()))
        await answer
        first, last = await answer.initial_metadata(), await answer.trailing_metadata()
        forms = (first, last, tuple(last), list(last), dict(last.items()))
        return [stagespan.extract(form) for form in forms]


def test_the_metadata_of_asynchronous_calls_and_answers() -> None:
    handler = Handler()

    async def run() -> list[stagespan.Remote]:
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((handler,))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            answers = await call(channel)
        await server.stop(None)
        return answers

    answers = asyncio.run(run())
    assert [(one.id, one.queue) for one in handler.seen] == [("req-1", "grpc")]
    assert [(one.id, one.queue) for one in answers] == [
        ("req-1", "first"),
        *[("req-1", "replies")] * 4,
    ]
