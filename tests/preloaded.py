"""An interpreter that has imported torch, which takes seconds each time, or other modules.

``python()`` is the beginning of a command that runs programs as ``sys.executable`` does: ``-c``,
``-m`` or a file, with an environment, a folder, standard streams and an end of their own. Each is a
fork of one process that has imported torch, or the modules that ``python`` was called with. All
workers of a run of pytest use the same process. A test of what depends on the order of imports, on
options of the interpreter, or on torch being imported at all starts ``sys.executable`` instead. If
the command is killed, its program is, too.

This file is also the program of that process (``server``) and of the command (``client``). It
imports little (neither json nor typing), because each command starts it.
"""

from __future__ import annotations

import marshal
import os
import socket
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType


def client(path: str, *arguments: str) -> None:
    """Let the server run a program on this process's streams, and end as the program does."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        job = {"argv": arguments, "cwd": os.getcwd(), "env": dict(os.environ)}
        socket.send_fds(connection, [b"x"], [0, 1, 2])
        connection.sendall(marshal.dumps(job))
        connection.shutdown(socket.SHUT_WR)
        status = int(connection.recv(64) or b"1")
    if status < 0:
        os.kill(os.getpid(), -status)
    os._exit(status)


def server(path: str, owner: str, *modules: str) -> dict[str, object]:
    """Import modules and fork for each program; in the child, return the program to run.

    The server ends when the process `owner` has ended.
    """
    import atexit
    import contextlib
    import ctypes
    import gc
    import select
    import signal

    # At the end of a program, Python clears all modules, which takes 0.15 s for those of torch. The
    # server's are taken out before, by a function that is called after those of the program.
    kept: list[object] = []
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
    own, loaded = set(sys.modules), sys.modules
    preloaded: list[str] = []

    def keep() -> None:
        kept.extend(loaded.pop(name, None) for name in preloaded)

    atexit.register(keep)
    for name in modules:
        __import__(name)
    preloaded.extend(loaded.keys() - own)
    gc.collect()
    gc.freeze()  # imported modules are not scanned again at the end of each program
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    listener.settimeout(1)
    print("ready", flush=True)
    while os.path.exists(f"/proc/{owner}"):
        try:
            connection = listener.accept()[0]
        except TimeoutError:
            connection = None
        if connection is not None and os.fork() == 0:
            listener.close()
            break
        if connection is not None:
            connection.close()
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
    else:
        os._exit(0)
    # A grandchild runs the program, so that its status can be waited for.
    connection.settimeout(None)
    _, streams, _, _ = socket.recv_fds(connection, 1, 3)
    text = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    program = os.fork()
    if program != 0:
        poller = select.poll()
        poller.register(connection, 0)  # tells only that the client has ended
        poller.register(os.pidfd_open(program), select.POLLIN)
        if connection.fileno() in dict(poller.poll()):
            os.kill(program, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
        with contextlib.suppress(BrokenPipeError):
            connection.sendall(str(status).encode())
        os._exit(0)
    connection.close()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    job: dict[str, object] = marshal.loads(text)
    return job


def become(job: dict[str, object]) -> tuple[CodeType, dict[str, object]]:
    """Take over the environment, folder and arguments of a job; return its program and globals.

    The globals are those of a new module, because at the end Python does not finalise the objects
    of one that gc.freeze() has seen.
    """
    cwd, environment, argv = job["cwd"], job["env"], job["argv"]
    assert isinstance(cwd, str)
    assert isinstance(environment, dict)
    assert isinstance(argv, tuple)
    os.chdir(cwd)
    for name in set(os.environ) - set(environment):
        del os.environ[name]
    os.environ.update(environment)
    paths = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    what, *rest = argv
    if what in ("-c", "-m"):
        sys.argv = ["-c", *rest[1:]]
        sys.path[:1] = ["", *paths]
        program = rest[0]
        if what == "-m":
            program = f"import runpy\nrunpy.run_module({program!r}, None, '__main__', True)"
        code = compile(program, "<string>", "exec", dont_inherit=True)
    else:
        sys.argv = [what, *rest]
        sys.path[:1] = [os.path.dirname(os.path.abspath(what)), *paths]
        with open(what, "rb") as file:
            code = compile(file.read(), what, "exec", dont_inherit=True)
    main = sys.modules["__main__"] = type(sys)("__main__")
    main.__dict__["__builtins__"] = __builtins__
    if what not in ("-c", "-m"):
        main.__file__ = os.path.abspath(what)
    return code, main.__dict__


TORCH = ("torch", "torch._dynamo", "torch.profiler")

_SHARED = "PRELOADED_SERVERS"
"""The variable with the process that the servers belong to, and the folder of their sockets."""
_started: list[object] = []
"""The servers that this process has started, so that they are not finalised."""


def share() -> None:
    """Let this process and those that it starts use the same servers until it ends."""
    import atexit
    import tempfile

    folder = tempfile.TemporaryDirectory(prefix="preloaded")
    atexit.register(folder.cleanup)
    os.environ[_SHARED] = f"{os.getpid()}:{folder.name}"


def python(*modules: str) -> list[str]:
    """Return the start of a command; start the server if there is none with these modules yet.

    Args:
        modules: Imported by the server; by default torch.
    """
    import fcntl
    import subprocess

    modules = modules or TORCH
    if _SHARED not in os.environ:
        share()
    owner, _, folder = os.environ[_SHARED].partition(":")
    path = os.path.join(folder, "-".join(modules))
    with open(f"{path}.lock", "w") as lock:
        # Held until the server is ready, so that other workers wait for it instead of starting one.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.exists(path):
            process = subprocess.Popen(
                [sys.executable, __file__, "server", path, owner, *modules],
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
            )
            _started.append(process)
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
    return [sys.executable, "-I", "-S", __file__, "client", path]


if __name__ == "__main__":
    if sys.argv[1] == "client":
        client(*sys.argv[2:])
    else:
        exec(*become(server(*sys.argv[2:])))
