"""Starts workers without stagespan: what starts them, a dash, and the method."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import sys

from stages import work


def by_process(method):
    context = multiprocessing.get_context(method)
    workers = [context.Process(target=work, args=(i,)) for i in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0


def by_executor(method):
    context = multiprocessing.get_context(method)
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
        list(pool.map(work, range(2)))


def by_pool(method):
    with multiprocessing.get_context(method).Pool(1) as pool:
        pool.map(work, range(2))
        pool.close()
        pool.join()


def by_loky(method):
    import joblib
    from joblib.externals.loky import get_reusable_executor

    joblib.Parallel(2)(joblib.delayed(work)(i) for i in range(2))
    get_reusable_executor().shutdown()


if __name__ == "__main__":
    way, _, method = sys.argv[1].partition("-")
    globals()[f"by_{way}"](method)
    assert "stagespan" not in sys.modules
