"""``stagespan top``: shows live what processes do."""

from __future__ import annotations

import codecs
import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from stagespan.cli.addresses import Address, url
from stagespan.cli.numbers import FiniteRange
from stagespan.cli.output import Output, PageCommand, output_options
from stagespan.errors import StagespanError

if TYPE_CHECKING:
    from stagespan.recording.live_page import LivePage

_READ_INTERVAL_S = 0.5
_KEYS = "q quit   f freeze   s sort   / filter"


def _schema() -> dict[str, Any]:
    from stagespan.pages.figures import document_schema
    from stagespan.recording.activity import ActivityFigures

    return document_schema(ActivityFigures, title="What processes do now")


@click.command(cls=PageCommand)
@click.argument("pid", required=False, metavar="[FILE|PID]")
@click.option("--job", metavar="JOB", help="Show the processes of a job together.")
@click.option(
    "--interval",
    metavar="SECONDS",
    type=FiniteRange(min=0.1, max=3600),
    default=1.0,
    show_default=True,
    help="Time between two readings.",
)
@click.option(
    "--once", is_flag=True, help="Print one page and exit, as all forms but that of a terminal do."
)
@click.option(
    "--web",
    type=Address(),
    metavar="[HOST:]PORT",
    help="Serve a page with all processes of this machine for a browser, until it is stopped. "
    "Without HOST, only this machine can read it.",
)
@output_options(_schema)
def command(
    pid: str | None,
    job: str | None,
    interval: float,
    once: bool,
    web: tuple[str, int] | None,
    output: Output,
) -> None:
    """Show the stages and threads of a process or a job, live.

    Without FILE, PID or --job, shows the live process that has finished the most spans. Keys: q
    quits, f freezes the page, s changes the order of the stages, / filters them by name.

    \b
    Examples:
      stagespan top --job train-7
      stagespan top --web 9466
    """
    if web is not None:
        if pid is not None or job is not None or once:
            raise click.UsageError(
                "--web serves the page of all processes: leave out the process, --job and --once."
            )
        _serve(*web)
        return
    if pid is not None and job is not None:
        raise click.UsageError("Pass a file or process id, or --job, but not both.")
    from rich.console import Console

    from stagespan.recording.live_page import LivePage

    page = LivePage(pid, job)
    console = Console()
    if once or output.form or output.html is not None or not console.is_terminal:
        page.read()
        time.sleep(interval)
        page.read()
        output.show(page.page())
        return
    _live(console, page, interval)


def _serve(host: str, port: int) -> None:
    """Serve the page of all processes until SIGINT or SIGTERM comes."""
    from stagespan.export.node import Node
    from stagespan.export.page import PageServer

    # Before the server starts its threads, which would otherwise take the signals.
    stops = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, stops)
    node = Node(is_exporter=False)
    with contextlib.closing(node), contextlib.closing(PageServer(node, host, port)) as server:
        click.echo(f"Page of {node.folder}: {url(host, server.port)}/")
        pause_s = _READ_INTERVAL_S
        while signal.sigtimedwait(stops, pause_s) is None:
            began_s = time.process_time()
            node.poll()
            # Reading takes at most a twentieth of a core.
            pause_s = max(_READ_INTERVAL_S, 20 * (time.process_time() - began_s))


def _live(console: Any, page: LivePage, interval: float) -> None:
    from rich.live import Live
    from rich.text import Text

    page.read()
    with _keys() as key, Live(console=console, screen=True, auto_refresh=False) as live:
        due = time.monotonic() + min(interval, 0.3)
        while True:
            footer = f"/{page.filter}_" if page.is_typing else _KEYS
            body = page.render(console.width, console.height - 1)
            body.append(Text(footer, style="dim", no_wrap=True, overflow="ellipsis"))
            live.update(_Lines(body), refresh=True)
            pressed = key(max(due - time.monotonic(), 0.0))
            if pressed is not None and not page.press(pressed):
                return
            if time.monotonic() >= due:
                due = time.monotonic() + interval
                if not page.is_frozen:
                    try:
                        page.read()
                    except StagespanError as error:
                        page.show_message(str(error))


class _Lines:
    """Puts renderables below each other, for rich."""

    def __init__(self, lines: list[Any]) -> None:
        self._lines = lines

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        yield from self._lines


@contextlib.contextmanager
def _keys() -> Iterator[Any]:
    """Yield a function that waits some seconds for a key, and returns it or None."""
    import termios
    import tty

    try:
        handle = sys.stdin.fileno()
        before = termios.tcgetattr(handle)
    except (OSError, ValueError, termios.error):
        yield time.sleep
        return

    # A key can be several bytes, which are read one by one.
    decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def wait(seconds: float) -> str | None:
        try:
            readable, _, _ = select.select([handle], [], [], seconds)
        except InterruptedError:
            return None
        if not readable:
            return None
        byte = os.read(handle, 1)
        return (decoder.decode(byte) or None) if byte else "q"

    tty.setcbreak(handle)
    try:
        yield wait
    except KeyboardInterrupt:
        pass
    finally:
        termios.tcsetattr(handle, termios.TCSADRAIN, before)
