"""Forks while other threads write log lines or import: neither process waits for long."""

from __future__ import annotations

from pathlib import Path

import pytest
from recording import in_child

# From 3.12 on, Python itself warns about forks with threads.
FORK_WARNING = ("-W", "ignore::DeprecationWarning")

# Forks, and ends with the stacks of all threads if that takes too long.
FORK = """
import collections, faulthandler, logging, os, select, signal, sys, threading, time
faulthandler.dump_traceback_later(80, exit=True)
import stagespan
from stagespan import ProfilingContext, ProfilingContext4Debug, span

def fork(in_child):
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)
        status = 1
        try:
            in_child()
            status = 0
        finally:
            os._exit(status)
    return pid

def ended(pid):
    status = os.waitpid(pid, 0)[1]
    return "hung" if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
"""


def test_forks_do_not_wait_for_a_slow_log_handler(tmp_path: Path) -> None:
    # GIVEN a service thread that is always writing lines
    lines = in_child(
        FORK
        + """
class Slow(logging.FileHandler):
    def emit(self, record):
        super().emit(record)
        time.sleep(0.004)
logging.basicConfig(level=logging.INFO, handlers=[Slow("slow.log")])
def work():
    while True:
        with ProfilingContext("stage"):
            time.sleep(0.001)
threading.Thread(target=work, daemon=True).start()
while os.path.getsize("slow.log") < 200:
    time.sleep(0.001)
def child():
    for _ in range(3):
        logging.getLogger("mine").info("from the child")

began = time.monotonic()
found = collections.Counter(ended(fork(child)) for _ in range(30))
took_s = time.monotonic() - began
# THEN no child hangs, and all is over long before each fork has waited for seconds
print(dict(found), took_s < 30, flush=True)
os._exit(0)
""",
        tmp_path,
        *FORK_WARNING,
    )
    assert lines == ["{0: 30} True"]
    written = (tmp_path / "slow.log").read_text().splitlines()
    assert written.count("INFO:mine:from the child") == 90


def test_a_child_can_write_to_a_file_that_was_being_written_to(tmp_path: Path) -> None:
    # GIVEN a service thread that is stuck in the middle of a line, as with a full pipe without a
    # reader
    lines = in_child(
        FORK
        + """
read, write = os.pipe()
stream = os.fdopen(write, "w")
logging.basicConfig(level=logging.INFO, stream=stream, format="%(message)s")
for _ in range(3000):
    with ProfilingContext("a stage whose lines fill the pipe"):
        pass
def size():
    import array, fcntl, termios
    waiting = array.array("i", [0])
    fcntl.ioctl(read, termios.FIONREAD, waiting)
    return waiting[0]
before = -1
while select.select([], [write], [], 0)[1] or size() != before:
    before = size()
    time.sleep(0.02)

def child():
    logging.getLogger("mine").info("from the child")
    stagespan.flush()
began = time.monotonic()
children = [fork(child) for _ in range(10)]
took_s = time.monotonic() - began
seen = []
def reads():
    for line in os.fdopen(read):
        seen.append(line)
threading.Thread(target=reads, daemon=True).start()
found = collections.Counter(map(ended, children))
assert stagespan.flush(60)
stream.flush()
while "the last\\n" not in seen:
    logging.getLogger("mine").info("the last")
    time.sleep(0.01)

print(dict(found), took_s < 15, seen.count("from the child\\n"))
print(sum("[Profile]" in line for line in seen), flush=True)
os._exit(0)
""",
        tmp_path,
        *FORK_WARNING,
    )
    assert lines == ["{0: 10} True 10", "3000"]


FIRST_CALLS = {
    "stats": ("stagespan.stats()", "live/statistics.py"),
    "spans": ("stagespan.spans()", "numpy/__init__.py"),
    "timing_report": ("stagespan.timing_report()", "report/timing.py"),
    "the environment in a report": ("stagespan.timing_report()", "device/environment.py"),
    "flush": ("stagespan.flush()", "live/service.py"),
    "get_io_signatures": ("stagespan.get_io_signatures()", "signature/store.py"),
    "memory_snapshot": ("stagespan.memory_snapshot('x')", "device/memory.py"),
    "set_debug": ("stagespan.set_debug()", "signature/recorder.py"),
    "decorate": ("stagespan.span('x')(print)", "contexts/decorators.py"),
}
WHILE_IMPORTING = """
logging.getLogger("stagespan").disabled = True  # debug mode would show lines on stderr
def first(pause_s):
    halfway, forking = threading.Event(), threading.Event()
    os.register_at_fork(before=forking.set)  # before the functions that stagespan has registered
    def trace(frame, event, argument):
        name = frame.f_code.co_filename
        if name.endswith(MODULE) and frame.f_code.co_name == "<module>":
            sys.settrace(None)
            halfway.set()
            forking.wait()
            time.sleep(pause_s)
    threading.settrace(trace)
    threading.Thread(target=lambda: CALL, daemon=True).start()
    assert halfway.wait(60)
    threading.settrace(None)
def child():
    with ProfilingContext4Debug("debug"), ProfilingContext("stage"), span("span"):
        pass
    CALL
print(ended(fork(child)), flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("name", FIRST_CALLS)
def test_a_child_can_make_a_call_that_another_thread_was_importing(
    name: str, tmp_path: Path
) -> None:
    call, module = FIRST_CALLS[name]
    code = WHILE_IMPORTING.replace("print(ended", "first(0.02)\nprint(ended")
    code = code.replace("CALL", call).replace("MODULE", repr(module))
    assert in_child(FORK + code, tmp_path, *FORK_WARNING) == ["0"]


def test_a_child_whose_parent_imports_for_a_long_time(tmp_path: Path) -> None:
    # GIVEN a thread whose import takes longer than a fork waits
    call, module = FIRST_CALLS["stats"]
    code = WHILE_IMPORTING.replace("print(ended", "first(20)\nprint(ended")
    code = code.replace("CALL", call).replace("MODULE", repr(module))
    assert in_child(FORK + code, tmp_path, *FORK_WARNING) == ["0"]
