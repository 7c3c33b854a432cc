"""Programs that are looked at by others without free file descriptors."""

from __future__ import annotations

import os
import sys

from shared import hold

import stagespan


def workers() -> None:
    def record():
        for _ in range(5):
            with stagespan.span("work"):
                pass

    number = int(sys.argv[1])
    children = []
    is_open, tell_open = os.pipe()
    for _ in range(number):
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(write)
            with stagespan.span("serve"):
                record()
                os.write(tell_open, b"x")
                os.read(read, 1)
                record()
                os.read(read, 1)
            os._exit(0)
        os.close(read)
        children.append(write)
    for _ in range(number):
        os.read(is_open, 1)
    print("ready", flush=True)
    for line in sys.stdin:
        for write in children:
            os.write(write, b"x")
        print("told", flush=True)


def request_of_two_stages() -> None:
    with stagespan.request("the request"), stagespan.span("the stage"):
        with stagespan.span("step"):
            pass
        hold()


if __name__ == "__main__":
    globals()[sys.argv.pop(1)]()
