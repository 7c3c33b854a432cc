"""Pages of several processes: the list of all, those that are stalled, and those of a job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from stagespan.live.stage_figures import stage_figures, stages_table
from stagespan.pages.amounts import counted, duration
from stagespan.pages.figures import Count, Flat, RecordedFigures
from stagespan.pages.page import ResultPage, Words
from stagespan.pages.result import Block, Line, Result, Table
from stagespan.recording import Recording, finding, jobs, ranks, summary
from stagespan.recording.backlog import Backlog
from stagespan.recording.ranks import JobFigures, Rank, RankFigures
from stagespan.recording.source import RecordedOpenSpan
from stagespan.recording.summary import IdentityFigures, LoadFigures
from stagespan.recording.texts import open_requests, waiting


class ListedProcess(RecordedFigures, frozen=True):
    """A process that records, and where it is."""

    identity: Flat[IdentityFigures]
    path: str
    spans: Count
    """The number of its finished spans."""
    spans_per_s: float | None
    errors: Count
    ended_requests: Count
    failed_requests: Count
    stage: str | None
    """The innermost open stage of its busiest thread."""
    stages: list[str]
    """All open stages of that thread, outermost first."""
    elapsed_ns: int | None
    load: Flat[LoadFigures]
    warnings: list[str]

    @classmethod
    def of(cls, recording: Recording, spans_per_s: float | None, backlog: Backlog) -> ListedProcess:
        """Return the figures of a process, with the messages between all processes."""
        position = next(iter(summary.positions(recording)), None)
        requests = summary.requests([recording])
        return cls(
            summary.identity(recording),
            summary.path_text(recording),
            summary.finished_spans(recording),
            spans_per_s,
            sum(stage.errors for stage in summary.runs([recording]).values()),
            0 if requests is None else requests.count,
            0 if requests is None else requests.errors,
            position.stages[-1] if position else None,
            list(position.stages) if position else [],
            position.elapsed_ns if position else None,
            summary.load([recording], backlog),
            recording.warnings(),
        )

    @property
    def age_ns(self) -> int | None:
        """The time from its first span to its end, or to the last time that is known."""
        own = self.identity
        until_ns = own.end_ns or (own.read_ns if own.state == "alive" else own.last_ns)
        return max(until_ns - own.begin_ns, 0) if until_ns else None


class ProcessesFigures(RecordedFigures, frozen=True):
    """The processes that record on this machine."""

    processes: list[ListedProcess]


@dataclass(frozen=True)
class Processes(Result):
    """The processes that record on this machine, and their current stages."""

    processes: Sequence[ListedProcess]
    why_none: Sequence[str]
    """What to say if there are none."""

    @classmethod
    def of(cls, recordings: list[Recording], *, with_ended: bool) -> Processes:
        """Return the list of processes. It takes a quarter of a second, to measure their rates."""
        rates = summary.rates(recordings)
        none = "There are no recordings here." if with_ended else "No process records here."
        others = [] if recordings else finding.folders_of_others()
        hidden = (
            f"Other users record in {', '.join(others)}: only they and root can read these folders."
        )
        backlog = Backlog(recordings)
        rows = [ListedProcess.of(one, rates.get(one.path), backlog) for one in recordings]
        return cls(rows, [none, *([hidden] if others else [])])

    def figures(self) -> ProcessesFigures:
        """Return all processes."""
        return ProcessesFigures(list(self.processes))

    def head(self) -> list[Block]:
        """Return the table, or that there are no processes."""
        return [*self.tables()] if self.processes else [*map(Line, self.why_none)]

    def tables(self) -> list[Table]:
        """Return the processes, the most important columns first."""

        def open_requests_of(row: ListedProcess) -> str | int:
            count = row.load.open_requests
            return f"{count:,}+" if row.load.unshown_requests else count

        table = Table.of(
            "",
            self.processes,
            *((lambda row: str(row.identity.pid), "pid", ""), ("identity.state", "state", "state")),
            *(("identity.name", "program", ""), ("stage", "in", "")),
            *(("elapsed_ns", "for", "rounded ns"), ("errors", "errors", "")),
            *(("failed_requests", "failed", ""), ("ended_requests", "ended", "")),
            (open_requests_of, "requests", ""),
            ("load.oldest_request_ns", "oldest", "rounded ns"),
            (_running, "running", ""),
            (lambda row: _counts(row.load.waiting), "waiting", ""),
            ("load.oldest_waiter_ns", "longest", "rounded ns"),
            *(("age_ns", "age", "rounded ns"), ("spans", "spans", "")),
            (lambda row: row.spans_per_s and round(row.spans_per_s), "spans/s", ""),
            (lambda row: _text(row.identity.rank), "rank", ""),
            ("identity.job", "job", ""),
            (
                lambda row: row.identity.pipeline if row.identity.pipeline != "default" else None,
                "pipeline",
                "",
            ),
        )
        return [table.filled()] if table.rows else []

    def notes(self) -> list[str]:
        """Return what is missing in the figures of a process."""
        notes = []
        for row in self.processes:
            identity, load = row.identity, row.load
            if load.unshown_requests:
                most = load.open_requests + load.unshown_requests
                notes.append(
                    f"{identity.pid}: {load.open_requests:,} of up to {most:,} open requests are "
                    "shown: set STAGESPAN_REQUESTS to a larger number when you start the process."
                )
            notes += [f"{identity.pid}: {warning}" for warning in row.warnings]
        return notes

    def page(self) -> ResultPage:
        """Return the page of `stagespan ps`."""
        words = Words(page="Processes", as_text="stagespan ps")
        return ResultPage(words, self, "Processes", f"{len(self.processes):,}", self.notes())


def _running(row: ListedProcess) -> str:
    is_loaded = row.load.open_requests or row.load.waiting
    return _counts(row.load.running) if is_loaded else ""


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())


def _text(number: int | None) -> str | None:
    return None if number is None else str(number)


class StalledProcess(RecordedFigures, frozen=True):
    """A process of which a thread is stalled."""

    identity: Flat[IdentityFigures]
    open_spans: list[RecordedOpenSpan]
    """Those that have lasted too long."""


class StalledFigures(RecordedFigures, frozen=True):
    """The processes of which a thread is stalled."""

    stalled: list[StalledProcess]


@dataclass(frozen=True)
class Stalled(Result):
    """The processes of which a thread is stalled."""

    stalled: Sequence[StalledProcess]

    @classmethod
    def of(cls, recordings: list[Recording], seconds: float, stage: str | None) -> Stalled:
        """Return those of the processes that are stalled; see `summary.stalled`."""
        spans = [(one, summary.stalled(one, seconds, stage)) for one in recordings]
        return cls([StalledProcess(summary.identity(one), those) for one, those in spans if those])

    def figures(self) -> StalledFigures:
        """Return the processes with the spans that have lasted too long."""
        return StalledFigures(list(self.stalled))

    def head(self) -> list[Block]:
        """Return a sentence for each span."""
        return [
            Line(
                f"process {process.identity.pid}"
                f"{'' if process.identity.rank is None else f', rank {process.identity.rank}'}: "
                f"thread {span['thread']} has been in `{span['stage']}` for "
                f"{duration(span['elapsed_ns'] or 0)}"
            )
            for process in self.stalled
            for span in process.open_spans
        ]

    def tables(self) -> list[Table]:
        """Return the spans that have lasted too long."""
        rows = [
            (
                str(process.identity.pid),
                _text(process.identity.rank),
                str(span["thread"]),
                span["stage"],
                span["elapsed_ns"],
            )
            for process in self.stalled
            for span in process.open_spans
        ]
        columns = ("pid", ""), ("rank", ""), ("thread", ""), ("in", ""), ("for", "rounded ns")
        return [Table("Stalled threads", columns, rows).filled()] if rows else []

    def page(self) -> ResultPage:
        """Return the page of `stagespan ps --stalled`."""
        words = Words(page="Stalled processes", as_text="stagespan ps --stalled SECONDS")
        return ResultPage(words, self, "Stalled processes", f"{len(self.stalled):,}")


class JobState(Result):
    """The ranks or processes of a job, and their statistics together.

    Raises StagespanError if there is no recording of the job.
    """

    def __init__(self, job: str) -> None:
        self.job = job
        self.ranks = ranks.ranks(ranks.of_job(job))
        recordings = jobs.job(job).recordings
        self.count = len(recordings)
        self._stats, self._load = summary.runs(recordings), summary.load(recordings)

    @cached_property
    def _figures(self) -> JobFigures:
        names = ranks.stages(self.ranks)
        return JobFigures(
            self.job,
            ranks.findings(self.ranks),
            list(map(RankFigures.of, self.ranks)),
            {name: {rank.label: rank.counts.get(name, 0) for rank in self.ranks} for name in names},
            {
                name: {rank.label: ranks.mean_ns(rank, name) for rank in self.ranks}
                for name in names
            },
            self._load,
            stage_figures(self._stats),
        )

    def figures(self) -> JobFigures:
        """Return where each rank is, what it has finished, and the statistics of all."""
        return self._figures

    def head(self) -> list[Block]:
        """Return which ranks are behind, what waits, and the tables."""
        about_load = (open_requests(self._load), waiting(self._load))
        sentences = [*self._figures.findings, *(line for line in about_load if line is not None)]
        return [*map(Line, sentences), *self.tables()]

    def tables(self) -> list[Table]:
        """Return where each rank is with the stages it has finished, and the statistics of all."""
        of_all = stages_table("Statistics of all processes", self._stats)
        return [table for table in (self._positions(), of_all) if table.rows]

    def _positions(self) -> Table:
        names = list(self._figures.counts)
        return Table.of(
            "Ranks" if any(rank.recording.rank is not None for rank in self.ranks) else "Processes",
            self.ranks,
            (lambda rank: _text(rank.recording.rank), "rank", ""),
            ("recording.worker", "worker", ""),
            (lambda rank: str(rank.recording.pid), "pid", ""),
            ("recording.state", "state", "state"),
            (lambda rank: " > ".join(rank.position.stages) if rank.position else "", "in", ""),
            (lambda rank: rank.position and rank.position.elapsed_ns, "for", "rounded ns"),
            *((lambda rank, name=name: _runs(rank, name), name, "") for name in names),
            note="Behind them, how often each has finished a stage, and the mean time.",
        ).filled()

    def page(self) -> ResultPage:
        """Return the page of `stagespan show --job`."""
        words = Words(page="Job", as_text="stagespan show --job JOB")
        amount = counted(self.count, "process", "processes")
        return ResultPage(words, self, f"Job {self.job}", amount)


def _runs(rank: Rank, stage: str) -> str:
    """Return how often a rank has finished a stage, and the mean time: ``20 x 1.2 ms``."""
    mean_ns = ranks.mean_ns(rank, stage)
    return "0" if mean_ns is None else f"{rank.counts[stage]:,} x {duration(round(mean_ns))}"
