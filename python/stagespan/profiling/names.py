"""Which stages run under a profiler: those of the environment, and those named at run time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from stagespan import settings
from stagespan.errors import SettingsError

ALL = "*"

# No lock: it is changed by one call of dict's, and readers copy it.
_named: dict[str, None] = {}


def enable_profiler_for_names(names: str | Iterable[str]) -> None:
    """Run the stages `names` under a profiler from now on; `*` is all.

    `names` is one name, several separated by commas (as in ENABLE_PROFILER_NAMES), or an iterable
    of names, which are then taken as they are. They add to the names given before and to those of
    ENABLE_PROFILER_NAMES. Raises SettingsError when a name is not a string, or empty.
    """
    if isinstance(names, str):
        wanted = [name for part in names.split(",") if (name := part.strip())]
    else:
        wanted = _listed(names)
    _named.update(dict.fromkeys(wanted))
    _tell_core()


def profiled_names() -> tuple[str, ...]:
    """Names of the environment and those given at run time, each once."""
    return tuple(dict.fromkeys((*settings.profiler_names(), *_named.copy())))


def is_profiled(stage: str) -> bool:
    """Whether `stage` is to run under a profiler."""
    names = profiled_names()
    return stage in names or ALL in names


def forget_names() -> None:
    """Take back what was named at run time; the names of the environment stay."""
    _named.clear()
    _tell_core()


def _listed(names: Iterable[object]) -> list[str]:
    try:
        given = list(names)
    except TypeError:
        raise SettingsError(
            f"{names!r} names no stages: give a name, several with commas, or a list of names."
        ) from None
    for name in given:
        if not isinstance(name, str) or not name:
            raise SettingsError(f"{name!r} is not the name of a stage: give a string.")
    return [str(name) for name in given]


def _tell_core() -> None:
    # Without the extension no context can run, so there is nobody to tell.
    with contextlib.suppress(ImportError):
        from stagespan import _core

        names = None
        # Whoever names stages at the same time may have told the core before this thread did.
        while names != profiled_names():
            names = profiled_names()
            _core.set_profiled_names(list(names))
