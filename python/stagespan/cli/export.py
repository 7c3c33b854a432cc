"""``stagespan export``: hands what processes record to monitoring systems."""

from __future__ import annotations

import contextlib
import logging
import time
from typing import TYPE_CHECKING

import click

from stagespan.cli import lean
from stagespan.cli.addresses import Address, url
from stagespan.cli.former import say_former

if TYPE_CHECKING:
    from stagespan.export.ending import Ending
    from stagespan.export.figures import AnyBuckets
    from stagespan.export.kept import Keeper
    from stagespan.export.node import Node
    from stagespan.export.otlp import Otlp
    from stagespan.export.watching import Watcher

_LOGGER = logging.getLogger("stagespan")
_FROM_ENVIRONMENT = "environment"
"""The value of --otlp without a URL."""
_LEAST_PAUSE_S = 0.5
_SHORT_S = 0.05
"""The CPU time of a reading that is repeated as soon as there are new recordings."""
_LONGEST_PAUSE_S = 1.0
"""While requests are sent or kept. A recording has room for those of a second or two only."""


@click.command()
@click.option(
    "--prometheus",
    type=Address(),
    metavar="HOST:PORT",
    help="Serve metrics for Prometheus. Without HOST, only this machine can read them.",
)
@click.option(
    "--otlp",
    metavar="[URL]",
    is_flag=False,
    flag_value=_FROM_ENVIRONMENT,
    help="Send requests and figures to an OpenTelemetry collector. The variables "
    "OTEL_EXPORTER_OTLP_* hold; without URL, also those that name the endpoint.",
)
@click.option(
    "--page",
    type=Address(),
    metavar="HOST:PORT",
    hidden=True,  # it is `top --web`
)
@click.option(
    "--keep",
    metavar="DIR",
    help="Write requests to files that `requests DIR` reads. DIR may be a URL such as "
    "s3://bucket/requests.",
)
@click.option(
    "--keep-mb",
    metavar="N",
    type=click.IntRange(min=1),
    default=256,
    show_default=True,
    help="Remove the oldest of these files beyond so many MiB.",
)
@click.option(
    "--keep-format",
    type=click.Choice(["jsonl", "parquet"]),
    default="jsonl",
    show_default=True,
    help="parquet (needs pyarrow) is for very many requests: `requests DIR` then reads only those "
    "that it shows, with DuckDB.",
)
@click.option(
    "--sample",
    metavar="N",
    type=click.IntRange(min=0),
    default=1,
    show_default=True,
    help="Send or keep one of N requests; 0 for none.",
)
@click.option(
    "--slowest",
    metavar="K",
    type=click.IntRange(0, 1000),
    default=0,
    help="Also send or keep the K slowest of the other requests of each minute.",
)
@click.option(
    "--over",
    metavar="FACTORxpN",
    help="Also send or keep requests that took longer than a multiple of a percentile of the "
    "latest 1,000 of their pipeline, such as 2.0xp99; none before there were 100.",
)
@click.option(
    "--failed/--no-failed",
    default=True,
    show_default=True,
    help="Send or keep all requests that do not end as ok.",
)
@click.option(
    "--genai",
    metavar="[OPERATION]",
    is_flag=False,
    flag_value="generate_content",
    help="Add what OpenTelemetry's conventions for generative AI name to what --otlp sends. "
    "OPERATION is chat, text_completion or another one.  [default: generate_content]",
)
@click.option(
    "--buckets",
    type=click.Choice(["coarse", "fine"]),
    default="coarse",
    show_default=True,
    help="How many buckets the histograms have: one an octave, from 16 us to 550 s, or four an "
    "octave from 1 us to 1,100 s.",
)
@click.option("--dashboard", is_flag=True, help="Print a dashboard for Grafana, and end.")
@click.option("--alerts", is_flag=True, help="Print alert rules for Prometheus, and end.")
@click.option(
    "--state",
    metavar="FILE",
    help="Keep the totals of ended processes in this file, by default with the recordings.",
)
def command(
    prometheus: tuple[str, int] | None,
    otlp: str | None,
    page: tuple[str, int] | None,
    keep: str | None,
    keep_mb: int,
    keep_format: str,
    sample: int,
    slowest: int,
    over: str | None,
    failed: bool,
    genai: str | None,
    buckets: AnyBuckets,
    state: str | None,
    dashboard: bool,
    alerts: bool,
) -> None:
    """Hand what the processes of this machine record to monitoring systems, until it is stopped.

    Reads the recordings of all processes of this user; root's exporter reads those of all users.
    The processes need no setting, and are not changed. Run one exporter on each machine.

    \b
    Examples:
      stagespan export --prometheus 0.0.0.0:9464
      stagespan export --otlp http://collector:4318 --keep /var/lib/requests
    """
    if dashboard and alerts:
        raise click.UsageError("Pass --dashboard or --alerts: each prints a file of its own.")
    if dashboard or alerts:
        from stagespan.export import dashboard as files

        if dashboard:
            from stagespan.cli.output import print_json

            print_json(files.dashboard())
        if alerts:
            click.echo(files.alerts(), nl=False)
        return
    if prometheus is None and otlp is None and page is None and keep is None:
        raise click.UsageError(
            "Say what to export: --prometheus HOST:PORT, --otlp URL or --keep DIR."
        )
    if page is not None:
        say_former("export --page [HOST:]PORT", "top --web [HOST:]PORT")
    if genai is not None and otlp is None:
        raise click.UsageError("--genai adds to what --otlp sends: pass --otlp URL too.")
    from stagespan.export.traces import Over

    limit = None if over is None else Over.parsed(over)
    if over is not None and limit is None:
        raise click.UsageError(
            f"--over {over!r}: write a factor and a percentile, such as 2.0xp99."
        )
    from stagespan.export.ending import Ending

    ending = Ending()
    from stagespan.export import descriptors
    from stagespan.export.node import Node
    from stagespan.export.parts import AWAITED_KEEP, AWAITED_OTLP
    from stagespan.export.traces import Rules

    with contextlib.ExitStack() as closing:
        sender = server = keeper = None
        if otlp is not None:
            from stagespan.export.otlp import Otlp
            from stagespan.export.otlp_sending import endpoint, is_disabled, limit_logging

            limit_logging()
            given = None if otlp == _FROM_ENVIRONMENT else otlp
            sender = None if is_disabled() else Otlp(given, genai, buckets)
            collector = given or endpoint("TRACES") or "the collector of this machine"
        if keep is not None:
            from stagespan.export.kept import Keeper

            keeper = Keeper(keep, keep_mb << 20, parquet=keep_format == "parquet")
        descriptors.raise_limit()
        rules = Rules(sample, slowest, failed, limit)
        awaited = [
            name
            for name, one in ((AWAITED_OTLP, sender), (AWAITED_KEEP, keeper))
            if one is not None
        ]
        node = Node(state, rules if awaited else None, awaited, ending.is_over)
        ending.limit(node.save)
        if sender is not None:
            sender.begin(node)
        closing.callback(node.close)  # the last one, because it writes what was sent
        if keeper is not None:
            closing.callback(keeper.close)
        if sender is not None:
            closing.callback(sender.close)
        node.losses += [one.lost for one in (sender, keeper) if one is not None]
        if prometheus is not None:
            from stagespan.export.prometheus import Server

            server = Server(node, *prometheus, buckets)
            closing.callback(server.close)
            click.echo(f"Metrics of {node.folder}: {url(prometheus[0], server.port)}/metrics")
        if page is not None:
            from stagespan.export.page import PageServer

            pages = PageServer(node, *page)
            closing.callback(pages.close)
            click.echo(f"Page of {node.folder}: {url(page[0], pages.port)}/")
        if sender is not None:
            click.echo(f"Requests and figures of {node.folder}: sent to {collector}")
        if keeper is not None:
            click.echo(f"Requests of {node.folder}: kept in {keep}")

        # Imported before, so that it starts no threads for linear algebra.
        closing.enter_context(lean.few_collections(*(("numpy",) if awaited else ())))
        watcher = None
        if keeper is not None and limit is not None:
            from stagespan.export.watching import Watcher

            watcher = Watcher(node)

        told: set[type[Exception]] = set()

        def step(*, at_end: bool = False) -> None:
            try:
                node.poll()
                if watcher is not None and not at_end:
                    watcher.watch()
                _hand_over(node, ending, sender, keeper, watcher, at_end=at_end)
            except Exception as error:  # nothing that a process has recorded ends the exporter
                if type(error) not in told:
                    told.add(type(error))
                    _LOGGER.warning("A reading has failed (%r): the next one follows.", error)

        pause_s = 0.0 if awaited else _LEAST_PAUSE_S
        while not ending.wait(pause_s):
            began_s = time.process_time()
            step()
            took_s = time.process_time() - began_s
            if awaited:
                for_new = took_s < _SHORT_S
                node.wait(ending.reader, _LONGEST_PAUSE_S, for_new=for_new)
            else:  # reading figures takes at most a twentieth of a core
                pause_s = max(_LEAST_PAUSE_S, 20 * took_s)
        ending.allow_work()
        if keeper is not None:  # before a last reading, which can take all of the time
            keeper.write()
        step(at_end=True)
        if sender is not None:
            sender.close(ending.left_s())
        if keeper is not None:
            keeper.close(ending.left_s())
        node.close()
        ending.end()


def _hand_over(
    node: Node,
    ending: Ending,
    sender: Otlp | None,
    keeper: Keeper | None,
    watcher: Watcher | None,
    *,
    at_end: bool = False,
) -> None:
    """Hand what is complete to the collector and to the files."""
    requests = node.complete(at_end=at_end)
    if sender is not None:
        sender.put_requests(requests, ending.is_over)
    if keeper is not None:
        if watcher is not None:
            watcher.note(requests, ending.is_over, at_end=at_end)
        keeper.put(requests, ending.is_over)
        if at_end:
            keeper.write()
    if sender is not None and not ending.is_over():
        sender.step(node, at_end=at_end)
