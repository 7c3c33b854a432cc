"""Summarises many traces at a time: in this process, in others, or on a Dask or Ray cluster."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, as_completed
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from importlib import import_module
from typing import Any, cast

from stagespan.errors import StagespanError
from stagespan.process.messages import message_of
from stagespan.trace.ranks.collectives import most_collectives
from stagespan.trace.ranks.summary import RankSummary, UnreadableFile, summarise

Summary = RankSummary | UnreadableFile
# Below this size, reading takes less time than starting worker processes.
_SMALL_BYTES = 8 << 20
# The longest time to wait for the scheduler of a cluster.
_CONNECT_S = 30


def summarise_all(
    paths: Sequence[str | os.PathLike[str]],
    jobs: int | None = None,
    folder: str | os.PathLike[str] | None = None,
    *,
    cluster: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Summary]:
    """Summarise each trace, in the order of `paths`; `folder` as in `summarise`.

    With joblib (the extra `ranks`), `jobs` workers run at a time; -1 means one for each core. None
    means the setting of `joblib.parallel_config`. Without joblib, the traces are read one after
    another. With `cluster`, the workers of a Dask cluster (the address of its scheduler, such as
    "tcp://host:8786") or of a Ray cluster ("ray://host:10001", or "ray" for one that runs here)
    read them, at the same paths. Workers return only summaries.

    A trace whose worker fails is an `UnreadableFile` with the reason; the others are summarised.
    `progress` is called after each trace with the number of traces that are done, and of all.

    Raises StagespanError if the cluster cannot be used.
    """
    summaries: list[Summary | None] = [None] * len(paths)
    names = [str(path) for path in paths]
    where = None if folder is None else str(folder)
    most = most_collectives(len(names))
    for done, (at, summary) in enumerate(_results(names, jobs, where, cluster, most), 1):
        summaries[at] = summary
        if progress is not None:
            progress(done, len(names))
    return [summary for summary in summaries if summary is not None]


def _results(
    paths: list[str], jobs: int | None, folder: str | None, cluster: str | None, most: int
) -> Iterator[tuple[int, Summary]]:
    if cluster is not None:
        return _in_cluster(cluster, paths, folder, most)
    if len(paths) < 2 or jobs == 1 or (jobs == -1 and _size(paths) < _SMALL_BYTES):
        return _here(paths, folder, most)
    try:
        from joblib import Parallel, delayed
    except ImportError:
        return _here(paths, folder, most)

    def run(which: Sequence[int], workers: int | None) -> Iterator[tuple[int, Summary]]:
        tasks = [delayed(_summarised)(paths[at], folder, most) for at in which]
        return zip(which, Parallel(n_jobs=workers, return_as="generator")(tasks), strict=True)

    return _in_processes(paths, jobs, run)


def _summarised(path: str, folder: str | None, most: int) -> Summary:
    """Summarise a trace. A lack of memory or a file that vanished is the trace's own problem."""
    try:
        return summarise(path, folder, most)
    except MemoryError:
        return UnreadableFile(path, f"{path} needs more memory than its worker has.")
    except OSError as error:
        return UnreadableFile(path, f"{path} cannot be read ({error.strerror or error}).")


def _here(paths: list[str], folder: str | None, most: int) -> Iterator[tuple[int, Summary]]:
    for at, path in enumerate(paths):
        yield at, _summarised(path, folder, most)


def _in_processes(
    paths: list[str],
    jobs: int | None,
    run: Callable[[Sequence[int], int | None], Iterator[tuple[int, Summary]]],
) -> Iterator[tuple[int, Summary]]:
    """Run all tasks. If a worker is killed, run the rest one by one, to find for which it was."""
    done = 0
    try:
        for at, summary in run(range(len(paths)), jobs):
            yield at, summary
            done = at + 1
    except BrokenProcessPool:
        for at in range(done, len(paths)):
            try:
                yield from run([at], 2)  # with 1, it would run in this process
            except BrokenProcessPool:
                yield at, UnreadableFile(
                    paths[at], f"{paths[at]} was not read: its worker was killed, perhaps for"
                    " lack of memory.",
                )  # fmt: skip


def _in_cluster(
    address: str, paths: list[str], folder: str | None, most: int
) -> Iterator[tuple[int, Summary]]:
    """Let the workers of a cluster summarise the traces."""
    is_ray = address.split("://", 1)[0] == "ray"
    package = "ray" if is_ray else "distributed"
    client: Any = contextlib.nullcontext()
    try:
        library: Any = import_module(package)
        if is_ray:
            library.init(address="auto" if address == "ray" else address, ignore_reinit_error=True)
            submit = _ray_submit(library.remote(_summarised))
        else:
            client = library.Client(address, timeout=_CONNECT_S, set_as_default=False)
            submit = partial(client.get_executor(pure=False).submit, _summarised)
    except ImportError as error:
        raise StagespanError(
            f"A cluster of this kind needs {package!r}: install it with `pip install {package!r}`."
        ) from error
    except (OSError, ValueError) as error:
        raise StagespanError(
            f"The cluster at {address!r} cannot be used ({message_of(error)[:200]}): check the"
            " address of its scheduler, such as tcp://host:8786."
        ) from error
    with client:
        places = {submit(path, folder, most): at for at, path in enumerate(paths)}
        for future in as_completed(places):
            # The cluster need not keep the summary.
            at, failure = places.pop(future), future.exception()
            if failure is None:
                yield at, future.result()
            else:
                reason = " ".join(f"{type(failure).__name__}: {failure}".split())[:200]
                text = f"{paths[at]} was not read: its worker failed ({reason})."
                yield at, UnreadableFile(paths[at], text)


def _ray_submit(task: Any) -> Callable[..., Future[Summary]]:
    return lambda *arguments: cast("Future[Summary]", task.remote(*arguments).future())


def _size(paths: Sequence[str | os.PathLike[str]]) -> int:
    """The files' total size in bytes; each folder counts as `_SMALL_BYTES`."""
    return sum(os.stat(path).st_size if os.path.isfile(path) else _SMALL_BYTES for path in paths)
