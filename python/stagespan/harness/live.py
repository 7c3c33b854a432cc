"""The figures of a stage's live runs, from the files next to its signature file."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stagespan.pages.escaping import one_line
from stagespan.process.files import is_from_newer_version, stage_path
from stagespan.report.reader import number
from stagespan.signature.model import StageSignature

_SUFFIX = "_io_signature"


def live_runs(path: str | os.PathLike[str], signature: StageSignature) -> dict[str, Any]:
    """Return figures of the live runs of this signature; ``missing`` says why they are unknown.

    ``environment`` is that of the timing report, or else of the signature file.
    """
    figures = _figures_of(path, signature)
    if not figures.get("environment"):
        figures["environment"] = _environment(_read(Path(path)))
    return figures


def _figures_of(path: str | os.PathLike[str], signature: StageSignature) -> dict[str, Any]:
    report_path = timing_path(Path(path))
    report = _read(report_path)
    if report is None:
        return {"missing": f"there is no timing report {str(report_path)!r}"}
    if is_from_newer_version(report.get("schema_version")):
        return {"missing": f"{str(report_path)!r} is of a newer version of stagespan"}
    stages = report.get("stages")
    entry = stages.get(signature.stage_name) if isinstance(stages, dict) else None
    rows = entry.get("signatures") if isinstance(entry, dict) else None
    known = [row for row in (rows if isinstance(rows, list) else ()) if isinstance(row, dict)]
    key = signature.key
    row = next((row for row in known if key is not None and row.get("key") == key), None)
    p50_ms = None if row is None else _positive(row.get("p50_ms"))
    if row is None or p50_ms is None:
        return {"missing": f"{str(report_path)!r} has no runs of this signature"}
    return {
        "p50_ms": p50_ms,
        "cpu_p50_ms": _positive(row.get("cpu_p50_ms")),
        "count": row.get("count") if type(row.get("count")) is int else None,
        "launches": _launches(row, Path(path), signature.stage_name),
        "environment": _environment(report),
    }


def _environment(content: dict[str, Any] | None) -> dict[str, Any]:
    """Return the texts of an environment, which are shown on the terminal."""
    found = (content or {}).get("environment")
    texts = found.items() if isinstance(found, dict) else ()
    return {name: one_line(text) for name, text in texts if isinstance(text, str)}


def timing_path(path: Path) -> Path:
    """Return the ``timing.json`` for a ``timing_io_signature.json``, also for those of workers."""
    stem = path.stem
    name = stem.removesuffix(_SUFFIX) if stem.endswith(_SUFFIX) else "timing"
    return path.with_name(f"{name}.json")


def live_differences(live: Mapping[str, Any], context: Mapping[str, Any]) -> list[tuple[int, str]]:
    """Return the differences between this process and the live one that may explain its times.

    Each has a sign, see `fidelity.differences`.
    """
    import torch

    from stagespan.device.environment import environment
    from stagespan.harness.standalone import fidelity

    here: Mapping[str, Any] = {**environment()}
    threads = (context.get("threads"), torch.get_num_threads())
    return fidelity.differences(live.get("environment") or {}, here, threads)


def _launches(row: Mapping[str, Any], path: Path, stage: str) -> int | None:
    """Return the launches of a live run, if they were counted or the stage was profiled."""
    counted = row.get("launches")
    if type(counted) is int:
        return counted
    content = _read(stage_path(path.parent, stage, "_breakdown.json"))
    if content is None or is_from_newer_version(content.get("schema_version")):
        return None
    if "runs" in content and "live_launches" not in content:
        return None  # of several runs, and of what ran between them
    live = content.get("live_launches", content.get("num_launches"))
    if "profile_steps" in content and "live_launches" not in content:
        return None  # an earlier replay wrote this breakdown
    return live if type(live) is int else None


def _read(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def _positive(value: Any) -> float | None:
    """Return a finite number above 0 as a float, or None for anything else."""
    found = number(value)
    return found if found is not None and 0 < found < math.inf else None
