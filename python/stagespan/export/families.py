"""The families of metrics: their names in each monitoring system, their labels and meanings."""

from __future__ import annotations

from typing import Literal, NamedTuple

from stagespan.live.span_kinds import OPEN, RUNS, AnyKind, Kind

LABEL_SEPARATOR = "\0"
"""Separates the values of the labels of a family with more than one in one text."""


AMOUNT_STEPS = 1 << 14
"""Amounts are counted in steps of this part of 1, so that their bounds are those of durations in
nanoseconds: one bound an octave from 1 to 33,554,432."""


class Family(NamedTuple):
    """A row of the table."""

    key: str
    """Its name in `Counts` and in the file of totals, which must not change."""
    otlp: str | None
    """Its name in OTLP; None if it is not sent."""
    help: str
    """What it is, in a sentence."""
    labels: tuple[str, ...] = ("stage",)
    """Those besides the labels of the group of processes."""
    type: Literal["histogram", "counter", "gauge"] = "histogram"
    unit: str = "s"
    """As OTLP writes units."""
    kind: AnyKind | None = None
    """The kind of stages whose statistics it is."""
    open_kinds: tuple[Kind, ...] = ()
    """The kinds of spans that it counts while they are open, or of whose oldest it is the age."""
    age_of: str | None = None
    """The family of the durations of what it is the age of; None if it is no age."""
    genai: str | None = None
    """Its name in OpenTelemetry's conventions for generative AI."""
    quantiles_of: str | None = None
    """The family of the durations of which it has quantiles; None if it has none."""
    exception: str | None = None
    """Its name in Prometheus, if that does not follow from the one in OTLP."""

    @property
    def prometheus(self) -> str:
        """Its name in Prometheus: that in OTLP, with the unit, and what a counter ends in."""
        ending = "_total" if self.type == "counter" else {"s": "_seconds"}.get(self.unit, "")
        return self.exception or f"{(self.otlp or '').replace('.', '_')}{ending}"

    @property
    def is_amount(self) -> bool:
        """Whether it is a histogram, and not of durations."""
        return self.type == "histogram" and self.unit != "s"

    def bound(self, bound_ns: int) -> float:
        """Return a bound of a bucket in the unit of the family."""
        return bound_ns / (AMOUNT_STEPS if self.is_amount else 1e9)

    def sum(self, counted: float) -> float:
        """Return the sum of a histogram, as it was counted, in the unit of the family."""
        return counted if self.is_amount else counted / 1e9

    @property
    def has_group(self) -> bool:
        """Whether it has the labels of the group of processes."""
        return self.key not in ("up", "unnamed")

    def values(self, text: str) -> list[str]:
        """Return the values of the labels from the text that stands for them in `Counts`."""
        return text.split(LABEL_SEPARATOR) if len(self.labels) > 1 else [text]

    @staticmethod
    def text(*values: str) -> str:
        """Return the text that stands for the values of several labels, which are any texts."""
        return LABEL_SEPARATOR.join(one.replace(LABEL_SEPARATOR, "\\0") for one in values)


