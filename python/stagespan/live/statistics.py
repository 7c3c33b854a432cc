"""Statistics of all stages, since the process began or for a time window."""

from __future__ import annotations

import bisect
import itertools
import math
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from stagespan import _core
from stagespan.live.quantiles import quantile, rank
from stagespan.live.span_kinds import REQUESTS, AnyKind, number_of, numbers_of
from stagespan.pages.amounts import amount, counted, of_time
from stagespan.pages.escaping import one_line
from stagespan.pages.tables import Column, plain_table
from stagespan.process import imports, run

_SECOND = 10**9
QUANTILES = {"p50": 0.50, "p95": 0.95, "p99": 0.99}
"""Those that all figures of durations have, by their names."""
_TITLES = (
    *("count", "total ms", "mean ms", *(f"{name} ms" for name in QUANTILES), "max ms", "errors"),
    *("suspended ms", "CPU mean ms", "device mean ms", "queue mean ms", "tail mean ms", "work"),
    "a run",
)
_OPTIONAL = {
    "a run": 10,
    "work": 9,
    "max ms": 8,
    "tail mean ms": 7,
    "queue mean ms": 6,
    "suspended ms": 5,
    "CPU mean ms": 4,
    "mean ms": 4,
    "p99 ms": 3,
    "total ms": 2,
    "device mean ms": 1,
}
"""The columns that are left out of a table that is too wide, the largest number first."""
_FIGURES = {
    "count": "The number of runs with a known duration; at least 1.",
    "total_ns": "The sum of the durations in ns.",
    "mean_ns": "The mean duration in ns.",
    "min_ns": "The shortest duration in ns.",
    "max_ns": "The longest duration in ns.",
}
DEVICE_FIGURES = ("device_elapsed_ns", "device_queue_ns", "device_tail_ns")

if TYPE_CHECKING:
    from stagespan.pages.result import Table

    Durations = _core._Durations
else:
    Durations = object


class Amounts:
    """The distribution of what single runs or requests have done, in the unit of the amounts."""

    def __init__(
        self,
        total: float,
        min: float,
        max: float,
        count: int,
        buckets: Iterable[tuple[float, int]],
    ) -> None:
        self.count = count
        """How many runs or requests have counted something; at least 1."""
        self.total = total
        """The sum of the amounts."""
        self.mean = total / count
        """The mean amount."""
        self.min = min
        """The smallest amount."""
        self.max = max
        """The largest amount."""
        # Those of each process are in order, which makes sorting them quick.
        self._buckets = sorted(buckets)
        self._below = list(itertools.accumulate(count for _, count in self._buckets))
        self.p50, self.p95, self.p99 = map(self.quantile, QUANTILES.values())

    @staticmethod
    def of(parts: Sequence[Amounts | _core.AmountSummary]) -> Amounts:
        """Return several distributions in the same unit together."""
        return Amounts(
            sum(part.total for part in parts),
            min(part.min for part in parts),
            max(part.max for part in parts),
            sum(part.count for part in parts),
            (bucket for part in parts for bucket in part.buckets()),
        )

    def quantile(self, q: float) -> float:
        """Return the ``q`` quantile, with ``q`` from 0 to 1.

        It is within 3.1 % of the exact one, and exact for whole numbers up to 32. Raises ValueError
        if ``q`` is not between 0 and 1.
        """
        place = bisect.bisect_left(self._below, rank(q, self._below[-1]))
        return float(min(max(self._buckets[place][0], self.min), self.max))

    def buckets(self) -> list[tuple[float, int]]:
        """Return amounts, ascending, and how many there are of about each of them."""
        return self._buckets

    def __repr__(self) -> str:
        names = ("count", "total", "mean", "min", "max", *QUANTILES)
        return f"Amounts({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"


