"""Programs whose output, warnings and status must be the same when they are sampled."""

import asyncio
import atexit
import cProfile
import faulthandler  # noqa: F401 (may be imported by a program that crashes)
import os
import re
import resource
import signal
import sys
import threading
import time
import warnings


def forks():
    if (pid := os.fork()) == 0:
        print("child", flush=True)
        os._exit(3)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    warnings.warn("a warning of the program", stacklevel=1)


def execs():
    print("before", flush=True)
    os.execv(sys.executable, [sys.executable, "-c", "print('after'); raise SystemExit(4)"])


def crashes():
    print("before", flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)


def aborts():
    print("before", flush=True)
    os.abort()


def raises():
    warnings.warn("first", stacklevel=1)
    print(1 / 0)


def exits():
    print("output", flush=True)
    sys.exit("a reason")


def leaves_no_descriptors():
    resource.setrlimit(resource.RLIMIT_NOFILE, (4, 4))
    time.sleep(0.1)
    print("output")


def leaves_at_once():
    print("output", flush=True)
    os._exit(5)


def has_100_threads():
    def work(number):
        for _ in range(20):
            sum(range(2_000))
            time.sleep(0.005)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(threading.active_count())


def reads_stdin():
    print(sys.stdin.read().upper(), input.__name__)


def holds_the_lock():
    print(re.match("(a+)+$", "a" * 24 + "b"))


def starts_threads_at_exit():
    atexit.register(lambda: print("at exit", threading.active_count()))


def warns_of_what_it_leaves_open():
    open("/dev/null")


def profiles_itself():
    profile = cProfile.Profile()
    profile.enable()
    sum(range(100))
    profile.disable()
    print(sys.getprofile())


def is_traced():
    sys.settrace(lambda *event: None)
    print(sum(map(len, ["text"] * 100)), sys.gettrace() is not None)


def uses_uvloop():
    import uvloop

    async def work():
        await asyncio.sleep(0.1)
        return [thread.name for thread in threading.enumerate()]

    print(uvloop.run(work()))


def uses_gevent():
    from gevent import monkey

    monkey.patch_all()
    import gevent

    print(gevent.spawn(lambda: threading.active_count()).get())


def has_the_limits_of_debuggers():
    sys.setrecursionlimit(300)

    def deeper(left):
        return 0 if left == 0 else 1 + deeper(left - 1)

    print(deeper(200))
    try:
        deeper(1000)
    except RecursionError as error:
        print(error)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
