"""``stagespan top``: shows live what processes do."""

from __future__ import annotations

import codecs
import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from stagespan.cli.addresses import Address, url
from stagespan.cli.numbers import FiniteRange
from stagespan.cli.output import Output, PageCommand, output_options
from stagespan.errors import StagespanError

if TYPE_CHECKING:
    from stagespan.recording.live_page import LivePage

_READ_INTERVAL_S = 0.5
_LONGEST_WAIT_S = 3600.0
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
    help="Serve the page of the process or job for a browser, or one of all processes of this "
    "machine, until it is stopped. Without HOST, only this machine can read it.",
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
      stagespan top 4711 --web 9466
    """
    if pid is not None and job is not None:
        raise click.UsageError("Pass a file or process id, or --job, but not both.")
    if web is not None:
        if once or output.form or output.html is not None:
            raise click.UsageError(
                "--web serves a page until it is stopped: leave out --once and options of output."
            )
        if pid is None and job is None:
            _serve_all(*web)
        else:
            _serve(pid, job, *web)
        return
    from rich.console import Console

    from stagespan.recording.live_page import LivePage

    console = Console()
    if once or output.form or output.html is not None or not console.is_terminal:
        with contextlib.closing(LivePage(pid, job, interval)) as page:
            page.read()
            page.wait(interval)
            page.read()
        output.show(page.page())
        return
    with contextlib.closing(LivePage(pid, job)) as page:
        _live(console, page, interval)


def _serve_all(host: str, port: int) -> None:
    """Serve the page of all processes until SIGINT or SIGTERM comes."""
    from stagespan.export.node import Node
    from stagespan.export.page import PageServer

    with (
        _stop() as comes_within,
        contextlib.closing(Node(is_exporter=False)) as node,
        contextlib.closing(PageServer(node, host, port)) as server,
    ):
        click.echo(f"Page of {node.folder}: {url(host, server.port)}/")
        pause_s = _READ_INTERVAL_S
        while not comes_within(pause_s):
            began_s = time.process_time()
            node.poll()
            # Reading takes at most a twentieth of a core.
            pause_s = max(_READ_INTERVAL_S, 20 * (time.process_time() - began_s))


def _serve(which: str | None, job: str | None, host: str, port: int) -> None:
    """Serve the page of a process or a job until SIGINT or SIGTERM comes."""
    from stagespan.export.page import serve_page
    from stagespan.pages.page import Page
    from stagespan.recording import finding
    from stagespan.recording.process_page import ProcessPage
    from stagespan.recording.processes_page import JobState
    from stagespan.recording.reading import Recording

    path = None if which is None else finding.open_recording(which).path

    def make() -> Page:
        return JobState(str(job)).page() if path is None else ProcessPage(Recording(path))

    with _stop() as comes_within, contextlib.closing(serve_page(make, host, port)) as server:
        click.echo(f"{make().name()}: {url(host, server.port)}/")
        while not comes_within(_LONGEST_WAIT_S):
            pass


@contextlib.contextmanager
def _stop() -> Iterator[Callable[[float], bool]]:
    """Yield a function that waits some seconds for SIGINT or SIGTERM, and tells if one has come.

    Threads that start in the block do not take them.
    """
    stops = {signal.SIGINT, signal.SIGTERM}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, stops)
    try:
        yield lambda seconds: signal.sigtimedwait(stops, seconds) is not None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


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
