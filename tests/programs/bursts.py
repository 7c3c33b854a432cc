"""Reads its own spans after each burst of requests: requests, stages of each, and readings."""

from __future__ import annotations

import json
import sys
import time

import stagespan
from stagespan.export.this_process import ThisProcess
from stagespan.export.traces import Rules

requests, stages, readings = map(int, sys.argv[1:])
spans = [stagespan.span(f"stage{i}") for i in range(stages)]
own = ThisProcess(Rules())
with stagespan.request("first"):
    pass
own.read()
found, pauses = [], []
for _ in range(readings):
    began = time.monotonic()
    for _ in range(requests):
        with stagespan.request("r"):
            for one in spans:
                with one as span:
                    span.add(tokens=1)
    own.read()
    found += own.complete()
    pauses.append([own.longest_pause_s(), time.monotonic() - began])
time.sleep(1.1)  # a request counts as ended a second after its end
for _ in range(4):  # what was overwritten counts once several readings agree
    own.read()
own.read(at_end=True)
found += own.complete(at_end=True)
parts = [part for parts in found for part in parts if part.segment["id"] == "r"]
missed = next(iter(own._processes.values())).taker.missed
print(
    json.dumps(
        {
            "requests": len(parts),
            "numbers": len({part.segment["number"] for part in parts}),
            "spans": sum(len(part.rows) for part in parts),
            "ids": len({span.id for part in parts for span in part.spans}),
            "whole": sum(bool(part.of.is_whole[part.at]) for part in parts),
            "missed": dict(missed),
            "pauses": pauses,
        }
    )
)
