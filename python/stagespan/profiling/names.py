"""The stages that run under a profiler, or are ranges in one of the application."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from stagespan import _core, settings
from stagespan.errors import SettingsError
from stagespan.process import imports

ALL = "*"


class _Names(NamedTuple):
    """The stages that the core sends through the hooks, each once."""

    profiled: tuple[str, ...]
    annotated: tuple[str, ...]
    captured: tuple[str, ...]


# No lock is needed: one call of dict changes it, and readers copy it.
_named: dict[str, int] = {}
"""The names given at run time, and how often each was given."""
_annotated: list[tuple[str, ...]] = []
"""The names of the latest `annotate`, which replace those of STAGESPAN_ANNOTATE."""
_captured: list[tuple[str, ...]] = []
"""The stage of the capture that is in progress."""
_in_contexts: set[str] = set()
"""The named stages that ran in contexts, because plain spans are not profiled."""
_current = _Names((), (), ())
"""The names that `update` has told the core, replaced as a whole."""


def enable_profiler_for_names(names: str | Iterable[str], *more: str | Iterable[str]) -> None:
    """Run the stages `names` under a profiler from now on; `*` stands for all stages.

    Each argument is one name, several names separated by commas (as in STAGESPAN_PROFILER_NAMES),
    or an iterable of names, which are not split. They are added to earlier names and to those of
    STAGESPAN_PROFILER_NAMES. A stage that is named again is profiled again. Raises SettingsError if
    a name is empty or not a string.
    """
    _named.update({name: _named.get(name, 0) + 1 for name in _listed(names, *more)})
    update()
    imports.load("stagespan.profiling.unused")


def set_annotated(*names: str | Iterable[str]) -> None:
    """Replace the stages that are annotated in the application's traces, see `annotate`."""
    _annotated[:] = [tuple(_listed(*names))]
    update()


def set_captured(*stages: str) -> None:
    """Replace the stages whose runs call the hooks because a capture waits for them."""
    _captured[:] = [stages]
    update()


def is_annotated(stage: str) -> bool:
    """Whether `stage` is a range in the application's traces."""
    names = _current.annotated
    return stage in names or ALL in names


def profiled_names() -> tuple[str, ...]:
    """Return the names of the environment and those named at run time, each once."""
    return _current.profiled


def is_profiled(stage: str) -> bool:
    """Whether `stage` runs under a profiler."""
    names = _current.profiled
    return stage in names or ALL in names


def times_named(stage: str) -> int:
    """Return how often `stage` was named at run time, by its name or by `*`."""
    return _named.get(stage, 0) + _named.get(ALL, 0)


def forget_names() -> None:
    """Remove the names given at run time, also by `annotate`. Those of the environment stay."""
    _named.clear()
    _captured.clear()
    _annotated.clear()
    _in_contexts.clear()
    update()


def note_context(stage: str) -> None:
    """Remember that a named stage ran in a context, and not as a plain span."""
    _in_contexts.add(stage)


def not_in_contexts() -> list[str]:
    """Return the names of which no context has run since they were named, without `*`."""
    return [name for name in profiled_names() if name != ALL and name not in _in_contexts]


def _listed(*groups: str | Iterable[object]) -> list[str]:
    """Return the names of all groups; each is text with commas, or an iterable of names."""
    listed: list[str] = []
    for names in groups:
        if isinstance(names, str):
            listed += [part.strip() for part in names.split(",") if part.strip()]
            continue
        try:
            stages = list(names)
        except TypeError:
            raise SettingsError(
                f"{names!r} does not name stages: pass names, several with commas, or a list of"
                " names."
            ) from None
        for name in stages:
            if not isinstance(name, str) or not name:
                raise SettingsError(f"{name!r} is not the name of a stage: pass a string.")
            listed.append(name)
    return listed


def update() -> None:
    """Read the environment again, and tell the core which contexts and spans need the hooks."""
    global _current
    told = _current
    # Another thread may name stages at the same time.
    while told != (names := _read()):
        told = names
        _core.profiler_set_names((*names.profiled, *names.annotated, *names.captured))
        _core.profiler_set_annotated_names((*names.annotated, *names.captured))
        _current = names


def _read() -> _Names:
    return _Names(
        tuple(dict.fromkeys((*settings.get("STAGESPAN_PROFILER_NAMES"), *_named.copy()))),
        _annotated[0] if _annotated else settings.get("STAGESPAN_ANNOTATE"),
        _captured[0] if _captured else (),
    )


update()
