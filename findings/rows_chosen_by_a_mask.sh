#!/usr/bin/env bash
# Subject: how long numpy takes to choose rows of a structured array.
#
# Versions: numpy 2.4.6, 2.2.6, 1.26.4 (CPython 3.11).
#
# Expected: a row is a block of memory, so `rows[mask]` copies blocks, and takes about as long as the
# same choice from a plain array whose rows have as many bytes.
#
# Seen: indexing by a mask or by numbers converts each row field by field from the type to the same
# type: with 24 fields it takes about ten times as long as `rows.compress(mask)` and
# `rows.take(numbers)`, which copy blocks and return equal arrays. The same rows seen as bytes,
# `rows.view("V192")[mask].view(rows.dtype)`, are also copied as blocks, so the type decides, not the
# size.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv venv

cat > rows.py <<'PYTHON'
import time

import numpy as np


def least_us(choose):
    times = []
    for _ in range(30):
        began = time.process_time_ns()
        for _ in range(20):
            choose()
        times.append((time.process_time_ns() - began) / 20e3)
    return min(times)


mask = np.arange(4096) % 2 == 0
numbers = mask.nonzero()[0]
rows = np.zeros(4096, [(f"field{n}", "i8") for n in range(24)])
rows["field7"] = np.arange(4096)
ways = {
    "rows[mask]": lambda: rows[mask],
    "rows[numbers]": lambda: rows[numbers],
    "rows.compress(mask)": lambda: rows.compress(mask),
    "rows.take(numbers)": lambda: rows.take(numbers),
    "as bytes": lambda: rows.view("V192")[mask].view(rows.dtype),
}
for choose in ways.values():
    assert (choose() == rows[mask]).all()
us = {name: least_us(choose) for name, choose in ways.items()}
print("numpy", np.__version__)
print(*(f"  {name}: {value:.0f} us" for name, value in us.items()), sep="\n")
slow = min(us["rows[mask]"], us["rows[numbers]"])
fast = max(us["rows.compress(mask)"], us["rows.take(numbers)"], us["as bytes"])
assert slow > 4 * fast, (slow, fast)
PYTHON
for version in 2.4.6 2.2.6 1.26.4; do
    venv/bin/pip install -q --disable-pip-version-check "numpy==$version" 2>/dev/null
    venv/bin/python rows.py
done
