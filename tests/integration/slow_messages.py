"""Sends messages slowly to an asyncio receiver; prints its own stamps of each message.

The argument says what the receiver's event loop does meanwhile: "idle", "busy" (tasks of other
requests wait inside of spans) or "blocked" (a span of another request blocks the loop). Stamps are
times of CLOCK_MONOTONIC before and after a call, in ns: [before, after].
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from typing import Any

import stagespan

SLOW_S = 0.05
MESSAGES = 4
_SENDER = """
import json, sys, time
import stagespan
for number in range(int(sys.argv[1])):
    with stagespan.request(f"r{number}"):
        before = time.monotonic_ns()
        carrier = stagespan.inject(queue="slow")
        sent = [before, time.monotonic_ns()]
        time.sleep(float(sys.argv[2]))
        print(json.dumps([number, carrier, sent]), flush=True)
        sys.stdin.readline()
"""


async def _other_requests(how: str, blocked: list[list[int]]) -> None:
    number = 0
    while True:
        number += 1
        with stagespan.request(f"other-{number}"):
            with stagespan.span("other"):
                if how == "blocked":
                    time.sleep(2 * SLOW_S)
                else:
                    await asyncio.sleep(0.003)
                before = time.monotonic_ns()
            blocked.append([before, time.monotonic_ns()])
        await asyncio.sleep(0.001)


async def _receive(how: str) -> dict[str, Any]:
    sender = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _SENDER, str(MESSAGES), str(SLOW_S)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    ends: list[list[int]] = []
    others = [] if how == "idle" else [asyncio.create_task(_other_requests(how, ends))]
    assert sender.stdin is not None
    assert sender.stdout is not None
    stamps = {}
    for _ in range(MESSAGES):
        number, carrier, sent = json.loads(await sender.stdout.readline())
        before = time.monotonic_ns()
        remote = stagespan.extract(carrier)
        extracted = [before, time.monotonic_ns()]
        ended = ends[-1] if ends else None
        with remote, stagespan.span("work"):
            pass
        stamps[f"r{number}"] = {"sent": sent, "extracted": extracted, "ended": ended}
        sender.stdin.write(b"\n")
    for other in others:
        other.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await sender.wait()
    return stamps


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_receive(sys.argv[1]))), flush=True)
