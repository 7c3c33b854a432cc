"""A trace that remembers what was derived from it, so that every analysis shares the results."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from stagespan.trace.read.intervals import Mask
from stagespan.trace.read.model import Trace

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class TraceView(Trace):
    """A trace for analyses: functions marked with `once` run once on it.

    It shares the columns of the trace that it was made from. What it remembers lives as long as
    the view does.
    """

    known: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)
    """Results by function and arguments."""

    @classmethod
    def of(cls, trace: Trace) -> TraceView:
        """A view of a trace; a view of a view is the same one."""
        if isinstance(trace, TraceView):
            return trace
        return cls(**{each.name: getattr(trace, each.name) for each in fields(Trace)})

    def rows_of(self, names: Iterable[str]) -> Mask:
        """Which rows of `events` belong to one of the categories `names`; do not write to it."""
        codes = tuple(self.category_codes(names))
        found: Mask | None = self.known.get(codes)
        if found is None:
            # Not super(): the decorator of a class with slots makes the class anew.
            found = self.known[codes] = _read_only(Trace.rows_of(self, names))
        return found


def once(derive: Callable[Concatenate[Trace, P], R]) -> Callable[Concatenate[Trace, P], R]:
    """Run a function once for each view and arguments; on a plain trace, each time.

    Numbers, texts and tuples among the arguments are compared by value, other objects by identity.
    Callers must not change what they get.
    """

    @functools.wraps(derive)
    def known(trace: Trace, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if not isinstance(trace, TraceView):
            return derive(trace, *args, **kwargs)
        key = (derive, *map(_key, args), *((name, _key(each)) for name, each in kwargs.items()))
        if key not in trace.known:
            # With the arguments, so that no other object gets the identity of one of them.
            trace.known[key] = _read_only(derive(trace, *args, **kwargs)), args, kwargs
        result: R = trace.known[key][0]
        return result

    return known


def _key(value: object) -> object:
    if value is None or isinstance(value, (int, str, tuple, re.Pattern)):
        return value
    return id(value)


def _read_only(value: R) -> R:
    """An array that nobody can write to by mistake; anything else as it is."""
    if isinstance(value, np.ndarray):
        value.flags.writeable = False
    return value
