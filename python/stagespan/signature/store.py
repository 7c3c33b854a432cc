"""The signatures that this process has seen, with how often and for how long each ran."""

from __future__ import annotations

import collections
import copy
import os
import statistics
import threading
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from stagespan.errors import SignatureError
from stagespan.signature.model import TYPE, SignatureFile, StageSignature

MAX_STAGES = 4096
MAX_KEYS = 32
"""Signatures kept of one stage; runs with further ones are counted under ``OTHER``."""
OTHER = "(other)"
_KEPT_DURATIONS = 512
_SCALARS = (bool, int, float, str)


class _Entry:
    def __init__(self, signature: StageSignature | None) -> None:
        self.signature = signature  # None for OTHER
        self.has_output = False
        self.count = 0
        self.latest = 0  # order of the latest run, to tell entries with equal counts apart
        self.durations_ns: collections.deque[int] = collections.deque(maxlen=_KEPT_DURATIONS)


class SignatureStore:
    """Thread-safe; bounded in stages, in signatures of a stage and in durations of a signature."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stages: dict[str, dict[str, _Entry]] = {}
        self._seen: dict[str, set[str]] = {}
        self._runs = 0
        self.request_id = ""

    def knows(self, stage: str, key: str) -> bool:
        """Whether this signature of the stage is kept already: its values need no reading then."""
        with self._lock:
            return key in self._stages.get(stage, {})

    def needs_output(self, stage: str, key: str) -> bool:
        """Whether the output that belongs to this signature is still to be described."""
        with self._lock:
            entry = self._stages.get(stage, {}).get(key)
            return entry is not None and entry.signature is not None and not entry.has_output

    def begin(self, signature: StageSignature) -> bool:
        """A run begins; returns whether its form is the first of its kind for the stage, ever."""
        stage, key = signature.stage_name, signature.key or OTHER
        with self._lock:
            seen = self._seen.setdefault(stage, set()) if self._room(stage, self._seen) else None
            first = seen is not None and key not in seen and len(seen) < 4 * MAX_KEYS
            if first and seen is not None:
                seen.add(key)
            if not self._room(stage, self._stages):
                return first
            entries = self._stages.setdefault(stage, {})
            entry = entries.get(key)
            if entry is None and len(entries) < MAX_KEYS:
                entries[key] = _Entry(signature)
            elif entry is None:
                entries.setdefault(OTHER, _Entry(None))
            elif entry.signature is not None:
                _refresh(entry.signature, signature)
            return first

    def end(self, stage: str, key: str, duration_ns: int, output: Any, described: bool) -> None:
        """A run has ended well, after ``duration_ns``; ``output`` is its node if ``described``."""
        with self._lock:
            entries = self._stages.get(stage)
            if not entries:
                return
            entry = entries.get(key) or entries.get(OTHER)
            if entry is None:
                return
            self._runs += 1
            entry.count += 1
            entry.latest = self._runs
            entry.durations_ns.append(duration_ns)
            if described and entry.signature is not None:
                entry.signature.output = output
                entry.has_output = True

    @staticmethod
    def _room(stage: str, table: dict[str, Any]) -> bool:
        return stage in table or len(table) < MAX_STAGES

    def signatures(self) -> dict[str, StageSignature]:
        """A copy by stage: what ran most (of equals the latest), with the others as variants."""
        with self._lock:
            found: dict[str, StageSignature] = {}
            for stage, entries in self._stages.items():
                kept = [entry for entry in entries.values() if entry.signature is not None]
                kept.sort(key=lambda entry: (entry.count, entry.latest), reverse=True)
                copies = []
                for entry in kept:
                    signature = copy.deepcopy(entry.signature)
                    assert signature is not None
                    signature.count = entry.count
                    copies.append(signature)
                if copies:
                    found[stage] = copies[0]
                    found[stage].variants = copies[1:]
            return found

    def stats(self) -> dict[str, list[dict[str, Any]]]:
        """Per stage and signature ``key``, ``count`` and ``p50_ms`` (None before a good end)."""
        with self._lock:
            rows = {
                stage: [
                    (key, entry.count, list(entry.durations_ns)) for key, entry in entries.items()
                ]
                for stage, entries in self._stages.items()
            }
        return {
            stage: [
                {
                    "key": key,
                    "count": count,
                    "p50_ms": statistics.median(durations) / 1e6 if durations else None,
                }
                for key, count, durations in sorted(listed, key=lambda row: -row[1])
            ]
            for stage, listed in rows.items()
        }

    def clear(self, *, forget_shapes: bool = False) -> None:
        """Forget signatures and durations; which shapes have run stays known unless asked."""
        with self._lock:
            self._stages.clear()
            if forget_shapes:
                self._seen.clear()

    def _after_fork(self) -> None:
        self._lock = threading.Lock()
        self._stages = {}


def _refresh(kept: StageSignature, new: StageSignature) -> None:
    """Scalars of the latest run win: a warm-up with two steps must not hide a run with forty."""
    for name, value in new.inputs.items():
        # The length of a text that is left out counts as its value.
        if type(value) in _SCALARS or (isinstance(value, dict) and value.get(TYPE) == "str"):
            kept.inputs[name] = value
    kept.metadata = new.metadata


STORE = SignatureStore()
if hasattr(os, "register_at_fork"):  # a child writes files of its own
    os.register_at_fork(after_in_child=STORE._after_fork)


def get_io_signatures() -> dict[str, dict[str, Any]]:
    """Signatures by stage as in the file: ``input_signatures``, ``output_signature``, ..."""
    return {name: signature.to_json() for name, signature in STORE.signatures().items()}


def dump_io_signatures(path: str | os.PathLike[str], request_id: str | None = None) -> Path:
    """Write all signatures to ``path``, ``timing_io_signature.json`` by habit; returns the path.

    ``request_id`` is by default that of the report. Raises SignatureError, one sentence, when the
    file cannot be written; nothing is left behind then.
    """
    now = datetime.now(timezone.utc)
    file = SignatureFile(
        stages=STORE.signatures(),
        request_id=request_id
        or STORE.request_id
        or f"req_{time.strftime('%Y%m%d_%H%M%S')}_{os.getpid()}",
        timestamp=now.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
    )
    try:
        return file.write(path)
    except (OSError, ValueError, TypeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SignatureError(
            f"the signatures cannot be written to {path}: {reason}; choose another folder"
        ) from error


def signature_stats() -> dict[str, list[dict[str, Any]]]:
    """Per stage a list of ``{"key", "count", "p50_ms"}``, the signature that ran most first."""
    return STORE.stats()


def reset_signatures(request_id: str = "", *, forget_shapes: bool = False) -> None:
    """Start afresh, for a new report; which shapes have run stays known unless asked."""
    STORE.clear(forget_shapes=forget_shapes)
    STORE.request_id = request_id
