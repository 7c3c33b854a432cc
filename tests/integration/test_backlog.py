"""Messages that were sent and not received, as metrics and commands show them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from exporting import exporter, of, scraped
from recorded_process import command_here, started

from running import PROGRAMS, tell

REQUESTING = PROGRAMS / "requesting.py"


class Service:
    """A front that sends messages, and a worker that receives those that it is given."""

    def __init__(self) -> None:
        self.front = started(REQUESTING, "front", STAGESPAN_JOB="front")
        self.worker = started(REQUESTING, "worker", STAGESPAN_JOB="worker")

    def send(self, name: str, queue: str) -> str:
        """Let the front open a request and send a message; return the carrier."""
        return tell(self.front, f"send {name} {queue}")

    def again(self, name: str, queue: str, carrier: str) -> str:
        """Let the front write the message again; return the carrier."""
        return tell(self.front, f"again {name} {queue} {carrier}")

    def end(self, name: str) -> None:
        """Let the front end a request."""
        tell(self.front, f"end {name}")

    def receive(self, carrier: str) -> None:
        """Let the worker receive a message."""
        tell(self.worker, carrier)


def _figures(port: int, queue: str) -> tuple[float, float]:
    """Return how many messages wait in a queue, and how many are unknown."""
    samples = scraped(port)
    waiting = of(samples, "stagespan_queue_waiting", stage=queue) or 0
    return waiting, of(samples, "stagespan_handoffs_unknown_total", stage=queue) or 0


def test_messages_wait_until_they_are_received_or_their_request_ends(folder: Path) -> None:
    # GIVEN a queue from which no process has received
    service = Service()
    carriers = {name: service.send(name, "tasks") for name in ("a", "b", "c", "d")}
    with exporter("--state", str(folder / "state.json")) as (_, port):
        assert _figures(port, "tasks") == (0, 0)
        # WHEN a process receives one THEN the others wait
        service.receive(carriers["a"])
        assert _figures(port, "tasks") == (3, 0)
        age_s = of(scraped(port), "stagespan_queue_oldest_waiting_age_seconds", stage="tasks")
        assert age_s is not None
        assert age_s > 0
        assert of(scraped(port), "stagespan_handoffs_sent_total", stage="tasks") == 4
        # WHEN requests end whose message was received, or was not
        service.end("a")
        service.end("b")
        assert _figures(port, "tasks") == (2, 1)
        service.receive(carriers["c"])
        assert _figures(port, "tasks") == (1, 1)
        service.end("c")
        service.end("d")
        assert _figures(port, "tasks") == (0, 2)
    # THEN another exporter goes on counting
    with exporter("--state", str(folder / "state.json")) as (_, port):
        assert _figures(port, "tasks") == (0, 2)
        service.send("e", "tasks")
        assert _figures(port, "tasks") == (1, 2)
        service.front.kill()
        service.front.wait(30)
        assert _figures(port, "tasks") == (0, 3)


def test_messages_to_what_does_not_record_do_not_wait(folder: Path) -> None:
    service = Service()
    service.receive(service.send("a", "tasks"))
    with exporter() as (_, port):
        service.send("b", "elsewhere")
        assert _figures(port, "elsewhere") == (0, 0)
        service.end("b")
        assert _figures(port, "elsewhere") == (0, 1)
        assert _figures(port, "tasks") == (0, 0)


def test_a_message_that_is_written_twice_counts_once(folder: Path) -> None:
    service = Service()
    service.receive(service.send("a", "tasks"))
    first = service.send("b", "tasks")
    second = service.again("b", "tasks", first)
    assert json.loads(second)["traceparent"] != json.loads(first)["traceparent"]
    with exporter() as (_, port):
        assert _figures(port, "tasks") == (1, 0)
        assert of(scraped(port), "stagespan_handoffs_sent_total", stage="tasks") == 2
        # WHEN the carrier was used for several messages nevertheless
        service.receive(first)
        assert _figures(port, "tasks") == (1, 0)
        service.receive(second)
        service.send("c", "tasks")
        assert _figures(port, "tasks") == (1, 0)


def test_commands_show_the_messages_that_wait(folder: Path) -> None:
    service = Service()
    service.receive(service.send("a", "tasks"))
    service.send("b", "tasks")
    service.send("c", "tasks")
    listed = json.loads(command_here("ps", "--json").stdout)["processes"]
    waiting = {one["pid"]: one["waiting"] for one in map(_flat, listed)}
    assert waiting == {service.front.pid: {"tasks": 2}, service.worker.pid: {}}


def _flat(process: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of a listed process without levels."""
    return {**process, **process.get("identity", {}), **process.get("load", {})}


def test_received_messages_whose_entries_were_used_again_do_not_wait(folder: Path) -> None:
    # GIVEN a request that sends more messages than the receiver has entries
    started(REQUESTING, "many_hops", STAGESPAN_REQUESTS="64")
    with exporter() as (_, port):
        assert _figures(port, "tasks") == (0, 0)
    listed = command_here("ps", "--json").stdout
    assert {"tasks"}.isdisjoint(_flat(json.loads(listed)["processes"][0])["waiting"])