@dataclass(frozen=True, repr=False)
class StageStats(Durations):
    """Figures of one stage that has run at least once: host time in ns.

    The three device figures are None if no run has a known device time. The stage and each of them
    have ``count``, ``total_ns``, ``mean_ns``, ``min_ns``, ``max_ns``, ``p50_ns``, ``p95_ns``,
    ``p99_ns``, ``quantile_ns(q)`` and ``buckets_ns()``.
    """

    name: str
    host: Durations
    """The durations on the host, which the stage's own figures are."""
    errors: int
    suspended_ns: int
    cpu_total_ns: int | None
    """The CPU time of the runs that have measured it; None if none has."""
    cpu_count: int
    """How many have."""
    work: Mapping[str, float]
    amounts: Mapping[str, Amounts]
    """What single runs, or requests, have added, by unit."""
    batch_size: Amounts | None
    """The numbers of requests that batches have served."""
    device_elapsed_ns: Durations | None
    """Time from start to end on the device's stream, gaps included, of runs with a known time."""
    device_queue_ns: Durations | None
    """How much later than on the host the runs began on the device."""
    device_tail_ns: Durations | None
    """How much later than on the host the runs ended on the device."""

    @property
    def cpu_mean_ns(self) -> float | None:
        """The mean CPU time of a run in ns; None if no run has measured it."""
        return None if self.cpu_total_ns is None else self.cpu_total_ns / self.cpu_count

    def quantile_ns(self, q: float) -> float:
        """Return the ``q`` quantile of the duration in ns, with ``q`` from 0 to 1.

        Raises ValueError if ``q`` is not between 0 and 1.
        """
        return self.host.quantile_ns(q)

    def buckets_ns(self) -> list[tuple[float, int]]:
        """Return the distribution: durations in ns, ascending, and how many runs took that long.

        Most are the middle of a bucket of the histogram, within 2.1 % of the duration.
        """
        return self.host.buckets_ns()

    def __repr__(self) -> str:
        quantiles = (f"{name}_ns" for name in QUANTILES)
        others = "errors", "suspended_ns", "cpu_total_ns", "cpu_count", "work"
        names = (*_FIGURES, *quantiles, *others, *DEVICE_FIGURES)
        figures = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"StageStats(name={self.name!r}, {figures})"


for _name, _meaning in _FIGURES.items():
    setattr(StageStats, _name, property(attrgetter(f"host.{_name}"), doc=_meaning))


def _quantile(q: float) -> property:
    return property(lambda stage: stage.quantile_ns(q), doc=f"The {q} quantile of durations in ns.")


for _name, _q in QUANTILES.items():
    setattr(StageStats, f"{_name}_ns", _quantile(_q))


class UnknownStageError(KeyError):
    """There is no stage of this name. The message names similar stages."""

    def __init__(self, name: str, stages: Iterable[str] = ()) -> None:
        super().__init__(name)
        self._stages = tuple(stages)

    def __str__(self) -> str:
        difflib = imports.load("difflib")
        close = difflib.get_close_matches(str(self.args[0]), self._stages, n=3, cutoff=0.5)
        if close:
            others = f"similar names: {', '.join(map(one_line, close))}"
        elif self._stages:
            others = f"{len(self._stages)} other stages have run"
        else:
            others = "no stage has run"
        return f"no stage {self.args[0]!r} has run; {others}"


