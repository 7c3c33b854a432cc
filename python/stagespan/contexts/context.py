"""Contexts, switches, and the hooks through which higher packages run code around stages.

The objects of the hot path come from the extension. Python code runs around a stage only if hooks
are called: in debug mode, for stages that are named for the profiler, with `capture_memory`, and on
accelerators. Plain spans call only hooks that annotate them, see `Hook`.
"""

from __future__ import annotations

import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from stagespan import _core, settings
from stagespan._core import MISSING
from stagespan.contexts import switches
from stagespan.contexts.dynamo import leave_alone
from stagespan.errors import SettingsError
from stagespan.process import forks, imports, run

_log = logging.getLogger("stagespan")


class Call:
    """One run of a stage, as hooks see it.

    For a `with` block, `function` is None, `args` is () and `kwargs` is {}. `result` is MISSING
    before the call has returned, if the call raised an exception, and for a block without an
    output. `begin_ns` and `end_ns` are Unix times; they are 0 until `Hook.exit` runs.
    """

    inputs: dict[str, Any] | None = None
    result: Any = MISSING
    error: BaseException | None = None
    span_id = begin_ns = end_ns = flags = 0
    peak_bytes: int | None = None
    """Peak of an accelerator's memory during the call, for its log line; None if unknown."""

    def __init__(
        self,
        span: _core.Span,
        function: Callable[..., Any] | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self.stage = span.name
        self.kind: str = span.kind
        self.function = function
        self.args = args
        self.kwargs = kwargs
        self.reset_peak_memory = span.reset_peak_memory
        self.capture_memory = span.capture_memory
        self.state: dict[str, Any] = {}
        self.hooks: list[Hook] = []


class Hook(ABC):
    """Code of a higher package that runs around a stage. All methods except `wants` are optional.

    If it raises an exception, the exception is counted, and the first one is logged.
    """

    name: str
    """Unique name of the hook."""
    of_spans = False
    """Whether it is also asked for plain spans that `annotate` names."""

    @abstractmethod
    def wants(self, call: Call) -> bool:
        """Return whether the other methods are called for this call."""

    def enter(self, call: Call) -> None:  # noqa: B027 (optional)
        """Run before the clock starts."""

    def leave(self, call: Call) -> None:  # noqa: B027 (optional)
        """Run when the stage has finished, before the clock stops."""

    def exit(self, call: Call) -> None:  # noqa: B027 (optional)
        """Run after the clock has stopped, when the result or the error is known."""


_hooks: dict[str, Hook] = {}
"""By name, in the order of registration."""
_EVENTS = ("debug", "profiled", "memory", "service", "breakdown")
_lazy: dict[str, list[str]] = {event: [] for event in _EVENTS}
_lazily_made: dict[str, Hook] = {}
_warned = False


def register_hook(hook: Hook, *, first: bool = False) -> None:
    """Add a hook, or replace the hook of the same name.

    `enter` runs in the order of registration, `leave` and `exit` in the reverse order. If ``first``
    is True, a new hook comes before all others.
    """
    global _hooks
    if first and hook.name not in _hooks:
        _hooks = {hook.name: hook, **_hooks}
    else:
        _hooks[hook.name] = hook


def lazy_hook(event: str, target: str) -> None:
    """Import `target` when `event` first occurs.

    If `target` is "package.module:Class", an object of this class is registered as a hook. If it is
    "package.module", the module is only imported. Events:

    - "debug": a debug context runs
    - "profiled": a stage is named for the profiler
    - "memory": an accelerator is in use, or a context captures memory
    - "service": the first context has finished, and its log line waits
    - "breakdown": a program asks where the time of a request went
    """
    _lazy[event].append(target)


def need(event: str) -> None:
    """Import the targets of `lazy_hook` that wait for `event`.

    Does nothing in a signal handler or a finalizer that has interrupted such an import in this
    thread. A stage that the handler runs is then timed without these hooks.
    """
    if not _lazy[event] or imports.is_loading():
        return
    # A target is removed after its import, so that other threads that need it wait for it.
    for target in tuple(_lazy[event]):
        try:
            module, _, name = target.partition(":")
            loaded = imports.load(module)
            if name:
                # Several events can name one class, and several threads can run this at one time.
                register_hook(_lazily_made.setdefault(target, getattr(loaded, name)()))
        except Exception as error:
            if "partially initialized module" in str(error):
                # An import of the application is not finished, so try again the next time.
                continue
            hook_failed(target, error)
        with contextlib.suppress(ValueError):
            _lazy[event].remove(target)


def hook_failed(name: str, error: BaseException) -> None:
    """Count an exception in a hook, and log a warning for the first one."""
    global _warned
    _core.lost_add("hook_errors")
    if not _warned:
        _warned = True
        _log.warning(
            "stagespan's %s failed with %s: %s; the pipeline continues without it (logged once).",
            name,
            type(error).__name__,
            error,
        )


def _run(hook: Hook, step: Callable[[Call], Any], call: Call) -> Any:
    try:
        return step(call)
    except Exception as error:
        hook_failed(f"hook {hook.name!r}", error)
    except BaseException as error:
        # KeyboardInterrupt and similar are meant for the program. The other hooks run first.
        _core.hooks_raise_later(error)
    return None


def _enter(
    span: _core.Span,
    function: Callable[..., Any] | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Call:
    need("profiled")
    if span.kind == "debug":
        need("debug")
    if span.capture_memory or span.kind == "debug":
        need("memory")
    call = Call(span, function, args, kwargs)
    for hook in _hooks.copy().values():
        if call.kind == "span" and not getattr(hook, "of_spans", False):
            continue
        if _run(hook, hook.wants, call):
            call.hooks.append(hook)
            _run(hook, hook.enter, call)
    return call


def _leave(call: Call) -> None:
    for hook in reversed(call.hooks):
        _run(hook, hook.leave, call)


def _exit(
    call: Call,
    result: Any,
    error: BaseException | None,
    span_id: int,
    begin_ns: int,
    end_ns: int,
) -> int:
    if result is not MISSING:
        call.result = result
    call.error = error
    call.span_id, call.begin_ns, call.end_ns = span_id, begin_ns, end_ns
    for hook in reversed(call.hooks):
        _run(hook, hook.exit, call)
    # Drop all data of the call, so that timing a stage does not keep its data alive.
    call.args, call.kwargs, call.inputs, call.result, call.error = (), {}, None, MISSING, None
    return call.flags


_start_service: Callable[[], None] | None = None


def register_service(start: Callable[[], None]) -> None:
    """Set the function that is called once per process, after its first context."""
    global _start_service
    _start_service = start


def _service_is_needed() -> bool:
    if forks.is_forking_here():
        return False
    need("service")
    if _start_service is not None:
        _start_service()
    return _start_service is not None or not _lazy["service"]


# --- switches ---------------------------------------------------------------------------------


device_every: int | None = None
"""The number that `enable` was given last; None: STAGESPAN_DEVICE_EVERY holds."""


def enable(*, device_every: int | None = None) -> None:
    """Record from now on. Spans that are already open are not affected.

    Args:
        device_every: Measure the device time of every ``device_every``-th span of a stage in a
            thread: 1 for all spans, 0 for none. None keeps the number as it is, at first that of
            ``STAGESPAN_DEVICE_EVERY``.

    Raises:
        ValueError: If ``device_every`` is negative or does not fit into 32 bits.
        TypeError: If ``device_every`` is not an integer.

    Example:
        ```python
        stagespan.enable(device_every=10)
        ```
    """
    if device_every is not None:
        globals()["device_every"] = _core.device_every(device_every)
    _core.enable()
    switches.switched()


def disable() -> None:
    """Turn everything off: spans, contexts and decorated functions record nothing from now on."""
    _core.disable()
    switches.switched()


def set_debug(on: bool = True) -> None:
    """Switch debug mode on or off. STAGESPAN_DEBUG=true switches it on at the start.

    Args:
        on: Whether debug mode is on from now on.

    Raises:
        SettingsError: If ``on`` is text, because "false" would be true.
    """
    value: object = on
    if isinstance(value, str):
        raise SettingsError(f"set_debug() takes True or False, not the text {on!r}.")
    _core.set_debug(bool(on))
    switches.switched()
    if _core.is_debug():
        need("debug")


def _decorate(span: _core.Span, function: Any) -> Any:
    with imports.importing():
        from stagespan.contexts import decorators
    return decorators.decorate(span, function)


# --- start ------------------------------------------------------------------------------------


def _torch_was_imported() -> None:
    need("memory")


run.check_settings()
_core.hooks_set_contexts(_enter, _leave, _exit)
_core.hooks_set_decorator(_decorate)
_core.service_set_start(_service_is_needed)
_core.hooks_set_torch_callback(_torch_was_imported)
leave_alone(_enter, _leave, _exit, _decorate, _service_is_needed, _torch_was_imported)
if not settings.get("STAGESPAN_ENABLED"):
    _core.disable()
_annotated = settings.get("STAGESPAN_ANNOTATE")
_core.profiler_set_names([*settings.get("STAGESPAN_PROFILER_NAMES"), *_annotated])
_core.profiler_set_annotated_names(_annotated)
if settings.get("STAGESPAN_SYSTEM"):
    _core.system_counts_set(True)
if settings.get("STAGESPAN_CPU_TIME") or settings.get("STAGESPAN_SYSTEM"):
    _core.cpu_time_set(True)
if settings.get("STAGESPAN_DEBUG"):
    _core.set_debug(True)
