"""Programs that are stopped as production stops them."""

from __future__ import annotations

import os
import sys
import threading
import time

import stagespan


def serving() -> None:
    with stagespan.span("serve"):
        print(os.getpid(), flush=True)
        while True:
            time.sleep(0.01)
            with stagespan.span("step"):
                pass


def place() -> None:
    with stagespan.span("stage"):
        pass
    place = stagespan._core.recording_place()
    print(stagespan.stats()["stage"].count, place["kind"], place["why"], flush=True)
    time.sleep(60)


def daemon() -> None:
    with stagespan.span("before"):
        pass

    def work():
        with stagespan.span("after"):
            has_begun.set()
            time.sleep(60)

    out = os.dup2(1, 300)
    os.closerange(3, 256)
    has_begun = threading.Event()
    threading.Thread(target=work, daemon=True).start()
    has_begun.wait()
    os.write(out, b"ready\n")
    time.sleep(60)


if __name__ == "__main__":
    globals()[sys.argv.pop(1)]()
