"""The signatures of this process, with the number and the durations of their runs."""

from __future__ import annotations

import collections
import copy
import os
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

from stagespan.device.environment import machine
from stagespan.errors import SignatureError
from stagespan.live.quantiles import quantile
from stagespan.process import forks
from stagespan.process.atomic import Count, Highest
from stagespan.signature.model import TYPE, SignatureFile, StageSignature

MAX_STAGES = 4096
MAX_KEYS = 32
"""The most signatures of a stage. Runs with other signatures are counted under ``OTHER``."""
OTHER = "(other)"
MAX_LENGTHS = 8
"""The most signatures that differ only in sizes and ran once. Others are counted together."""
GROWING = "+"
_KEPT_DURATIONS = 512
SCALARS = (bool, int, float, str)
"""The types of the arguments that the metadata of a signature contains."""


class _Entry:
    """A signature, which never changes, and the data about its runs."""

    def __init__(self, signature: StageSignature | None) -> None:
        self.signature = signature  # None for OTHER
        self.latest = _Scalars({}, {}) if signature is None else _Scalars.of(signature)
        self.inside: dict[str, bool] = {}
        self.first_ns: int | None = None
        self.output: tuple[Any] | None = None  # the node, once it has been described
        self.ended = Count()
        self.order = Highest()  # the number of the latest run, to order entries with equal counts
        self.durations_ns: collections.deque[int] = collections.deque(maxlen=_KEPT_DURATIONS)
        self.cpu_ns: collections.deque[int] = collections.deque(maxlen=_KEPT_DURATIONS)
        self.launches: dict[str, object] = {}  # "counter": who counts them, "count": the number

    def copy(self) -> StageSignature | None:
        """Return the signature with the scalars of its latest run, its output and its count."""
        if self.signature is None:
            return None
        signature, latest = copy.deepcopy(self.signature), self.latest
        signature.inputs.update(latest.inputs)
        signature.metadata = dict(latest.metadata)
        if self.output is not None:
            signature.output = copy.deepcopy(self.output[0])
        signature.context.update(self.inside)
        signature.count = self.ended.value
        return signature


class _Scalars(NamedTuple):
    """The scalar arguments of the latest run, because a warm-up may use fewer steps."""

    inputs: dict[str, Any]
    metadata: dict[str, Any]

    @classmethod
    def of(cls, signature: StageSignature) -> _Scalars:
        scalars = {
            name: value
            for name, value in signature.inputs.items()
            # The length of a redacted text counts as its value.
            if type(value) in SCALARS or (isinstance(value, dict) and value.get(TYPE) == "str")
        }
        return cls(scalars, signature.metadata)


class SignatureStore:
    """The signatures of all stages, with limits on stages, signatures and durations.

    Any thread can use it at any time, and so can a signal handler or a finalizer that has
    interrupted one of its methods, because there is no lock. Each change is one call of a built-in
    type, and readers copy. Threads that reach a limit at the same time can each exceed it by one.
    """

    def __init__(self) -> None:
        self._stages: dict[str, dict[str, _Entry]] = {}
        self._seen: dict[str, dict[str, object]] = {}
        self._families: dict[str, dict[str, dict[str, None]]] = {}  # keys by stage and family
        self._runs = Count()
        self.request_id = ""

    def key_for(self, stage: str, key: str, family: str) -> str:
        """Return the key under which a run is counted: its own, or that of its family.

        The key of the family is used if the sizes never repeat. Otherwise a dimension that grows
        with each call, as in a decode loop, would give a signature for every length.
        """
        entries = self._stages.get(stage, {})
        if key in entries or not self._has_space(stage, self._families):
            return key
        families = self._families.setdefault(stage, {})
        if family not in families and len(families) >= 4 * MAX_KEYS:
            return key
        keys = families.setdefault(family, {})
        if len(keys) >= MAX_LENGTHS:
            kept = [entries.get(other) for other in keys.copy()]
            if sum(entry is not None and entry.ended.value <= 1 for entry in kept) >= MAX_LENGTHS:
                return f"{family}{GROWING}"
        if len(keys) < 2 * MAX_KEYS:
            keys[key] = None
        return key

    def knows(self, stage: str, key: str) -> bool:
        """Whether this signature is already stored, so that its values need not be read."""
        return key in self._stages.get(stage, {})

    def needs_output(self, stage: str, key: str) -> bool:
        """Whether this signature has no output yet."""
        entry = self._stages.get(stage, {}).get(key)
        return entry is not None and entry.signature is not None and entry.output is None

    def begin(self, signature: StageSignature, form: str | None = None) -> bool:
        """Begin a run. Returns whether it is the first run of the stage with this form.

        ``form`` is the run's own key if the run is counted under another key.
        """
        stage, key = signature.stage_name, signature.key or OTHER
        first = self._is_first(stage, form or key)
        if not self._has_space(stage, self._stages):
            return first
        entries = self._stages.setdefault(stage, {})
        entry = entries.get(key)
        if entry is None:
            if len(entries) < MAX_KEYS:
                entry = entries.setdefault(key, _Entry(signature))
            else:
                entry = entries.setdefault(OTHER, _Entry(None))
        if entry.signature is not None and entry.signature is not signature:
            entry.latest = _Scalars.of(signature)
        return first

    def _is_first(self, stage: str, key: str) -> bool:
        if not self._has_space(stage, self._seen):
            return False
        seen = self._seen.setdefault(stage, {})
        if key in seen or len(seen) >= 4 * MAX_KEYS:
            return False
        mine = object()
        return seen.setdefault(key, mine) is mine

    def ran_inside(self, stage: str, key: str, mode: dict[str, bool]) -> None:
        """Store the mode of torch in which the result of a run was made."""
        entry = self._stages.get(stage, {}).get(key)
        if entry is not None and entry.signature is not None and not entry.inside:
            entry.inside = mode

    def end(
        self,
        stage: str,
        key: str,
        duration_ns: int | None,
        output: Any,
        described: bool,
        cpu_ns: int | None = None,
    ) -> None:
        """End a run without an error. ``output`` is its node if ``described`` is True.

        ``duration_ns`` is None if a profiler made the run slower, and ``cpu_ns``, the CPU time of
        its thread, if that is not known.
        """
        entries = self._stages.get(stage, {})
        entry = entries.get(key) or entries.get(OTHER)
        if entry is None:
            return
        if described and entry.signature is not None:
            entry.output = (output,)
        if duration_ns is not None:
            if entry.first_ns is None:
                entry.first_ns = duration_ns
            entry.durations_ns.append(duration_ns)
            if cpu_ns is not None:
                entry.cpu_ns.append(cpu_ns)
        entry.order.raise_to(self._runs.add())
        entry.ended.add()

    def counts_launches(self, stage: str, key: str) -> bool:
        """Whether this run is to count the launches: for one run of a signature, not the first."""
        entry = self._stages.get(stage, {}).get(key)
        if entry is None or entry.signature is None or entry.ended.value == 0:
            return False
        mine = object()
        return entry.launches.setdefault("counter", mine) is mine

    def set_launches(self, stage: str, key: str, count: int | None) -> None:
        """Store the launches of a run; with None, a later run counts them."""
        entry = self._stages.get(stage, {}).get(key)
        if entry is not None and count is None:
            entry.launches.pop("counter", None)
        elif entry is not None:
            entry.launches["count"] = count

    @staticmethod
    def _has_space(stage: str, table: dict[str, Any]) -> bool:
        return stage in table or len(table) < MAX_STAGES

    def signatures(self) -> dict[str, StageSignature]:
        """Return a copy by stage: the signature that ran most, with the others as variants."""
        by_stage: dict[str, StageSignature] = {}
        for stage, entries in self._stages.copy().items():
            ranked = [
                (entry.ended.value, entry.order.value, entry) for entry in entries.copy().values()
            ]
            ranked.sort(key=lambda row: row[:2], reverse=True)
            copies = [kept for *_, entry in ranked if (kept := entry.copy()) is not None]
            if copies:
                by_stage[stage] = copies[0]
                by_stage[stage].variants = copies[1:]
        return by_stage

    def stats(self) -> dict[str, list[dict[str, Any]]]:
        """Return the figures of each signature, by stage, see `signature_stats`."""
        return {
            stage: sorted(
                (_figures(key, entry) for key, entry in entries.copy().items()),
                key=lambda row: -row["count"],
            )
            for stage, entries in self._stages.copy().items()
        }

    def clear(self, *, forget_shapes: bool = False) -> None:
        """Remove signatures and durations, and with ``forget_shapes`` also the known shapes."""
        self._stages = {}
        self._families = {}
        if forget_shapes:
            self._seen = {}