class Stats(Mapping[str, StageStats]):
    """A mapping from the name of a stage to its figures; prints as a table."""

    def __init__(
        self,
        stages: dict[str, StageStats],
        lost: dict[str, int],
        window_s: float | None,
        *,
        is_lifetime: bool,
    ) -> None:
        self._stages = stages
        self.lost: Mapping[str, int] = lost
        """What the recorder has lost since the process began, by cause."""
        self.window_s: float | None = window_s
        """Seconds that the figures cover; None if it is unknown when the process began."""
        self.is_lifetime: bool = is_lifetime
        """Whether the figures cover everything since the process began."""

    def __getitem__(self, name: str) -> StageStats:
        try:
            return self._stages[name]
        except KeyError:
            raise UnknownStageError(name, self._stages) from None

    def __contains__(self, name: object) -> bool:
        return name in self._stages

    def __iter__(self) -> Iterator[str]:
        return iter(self._stages)

    def __len__(self) -> int:
        return len(self._stages)

    def __str__(self) -> str:
        return self.table()

    def table(self, width: int | None = None) -> str:
        """Return the figures as a table.

        If it would be wider than ``width`` columns, the less important columns are left out, and
        names are cut.
        """
        columns = [
            Column("stage", [one_line(name) for name in self], is_flexible=True),
            *(
                Column(title, cells, is_number=True, optional=_OPTIONAL.get(title, 0))
                for title, *cells in zip(_TITLES, *map(_cells, self.values()), strict=True)
                # The last columns are shown only if a stage has a value there.
                if title not in _TITLES[_TITLES.index("errors") + 1 :] or any(cells)
            ),
        ]
        table = plain_table(columns, width)
        lost = ", ".join(f"{cause} {n:,}" for cause, n in self.lost.items() if n)
        return f"{table}\nlost: {lost}" if lost else table

    def __repr__(self) -> str:
        return f"<Stats of {self._headline()}>\n{self}"

    def _headline(self) -> str:
        span = "lifetime" if self.is_lifetime else f"last {self.window_s:.1f} s"
        return f"{counted(len(self), 'stage')}, {span}"

    def _as_table(self) -> Table:
        stages_table = imports.load("stagespan.live.stage_figures").stages_table
        return stages_table("", self)  # type: ignore[no-any-return]

    def _repr_html_(self) -> str:
        """Return the figures for a notebook."""
        result = imports.load("stagespan.pages.result")
        line = result.Line(self._headline(), "strong")
        html: str = result.in_notebook([line, self._as_table()])
        return html

    def to_pandas(self) -> Any:
        """Return the figures as a pandas.DataFrame. Raises StagespanError without pandas."""
        return self._as_table().to_pandas()

    def to_polars(self) -> Any:
        """Return the figures as a polars.DataFrame. Raises StagespanError without polars."""
        return self._as_table().to_polars()


def _cells(stage: StageStats) -> list[str]:
    """Return the figures of a stage as text, for `_TITLES`."""
    figures = (stage.mean_ns, *map(stage.quantile_ns, QUANTILES.values()), stage.max_ns)
    device = (stage.device_elapsed_ns, stage.device_queue_ns, stage.device_tail_ns)
    return [
        f"{stage.count:,}",
        *map(_ms, (stage.total_ns, *figures)),
        f"{stage.errors:,}",
        _ms(stage.suspended_ns) if stage.suspended_ns else "",
        "" if stage.cpu_mean_ns is None else _ms(stage.cpu_mean_ns),
        *("" if time is None else _ms(time.mean_ns) for time in device),
        work_text(stage),
        amounts_text(stage),
    ]


def _ms(ns: float) -> str:
    return of_time(ns, 1e6)


def work_text(stage: StageStats) -> str:
    """Return the work with its rate per second of the stage's time: ``tokens 4,600 (230/s)``."""
    seconds = stage.total_ns / 1e9
    rates = {what: done / seconds if seconds else math.inf for what, done in stage.work.items()}
    return ", ".join(
        f"{one_line(what)} {amount(done)}"
        + (f" ({rates[what]:,.4g}/s)" if math.isfinite(rates[what]) else "")
        for what, done in stage.work.items()
    )


def amounts_text(stage: StageStats) -> str:
    """Return the median and the p95 of the amounts of a run: ``tokens 230, p95 512``."""
    sizes = {} if stage.batch_size is None else {"requests": stage.batch_size}
    return "; ".join(
        f"{one_line(unit)} {amount(_whole(of.p50))}, p95 {amount(_whole(of.p95))}"
        for unit, of in (*sizes.items(), *stage.amounts.items())
    )


def _whole(number: float) -> float:
    return int(number) if number == int(number) else number


