"""A trace that remembers what was derived from it, so that every analysis shares the results."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from stagespan.trace.read.intervals import Mask
from stagespan.trace.read.joining import joined
from stagespan.trace.read.merged_ranks import separated
from stagespan.trace.read.model import Trace
from stagespan.trace.read.plausibility import plausible
from stagespan.trace.read.sources import with_tracks

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class TraceView(Trace):
    """A trace for analyses: functions marked with `once` run once on it.

    It shares the columns of the trace that it was created from, except those that contain what
    cannot be true. Results are kept as long as the view exists.
    """

    cache: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)
    """Results by function and arguments."""
    operators: TraceView | None = None
    """The trace with the operators of device graphs, if they are in other files: it has the events
    of these files after those of this trace. Names have the same codes in both."""

    @classmethod
    def of(cls, trace: Trace) -> TraceView:
        """Return a view of `trace` without what cannot be true; a view is returned as it is."""
        if isinstance(trace, TraceView):
            return trace
        trace = with_tracks(plausible(separated(trace)))
        return cls(**{each.name: getattr(trace, each.name) for each in fields(Trace)})

    def with_capture_traces(self, traces: Sequence[Trace]) -> TraceView:
        """Return a view that also has the events of traces of the capture of its device graphs."""
        both = joined(self, [TraceView.of(each) for each in traces])
        columns = {each.name: getattr(both, each.name) for each in fields(Trace)}
        return replace(
            self,
            names=both.names,
            categories=both.categories,
            cache={},
            operators=TraceView(**columns),
        )

    def rows_of(self, names: Iterable[str]) -> Mask:
        """Return a read-only mask of the rows of `events` whose category is one of `names`."""
        codes = tuple(self.category_codes(names))
        mask: Mask | None = self.cache.get(codes)
        if mask is None:
            # Not super(), because `dataclass(slots=True)` replaces the class.
            mask = self.cache[codes] = _read_only(Trace.rows_of(self, names))
        return mask


def operators_of(trace: Trace) -> Trace:
    """Return the trace with the operators of device graphs, which may be `trace` itself."""
    found = trace.operators if isinstance(trace, TraceView) else None
    return trace if found is None else found


def once(derive: Callable[Concatenate[Trace, P], R]) -> Callable[Concatenate[Trace, P], R]:
    """Decorate a function so that a `TraceView` keeps its result for each set of arguments.

    On a trace that is not a view, the function runs each time. Numbers, strings, tuples and regular
    expressions among the arguments are compared by value, other objects by identity. Callers must
    not change the result.
    """

    @functools.wraps(derive)
    def cached(trace: Trace, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if not isinstance(trace, TraceView):
            return derive(trace, *args, **kwargs)
        key = (derive, *map(_key, args), *((name, _key(each)) for name, each in kwargs.items()))
        if key not in trace.cache:
            # The arguments are kept so that no other object gets the id of one of them.
            trace.cache[key] = _read_only(derive(trace, *args, **kwargs)), args, kwargs
        result: R = trace.cache[key][0]
        return result

    return cached


def _key(value: object) -> object:
    if value is None or isinstance(value, (int, str, tuple, re.Pattern)):
        return value
    return id(value)


def _read_only(value: R) -> R:
    """Make an array read-only; return any other value unchanged."""
    if isinstance(value, np.ndarray):
        value.flags.writeable = False
    return value
