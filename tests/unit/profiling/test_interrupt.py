"""Another thread can make a thread call a function."""

from __future__ import annotations

import sys
import threading
import time

import pytest

from stagespan.profiling.interrupt import Interrupt


class Worker(threading.Thread):
    """Calls functions until it was interrupted, or for a minute."""

    def __init__(self, *, profiles: bool = False) -> None:
        super().__init__(daemon=True)
        self.called_in: list[int] = []
        self.is_ready = threading.Event()
        self.is_over = threading.Event()
        self._profiles = profiles
        self.profiled = 0

    def run(self) -> None:
        if self._profiles:
            sys.setprofile(self._count)
        self.interrupt = Interrupt(lambda: self.called_in.append(threading.get_ident()))
        self.is_ready.set()
        until = time.monotonic() + 60
        while not self.called_in and not self.is_over.is_set() and time.monotonic() < until:
            pass
        sys.setprofile(None)

    def _count(self, *_event: object) -> None:
        self.profiled += 1


def test_a_thread_is_interrupted_where_it_is() -> None:
    workers = [Worker(), Worker()]
    for worker in workers:
        worker.start()
        worker.is_ready.wait(60)
    workers[1].interrupt.send()
    workers[1].join(60)
    # THEN it has called the function, in itself, once; the other has not
    assert workers[1].called_in == [workers[1].ident]
    assert workers[0].called_in == []
    workers[0].interrupt.send()
    workers[0].join(60)
    assert workers[0].called_in == [workers[0].ident]
    assert sys.getprofile() is None


def test_the_main_thread_is_interrupted_too() -> None:
    called_in: list[int] = []
    interrupt = Interrupt(lambda: called_in.append(threading.get_ident()))
    threading.Thread(target=interrupt.send).start()
    until = time.monotonic() + 60
    while not called_in and time.monotonic() < until:
        pass
    assert called_in == [threading.main_thread().ident]


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="tools do not share one function there")
def test_a_profile_function_of_the_thread_stays() -> None:
    worker = Worker(profiles=True)
    worker.start()
    worker.is_ready.wait(60)
    worker.interrupt.send()
    before = worker.profiled
    while worker.profiled < before + 1000 and worker.is_alive():
        time.sleep(0.001)
    worker.is_over.set()
    worker.join(60)
    assert worker.called_in == []
    assert worker.profiled >= before + 1000