def stats(window_s: float | None = None, *, kind: AnyKind = "execution") -> Stats:
    """Return the statistics of all stages, since the process began or for a time window.

    A window covers about the last ``window_s`` seconds; `Stats.window_s` is its actual length. It
    begins at the nearest snapshot of the background thread, which takes one every few seconds while
    spans end, and keeps fewer of the older ones. If no snapshot is close enough, the figures come
    from the rings, provided that they reach back far enough; ``work`` is then empty. Raises
    ValueError if ``window_s`` is not above 0, or if ``kind`` is unknown.

    ``kind`` chooses what is counted: executions by default, or ``"queue"``, ``"handoff"``,
    ``"batch"``, ``"remote"`` (parts of requests that other processes have sent),
    ``"first_chunk"`` (since the request began, perhaps in another process with the same clock),
    ``"part_first_chunk"`` (since the part of the request in this process was entered),
    ``"between_chunks"`` and ``"per_token"``. One name may occur in several kinds. ``"request"`` has
    the requests that began in this process and have ended, by pipeline; ``"request_ok"``,
    ``"request_error"``, ``"request_cancelled"``, ``"request_discarded"`` and
    ``"request_abandoned"`` have those of one status.
    """
    numbers = numbers_of(kind)
    if window_s is None:
        return _lifetime(_core.snapshot(), numbers)
    if not window_s > 0:
        raise ValueError(f"window_s is {window_s!r}: pass a number of seconds above 0.")
    service = imports.load("stagespan.live.service")
    service.ensure_running()  # so that the next call finds snapshots
    # The history is read first, because the service thread could add a snapshot later than `now`.
    past = service.history().view()
    now = _core.snapshot()
    lifetime = _lifetime(now, numbers)
    if lifetime.window_s is not None and lifetime.window_s <= window_s:
        return lifetime
    requested_ns = int(window_s * _SECOND)
    began = now.time_ns - requested_ns
    earlier = past.nearest(began)
    if earlier is not None and abs(earlier.time_ns - began) <= 0.25 * requested_ns:
        return _since(now, earlier, numbers)
    has_spans = max(numbers) < number_of("part_first_chunk")
    exact = _from_own_rings(began, now.time_ns, numbers[0]) if has_spans else None
    if exact is not None:
        return exact
    life_ns = (lifetime.window_s or 0.0) * _SECOND
    if earlier is None or abs(life_ns - requested_ns) < abs(
        now.time_ns - earlier.time_ns - requested_ns
    ):
        return lifetime
    return _since(now, earlier, numbers)


def stats_since(earlier: _core.Snapshot) -> Stats:
    """Return the statistics of executions since a snapshot of the recorder."""
    now = _core.snapshot()
    window_s = (now.time_ns - earlier.time_ns) / 1e9
    return Stats(*_read(now.since(earlier), numbers_of("execution")), window_s, is_lifetime=False)


def _lifetime(now: _core.Snapshot, kinds: Sequence[int]) -> Stats:
    began_s = run.process_start_s(os.getpid())
    window_s = None if began_s is None else max(now.time_ns / 1e9 - began_s, 0.0)
    return Stats(*_read(now, kinds), window_s, is_lifetime=True)


def _since(now: _core.Snapshot, earlier: _core.PackedSnapshot, kinds: Sequence[int]) -> Stats:
    window_s = (now.time_ns - earlier.time_ns) / 1e9
    return Stats(*_read(now.since(earlier.unpack()), kinds), window_s, is_lifetime=False)


def of_recording(
    snapshot: _core.Snapshot,
    lost: dict[str, int],
    begin_ns: int,
    kind: AnyKind = "execution",
) -> Stats:
    """Return the figures of a recording, which began at the Unix time ``begin_ns``."""
    window_s = (snapshot.time_ns - begin_ns) / 1e9 if snapshot.time_ns > begin_ns > 0 else None
    return Stats(*_read(snapshot, numbers_of(kind), lost), window_s, is_lifetime=True)


