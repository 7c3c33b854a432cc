"""``stagespan export``: hands what processes record to monitoring systems."""

from __future__ import annotations

import contextlib
import re
import signal
import threading
import time
from typing import Any

import click

_LEAST_PAUSE_S = 0.5


class _Address(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """HOST:PORT, [HOST]:PORT or PORT."""

    name = "address"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        found = re.fullmatch(r"(?:(\[[^\]]+\]|[^:\[\]]*):)?(\d{1,5})", str(value).strip())
        if found is None or int(found[2]) > 65535:
            self.fail(f"{value!r} is not an address: pass HOST:PORT, as in 127.0.0.1:9464.")
        return (found[1] or "").strip("[]") or "127.0.0.1", int(found[2])


@click.command()
@click.option(
    "--prometheus",
    type=_Address(),
    metavar="HOST:PORT",
    help="Serve metrics for Prometheus. Without HOST, only this machine can read them.",
)
@click.option(
    "--otlp",
    metavar="URL",
    help="Send requests and figures to an OpenTelemetry collector. The variables "
    "OTEL_EXPORTER_OTLP_* hold.",
)
@click.option(
    "--sample",
    metavar="N",
    type=click.IntRange(min=0),
    default=1,
    show_default=True,
    help="Send one of N requests; 0 for none.",
)
@click.option(
    "--slowest",
    metavar="K",
    type=click.IntRange(0, 1000),
    default=0,
    help="Also send the K slowest of the other requests of each minute.",
)
@click.option(
    "--failed/--no-failed",
    default=True,
    show_default=True,
    help="Send all requests that do not end as ok.",
)
@click.option(
    "--state",
    metavar="FILE",
    help="Keep the totals of ended processes in this file, by default with the recordings.",
)
def command(
    prometheus: tuple[str, int] | None,
    otlp: str | None,
    sample: int,
    slowest: int,
    failed: bool,
    state: str | None,
) -> None:
    """Hand what the processes of this machine record to monitoring systems, until it is stopped.

    Reads the recordings of all processes of this user; root's exporter reads those of all users.
    The processes need no setting, and are not changed. Run one exporter on each machine.
    """
    if prometheus is None and otlp is None:
        raise click.UsageError("Say what to export: --prometheus HOST:PORT or --otlp URL.")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    from stagespan.export.node import Node
    from stagespan.export.traces import Rules

    with contextlib.ExitStack() as closing:
        sender = server = None
        if otlp is not None:
            from stagespan.export.otlp import Otlp

            sender = Otlp(otlp)
            closing.callback(sender.close)
        node = Node(state, None if sender is None else Rules(sample, slowest, failed))
        closing.callback(node.close)
        if sender is not None:
            node.losses.append(sender.lost)
        if prometheus is not None:
            from stagespan.export.prometheus import Server

            server = Server(node, *prometheus)
            closing.callback(server.close)
            host = f"[{prometheus[0]}]" if ":" in prometheus[0] else prometheus[0]
            click.echo(f"Metrics of {node.folder}: http://{host}:{server.port}/metrics")
        if sender is not None:
            click.echo(f"Requests and figures of {node.folder}: sent to {otlp}")
        pause_s = _LEAST_PAUSE_S
        while not stop.wait(pause_s):
            began_s = time.process_time()
            node.poll()
            if sender is not None:
                sender.step(node)
            # Reading takes at most a twentieth of a core.
            pause_s = max(_LEAST_PAUSE_S, 20 * (time.process_time() - began_s))
        node.poll()
        if sender is not None:
            sender.step(node, at_end=True)
