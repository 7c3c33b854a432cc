"""The page of a replay: where the time of the profiled iterations went, and how long one takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from stagespan.harness.config import HarnessResult
from stagespan.harness.standalone.figures import clock_change, idle, profiled_line, spread
from stagespan.pages.amounts import counted, in_percent, in_words
from stagespan.pages.figures import Flat, RecordedFigures, document_schema
from stagespan.pages.page import ResultPage, Words
from stagespan.pages.result import Block, Line, Result, Table, share

_ROWS = 10
# The phases of compilation, in their order.
_PHASES = ("dynamo", "autograd", "inductor", "kernels", "guards")


class ReplayFigures(RecordedFigures, frozen=True):
    """What is written to the file of a replay."""

    result: Flat[HarnessResult]


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of what `stagespan bench --json` prints."""
    return document_schema(ReplayFigures, title="Replay")


class Replay(Result):
    """A stage that was run alone; with `explain`, how its step was found comes first."""

    def __init__(self, result: HarnessResult, *, explain: bool = False) -> None:
        self.result, self.explain = result, explain

    def figures(self) -> ReplayFigures:
        """Return the result."""
        return ReplayFigures(self.result)

    def head(self) -> list[Block]:
        """Return the operators or kernels with most time, and sentences about an iteration."""
        tried: list[Block] = [self._answers()]
        if not self.result.answers:
            tried = [Line(f"No adapter was tried: the step is {self.result.adapter}.")]
        blocks: list[Block] = [*(tried if self.explain else []), self._breakdown(_ROWS)]
        return [*blocks, *map(Line, ["", *self._sentences()])]

    def tables(self) -> list[Table]:
        """Return the operators or kernels, and which adapters were tried."""
        tables = self._breakdown(None), self._answers()
        return [table for table in tables if table.rows]

    def _answers(self) -> Table:
        return Table.of(
            "How the step was found: the first adapter that matches is used",
            self.result.answers,
            ("adapter", "adapter", ""),
            (lambda answer: "yes" if answer.fits else "no", "used", ""),
            ("reason", "because", "words"),
        )

    def _breakdown(self, most: int | None) -> Table:
        breakdown = self.result.breakdown
        rows, total_ms = breakdown["top_kernels"], breakdown["total_kernel_time_ms"]
        on_device = any(row["device_ms"] is not None for row in rows)
        return Table(
            "Where the time of the profiled iterations went",
            (
                ("kernel" if on_device else "operator", ""),
                *(("time", "ns"), ("share", "%"), ("count", "")),
            ),
            [
                (row["name"], 1e6 * row["ms"], share(row["ms"], total_ms), row["count"])
                for row in rows[:most]
            ],
        )

    def _sentences(self) -> Iterable[str]:
        result, timing = self.result, self.result.timing_ms
        yield f"One iteration is {result.iteration} (adapter {result.adapter})."
        if result.step is not None and result.step["number"] == 2:
            what = (
                "The prefill"
                if "decode step" in result.iteration
                else "Everything before it, including step 1,"
            )
            yield f"{what} takes {result.step['before_ms']:,.2f} ms."
        yield (
            f"One iteration takes {spread(timing)}; {timing['iterations']} iterations without the "
            f"profiler, inputs on {result.device}."
        )
        first = result.warmup["first_ms"]
        first_run = "" if first is None else f" The first run took {first:,.2f} ms."
        yield f"CPU time of its thread: {spread(timing['cpu'])}.{first_run}"
        if result.warmup["settled"] is False:
            yield f"The times did not settle in {result.warmup['iterations']} warm-up iterations."
        if result.tracers:
            names = " and ".join(result.tracers)
            yield f"{names} was active, so the stage alone takes less time than this."
        others = (
            *(result.threads, timing["busy"], _rates_line(result.breakdown.get("rates"))),
            *(idle(timing, result.device), clock_change(timing)),
            *(profiled_line(result.breakdown), result.fidelity["line"]),
        )
        yield from filter(None, others)
        if result.compile is not None:
            yield _compile_sentence(result.compile)

    def page(self) -> ResultPage:
        """Return the page of `stagespan bench`."""
        words = Words(page="Replay", as_text="stagespan bench")
        return ResultPage(words, self, self.result.stage, f"replayed on {self.result.device}")


def _rates_line(rates: Mapping[str, Any] | None) -> str | None:
    """Return a sentence about what an iteration computes; None if it is unknown."""
    if rates is None:
        return None
    work = in_words(1e12 * rates["tflop"], "FLOP")
    speed = f"{work}: {in_words(1e12 * rates['tflop_s'], 'FLOP/s')}"
    percent = rates["mfu_percent"]
    if percent is None:
        return f"One iteration computes {speed}."
    of_peak = f"{in_percent(percent)} of the peak of {rates['peaks_of']}"
    return f"One iteration computes {speed}, {of_peak}."


def _compile_sentence(compiled: dict[str, Any]) -> str:
    """Return a sentence about the time of the first call and of its compilation."""
    sentence = f"The first call took {compiled['first_call_ms']:,.0f} ms"
    if "compile_ms" not in compiled:
        return f"{sentence}."
    took = compiled["phases_ms"]
    phases = ", ".join(f"{phase} {took.get(phase, 0):,.0f}" for phase in _PHASES)
    sentence += f", of which {compiled['compile_ms']:,.0f} ms were compilation ({phases})"
    parts = [
        counted(compiled[name], word)
        for name, word in (
            ("frames", "frame"),
            ("graph_breaks", "graph break"),
            ("recompilations", "recompilation"),
        )
        if compiled[name] is not None
    ]
    return f"{sentence}: {', '.join(parts)}. See stagespan analyze {compiled['trace_path']}"
