"""The totals of an exporter in a file, so that its counters go on with those of the one before."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import math
import operator
import os
import re
import stat
from collections.abc import Iterator
from itertools import compress, pairwise
from pathlib import Path
from typing import Annotated, Any

import msgspec

from stagespan.errors import StagespanError
from stagespan.export.families import COUNTERS, FAMILIES, HISTOGRAMS, LABEL_SEPARATOR, Family
from stagespan.export.figures import (
    BOUNDS_NS,
    MOST_COUNTED,
    Counts,
    Histogram,
    within_range,
)
from stagespan.export.totals import Group
from stagespan.process.files import write_whole

_LOGGER = logging.getLogger("stagespan")

STATE_FILE = ".export-state.json"
"""The name of the file in the folder of the recordings."""
_SCHEMA_VERSION = 2
_OF_STATUS = 1
"""The version in which requests were counted by status alone, and hand-offs by both sides."""
_MOST_BYTES = 256 << 20
_MOST_ASIDE = 9
_BUCKETS = len(BOUNDS_NS) + 1
_TOKENS = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{},]', re.DOTALL)
_CLOSING = {b"[": b"]", b"{": b"}"}
_ITEM = re.compile(rb".{0,2}|\}\]\]\}(?:\]|\}*)")
"""The brackets that are to be closed after an item, from the outermost one on."""

_Count = Annotated[int, msgspec.Meta(ge=0, le=MOST_COUNTED)]
_Sum = Annotated[float, msgspec.Meta(ge=0, le=MOST_COUNTED)]
_Key = Annotated[int, msgspec.Meta(ge=-MOST_COUNTED, le=MOST_COUNTED)]


class SavedProcess(msgspec.Struct):
    """A process whose figures may still be read from its recording."""

    identity: str
    group: Group
    ns_per_tick: Annotated[float, msgspec.Meta(gt=0)]
    resets: _Count
    figures: Counts
    given: Counts
    taken: list[_Key]
    unsent: list[_Key] = []


class State(msgspec.Struct):
    """What the next exporter goes on with."""

    stages: list[str] = []
    units: list[str] = []
    retained: list[tuple[Group, Counts]] = []
    processes: list[SavedProcess] = []
    folded: list[str] | None = None
    """Identities of ended processes whose figures are in ``retained``, and whose file exists; None
    if they are not known."""
    lost: dict[str, int] = {}
    pipelines: list[str] = []


class _SavedHistogram(msgspec.Struct, array_like=True):
    family: str
    stage: str
    sum: _Count | _Sum
    steps: list[_Count]
    """Pairs of a bucket and the number from it on."""


# --- writing --------------------------------------------------------------------------------------


def write(path: Path, state: State) -> None:
    """Write a state whole. Raises OSError if the file cannot be written."""
    # In this order, so that nothing is counted twice if the end of the file is missing.
    page = {
        "schema_version": _SCHEMA_VERSION,
        "folded": state.folded or [],
        "lost": state.lost,
        "stages": state.stages,
        "units": state.units,
        "pipelines": state.pipelines,
        "retained": [(group, _saved(figures)) for group, figures in state.retained],
        "processes": [
            {
                "identity": process.identity,
                "group": process.group,
                "ns_per_tick": process.ns_per_tick,
                "resets": process.resets,
                "figures": _saved(process.figures),
                "given": _saved(process.given),
                "taken": process.taken,
                "unsent": process.unsent,
            }
            for process in state.processes
        ],
    }
    write_whole(path, msgspec.json.encode(page), private=True)


def _saved(figures: Counts) -> dict[str, Any]:
    rows = []
    for family, stage, histogram in figures.histograms():
        below = histogram.below
        steps = [0, below[0]]
        for i in compress(range(1, _BUCKETS), map(operator.ne, below, below[1:])):
            steps += [i, below[i]]
        rows.append(_SavedHistogram(family, stage, histogram.sum, steps))
    return {"histograms": rows, "amounts": figures.amounts}


# --- reading --------------------------------------------------------------------------------------


def read(path: Path) -> State | None:
    """Return what can be read of a state; None if there is none.

    A file that is not completely a state of this version is set aside under another name, which is
    logged. Raises StagespanError if the file cannot be opened, or cannot be set aside.
    """
    try:
        data = _bytes_of(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StagespanError(
            f"The state in {path} cannot be read: {error.strerror}. Name another file with --state."
        ) from None
    except ValueError as error:
        _set_aside(path, str(error))
        return None
    reader = _Reader()
    state = reader.state(data)
    if reader.problem is not None:
        _set_aside(path, reader.problem)
    return state


def lost_by(folder: str) -> dict[str, int]:
    """Return what the exporters of a folder have lost, as far as they have written it."""
    try:
        data = _bytes_of(Path(folder, STATE_FILE))
    except (OSError, ValueError):
        return {}
    return _Reader().state(data).lost


def _bytes_of(path: Path) -> bytes:
    """Raises OSError, or ValueError if it is something else than a file of a possible size."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link to itself, a socket
            raise ValueError("it is not a file") from None
        raise
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
            raise OSError(0, "it is a device")
        raise ValueError("it is not a file")
    with open(handle, "rb") as file:
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise ValueError(f"it is larger than {_MOST_BYTES >> 20} MiB")
    return data


