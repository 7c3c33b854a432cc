"""The most important calls of a tree, as rows of a table."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from stagespan.sampling.calls import IMPORTS, Call, TimeKind

MOST_ROWS = 14
_LEAST_SHARE = 0.02
_PASSES_ON = 0.9
"""A call that spends this part of its time in another one shares the row of that one."""
_MOST_OF_IT = 0.75
_LONGEST_NAME = 44


@dataclass(frozen=True)
class Row:
    """A row of the table of a role."""

    calls: tuple[Call, ...]
    """The calls that it stands for, each of which only passes its time on to the next."""
    guide: str
    share: float
    """Its part of the time of the role, from 0 to 1."""
    mostly: str
    """What the calls did in the time that no row below has; "" if that is little."""

    @property
    def call(self) -> Call:
        """The innermost call of the row."""
        return self.calls[-1]

    @property
    def label(self) -> str:
        """The names of its calls."""
        names = [call.name for call in self.calls if call.name != IMPORTS or call is self.call]
        texts = [" > ".join(names)]
        if len(names) > 2:
            texts.append(f"{names[0]} > ... > {names[-1]}")
            of_user = [call.name for call in self.calls[:-1] if call.is_of_user]
            texts += [f"... > {name} > {names[-1]}" for name in of_user[-1:]]
        if len(names) > 1:
            texts.append(f"... > {names[-1]}")
        return next((text for text in texts if len(text) <= _LONGEST_NAME), texts[-1])


def rows_of(top: Call) -> list[Row]:
    """Return rows for the calls with most time, below the calls that called them."""
    chosen = _chosen(top)
    rows: list[Row] = []

    def add(call: Call, guide: str, follow: str) -> None:
        calls = [call]
        while len(below := _below(calls[-1], chosen)) == 1 and _passes_on(calls[-1], below[0]):
            calls.append(below[0])
        rows.append(Row(tuple(calls), guide, call.wall_ns / top.wall_ns, _mostly(calls[-1], below)))
        for i, child in enumerate(below):
            is_last = i == len(below) - 1
            add(
                child,
                follow + ("└─ " if is_last else "├─ "),
                follow + ("   " if is_last else "│  "),
            )

    for call in _below(top, chosen):
        add(call, "", "")
    return rows


def _below(call: Call, chosen: set[Call]) -> list[Call]:
    return [child for child in call.by_time() if child in chosen]


def _passes_on(call: Call, to: Call) -> bool:
    return call.kind == to.kind and to.wall_ns >= _PASSES_ON * call.wall_ns


def _chosen(top: Call) -> set[Call]:
    """Return the largest calls; those that share the row of another one do not count."""
    chosen: set[Call] = set()
    count = 0
    least_ns = _LEAST_SHARE * top.wall_ns
    queue = [(-call.wall_ns, i, call) for i, call in enumerate(top.by_time())]
    heapq.heapify(queue)
    order = len(queue)
    while queue and count < MOST_ROWS:
        negative_ns, _, call = heapq.heappop(queue)
        if -negative_ns < least_ns:
            break
        chosen.add(call)
        above = call.parent
        count += above is None or above is top or not _passes_on(above, call)
        for child in call.by_time():
            order += 1
            heapq.heappush(queue, (-child.wall_ns, order, child))
    return chosen


def _mostly(call: Call, below: list[Call]) -> str:
    """Return what a call did in the time that the rows below it do not have."""
    if call.kind != "call":
        return ""
    kinds: Counter[TimeKind] = Counter()
    lines_ns: dict[TimeKind, Counter[str]] = {"waiting": Counter(), "native code": Counter()}
    left = [call]
    while left:
        inner = left.pop()
        kinds.update(inner.own_ns())
        if inner is call:
            lines_ns["waiting"].update(inner.waiting_ns)
            lines_ns["native code"].update(inner.native_ns)
        left.extend(child for child in inner.children.values() if child not in below)
    if kinds.total() < 0.25 * call.wall_ns:
        return ""
    kind = max(kinds, key=lambda name: kinds[name])
    line, time_ns = max(lines_ns.get(kind, {}).items(), key=lambda pair: pair[1], default=("", 0))
    return f"{kind}, {line}" if line and time_ns > kinds.total() / 2 else kind


def most_of(rows: Sequence[Row]) -> Row | None:
    """Return the row with most time; if one below it has most of that, this one."""
    row = max(rows, key=lambda row: row.share, default=None)
    while row is not None:
        calls = row.calls[-1].children.values()
        below = max(
            (one for one in rows if one.calls[0] in calls), key=lambda row: row.share, default=None
        )
        if below is None or below.share < _MOST_OF_IT * row.share:
            break
        row = below
    return row
