#!/usr/bin/env bash
# Subject: the examples of a hypothesis test with derandomize=True or @seed.
#
# Versions: hypothesis 6.170.17, pytest 9.2.0 (CPython 3.11).
#
# Expected: `derandomize=True` makes a test run the same examples in each run, as long as the test and
# hypothesis stay the same; the examples depend on nothing else.
#
# Seen: hypothesis takes constants from the source of all modules of the project that are imported
# when a test runs, whether the test uses them or not, and mixes them into the examples. So a test has
# other examples if another file of the same run imports one module more, or if a number is edited in
# a module that the test does not use: it can fail in a run of all files and pass alone, or the other
# way round, with the same seed. Modules of the standard library and of site-packages do not count, so
# the same test can also have other examples after its package is installed instead of imported from
# the checkout.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv venv
venv/bin/pip install -q --disable-pip-version-check hypothesis==6.170.17 pytest==9.2.0 2>/dev/null

cat > limits.py <<'PYTHON'
LIMIT = 987654321
PYTHON
cat > test_numbers.py <<'PYTHON'
import hashlib
import os

from hypothesis import given, seed, settings
from hypothesis import strategies as st

if "UNUSED" in os.environ:
    __import__(os.environ["UNUSED"])

drawn = []


@settings(derandomize=True, max_examples=200, database=None)
@given(st.integers())
def test_derandomised(number):
    drawn.append(number)


@seed(7)
@settings(max_examples=200, database=None)
@given(st.integers())
def test_seeded(number):
    drawn.append(number)


def test_show():
    halves = drawn[: len(drawn) // 2], drawn[len(drawn) // 2 :]
    print("\nDRAWN", *(hashlib.sha1(repr(half).encode()).hexdigest()[:12] for half in halves))
PYTHON

drawn() { venv/bin/pytest -q -s -p no:cacheprovider test_numbers.py | grep DRAWN; }
alone=$(drawn)
again=$(drawn)
of_library=$(UNUSED=statistics drawn)
with_limits=$(UNUSED=limits drawn)
sed -i 's/987654321/123123123/' limits.py
with_edited=$(UNUSED=limits drawn)
echo "alone:                                   $alone"
echo "again:                                   $again"
echo "with a module of the standard library:   $of_library"
echo "with a module of the project:            $with_limits"
echo "after an edit of a number in the module: $with_edited"
[ "$alone" = "$again" ]
[ "$alone" = "$of_library" ]
[ "$alone" != "$with_limits" ]
[ "$with_limits" != "$with_edited" ]
