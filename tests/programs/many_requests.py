"""Makes as many requests as its argument says, with one stage each, and waits for a line."""

import sys

import stagespan

for n in range(int(sys.argv[1])):
    with stagespan.request(f"r{n}"), stagespan.span("decode"):
        pass
print("ready", flush=True)
sys.stdin.readline()
