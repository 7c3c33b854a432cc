"""The page of `stagespan top`: the latest activity of stages, threads and requests."""

from __future__ import annotations

import time
from typing import Any

import msgspec
from rich.text import Text

from stagespan.errors import StagespanError
from stagespan.pages.escaping import one_line
from stagespan.pages.page import ResultPage
from stagespan.pages.result import Cell, Table
from stagespan.pages.terminal import text_table
from stagespan.recording import activity, finding, ranks, summary
from stagespan.recording.activity import SAMPLES_OF, Activity, ActivityFigures, Observer
from stagespan.recording.asking import Asker
from stagespan.recording.reading import Recording
from stagespan.sampling.asking import Rounds
from stagespan.sampling.rows import MOST_ROWS as MOST_SAMPLED_ROWS

_ORDERS = ("share", "runs/s", "p99", "stage")
"""The columns that the stages can be ordered by."""
_MOST_ROWS = 8
"""Of each table but those of the stages and the samples."""
_LEAST_NAME = 12
_FILTERED = ("Stages", "Queues", "Hand-offs")
_SAMPLED_S = 2.0
"""The length of a round of samples."""
_ENDED = "The process has ended: this is its last known state."


class LivePage:
    """The state of the page: the observed processes, the order of stages, and the filter."""

    def __init__(self, which: str | None, job: str | None, sampled_s: float = _SAMPLED_S) -> None:
        """Of a process that ``which`` names, a round of samples takes ``sampled_s`` seconds."""
        self._which = which
        self._job = job
        self._sampled_s = sampled_s
        self._rounds: Rounds | None = None
        self._observer = Observer()
        self._activity: Activity | None = None
        self._order = _ORDERS[0]
        self._message = ""
        self.filter = ""
        self.is_typing = False
        self.is_frozen = False

    # --- reading --------------------------------------------------------------------------------

    def read(self) -> None:
        """Read the processes again.

        Raises StagespanError if there is no process. A process that has ended is shown in its last
        state.
        """
        self._message = ""
        before = [copy.path for copy in self._observer.recordings]
        if self._job is not None:
            has_new = not before or any(map(self._observer.needs_spans, before))
            copies = ranks.of_job(self._job, spans=has_new)
        elif before:
            try:
                spans = self._observer.needs_spans(before[0])
                copies = [Recording(before[0], everything=spans)]
            except StagespanError:
                self._message = _ENDED
                return
        else:
            copies = [self._first()]
        self._observer.take(copies)
        figures = self._observer.activity()
        if self._rounds is None and self._is_to_be_sampled(figures, is_first=not before):
            self._rounds = Rounds(copies[0].path, self._sampled_s)
        if self._rounds is not None:
            figures = msgspec.structs.replace(figures, samples=self._rounds.latest)
        self._activity = Activity(figures)

    def _is_to_be_sampled(self, figures: ActivityFigures, *, is_first: bool) -> bool:
        """Whether the user wants to see one process, and it has no stages or listens anyway."""
        (copy, *_) = self._observer.recordings
        if self._which is None or copy.state != "alive":
            return False
        if not figures.stages or not is_first:
            return not figures.stages
        try:
            with Asker(copy.path) as asker:
                return asker.is_listening
        except StagespanError:  # it belongs to another user
            return False

    def wait(self, seconds: float) -> None:
        """Wait some seconds, or until the process has sampled itself."""
        if self._rounds is None:
            time.sleep(seconds)
        else:
            self._rounds.wait()

    def close(self) -> None:
        """End the samples."""
        if self._rounds is not None:
            self._rounds.close()

    def _first(self) -> Recording:
        if self._which is not None:
            return finding.open_recording(self._which)
        alive = [copy for copy in finding.recordings() if copy.state == "alive"]
        if not alive:
            raise StagespanError(
                "No process records here at the moment: `stagespan ps --all` lists earlier ones."
            )
        return finding.open_recording(max(alive, key=summary.finished_spans).path)

    # --- keys -----------------------------------------------------------------------------------

    def press(self, key: str) -> bool:
        """Handle a key. Returns False if the user wants to quit."""
        if self.is_typing:
            if key in "\r\n":
                self.is_typing = False
            elif key == "\x1b":
                self.is_typing, self.filter = False, ""
            elif key in "\x7f\b":
                self.filter = self.filter[:-1]
            elif key.isprintable():
                self.filter += key
            return True
        if key in ("q", "\x03", "\x04"):
            return False
        if key == "f":
            self.is_frozen = not self.is_frozen
        elif key == "s":
            self._order = _ORDERS[(_ORDERS.index(self._order) + 1) % len(_ORDERS)]
        elif key == "/":
            self.is_typing = True
        return True

    def show_message(self, message: str) -> None:
        """Show a message until the next reading."""
        self._message = message

    # --- the page -------------------------------------------------------------------------------

    def page(self) -> ResultPage:
        """Return the page of the latest reading."""
        assert self._activity is not None, "it was read before"
        remarks = [self._message] if self._message else []
        if self._rounds is not None and self._rounds.why_not is not None and not remarks:
            remarks.append(f"No samples: {self._rounds.why_not}")
        if self._job is not None:
            amount = activity.amount_of(self._activity.of)
            return self._activity.page(f"job {self._job}", amount, remarks)
        (copy,) = self._observer.recordings
        amount = activity.amount_of(self._activity.of, copy)
        if self._message == _ENDED:
            amount = amount.replace("alive", "ended", 1)
        return self._activity.page(f"{copy.pid} {copy.name}", amount, remarks)

    def render(self, width: int, height: int) -> list[Any]:
        """Return the page as lines and tables for rich, at most ``height`` rows high."""
        page = self.page()
        assert self._activity is not None
        title = f"{page.headline()}{', frozen' if self.is_frozen else ''}"
        lines = [title, *page.notes(), *self._activity.sentences()]
        body: list[Any] = [
            Text(one_line(line), no_wrap=True, overflow="ellipsis") for line in lines
        ]
        left = height - len(body)
        for table in self._activity.tables():
            selected = self._selected(table)
            is_first = table.title == "Stages"
            most = MOST_SAMPLED_ROWS if table.title.startswith(SAMPLES_OF) else _MOST_ROWS
            most = max(left // 2, 3) if is_first else min(left - 2, most)
            if most < 1 or not selected.rows:
                continue
            drawn = text_table(_with_short_names(selected.selected(most), width), width)
            body += [Text(""), drawn]
            left -= min(len(selected.rows), most) + 2
        return body

    def _selected(self, table: Table) -> Table:
        """Return a table with the rows that the user wants, in the order that he wants."""
        rows = list(table.rows)
        if table.title in _FILTERED:
            rows = [row for row in rows if self.filter.lower() in str(row[0]).lower()]
        if table.title == "Stages":
            at = [heading for heading, _ in table.columns].index(self._order)
            rows.sort(key=lambda row: _sorted_by(row[at]))
        return Table(table.title, table.columns, rows)


def _sorted_by(cell: Cell) -> tuple[float, str]:
    """Return the key for texts from A, and figures from the largest, unknown ones last."""
    if isinstance(cell, str):
        return 0.0, cell
    return (1.0 if cell is None else -float(cell)), ""


def _with_short_names(table: Table, width: int) -> Table:
    """Return a table whose texts are in one line; of a path, the innermost stages are shown."""
    most = max(width // 2 - 2, _LEAST_NAME)
    rows = [
        tuple(_cut(one_line(cell), most) if isinstance(cell, str) else cell for cell in row)
        for row in table.rows
    ]
    return Table(table.title, table.columns, rows)


def _cut(text: str, width: int) -> str:
    line = Text(text)
    while line.cell_len > width and " > " in line.plain.removeprefix("… > "):
        line = Text(f"… > {line.plain.removeprefix('… > ').partition(' > ')[2]}")
    line.truncate(width, overflow="ellipsis")
    return line.plain
