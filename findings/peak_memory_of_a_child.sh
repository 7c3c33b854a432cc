#!/usr/bin/env bash
# Subject: the peak of the resident memory of a process that subprocess or multiprocessing started.
#
# Versions: CPython 3.10.13, 3.11.7, 3.12.1, 3.13.0; Linux 6.18.
#
# Expected: ru_maxrss is the highest resident set size of the process: for a child that runs
# another program, what this program has used.
#
# Seen: it is at least the highest resident set size that the PARENT has ever had, even if the parent
# has freed the memory before. An interpreter of 10 MB that a process of 600 MB starts reports 600 MB,
# from inside (getrusage(RUSAGE_SELF)) and from outside (os.wait4). So do processes of
# multiprocessing's "spawn". The reason: subprocess uses vfork(), so until exec() the child has the
# memory of its parent, and exec() keeps the peak of the memory that it leaves. After a plain fork()
# without exec(), and for the processes of "forkserver", ru_maxrss is that of the child. VmHWM of
# /proc/PID/status belongs to the new memory and is right everywhere.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv venv

cat > child.py <<'PYTHON'
import resource


def peaks_mb():
    with open("/proc/self/status") as file:
        hwm_kib = next(int(line.split()[1]) for line in file if line.startswith("VmHWM:"))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10, hwm_kib >> 10


def show():
    print(*peaks_mb(), flush=True)


if __name__ == "__main__":
    show()
PYTHON

cat > parent.py <<'PYTHON'
import multiprocessing
import os
import subprocess
import sys

import child

if __name__ == "__main__":
    large = bytearray(600_000_000)
    del large  # freed: the parent itself is small again
    started = subprocess.Popen([sys.executable, "child.py"], stdout=subprocess.PIPE, text=True)
    inside_mb = [int(number) for number in started.stdout.read().split()]
    outside_mb = os.wait4(started.pid, 0)[2].ru_maxrss >> 10
    started.returncode = 0
    print("subprocess: ru_maxrss", inside_mb[0], "VmHWM", inside_mb[1], "wait4", outside_mb, "MB")
    assert inside_mb[0] > 500 and outside_mb > 500 and inside_mb[1] < 100
    for method, is_inherited in {"spawn": True, "forkserver": False, "fork": False}.items():
        context = multiprocessing.get_context(method)
        with context.Pool(1) as pool:
            maxrss_mb, hwm_mb = pool.apply(child.peaks_mb)
        print(f"{method}: ru_maxrss", maxrss_mb, "VmHWM", hwm_mb, "MB")
        assert (maxrss_mb > 500) == is_inherited and hwm_mb < 100
PYTHON
venv/bin/python parent.py
