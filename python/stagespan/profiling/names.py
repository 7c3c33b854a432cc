"""The stages that run under a profiler, or are ranges in one of the application."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from stagespan import imports, settings
from stagespan.errors import SettingsError

ALL = "*"

# No lock is needed: one call of dict changes it, and readers copy it.
_named: dict[str, int] = {}
"""The names given at run time, and how often each was given."""
_annotated: list[tuple[str, ...]] = []
"""The names of the latest `annotate`, which replace those of STAGESPAN_ANNOTATE."""
_in_contexts: set[str] = set()
"""The named stages that ran in contexts, because plain spans are not profiled."""


def enable_profiler_for_names(names: str | Iterable[str]) -> None:
    """Run the stages `names` under a profiler from now on; `*` stands for all stages.

    `names` is one name, several names separated by commas (as in STAGESPAN_PROFILER_NAMES), or an
    iterable of names, which are not split. They are added to earlier names and to those of
    STAGESPAN_PROFILER_NAMES. A stage that is named again is profiled again. Raises SettingsError if
    a name is empty or not a string.
    """
    _named.update({name: _named.get(name, 0) + 1 for name in _listed(names)})
    _update_core()
    with contextlib.suppress(ImportError):
        imports.load("stagespan.profiling.unused")


def set_annotated(names: str | Iterable[str]) -> None:
    """Replace the stages that are annotated in the application's traces, see `annotate`."""
    _annotated[:] = [tuple(_listed(names))]
    _update_core()


def is_annotated(stage: str) -> bool:
    """Whether `stage` is a range in the application's traces."""
    names = _annotated_names()
    return stage in names or ALL in names


def _annotated_names() -> tuple[str, ...]:
    return _annotated[0] if _annotated else settings.annotated_names()


def profiled_names() -> tuple[str, ...]:
    """Return the names of the environment and those named at run time, each once."""
    return tuple(dict.fromkeys((*settings.profiler_names(), *_named.copy())))


def is_profiled(stage: str) -> bool:
    """Whether `stage` runs under a profiler."""
    names = profiled_names()
    return stage in names or ALL in names


def times_named(stage: str) -> int:
    """Return how often `stage` was named at run time, by its name or by `*`."""
    return _named.get(stage, 0) + _named.get(ALL, 0)


def forget_names() -> None:
    """Remove the names given at run time, also by `annotate`. Those of the environment stay."""
    _named.clear()
    _annotated.clear()
    _in_contexts.clear()
    _update_core()


def note_context(stage: str) -> None:
    """Remember that a named stage ran in a context, and not as a plain span."""
    _in_contexts.add(stage)


def not_in_contexts() -> list[str]:
    """Return the names of which no context has run since they were named, without `*`."""
    return [name for name in profiled_names() if name != ALL and name not in _in_contexts]


def _listed(names: str | Iterable[object]) -> list[str]:
    if isinstance(names, str):
        return [part.strip() for part in names.split(",") if part.strip()]
    try:
        listed = list(names)
    except TypeError:
        raise SettingsError(
            f"{names!r} does not name stages: pass a name, several with commas, or a list of names."
        ) from None
    for name in listed:
        if not isinstance(name, str) or not name:
            raise SettingsError(f"{name!r} is not the name of a stage: pass a string.")
    return [str(name) for name in listed]


def _names_of_core() -> tuple[tuple[str, ...], tuple[str, ...]]:
    annotated = _annotated_names()
    return (*profiled_names(), *annotated), annotated


def _update_core() -> None:
    # Without the extension no context can run.
    with contextlib.suppress(ImportError):
        from stagespan import _core

        names: tuple[tuple[str, ...], tuple[str, ...]] | None = None
        # Another thread may name stages at the same time.
        while names != _names_of_core():
            names = _names_of_core()
            _core.set_profiled_names(names[0])
            _core.set_annotated_names(names[1])
