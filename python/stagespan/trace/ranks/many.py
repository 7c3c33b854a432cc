"""Many traces summed up at once: in worker processes, on a cluster, or one after another."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stagespan.trace.ranks.summary import RankSummary, Unreadable, summarise

# Starting worker processes takes longer than reading less.
_SMALL_BYTES = 8 << 20


def summarise_all(
    paths: Sequence[Path], jobs: int | None = None, folder: Path | None = None
) -> list[RankSummary | Unreadable]:
    """Sum up each trace, in the order of `paths`; `folder` as in `summarise`.

    With joblib (the extra `ranks`) by `jobs` workers at a time, -1 for one a core; None takes what
    `joblib.parallel_config` says, with which a Dask or Ray cluster takes the work. Only summaries
    travel back. Without joblib one after another.
    """
    if len(paths) < 2 or jobs == 1 or (jobs == -1 and _size(paths) < _SMALL_BYTES):
        return [summarise(path, folder) for path in paths]
    try:
        from joblib import Parallel, delayed
    except ImportError:
        return [summarise(path, folder) for path in paths]
    found: list[RankSummary | Unreadable] = Parallel(n_jobs=jobs)(
        delayed(summarise)(str(path), folder) for path in paths
    )
    return found


def _size(paths: Sequence[Path]) -> int:
    """Of the files; those of folders count for much."""
    return sum(path.stat().st_size if path.is_file() else _SMALL_BYTES for path in paths)
