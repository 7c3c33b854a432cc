"""The contexts themselves, switches, and the hooks through which upper rooms take part.

The hot objects come from the extension as they are. Python code runs around a stage only where a
hook is wanted: in debug mode, for stages that a profiler was asked for, for `capture_memory`, and
on accelerators.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Any, Protocol

from stagespan import _core, forks, imports, run, settings
from stagespan._core import MISSING
from stagespan.dynamo import leave_alone
from stagespan.errors import SettingsError

_log = logging.getLogger("stagespan")


class Call:
    """One run of a stage as the hooks see it.

    `function`, `args` and `kwargs` are None, () and {} for a `with` block. `result` is MISSING
    until the call has returned, for a block that gave no output, and when it raised. `begin_ns`
    and `end_ns` are Unix time, known in `exit` only.
    """

    __slots__ = (
        "args",
        "begin_ns",
        "capture_memory",
        "end_ns",
        "error",
        "flags",
        "function",
        "hooks",
        "inputs",
        "kind",
        "kwargs",
        "peak_bytes",
        "reset_peak_memory",
        "result",
        "span_id",
        "stage",
        "state",
    )

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
        self.inputs: dict[str, Any] | None = None
        self.result: Any = MISSING
        self.error: BaseException | None = None
        self.span_id = 0
        self.begin_ns = 0
        self.end_ns = 0
        self.flags = 0
        self.peak_bytes: int | None = None
        """Peak of an accelerator's memory during the call, for its log line."""
        self.state: dict[str, Any] = {}
        self.hooks: list[Hook] = []


class Hook(Protocol):
    """What an upper room does around a stage. An exception in it is counted and warned of once."""

    @property
    def name(self) -> str:
        """Tells hooks apart."""

    def wants(self, call: Call) -> bool:
        """Tell whether this hook takes part in the call."""

    def enter(self, call: Call) -> None:
        """Act before the clock starts."""

    def leave(self, call: Call) -> None:
        """Act when the stage is done, before the clock stops."""

    def exit(self, call: Call) -> None:
        """Act after the clock has stopped, with the result or the error known."""


_hooks: list[Hook] = []
_lazy: dict[str, list[str]] = {"debug": [], "profiled": [], "memory": [], "service": []}
_warned = False


def register_hook(hook: Hook) -> None:
    """Add a hook; `enter` runs in the order of registration, `leave` and `exit` in reverse.

    A hook of the same name takes the place of the earlier one.
    """
    for index, known in enumerate(_hooks):
        if known.name == hook.name:
            _hooks[index] = hook
            return
    _hooks.append(hook)


def lazy_hook(event: str, module: str) -> None:
    """Have `module`, which registers its hooks when imported, imported when `event` needs it.

    Events: "debug" (a debug context runs), "profiled" (a profiler was asked for by name), "memory"
    (an accelerator is there, or a context captures memory), "service" (a first context has finished
    and its log line waits).
    """
    _lazy[event].append(module)


def need(event: str) -> None:
    """Import the modules that wait for `event`.

    Not where a signal handler or a finalizer has interrupted such an import in this thread: a stage
    that it runs is timed without those hooks.
    """
    if not _lazy[event] or imports.is_loading():
        return
    # Taken off the list afterwards: who needs them meanwhile in another thread waits for them.
    for module in tuple(_lazy[event]):
        try:
            imports.load(module)
        except Exception as error:
            if "partially initialized module" in str(error):
                # Interrupted in an import of the application's: it is there the next time.
                continue
            hook_failed(module, error)
        with contextlib.suppress(ValueError):
            _lazy[event].remove(module)


def hook_failed(name: str, error: BaseException) -> None:
    """Count an exception in a hook, and warn of the first one."""
    global _warned
    _core.count_lost("hook_errors")
    if not _warned:
        _warned = True
        _log.warning(
            "stagespan's %s failed with %s: %s; the pipeline goes on without it (told once).",
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
        # KeyboardInterrupt and its like are meant for the program; the other hooks get their turn.
        _core.raise_later(error)
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
    for hook in _hooks:
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
    # The flags go on; what the stage worked on must not live longer because it was timed.
    call.args, call.kwargs, call.inputs, call.result, call.error = (), {}, None, MISSING, None
    return call.flags


_start_service: Callable[[], None] | None = None


def register_service(start: Callable[[], None]) -> None:
    """Have `start` called once a process, when its first context has finished."""
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

_switched: list[Callable[[], None]] = []


def on_switch(callback: Callable[[], None]) -> None:
    """Have `callback` called now, and after the recorder or debug mode has been switched."""
    _switched.append(callback)
    callback()


debug_switched: list[Callable[[bool], None]] = []
"""Called when debug mode is switched, after the core knows."""


def enable() -> None:
    """Record from now on. Spans that are open keep to what they were opened with."""
    _core.enable()
    _tell_switched()


def disable() -> None:
    """Turn everything off: spans, contexts and decorated functions record nothing from now on."""
    _core.disable()
    _tell_switched()


def set_debug(on: bool = True) -> None:
    """Switch debug mode, as TELEFUSER_PROFILE_DEBUG=true does from the start.

    Args:
        on: Whether debug mode is on from now on.

    Raises:
        SettingsError: If ``on`` is text, because "false" would be true.
    """
    given: object = on
    if isinstance(given, str):
        raise SettingsError(f"set_debug() was given the text {on!r}: pass True or False.")
    _core.set_debug(bool(on))
    _tell_switched()
    if on:
        need("debug")
    for callback in debug_switched:
        callback(bool(on))


def _tell_switched() -> None:
    for callback in tuple(_switched):
        callback()


def _decorate(span: _core.Span, function: Any) -> Any:
    with imports.importing():
        from stagespan import decorators
    return decorators.decorate(span, function)


# --- start ------------------------------------------------------------------------------------


def _torch_was_imported() -> None:
    need("memory")


def _start() -> None:
    _core.require_main_interpreter()
    run.check_settings()
    _core.set_context_hooks(_enter, _leave, _exit)
    _core.set_decorator(_decorate)
    _core.set_service_start(_service_is_needed)
    _core.set_torch_callback(_torch_was_imported)
    leave_alone(_enter, _leave, _exit, _decorate, _service_is_needed, _torch_was_imported)
    if not settings.get("STAGESPAN_ENABLED"):
        _core.disable()
    _core.set_profiled_names(settings.profiler_names())
    if settings.get("STAGESPAN_DEBUG"):
        _core.set_debug(True)


_start()
