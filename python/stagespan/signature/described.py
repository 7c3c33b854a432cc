"""Describes the arguments of decorated functions in requests, for what keeps slow requests.

Only while a program or an exporter asks for it. Shapes and types are described, no values.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any, NamedTuple

from stagespan import _core
from stagespan.contexts.dynamo import leave_alone
from stagespan.process import imports
from stagespan.process.files import json_bytes
from stagespan.signature.bind import bind_arguments, receiver_of, undecorated
from stagespan.signature.capture import capture_shapes
from stagespan.signature.model import StageSignature
from stagespan.signature.recorder import has_autocast, stage_of, torch_settings
from stagespan.signature.target import callable_of

MOST_BYTES = 2048
"""Of the description of a run."""
KEPT_RUNS = 2048
_MOST_TEXTS = 256
_MOST_SHARE = 0.1
"""Of the time of a CPU, for the descriptions of all runs."""
_SETTINGS_S = 10.0
_AHEAD_NS = 100_000_000
"""CPU time that may be used at once."""


class _Run(NamedTuple):
    span: int
    noted_ns: int
    signature: bytes
    """As JSON; empty if there is none."""
    why: str
    """Why there is none."""


class _Settings:
    """The settings of torch, which are read again after some seconds, because it takes long."""

    def __init__(self) -> None:
        self._by_mode: dict[tuple[bool, bool], tuple[float, dict[str, Any]]] = {}

    def latest(self) -> dict[str, Any]:
        """Return those of this thread."""
        torch = imports.loaded("torch")
        if torch is None or has_autocast(torch):
            return torch_settings()
        mode = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        now_s = time.monotonic()
        until_s, settings = self._by_mode.get(mode, (0.0, {}))
        if now_s > until_s:
            settings = torch_settings()
            self._by_mode[mode] = now_s + _SETTINGS_S, settings
        return settings


class _Describer:
    """What was noted about the latest runs since it began."""

    def __init__(self) -> None:
        self.since_ns = self._refilled_ns = _core.now_ns()
        self.until_s = 0.0
        self.runs: deque[_Run] = deque(maxlen=KEPT_RUNS)
        self.left_out_ns = 0
        """The latest time at which a run was left out, or at which one that has gone was noted."""
        self._left_ns = _AHEAD_NS
        self._settings = _Settings()
        self._texts: dict[bytes, bytes] = {}

    def describe(
        self, stage: str, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> bytes | str | None:
        """Return the signature of a call, or why it has none; None if the run is left out."""
        now_ns = _core.now_ns()
        refill_ns = int((now_ns - self._refilled_ns) * _MOST_SHARE)
        self._left_ns, self._refilled_ns = min(self._left_ns + refill_ns, _AHEAD_NS), now_ns
        torch = imports.loaded("torch")
        if self._left_ns < 0 or (torch is not None and torch.jit.is_tracing()):
            self.left_out_ns = now_ns
            return None
        began_ns = time.thread_time_ns()
        try:
            return self._described(stage, function, args, kwargs)
        finally:
            self._left_ns -= time.thread_time_ns() - began_ns

    def _described(
        self,
        stage: str,
        function: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> bytes | str:
        function = undecorated(function)
        # What is left out has the default of the function in a replay too.
        arguments = bind_arguments(function, args, kwargs, with_defaults=False)
        inputs = capture_shapes(arguments, stage=stage_of(function, args))
        if inputs is None:
            return "it has too many arguments to be described in 100 µs"
        context = self._settings.latest()
        target = callable_of(function, receiver_of(function, args))
        signature = StageSignature(stage, inputs, context=context, target=target)
        text = json_bytes(signature.to_json())
        if len(text) > MOST_BYTES:
            return f"the description of its arguments has more than {MOST_BYTES:,} bytes"
        if len(self._texts) >= _MOST_TEXTS:
            self._texts.clear()
        return self._texts.setdefault(text, text)

    def keep(self, span: int, described: bytes | str) -> None:
        """Note the description of a run."""
        if len(self.runs) == KEPT_RUNS:
            self.left_out_ns = max(self.left_out_ns, self.runs[0].noted_ns)
        signature, why = (described, "") if isinstance(described, bytes) else (b"", described)
        self.runs.append(_Run(span, _core.now_ns(), signature, why))


_describer: _Describer | None = None


def start(seconds: float) -> None:
    """Describe the runs of decorated functions in requests for that long from now on."""
    global _describer
    describer = _describer or _Describer()
    describer.until_s = time.monotonic() + seconds
    if _describer is None:
        describer.describe("", start, (seconds,), {})  # the first one takes milliseconds
        _describer = describer
        _core.calls_set_descriptions(_describe, _keep)


def stop() -> None:
    """Describe no more runs, and forget those that were."""
    global _describer
    _describer = None
    _core.calls_set_descriptions(None, None)


def _describe(
    stage: str, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> bytes | str | None:
    describer = _describer
    if describer is None or time.monotonic() > describer.until_s:
        stop()
        return None
    return describer.describe(stage, function, args, kwargs)


def _keep(span: int, described: bytes | str) -> None:
    describer = _describer
    if describer is not None:
        describer.keep(span, described)


def noted(spans: list[int], begin_ns: int) -> dict[str, Any]:
    """Return the signature of the first of these spans that has one, and why the first has none.

    ``begin_ns`` is the Unix time when the request of the spans began.
    """
    describer = _describer
    if describer is None or describer.since_ns > begin_ns:
        return {"why": "the process noted signatures only from a later time on"}
    runs = {one.span: one for one in describer.runs.copy()}
    answer: dict[str, Any] = {"why": ""}
    if spans[0] in runs:
        answer["why"] = runs[spans[0]].why
    elif describer.left_out_ns >= begin_ns:
        answer["why"] = "there were too many runs of decorated functions"
    else:
        answer["why"] = "only calls of decorated functions have one, and `with` blocks have none"
    first = next((span for span in spans if span in runs and runs[span].signature), None)
    if first is not None:
        signature = imports.load("json").loads(runs[first].signature)
        answer.update(span=first, signature=signature)
    return answer


leave_alone(_describe, _keep)