def _figures(key: str, entry: _Entry) -> dict[str, Any]:
    """Return the figures of one signature's runs; None if no run has ended without an error."""
    ordered = sorted(entry.durations_ns.copy())
    figures: dict[str, Any] = {
        "key": key,
        "count": entry.ended.value,
        "percentile_runs": len(ordered),
    }
    for name, q in (("p50_ms", 0.5), ("p25_ms", 0.25), ("p75_ms", 0.75), ("p95_ms", 0.95)):
        figures[name] = quantile(ordered, q) / 1e6 if ordered else None
    cpu = sorted(entry.cpu_ns.copy())
    figures["cpu_p50_ms"] = quantile(cpu, 0.5) / 1e6 if cpu else None
    figures["launches"] = entry.launches.get("count")
    figures["first_ms"] = None if entry.first_ns is None else entry.first_ns / 1e6
    return figures


STORE = SignatureStore()
forks.after_in_child(STORE.clear)  # a child writes its own files


def get_io_signatures() -> dict[str, dict[str, Any]]:
    """Return the signatures by stage, as in the file: ``input_signatures``, ..."""
    return {name: signature.to_json() for name, signature in STORE.signatures().items()}


def dump_io_signatures(path: str | os.PathLike[str], request_id: str | None = None) -> Path:
    """Write all signatures to ``path``, usually ``timing_io_signature.json``. Returns the path.

    ``request_id`` is by default that of the report. Raises SignatureError if the file cannot be
    written. No incomplete file is left then.
    """
    now = datetime.now(timezone.utc)
    file = SignatureFile(
        stages=STORE.signatures(),
        request_id=request_id
        or STORE.request_id
        or f"req_{time.strftime('%Y%m%d_%H%M%S')}_{os.getpid()}",
        timestamp=now.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        environment=machine(),
    )
    try:
        return file.write(path)
    except (OSError, ValueError, TypeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SignatureError(
            f"the signatures cannot be written to {path}: {reason}; choose another folder"
        ) from error


def signature_stats() -> dict[str, list[dict[str, Any]]]:
    """Return the figures of each signature, by stage, first the signature that ran most.

    Each has ``key``, ``count``, ``p50_ms``, ``p25_ms``, ``p75_ms``, ``p95_ms`` and ``first_ms``,
    ``cpu_p50_ms``, the median CPU time of the thread (None if a run awaits, yields or changes its
    thread), and ``launches`` of one run (None if they were not counted). The percentiles are those
    of the latest ``percentile_runs`` runs.
    """
    return STORE.stats()


def reset_signatures(request_id: str = "", *, forget_shapes: bool = False) -> None:
    """Remove all signatures, and with ``forget_shapes`` also the known shapes, for a new report."""
    STORE.clear(forget_shapes=forget_shapes)
    STORE.request_id = request_id
