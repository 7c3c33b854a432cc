"""Makes as many requests as its argument says, with one stage each, and waits for a line."""

import sys

from shared import hold

import stagespan

for n in range(int(sys.argv[1])):
    with stagespan.request(f"r{n}"), stagespan.span("decode"):
        pass
hold()
