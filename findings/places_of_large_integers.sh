#!/usr/bin/env bash
# Subject: numpy's searchsorted() and isin() with integers of 64 bits, if the array is unsigned.
#
# Versions: numpy 2.4.6, 2.2.6, 1.26.4 (CPython 3.11).
#
# Expected: integers are compared as integers. `==` and `<` do so for int64 and uint64 alike (numpy
# 1.26 and later), and a Python int takes the type of the array that it meets (NEP 50, numpy 2).
#
# Seen: the functions that search do not follow `==`. They convert both sides to float64, because that
# is the common type of int64 and uint64, and a Python int counts as int64 here. Above 2^53,
# `array.searchsorted(int(array[n]))` of a sorted uint64 array without repetitions is not n.
# `isin(array, [...])` with a list of Python ints finds numbers that are not in the list, but only
# from some length of the list and some range of its values on: for a few values it compares with `==`,
# for a small range it uses a table, so a test with small data passes. intersect1d() of two arrays of
# five returns seven elements. Nanoseconds since 1970 and 64-bit ids are above 2^53: a value of the
# array's own type, numpy.uint64(n), is right everywhere.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv venv

cat > places.py <<'PYTHON'
import numpy as np

print("numpy", np.__version__)
ids = np.arange(1 << 60, (1 << 60) + 2000, 10, dtype=np.uint64)
print("searchsorted(Python int):", ids.searchsorted(int(ids[100])), "and not 100")
assert ids.searchsorted(int(ids[100])) != 100
assert ids.searchsorted(ids[100]) == 100

# 40,000 ids of 200 threads, all of them even, and the odd numbers beside some of them.
ids = ((np.arange(40_000) % 200 + 64) << 48 | np.arange(40_000) * 2).astype(np.uint64)
for count in (5, 1000):
    others = [int(number) + 1 for number in ids[:: len(ids) // count]]
    assert not (ids[:, None] == np.array(others[:5], np.uint64)).any()
    hits = np.isin(ids, others).sum()
    print(f"isin(list of {count}): {hits} of the array are in it, in truth 0")
    assert (hits > 0) == (count > 5)
    assert not np.isin(ids, np.array(others, np.uint64)).any()

stamps = np.array([1_790_000_000_000_000_000 + 100 * n for n in range(5)])
others = (stamps + 3).astype(np.uint64)
print("of", len(stamps), "and", len(others), "numbers, common:", len(np.intersect1d(stamps, others)))
assert not (stamps[:, None] == others).any()
assert len(np.intersect1d(stamps, others)) == 7
PYTHON
for version in 2.4.6 2.2.6 1.26.4; do
    venv/bin/pip install -q --disable-pip-version-check "numpy==$version" 2>/dev/null
    venv/bin/python places.py
done
