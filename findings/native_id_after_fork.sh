#!/usr/bin/env bash
# Subject: threading.main_thread().native_id in a worker that os.fork() made.
#
# Versions: CPython 3.10.13, 3.11.7, 3.12.1, 3.13.0; gunicorn 27.0.1. Linux.
#
# Expected: after a fork, `threading` puts its state right for the one thread that is left: it renames
# the current thread to the main thread and sets its `ident`. So `native_id`, which is documented as
# the thread's id in the system, should be that of the child.
#
# Seen: it stays the id that the thread had in the parent, for the life of the child. No thread of the
# child has this id. threading.get_native_id() is right. In a worker of multiprocessing, with the
# same fork, `native_id` is right as well, because multiprocessing sets it again itself. A program
# that joins the kernel's figures of threads with Thread objects by `native_id` therefore works under
# multiprocessing, and loses the main thread of each worker under gunicorn and other servers that
# fork by os.fork().
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv venv
venv/bin/pip install -q --disable-pip-version-check gunicorn==27.0.1

cat > ids.py <<'PYTHON'
import os
import threading


def ids():
    main = threading.main_thread()
    return {
        "native_id is the parent's": main.native_id == os.getppid(),
        "native_id is this process's": main.native_id == os.getpid(),
        "get_native_id() is this process's": threading.get_native_id() == os.getpid(),
        "ident is right": main.ident == threading.get_ident(),
    }


def app(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [repr(ids()).encode()]


def show():
    print(ids(), flush=True)
PYTHON

cat > served.py <<'PYTHON'
import http.client
import socket
import subprocess
import sys
import time


class Local(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect("s.sock")


process = subprocess.Popen(
    [sys.executable, "-m", "gunicorn", "--no-control-socket", "-b", "unix:s.sock", "ids:app"],
    stderr=subprocess.DEVNULL,
)
try:
    for _ in range(300):
        try:
            connection = Local("localhost")
            connection.request("GET", "/")
            print(connection.getresponse().read().decode())
            break
        except OSError:
            time.sleep(0.1)
finally:
    process.terminate()
    process.wait()
PYTHON

stale="{\"native_id is the parent's\": True, \"native_id is this process's\": False,"
right="{\"native_id is the parent's\": False, \"native_id is this process's\": True,"
rest=" \"get_native_id() is this process's\": True, 'ident is right': True}"
venv/bin/python --version
served=$(venv/bin/python served.py)
echo "gunicorn:        $served"
forked=$(venv/bin/python -W ignore -c '
import os, ids
if os.fork() == 0:
    ids.show()
    os._exit(0)
os.wait()')
echo "os.fork:         $forked"
worker=$(venv/bin/python -W ignore -c '
import multiprocessing, ids
process = multiprocessing.get_context("fork").Process(target=ids.show)
process.start()
process.join()')
echo "multiprocessing: $worker"
test "$served" = "$stale$rest"
test "$forked" = "$stale$rest"
test "$worker" = "$right$rest"
echo "as described"