QUANTILES = {"0.5": 0.5, "0.95": 0.95, "0.99": 0.99}
"""The quantiles that are exported, by label."""
_WAITS: tuple[Kind, ...] = tuple(kind for kind, state in OPEN.items() if state == "waiting")
_DURATIONS = (
    Family(
        "stage", "stagespan.stage.duration", "Host time of the runs of a stage.", kind="execution"
    ),
    Family(
        "device",
        "stagespan.stage.device_duration",
        "Time from start to end of the runs of a stage on its device.",
    ),
    Family(
        "queue",
        "stagespan.stage.queue_duration",
        "Waits inside a process, and of messages that are received there.",
        kind="queue",
    ),
    Family(
        "batch",
        "stagespan.batch.duration",
        "Host time of runs that serve several requests.",
        kind="batch",
    ),
    Family(
        "first_chunk",
        "stagespan.request.time_to_first_chunk",
        "Time from the start of a request to the first chunk of a part of it.",
        ("pipeline",),
        kind="first_chunk",
        genai="gen_ai.server.time_to_first_token",
    ),
    Family(
        "part_first_chunk",
        "stagespan.part.time_to_first_chunk",
        "Time from the start of a request's part in a process to the part's first chunk.",
        ("pipeline",),
        kind="part_first_chunk",
    ),
    Family(
        "per_token",
        "stagespan.request.time_per_token",
        "Time from one chunk to the next, divided by the tokens of the second one.",
        ("pipeline",),
        kind="per_token",
        genai="gen_ai.server.time_per_output_token",
    ),
    Family(
        "request",
        "stagespan.request.duration",
        "Time from start to end of requests.",
        ("pipeline", "status"),
        kind="request",
        genai="gen_ai.server.request.duration",
    ),
    Family(
        "handoff",
        "stagespan.handoff.duration",
        "Time from sent to received, less that behind others, of messages between processes.",
        ("to",),
        kind="handoff",
    ),
)
_AMOUNTS = (
    Family(
        "batch_size",
        "stagespan.batch.size",
        "Requests that a batch has served.",
        unit="{request}",
    ),
    Family(
        "run_work",
        "stagespan.stage.run_work",
        "Work that a run of a stage has counted.",
        ("stage", "unit"),
        unit="1",
    ),
    Family(
        "request_work",
        "stagespan.request.work",
        "Work that the runs of a request in one process have counted, or the tokens of its chunks.",
        ("pipeline", "unit"),
        unit="1",
    ),
)
_TABLE = (
    *_DURATIONS,
    *_AMOUNTS,
    Family(
        "errors",
        "stagespan.stage.errors",
        "Runs of a stage that have raised an exception.",
        type="counter",
        unit="1",
    ),
    Family(
        "work",
        "stagespan.stage.work",
        "Work that runs of a stage have counted.",
        ("stage", "unit"),
        "counter",
        "1",
    ),
    Family(
        "sent",
        "stagespan.handoffs.sent",
        "Messages that requests have sent, by queue.",
        type="counter",
        unit="1",
    ),
    Family(
        "unknown",
        "stagespan.handoffs.unknown",
        "Messages that no process of this node had received when the request that sent them ended.",
        type="counter",
        unit="1",
    ),
    Family(
        "ended",
        "stagespan.processes.ended",
        "Processes that have ended, by how: exit, signal, killed, crashed or unknown.",
        ("how",),
        "counter",
        "1",
    ),
    Family("lost", "stagespan.lost", "What was lost, by cause.", ("cause",), "counter", "1"),
    Family(
        "running",
        "stagespan.stage.running",
        "Runs of a stage that have not ended.",
        type="gauge",
        unit="1",
        open_kinds=RUNS,
    ),
    Family(
        "waiting",
        "stagespan.queue.waiting",
        "Waits in a queue that have not ended, and messages that open requests have sent to it.",
        type="gauge",
        unit="1",
        open_kinds=_WAITS,
    ),
    Family(
        "running_age",
        "stagespan.stage.oldest_running_age",
        "The longest time since an open run of a stage, or something inside of it, began or ended.",
        type="gauge",
        open_kinds=("execution",),
        age_of="stage",
    ),
    Family(
        "batch_age",
        "stagespan.batch.oldest_running_age",
        "The same of runs that serve several requests.",
        type="gauge",
        open_kinds=("batch",),
        age_of="batch",
    ),
    Family(
        "waiting_age",
        "stagespan.queue.oldest_waiting_age",
        "Age of the oldest wait in a queue that has not ended.",
        type="gauge",
        open_kinds=_WAITS,
        age_of="queue",
    ),
    Family(
        "oldest",
        "stagespan.request.oldest_age",
        "Age of the oldest request that has not ended.",
        (),
        "gauge",
        age_of="request",
        exception="stagespan_oldest_request_age_seconds",
    ),
    *(
        Family(
            f"{family.key}_quantile",
            f"{family.otlp}_quantile",
            f"Quantiles of {family.prometheus} in the last minute.",
            (*family.labels, "quantile"),
            "gauge",
            family.unit,
            quantiles_of=family.key,
        )
        for family in (*_DURATIONS, *_AMOUNTS)
    ),
    Family(
        "gauge",
        "stagespan.gauge",
        "What programs observe themselves, added over the processes of a service and rank.",
        ("name",),
        "gauge",
        "1",
    ),
    Family(
        "up",
        "stagespan.process.up",
        "Live processes of a service that record.",
        ("service",),
        "gauge",
        "{process}",
    ),
    Family(
        "unnamed",
        None,
        "Stages that are summed as (other), because there are too many.",
        (),
        "gauge",
        exception="stagespan_stages_not_named",
    ),
)
FAMILIES = {family.key: family for family in _TABLE}
"""All families by key."""
HISTOGRAMS = (*_DURATIONS, *_AMOUNTS)
"""The families of durations, and of the amounts of single runs and requests."""
COUNTERS = tuple(family for family in _TABLE if family.type == "counter")
"""The families of sums, which only rise."""
GAUGES = tuple(family for family in _TABLE if family.type == "gauge")
"""The families of what is going on."""
AGES = tuple(family for family in _TABLE if family.age_of is not None)
"""Those gauges that are ages: each is compared with the durations that were usual."""
OF_QUANTILES = {family.quantiles_of: family for family in _TABLE if family.quantiles_of is not None}
"""Those gauges that are quantiles, by the family of the durations."""