def _read(
    snapshot: _core.Snapshot, kinds: Sequence[int], lost: dict[str, int] | None = None
) -> tuple[dict[str, StageStats], dict[str, int]]:
    lost = _core.lost() if lost is None else lost
    of_kinds = [map(_from_summary, snapshot.stages(kind).values()) for kind in kinds]
    stages = _by_name(itertools.chain.from_iterable(of_kinds))
    ok = number_of(REQUESTS["ok"])
    if ok in kinds:  # amounts of requests are not told apart by status
        of_requests = snapshot.amounts(ok) if len(kinds) > 1 else {}
        for name, stage in stages.items():
            amounts = {
                unit or "": Amounts.of([of]) for unit, of in of_requests.get(name, {}).items()
            }
            stages[name] = replace(stage, amounts=amounts)
    order = sorted(stages, key=lambda name: -stages[name].total_ns)
    return {name: stages[name] for name in order}, lost


def _from_summary(stage: _core.StageSummary) -> StageStats:
    device = (stage.device_elapsed_ns, stage.device_queue_ns, stage.device_tail_ns)
    cpu = stage.cpu_total_ns, stage.cpu_count
    size = stage.batch_size
    return StageStats(
        *(stage.name, stage, stage.errors, stage.suspended_ns, *cpu, dict(stage.work)),
        {unit: Amounts.of([of]) for unit, of in stage.amounts.items()},
        None if size is None else Amounts.of([size]),
        *device,
    )


# --- from the rings -------------------------------------------------------------------------------


def _from_own_rings(began_ns: int, now_ns: int, kind: int) -> Stats | None:
    """Return exact figures of the spans that ended in the window; None if the rings lost some."""
    lost = _core.lost()
    spans = _core.spans()
    if lost.get("threads", 0):  # some threads had no ring
        return None
    if lost.get("overwritten", 0) and not _reach_back(spans, began_ns):
        return None
    return from_rings(spans, _core.stage_names(), lost, began_ns, now_ns, kind)


def from_rings(
    spans: Any,
    names: Sequence[str],
    lost: dict[str, int],
    began_ns: int,
    now_ns: int,
    kind: int = 0,
) -> Stats:
    """Return exact figures of those of the spans that ended after ``began_ns``."""
    of_kind = spans["flags"] >> _core.KIND_SHIFT == kind
    spans = spans[(spans["end_ns"] > began_ns) & of_kind]
    return of_spans(spans, names, lost, (now_ns - began_ns) / 1e9)


def of_spans(spans: Any, names: Sequence[str], lost: dict[str, int], window_s: float) -> Stats:
    """Return exact figures of the spans that ended in a window, as `stagespan.spans` returns them.

    ``names`` are the stages by index. ``work`` is empty.
    """
    durations = spans["end_ns"] - spans["begin_ns"]
    failed = (spans["flags"] & _core.FLAG_ERROR) != 0
    stages = {}
    for index in _distinct(spans["stage"]):
        is_of_stage = spans["stage"] == index
        name = names[int(index)]
        stages[name] = StageStats(
            name,
            _Exact(durations[is_of_stage]),
            int(failed[is_of_stage].sum()),
            int(spans["suspended_ns"][is_of_stage].sum()),
            *_sum_of_known(spans["cpu_ns"][is_of_stage]),
            {},  # the rings do not contain work
            {},
            None,
            *(_without_unknown(spans[key][is_of_stage]) for key in DEVICE_FIGURES),
        )
    ordered = dict(sorted(stages.items(), key=lambda item: -item[1].total_ns))
    return Stats(ordered, lost, window_s, is_lifetime=False)


def _distinct(column: Any) -> Any:
    # Not numpy.unique: it uses a hash table, in which a daemon thread can crash the process when
    # the interpreter ends.
    numpy = imports.load("numpy")
    in_order = numpy.sort(column)
    return in_order[numpy.append(True, in_order[1:] != in_order[:-1])[: len(in_order)]]


def _reach_back(spans: Any, began_ns: int) -> bool:
    """Whether each thread's ring reaches back to a time before the window."""
    in_order = spans[(spans["flags"] & _core.FLAG_RECORDED) == 0]
    threads = _distinct(in_order["thread"])
    ends = (in_order["end_ns"][in_order["thread"] == thread] for thread in threads)
    return len(threads) > 0 and all(end.min() <= began_ns for end in ends)


