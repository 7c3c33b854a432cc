"""Shows stages as ranges in a profiler of the application."""

from __future__ import annotations

from collections.abc import Iterable

from stagespan.contexts.context import Call, Hook
from stagespan.process import imports
from stagespan.profiling.controller import open_window
from stagespan.profiling.names import is_annotated, set_annotated


def annotate(names: str | Iterable[str] = "*", *more: str | Iterable[str]) -> None:
    """Show stages as ranges in the application's own torch.profiler traces from now on.

    This applies to `ProfilingContext`, to `ProfilingContext4Debug` in debug mode, and to each
    `span` that is made after this call, while a profiler of the application runs. A function that
    was decorated with `span` before this call is not shown; STAGESPAN_ANNOTATE names stages from
    the start. The ranges also appear on the device's timeline, if the profiler records it. Spans of
    other stages cost as little as before. Traces that stagespan writes have a track of all spans,
    and are not annotated.

    Args:
        names: The stages, as one name, names separated by commas, or an iterable of names; ``*``
            for all stages. They replace those of earlier calls; an empty list ends annotating.
        *more: More stages, in the same forms: ``annotate("encode", "decode")``.

    Raises:
        SettingsError: If a name is empty or not a string.
    """
    set_annotated(names, *more)


def _is_recording() -> bool:
    """Whether a profiler of torch is recording. Takes less time than `foreign_profiler`."""
    autograd = imports.loaded("torch.autograd.profiler")
    if autograd is None:
        return False
    if getattr(autograd, "_is_profiler_enabled", False):
        return True
    return bool(imports.load("torch").autograd._profiler_enabled())  # on this thread


class AnnotateHook(Hook):
    """Opens a range of torch's profiler around each named stage."""

    name = "annotate"
    of_spans = True

    def wants(self, call: Call) -> bool:
        """Whether the stage is named and a profiler of the application runs."""
        return is_annotated(call.stage) and open_window() is None and _is_recording()

    def enter(self, call: Call) -> None:
        """Begin the range."""
        record_function = imports.load("torch.autograd.profiler").record_function
        opened = record_function(call.stage)
        opened.__enter__()
        call.state[self.name] = opened

    def leave(self, call: Call) -> None:
        """End the range."""
        opened = call.state.pop(self.name, None)
        if opened is not None:
            opened.__exit__(None, None, None)
