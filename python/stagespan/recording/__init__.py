"""Reading recordings: what a process of this machine does, or did before it died.

Each process that opens a span writes its spans, statistics and open spans to a recording that other
processes of the same user can read, without stopping it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stagespan import imports as _imports

if TYPE_CHECKING:
    from stagespan.recording.reading import Recording, open_recording, recordings

    open = open_recording  # noqa: A001

_LAZY = {
    "Recording": "Recording",
    "open": "open_recording",  # used as `recording.open(...)`, like `gzip.open`
    "open_recording": "open_recording",
    "recordings": "recordings",
}

__all__ = ["Recording", "open", "recordings"]


def __getattr__(name: str) -> Any:
    # Programs that only write a recording do not import what reads one.
    found = _LAZY.get(name)
    if found is None:
        raise AttributeError(f"module 'stagespan.recording' has no attribute {name!r}")
    value = getattr(_imports.load("stagespan.recording.reading"), found)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names, and the attributes that every module has."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