def _set_aside(path: Path, why: str) -> None:
    """Rename a state, so that the next one does not replace it."""
    names = [path.with_name(f"{path.name}.unreadable-{n}") for n in range(1, _MOST_ASIDE + 1)]
    target = next((one for one in names if not os.path.lexists(one)), names[-1])
    try:
        os.rename(path, target)
    except OSError as error:
        raise StagespanError(
            f"The state in {path} cannot be read ({why}), and cannot be renamed: {error.strerror}. "
            "Name another file with --state."
        ) from None
    _LOGGER.warning(
        "%s cannot be read completely (%s): it is set aside as %s, and counters go on with what "
        "could be read.",
        path,
        why,
        target.name,
    )


class _Reader:
    """Takes from a state what is possible, and leaves out what is not."""

    def __init__(self) -> None:
        self.problem: str | None = None
        """The first thing that was not possible."""
        self._is_of_status = False

    def state(self, data: bytes) -> State:
        """Return what can be read of a state."""
        page = self._decoded(data)
        version = page.get("schema_version")
        self._is_of_status = version == _OF_STATUS
        if version not in (_OF_STATUS, _SCHEMA_VERSION):
            self._note(f"its version is {_quoted(version)}")
        groups = (self._group(restored) for restored in self._list(page, "retained"))
        processes = (self._process(restored) for restored in self._list(page, "processes"))
        folded, lost = page.get("folded"), page.get("lost", {})
        if not isinstance(folded, list):
            self._note("it has no list 'folded'")
        return State(
            list(self._converted(self._list(page, "stages"), str)),
            list(self._converted(self._list(page, "units"), str)),
            [restored for restored in groups if restored is not None],
            [restored for restored in processes if restored is not None],
            list(self._converted(folded, str)) if isinstance(folded, list) else None,
            {
                cause: number
                for cause, value in self._items(lost, "lost")
                for number in self._converted([value], _Count)
            },
            # Earlier exporters had none.
            list(self._converted(self._list({"pipelines": [], **page}, "pipelines"), str)),
        )

    def _note(self, problem: str) -> None:
        if self.problem is None:
            self.problem = problem

    def _decoded(self, data: bytes) -> dict[str, Any]:
        try:
            page = msgspec.json.decode(data)
        except (ValueError, RecursionError) as error:
            self._note(str(error).partition("\n")[0])
            page = {}
            for text in (data, _closed(data)):
                with contextlib.suppress(ValueError, RecursionError):
                    page = json.loads(text.decode("utf-8", "replace"), parse_int=_whole)
                    break
        if not isinstance(page, dict):
            self._note("it is not an object of JSON")
            return {}
        return page

    def _list(self, page: dict[str, Any], name: str) -> list[Any]:
        entries = page.get(name)
        if not isinstance(entries, list):
            self._note(f"it has no list {name!r}")
            return []
        return entries

    def _items(self, page: Any, name: str) -> list[tuple[str, Any]]:
        if not isinstance(page, dict):
            self._note(f"{name!r} is not an object")
            return []
        return list(page.items())

    def _converted(self, values: list[Any], kind: Any) -> Iterator[Any]:
        for value in values:
            try:
                yield msgspec.convert(value, kind)
            except ValueError as error:
                self._note(str(error))

    def _group(self, value: Any) -> tuple[Group, Counts] | None:
        for group, figures in self._converted([value], tuple[Group, dict[str, Any]]):
            if self._is_possible(group):
                return group, self._figures(figures, group.pipeline)
        return None

    def _process(self, value: Any) -> SavedProcess | None:
        """Return a process. What is left out of its figures comes back with its recording."""
        page = dict(self._items(value, "processes"))
        pipeline = next((of.pipeline for of in self._converted([page.get("group")], Group)), "")
        figures = self._figures(page.get("figures"), pipeline)
        before, self.problem = self.problem, None
        given = self._figures(page.get("given"), pipeline)
        is_whole, self.problem = self.problem is None, before or self.problem
        if not is_whole:  # without a part of it, figures would count twice
            return None
        page["figures"] = page["given"] = {}
        process: SavedProcess
        for process in self._converted([page], SavedProcess):
            if self._is_possible(process.group) and math.isfinite(process.ns_per_tick):
                process.figures, process.given = figures, given
                return process
        return None

    def _is_possible(self, group: Group) -> bool:
        is_possible = re.fullmatch(r"\d{0,9}", group.rank, re.ASCII) is not None
        if not is_possible:
            self._note(f"{_quoted(group.rank)} is not a rank")
        return is_possible

    def _figures(self, value: Any, pipeline: str) -> Counts:
        restored = Counts({}, {})
        page = dict(self._items(value, "figures"))
        for saved in self._converted(self._list(page, "histograms"), _SavedHistogram):
            if self._is_of_status:
                saved.stage = _renewed(saved.family, saved.stage, pipeline)
            histogram = _restored(saved)
            if histogram is None:
                self._note(f"a histogram of {_quoted(saved.stage)} is not possible")
            else:
                of_family = restored.durations.setdefault(saved.family, {})
                known = of_family.get(saved.stage)
                of_family[saved.stage] = histogram if known is None else histogram.plus(known)
        for family, stages in self._items(page.get("amounts"), "amounts"):
            for stage, units in self._items(stages, family):
                for unit, amount in self._items(units, stage):
                    if FAMILIES.get(family) in COUNTERS and _is_amount(amount):
                        of_stage = restored.amounts.setdefault(family, {}).setdefault(stage, {})
                        of_stage[unit] = within_range(amount)
                    else:
                        self._note(f"an amount of {_quoted(stage)} is not possible")
        return restored