class _Exact:
    """The same figures as the recorder's summaries, computed from a list of durations."""

    def __init__(self, durations: Any) -> None:
        self._sorted = imports.load("numpy").sort(durations)
        self.count = len(durations)
        self.total_ns = int(durations.sum())
        self.mean_ns = float(durations.mean())
        self.min_ns, self.max_ns = int(self._sorted[0]), int(self._sorted[-1])
        self.p50_ns, self.p95_ns, self.p99_ns = map(self.quantile_ns, (0.50, 0.95, 0.99))

    def quantile_ns(self, q: float) -> float:
        return float(quantile(self._sorted, q))

    def buckets_ns(self) -> list[tuple[float, int]]:
        return [(float(duration), 1) for duration in self._sorted]


def _sum_of_known(times_ns: Any) -> tuple[int | None, int]:
    known = times_ns[~imports.load("numpy").isnan(times_ns)]
    return int(known.sum()) if len(known) else None, len(known)


def _without_unknown(durations: Any) -> _Exact | None:
    known = durations[~imports.load("numpy").isnan(durations)]
    return _Exact(known) if len(known) else None


# --- of several processes -------------------------------------------------------------------------


class Distribution(Amounts, Durations):
    """Durations of which only the buckets of their histograms are known.

    Its figures have the names of amounts, and those of durations: ``p50_ns`` is ``p50``.
    """

    def __getattr__(self, name: str) -> Any:
        if not name.endswith("_ns"):
            raise AttributeError(name)
        return getattr(self, name.removesuffix("_ns"))

    @staticmethod
    def together(parts: Sequence[Durations]) -> Distribution:
        """Return several distributions together. Their histograms are added."""
        return Distribution(
            sum(part.total_ns for part in parts),
            min(part.min_ns for part in parts),
            max(part.max_ns for part in parts),
            sum(part.count for part in parts),
            (bucket for part in parts for bucket in part.buckets_ns()),
        )


def sum_of_known(times_ns: Iterable[int | None]) -> int | None:
    """Return the sum of the times that are known; None if none is."""
    known = [time_ns for time_ns in times_ns if time_ns is not None]
    return sum(known) if known else None


def merged_stage(parts: Sequence[StageStats]) -> StageStats:
    """Return the figures of one stage that ran in several processes; there is at least one."""
    work: Counter[str] = Counter()
    amounts: defaultdict[str, list[Amounts]] = defaultdict(list)
    for part in parts:
        work.update(part.work)
        for unit, of in part.amounts.items():
            amounts[unit].append(of)
    sizes = [part.batch_size for part in parts if part.batch_size is not None]
    device = (
        [figure for part in parts if (figure := getattr(part, key)) is not None]
        for key in DEVICE_FIGURES
    )
    return StageStats(
        parts[0].name,
        Distribution.together([part.host for part in parts]),
        sum(part.errors for part in parts),
        sum(part.suspended_ns for part in parts),
        sum_of_known(part.cpu_total_ns for part in parts),
        sum(part.cpu_count for part in parts),
        dict(work),
        {unit: Amounts.of(of) for unit, of in amounts.items()},
        Amounts.of(sizes) if sizes else None,
        *(Distribution.together(figures) if figures else None for figures in device),
    )


def _by_name(stages: Iterable[StageStats]) -> dict[str, StageStats]:
    """Return the figures of the stages with each name together."""
    by_name: dict[str, list[StageStats]] = {}
    for stage in stages:
        by_name.setdefault(stage.name, []).append(stage)
    return {
        name: merged_stage(parts) if len(parts) > 1 else parts[0] for name, parts in by_name.items()
    }


def merged(parts: Sequence[Stats], window_s: float | None, *, is_lifetime: bool) -> Stats:
    """Return the statistics of several processes together: counts, times and histograms add up."""
    lost: Counter[str] = Counter()
    for part in parts:
        lost.update(part.lost)
    stages_by_name = _by_name(stage for part in parts for stage in part.values())
    order = sorted(stages_by_name, key=lambda name: -stages_by_name[name].total_ns)
    return Stats(
        {name: stages_by_name[name] for name in order}, lost, window_s, is_lifetime=is_lifetime
    )
