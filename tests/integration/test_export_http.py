"""Tests of the two HTTP servers of `stagespan export` with clients that misbehave."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import struct
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from exporting import REQUESTS, exporter, get
from recorded_process import started

from running import end, ready, until
from stagespan import recording
from stagespan.export.node import Node

pytest.importorskip("prometheus_client", reason="prometheus_client is not installed")

pytestmark = pytest.mark.slow


@contextlib.contextmanager
def serving(host: str = "127.0.0.1") -> Iterator[tuple[Any, dict[str, int]]]:
    """Run an exporter beside a service; yield its process, and the ports of its servers."""
    service = started(REQUESTS, "3", STAGESPAN_JOB="svc")
    with exporter("--page", f"{host}:0") as (process, port):
        said = ready(process)
        ports = {"/metrics": port, "/data.json": int(said.rstrip("/").rpartition(":")[2])}
        until(lambda: "decode" in get(f"http://127.0.0.1:{ports['/data.json']}/data.json"))
        yield process, ports
    end(service)


def assert_says_nothing(errors: str) -> None:
    """Assert that an exporter has written nothing, but for the new name of its option."""
    (line,) = errors.splitlines()
    assert "`stagespan top --web [HOST:]PORT`" in line


def connection(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=60)


def answer(port: int, request: str) -> bytes:
    with connection(port) as one:
        one.sendall(request.encode())
        return b"".join(iter(lambda: one.recv(1 << 16), b""))


OWN_HOSTS = ("localhost", "LOCALHOST:1", "127.0.0.1:9464", "127.9.9.9", "[::1]:9464", "a.localhost")
OTHER_HOSTS = (
    *("evil.example", "evil.example:9466", "localhost.evil.example", "10.0.0.7", "evillocalhost"),
    *("", "[::1", "127.0.0.1.evil.example", "2130706433", "localhost\r\nHost: evil.example"),
)


def test_a_page_of_another_site_cannot_read_figures_by_a_name(folder: Path) -> None:
    with serving() as (_, ports):
        for path, port in ports.items():
            for host in OTHER_HOSTS:
                found = answer(port, f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n")
                assert found.split(b" ", 2)[1] == b"403", host
                assert b"decode" not in found
            for host in OWN_HOSTS:
                found = answer(port, f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n")
                assert found.split(b" ", 2)[1] == b"200", host
                assert b"decode" in found
            assert b"decode" in answer(port, f"GET {path} HTTP/1.0\r\n\r\n")


def test_others_may_call_this_machine_as_they_like(folder: Path) -> None:
    with serving("0.0.0.0") as (_, ports):
        found = answer(
            ports["/data.json"], "GET /data.json HTTP/1.1\r\nHost: node-7.example\r\n\r\n"
        )
        assert b"decode" in found


def test_a_page_can_be_served_over_ipv6(folder: Path) -> None:
    try:
        with socket.socket(socket.AF_INET6) as one:
            one.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6")
    with exporter("--page", "[::1]:0") as (process, _):
        port = int(ready(process).rstrip("/").rpartition(":")[2])
        client = http.client.HTTPConnection("::1", port, timeout=60)
        client.request("GET", "/")
        assert client.getresponse().status == 200


def threads_of(process: Any) -> int:
    return len(os.listdir(f"/proc/{process.pid}/task"))


def test_idle_clients_keep_no_other_one_waiting(folder: Path) -> None:
    with serving() as (process, ports), contextlib.ExitStack() as closing:
        before = threads_of(process)
        # GIVEN many clients that say nothing, or only the start of a request
        for n in range(200):
            for port in ports.values():
                idle = closing.enter_context(connection(port))
                if n % 2:
                    idle.sendall(b"GET / HTTP/1.1\r\nHost: local")
        # WHEN others ask THEN they are answered, and threads are not many
        for path, port in ports.items():
            assert "decode" in get(f"http://127.0.0.1:{port}{path}")
        assert threads_of(process) <= before + 2 * 64 + 10


def closed_after_s(one: socket.socket, drip: bytes = b"") -> float:
    """Wait until a connection is closed, while bytes are sent one a second."""
    began = time.monotonic()
    one.settimeout(1)
    for n in range(240):
        with contextlib.suppress(TimeoutError):
            try:
                if drip:
                    one.sendall(drip[n % len(drip) :][:1])
                if not one.recv(1):
                    break
            except ConnectionError:
                break
    else:
        pytest.fail("the connection stays open")
    return time.monotonic() - began


@pytest.mark.parametrize("path", ["/metrics", "/data.json"])
def test_slow_clients_are_given_up(folder: Path, path: str) -> None:
    with serving() as (process, ports), contextlib.ExitStack() as closing:
        before = threads_of(process)
        silent = [closing.enter_context(connection(ports[path])) for _ in range(5)]
        dripping = closing.enter_context(connection(ports[path]))
        deaf = []
        for _ in range(5):
            one = closing.enter_context(socket.socket())
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
            one.connect(("127.0.0.1", ports[path]))
            one.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
            deaf.append(one)
        with ThreadPoolExecutor() as pool:
            for one in silent:
                pool.submit(closed_after_s, one).result()
            pool.submit(closed_after_s, dripping, b"GET /" + b"x" * 300).result()
        until(lambda: threads_of(process) <= before)
        # THEN the exporter says nothing, and goes on
        assert "decode" in get(f"http://127.0.0.1:{ports[path]}{path}")
        process.terminate()
        _, errors = process.communicate(timeout=20)
        assert_says_nothing(errors)


def test_a_client_that_leaves_is_no_matter(folder: Path) -> None:
    with serving() as (process, ports):
        for path, port in ports.items():
            request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
            for length in (0, 1, 20, len(request) - 1, *([len(request)] * 20)):
                with connection(port) as one:
                    one.sendall(request[:length])
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        for path, port in ports.items():
            assert "decode" in get(f"http://127.0.0.1:{port}{path}")
        process.terminate()
        _, errors = process.communicate(timeout=20)
    assert_says_nothing(errors)


def test_the_page_takes_at_most_one_sample_a_second(folder: Path) -> None:
    with serving() as (_, ports):
        url = f"http://127.0.0.1:{ports['/data.json']}/data.json"
        began = time.monotonic()
        with ThreadPoolExecutor(12) as pool:
            found = list(pool.map(lambda _: get(url), range(200)))
        seconds = time.monotonic() - began
        # THEN they see the same samples, which were made at different times
        times = {json.loads(one)["processes"][0]["read_ns"] for one in found}
        assert len(times) <= seconds + 2


def test_only_the_recordings_of_a_request_are_read_for_it(folder: Path) -> None:
    services = [started(REQUESTS, "3") for _ in range(5)]
    segments = {one.pid: recording.open(one.pid).segments() for one in services}
    node = Node()
    node.read()
    killed = services.pop()
    end(killed)
    node.read()
    opened: list[str] = []
    is_counted = True

    def count(event: str, arguments: tuple[Any, ...]) -> None:
        if is_counted and event == "open" and str(arguments[0]).endswith(".stagespan"):
            opened.append(os.path.basename(str(arguments[0])).partition("-")[0])

    sys.addaudithook(count)
    for pid, of_process in segments.items():
        opened.clear()
        (found,) = node.recordings_of(of_process[0]["trace_id"] or "")
        assert found.pid == pid
        assert found.spans().size
        # THEN of live processes, no other one is read; of ended ones, those that are left
        assert {*opened} <= {str(pid), str(killed.pid)}
    opened.clear()
    assert node.recordings_of("0" * 32) == []
    assert {*opened} <= {str(killed.pid)}
    is_counted = False
    node.close()