def _renewed(family: str, label: str, pipeline: str) -> str:
    """Return what a label of the earlier version is now."""
    if family == "request":
        return Family.text(pipeline, label)
    return label.rpartition(LABEL_SEPARATOR)[2] if family == "handoff" else label


def _restored(saved: _SavedHistogram) -> Histogram | None:
    """Return a histogram; None if it is not possible."""
    family = FAMILIES.get(saved.family)
    firsts, numbers = saved.steps[::2], saved.steps[1::2]
    is_possible = (
        family in HISTOGRAMS
        and len(family.values(saved.stage)) == len(family.labels)
        and len(firsts) == len(numbers)
        and firsts[:1] == [0]
        and all(first < later for first, later in pairwise([*firsts, _BUCKETS]))
        and all(number <= later for number, later in pairwise(numbers))
    )
    if not is_possible:
        return None
    below: list[int] = []
    for number, end in zip(numbers, [*firsts[1:], _BUCKETS], strict=True):
        below += [number] * (end - len(below))
    return Histogram(below, saved.sum)


def _is_amount(value: object) -> bool:
    """Whether a value is a sum of amounts, which is not negative and not NaN."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0


def _whole(digits: str) -> float:
    """Return a whole number, and not one of thousands of digits, which Python would refuse."""
    return int(digits) if len(digits) < 100 else math.nan


def _closed(data: bytes) -> bytes:
    """Return JSON that was cut off up to its last complete item, with all brackets closed.

    Items are what the object contains, the elements of its lists, and the histograms and amounts of
    a service. A part of a histogram, or of a process, would be wrong.
    """
    is_open = b""
    end, closing = 0, b""
    for token in _TOKENS.finditer(data):
        text = token[0]
        if text in _CLOSING:
            is_open += _CLOSING[text]
        elif text in (b"]", b"}"):
            is_open = is_open[:-1]
        elif text == b"," and _ITEM.fullmatch(is_open):
            end, closing = token.start(), is_open[::-1]
    return data[:end] + closing


def _quoted(value: object) -> str:
    return repr(value)[:40]
