"""The stages that run under a profiler, named by the environment or at run time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from stagespan import settings
from stagespan.errors import SettingsError

ALL = "*"

# Without a lock: one call of dict changes it, and readers copy it.
_named: dict[str, int] = {}
"""The names given at run time, and how often each was given."""


def enable_profiler_for_names(names: str | Iterable[str]) -> None:
    """Run the stages `names` under a profiler from now on; `*` stands for all stages.

    `names` is one name, several names separated by commas (as in ENABLE_PROFILER_NAMES), or an
    iterable of names, which are not split. They are added to earlier names and to those of
    ENABLE_PROFILER_NAMES. A stage that is named again is profiled again. Raises SettingsError if a
    name is empty or not a string.
    """
    if isinstance(names, str):
        wanted = [name for part in names.split(",") if (name := part.strip())]
    else:
        wanted = _listed(names)
    _named.update({name: _named.get(name, 0) + 1 for name in wanted})
    _update_core()


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
    """Remove the names given at run time. The names of the environment stay."""
    _named.clear()
    _update_core()


def _listed(names: Iterable[object]) -> list[str]:
    try:
        given = list(names)
    except TypeError:
        raise SettingsError(
            f"{names!r} does not name stages: pass a name, several with commas, or a list of names."
        ) from None
    for name in given:
        if not isinstance(name, str) or not name:
            raise SettingsError(f"{name!r} is not the name of a stage: pass a string.")
    return [str(name) for name in given]


def _update_core() -> None:
    # Without the extension no context can run.
    with contextlib.suppress(ImportError):
        from stagespan import _core

        names = None
        # Another thread may name stages at the same time.
        while names != profiled_names():
            names = profiled_names()
            _core.set_profiled_names(list(names))
