"""The traces in a folder, and which rank each is of."""

from __future__ import annotations

import os
import re
from pathlib import Path

from stagespan.errors import TraceError
from stagespan.trace.model import Trace

_ENDINGS = (".json", ".json.gz")
# `rank3_trace.json`, `trace_rank_3.json`, `worker3_step_12.pt.trace.json`, `r3.json`, `3.json`.
_NUMBERED = re.compile(
    r"(?:^|[^a-z])(?:(?:global_?)?rank|worker|proc(?:ess)?|gpu|r)[-_. =]?(\d+)(?!\d)", re.IGNORECASE
)
_BARE = re.compile(
    r"^(\d+)\.|^trace[-_](\d+)\.|[-_](\d+)\.(?:pt\.)?(?:trace\.)?json", re.IGNORECASE
)
# What is larger is a time, or the id of a process.
MOST_RANKS = 1_000_000
_ASCEND_INFO = re.compile(r"^profiler_info_(\d{1,9})\.json$")


def traces_in(folder: Path) -> list[Path]:
    """Files that may be traces, and Ascend's result folders; those of subfolders if there are none.

    Raises TraceError when there is nothing of the kind.
    """
    found = _directly_in(folder)
    if not found:
        for below, folders, _ in os.walk(folder):
            folders.sort()
            # What lies in a result folder belongs to it.
            folders[:] = [each for each in folders if not _is_ascend(Path(below) / each)]
            if Path(below) != folder:
                found += _directly_in(Path(below))
    if not found:
        raise TraceError(
            f"{folder} holds no traces: name a folder with .json or .json.gz files of the"
            " profiler, or one such file."
        )
    return found


def _directly_in(folder: Path) -> list[Path]:
    try:
        entries = sorted(folder.iterdir(), key=lambda path: _by_number(path.name))
    except OSError as error:
        raise TraceError(
            f"{folder} cannot be read ({error.strerror or error}): check its permissions."
        ) from error
    return [
        path
        for path in entries
        if not path.name.startswith(".")
        and (path.name.lower().endswith(_ENDINGS) if path.is_file() else _is_ascend(path))
    ]


def _by_number(name: str) -> list[tuple[int, str]]:
    """So that rank 10 comes behind rank 9."""
    return [
        (int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)
    ]


def _is_ascend(path: Path) -> bool:
    from stagespan.trace.ascend import is_ascend_folder

    return path.is_dir() and bool(is_ascend_folder(path))


def rank_of(trace: Trace, path: Path, folder: Path | None = None) -> tuple[int | None, str | None]:
    """The trace's rank and what told it: "metadata" or "name"; (None, None) if nothing does.

    Of a file in a folder below `folder` that folder's name may tell, too.
    """
    info = distributed_info(trace)
    rank = info.get("rank")
    if isinstance(rank, int) and not isinstance(rank, bool) and 0 <= rank < MOST_RANKS:
        return rank, "metadata"
    if path.is_dir():
        for entry in sorted(path.iterdir()):
            found = _ASCEND_INFO.match(entry.name)
            if found and int(found[1]) < MOST_RANKS:
                return int(found[1]), "name"
    found = _NUMBERED.search(path.name) or _BARE.search(path.name)
    if found is None and folder is not None and path.parent != folder:
        found = _NUMBERED.search(path.parent.name)
    if found is None:
        return None, None
    rank = next(int(group) for group in found.groups() if group is not None)
    return (rank, "name") if rank < MOST_RANKS else (None, None)


def world_size_of(trace: Trace) -> int | None:
    """How many ranks the job had; None where the trace does not say."""
    size = distributed_info(trace).get("world_size")
    if not isinstance(size, int) or isinstance(size, bool):
        return None
    return size if 0 < size <= MOST_RANKS else None


def distributed_info(trace: Trace) -> dict[str, object]:
    """The trace's `distributedInfo`; some versions write it as a text."""
    info = trace.metadata.get("distributedInfo")
    if isinstance(info, str):
        rank = re.search(r"['\"]rank['\"]:\s*(\d{1,9})\b", info)
        world = re.search(r"['\"]world_size['\"]:\s*(\d{1,9})\b", info)
        found = {"rank": rank, "world_size": world}
        return {key: int(match[1]) for key, match in found.items() if match}
    return info if isinstance(info, dict) else {}
