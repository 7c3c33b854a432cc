"""A trace in memory: numpy columns with one row per event, and the tables of their codes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from stagespan.trace.read.intervals import Codes, Mask, Numbers

if TYPE_CHECKING:
    from stagespan.trace.read.arguments import Argument, ArgumentTable


MISSING = int(np.iinfo(np.int64).min)
"""In an integer column: the event does not have this field."""


@dataclass(frozen=True)
class Events:
    """Events as columns of one length; times in integer nanoseconds.

    `name`, `category` and `task_type` are codes into the trace's `names`, `categories` and `names`
    (`task_type` is -1 where the event has none). All other integer columns hold `MISSING` where the
    event does not have the field. Ids beyond 64 bits of sign keep their bit pattern.
    """

    name: Codes
    category: Codes
    begin_ns: Numbers
    dur_ns: Numbers
    pid: Numbers
    tid: Numbers
    correlation: Numbers
    external_id: Numbers
    device: Numbers
    stream: Numbers
    python_id: Numbers
    python_parent_id: Numbers
    task_type: Codes

    def __len__(self) -> int:
        return len(self.begin_ns)

    @cached_property
    def end_ns(self) -> Numbers:
        """Where each event ends, in nanoseconds."""
        end: Numbers = self.begin_ns + self.dur_ns
        end.flags.writeable = False
        return end


@dataclass(frozen=True, slots=True)
class Flows:
    """Flows between events: one row per end of a flow; `id` joins the ends within a category."""

    id: Numbers
    category: Codes
    starts: Mask
    """True if a flow starts here, False if it passes or ends."""
    begin_ns: Numbers
    pid: Numbers
    tid: Numbers

    def __len__(self) -> int:
        return len(self.id)


@dataclass(frozen=True, slots=True)
class Trace:
    """The content of one trace file."""

    path: str
    events: Events
    """Events with a duration, in the file's order."""
    instants: Events
    """Events at one time, such as `[memory]`; their duration is 0."""
    flows: Flows
    names: list[str]
    """Names exactly as written; `Events.name` points here."""
    categories: list[str]
    """Categories in today's spelling (`Kernel` of old traces is `kernel`); "" means none."""
    base_ns: int | None
    """Unix time of the file's zero, already added to every time here; None if the file has none."""
    total: int
    """Entries in the file's list of events, whatever became of them."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """The file's other top-level values."""
    process_names: dict[int, str] = field(default_factory=dict)
    process_labels: dict[int, str] = field(default_factory=dict)
    thread_names: dict[tuple[int, int], str] = field(default_factory=dict)
    named_ids: dict[int, str] = field(default_factory=dict)
    """By the negative number that stands for it: an id that is a word (`"pid": "Spans"`)."""
    left_out: dict[str, int] = field(default_factory=dict)
    """Entries that are in no table, counted by cause."""
    adjusted: dict[str, int] = field(default_factory=dict)
    """Entries that are in a table but not as written, counted by cause."""
    incomplete: str | None = None
    """A sentence when the file is cut off or damaged, else None."""
    arguments: Mapping[str, ArgumentTable] = field(default_factory=dict, repr=False, compare=False)
    """The arguments of `events` and of `instants`; `argument` looks in here."""

    def argument(self, key: str, of: Literal["events", "instants"] = "events") -> Argument | None:
        """The argument `key` of those events (or instants) that have it; None when none has.

        Any key that occurs in the file works, as it is written there. Each call makes its arrays
        anew, in some milliseconds a million rows.
        """
        table = self.arguments.get(of)
        return None if table is None else table.argument(key)

    def category_codes(self, names: Iterable[str]) -> list[int]:
        """Codes of those of `names` that occur in this trace."""
        wanted = set(names)
        return [code for code, name in enumerate(self.categories) if name in wanted]

    def rows_of(self, names: Iterable[str]) -> Mask:
        """Which rows of `events` belong to one of the categories `names`."""
        chosen = np.zeros(len(self.categories) + 1, dtype=np.bool_)
        chosen[self.category_codes(names)] = True
        rows: Mask = chosen[self.events.category]
        return rows
