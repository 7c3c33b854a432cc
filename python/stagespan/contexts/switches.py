"""Functions that are called when the recorder or debug mode is switched."""

from __future__ import annotations

from collections.abc import Callable

_callbacks: list[Callable[[], None]] = []


def on_switch(callback: Callable[[], None]) -> None:
    """Call `callback` now, and after each switch of the recorder or of debug mode."""
    _callbacks.append(callback)
    callback()


def switched() -> None:
    """Call the functions of `on_switch`, after the core has been switched."""
    for callback in tuple(_callbacks):
        callback()
