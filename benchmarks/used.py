"""What a command uses: its CPU time, and its peak of memory without that of its parent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

_ROOT = Path(__file__).parent.parent
# Linux adds the memory of the process that starts a program to the peak of the program. This one is
# small.
_STARTER = """
import json, os, sys
told = int(sys.argv[1])
os.set_inheritable(told, False)
pid = os.fork()
if pid == 0:
    os.execvp(sys.argv[2], sys.argv[2:])
_, status, usage = os.wait4(pid, 0)
os.write(told, json.dumps([usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024]).encode())
sys.exit(os.waitstatus_to_exitcode(status) != 0)
"""


class Used(NamedTuple):
    """What a process has used."""

    cpu_s: float
    """The CPU time in user mode and in the kernel, also of processes that it has awaited."""
    mb: float
    """The peak of its memory, in MiB."""


def used(command: list[str], **variables: str) -> Used:
    """Run a command to its end, in the repository. Exits with its output if it fails."""
    reader, writer = os.pipe()
    with open(reader) as told, tempfile.TemporaryFile() as output:
        starter = [sys.executable, "-I", "-S", "-c", _STARTER, str(writer), *command]
        done = subprocess.run(
            starter,
            cwd=_ROOT,
            env=os.environ | variables,
            stdout=output,
            stderr=output,
            pass_fds=(writer,),
            check=False,
        )
        os.close(writer)
        if done.returncode:
            output.seek(0)
            sys.exit(f"{command} has failed:\n{output.read().decode()[-2000:]}")
        return Used(*json.load(told))
