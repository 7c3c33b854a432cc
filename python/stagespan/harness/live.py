"""The figures of a stage's live runs, from the files next to its signature file."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stagespan.files import stage_path
from stagespan.signature.model import StageSignature

_SUFFIX = "_io_signature"
_COMPARED = ("torch", "device", "cpu", "python")


def live_runs(path: str | os.PathLike[str], signature: StageSignature) -> dict[str, Any]:
    """Return figures of the live runs of this signature; ``missing`` says why they are unknown."""
    report_path = timing_path(Path(path))
    report = _read(report_path)
    if report is None:
        return {"missing": f"there is no timing report {str(report_path)!r}"}
    stages = report.get("stages")
    entry = stages.get(signature.stage_name) if isinstance(stages, dict) else None
    rows = entry.get("signatures") if isinstance(entry, dict) else None
    known = [row for row in (rows if isinstance(rows, list) else ()) if isinstance(row, dict)]
    key = signature.key
    row = next((row for row in known if key is not None and row.get("key") == key), None)
    if row is None or not _is_number(row.get("p50_ms")):
        return {"missing": f"{str(report_path)!r} has no runs of this signature"}
    environment = report.get("environment")
    return {
        "p50_ms": float(row["p50_ms"]),
        "count": row.get("count") if type(row.get("count")) is int else None,
        "launches": _launches(Path(path), signature.stage_name),
        "environment": environment if isinstance(environment, dict) else {},
    }


def timing_path(path: Path) -> Path:
    """``timing.json`` for ``timing_io_signature.json``, and so for those of workers."""
    stem = path.stem
    name = stem.removesuffix(_SUFFIX) if stem.endswith(_SUFFIX) else "timing"
    return path.with_name(f"{name}.json")


def differences(live: Mapping[str, Any], context: Mapping[str, Any]) -> list[str]:
    """How this process differs from the live one, for reasons of a difference in time."""
    import torch

    from stagespan.report.environment import environment

    here: Mapping[str, Any] = {**environment()}
    there = live.get("environment") or {}
    found = [
        f"live ran with {name} {there[name]}, this is {here[name]}"
        for name in _COMPARED
        if there.get(name) and here.get(name) and there[name] != here[name]
    ]
    threads = context.get("threads")
    if type(threads) is int and threads != torch.get_num_threads():
        found.append(f"live ran with {threads} threads of torch, this is {torch.get_num_threads()}")
    return found


def _launches(path: Path, stage: str) -> int | None:
    """Return the launches of the live run, if the stage was profiled in the pipeline."""
    content = _read(stage_path(path.parent, stage, "_breakdown.json"))
    if content is None:
        return None
    live = content.get("live_launches", content.get("num_launches"))
    if "profile_steps" in content and "live_launches" not in content:
        return None  # of an earlier replay
    return live if type(live) is int else None


def _read(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0
