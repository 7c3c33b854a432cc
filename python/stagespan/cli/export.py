"""``stagespan export``: hands what processes record to monitoring systems."""

from __future__ import annotations

import re
import signal
import threading
from typing import Any

import click


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
    "--state",
    metavar="FILE",
    help="Keep the totals of ended processes in this file, by default with the recordings.",
)
def command(prometheus: tuple[str, int] | None, state: str | None) -> None:
    """Hand what the processes of this machine record to monitoring systems, until it is stopped.

    Reads the recordings of all processes of this user; root's exporter reads those of all users.
    The processes need no setting, and are not changed. Run one exporter on each machine.
    """
    if prometheus is None:
        raise click.UsageError("Say what to export: --prometheus HOST:PORT.")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    from stagespan.export.node import Node
    from stagespan.export.prometheus import Server

    node = Node(state)
    try:
        server = Server(node, *prometheus)
        try:
            host = f"[{prometheus[0]}]" if ":" in prometheus[0] else prometheus[0]
            click.echo(f"Metrics of {node.folder}: http://{host}:{server.port}/metrics")
            while not stop.wait(1.0):
                node.poll()
            node.read()
        finally:
            server.close()
    finally:
        node.close()
