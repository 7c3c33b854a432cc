#!/bin/sh
# Prints the Python that .venv is made with: $PYTHON where it is set, else the first that works of
# 3.11, 3.12, 3.13, 3.14, 3.10 (the pinned torch is tested on 3.11), on PATH or under pyenv, then python3.
works() {
  "$1" -c 'import sys; sys.exit(sys.version_info[:2] < (3, 10))' >/dev/null 2>&1
}

if [ -n "${PYTHON:-}" ]; then
  if works "$PYTHON"; then echo "$PYTHON"; exit 0; fi
  echo "error: PYTHON=$PYTHON is not a working Python 3.10 or later." >&2
  exit 1
fi

for version in 3.11 3.12 3.13 3.14 3.10; do
  for candidate in "python$version" \
    "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$version".*/bin/python; do
    if works "$candidate"; then echo "$candidate"; exit 0; fi
  done
done
if works python3; then echo python3; exit 0; fi
echo "error: no Python 3.10 or later found; install one, or name it: make PYTHON=/path/to/python." >&2
exit 1
