"""Tests of commands whose user may not read or write what they need."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from exporting import exporter
from recorded_process import started

from running import ran

pytestmark = pytest.mark.slow

ANOTHER_USER = ("setpriv", "--reuid=64999", "--regid=64999", "--clear-groups")
"""A user of this test only, so that no other process belongs to it."""
BOUND_BY_MODES = ("setpriv", "--bounding-set=-dac_override,-dac_read_search")
"""Runs a command of root that the modes of files hold for, as for any other user."""


def command(*arguments: str, prefix: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    return ran([*prefix, sys.executable, "-m", "stagespan", *arguments])


@pytest.fixture
def bound() -> tuple[str, ...]:
    """Return what runs a command as a user for whom the modes of files hold."""
    if os.geteuid() != 0:
        return ()
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv (util-linux) is not installed: the modes of files do not bind root")
    tried = ran([*BOUND_BY_MODES, "true"])
    if tried.returncode != 0:
        pytest.skip(f"root cannot give up its rights: {tried.stderr[-200:]}")
    return BOUND_BY_MODES


@pytest.mark.parametrize("inside", ["", "new", "new/er"])
def test_a_folder_that_cannot_be_written_is_refused(
    folder: Path, tmp_path: Path, bound: tuple[str, ...], inside: str
) -> None:
    target = tmp_path / "kept"
    target.mkdir(mode=0o555)
    done = command("export", "--keep", str(target / inside), prefix=bound)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert f"Requests cannot be kept in {target / inside}: Permission denied." in done.stderr
    assert "Name a folder that you may write to." in done.stderr


@pytest.mark.parametrize("form", ["jsonl.gz", "parquet"])
@pytest.mark.parametrize("closed", ["folder", "file"])
def test_kept_requests_that_cannot_be_read_are_refused(
    tmp_path: Path, bound: tuple[str, ...], form: str, closed: str
) -> None:
    target = tmp_path / "kept"
    target.mkdir()
    file = target / f"requests-a-1.{form}"
    file.touch()
    path = target if closed == "folder" else file
    path.chmod(0)
    done = command("requests", str(target), prefix=bound)
    target.chmod(0o755)  # so that pytest can remove it
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert f"The kept requests in {target} cannot be read: Permission denied." in done.stderr


@pytest.mark.parametrize("verb", ["analyze", "show", "requests"])
def test_a_path_in_a_folder_that_cannot_be_entered_is_refused(
    tmp_path: Path, bound: tuple[str, ...], verb: str
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    done = command(verb, str(closed / "file"), prefix=bound)
    closed.chmod(0o755)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert f"{closed / 'file'} cannot be opened: Permission denied." in done.stderr


@pytest.mark.parametrize(
    "call", ["analyze(path)", "analyze(trace, path)", "analyze(trace, capture=path)"]
)
def test_functions_raise_their_own_error_for_such_a_path(
    tmp_path: Path, bound: tuple[str, ...], call: str
) -> None:
    trace = tmp_path / "trace.json"
    trace.write_text('{"traceEvents": []}')
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    program = (
        "import stagespan, sys\n"
        f"trace, path = {str(trace)!r}, {str(closed / 'file')!r}\n"
        f"try: stagespan.{call}\n"
        "except stagespan.StagespanError as error: print(error)"
    )
    done = ran([*bound, sys.executable, "-c", program])
    closed.chmod(0o755)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{closed / 'file'} cannot be opened: Permission denied.")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_processes_of_another_user_are_not_shown(folder: Path) -> None:
    # GIVEN a process of root, an exporter that reads it, and the folder that root has by default
    tried = command("--version", prefix=ANOTHER_USER)
    if tried.returncode != 0:
        pytest.skip(f"another user cannot run this interpreter: {tried.stderr[-200:]}")
    Path("/dev/shm/stagespan-0").mkdir(mode=0o700, exist_ok=True)
    job = f"svc-{os.getpid()}"
    process = started(
        """
        import stagespan
        with stagespan.request("secret-id"), stagespan.span("secret"):
            print("ready", flush=True)
            input()
        """,
        STAGESPAN_JOB=job,
    )
    with exporter():
        for arguments, sentence in (
            (("top", "--once", str(process.pid)), "or it belongs to another user."),
            (("show", str(process.pid)), "or it belongs to another user."),
            (("show", "--job", job), f"There is no recording of the job {job!r}"),
            (("requests", "--job", job), f"There is no recording of the job {job!r}"),
        ):
            done = command(*arguments, prefix=ANOTHER_USER)
            assert (done.returncode, done.stdout) == (2, ""), done.stderr
            assert done.stderr.splitlines()[-1].startswith("Error: ")
            assert sentence in done.stderr
            assert "Traceback" not in done.stderr
        for arguments in (("ps",), ("requests",)):
            done = command(*arguments, prefix=ANOTHER_USER)
            assert done.returncode == 0, done.stderr
            assert "secret" not in done.stdout
            text = " ".join(done.stdout.split())
            is_told = "Other users record in /dev/shm/stagespan-0" in text
            assert is_told == (arguments[0] == "ps"), done.stdout
        done = command("doctor", "--no-device", prefix=ANOTHER_USER)
        assert "Traceback" not in done.stderr
        assert "no `stagespan export` reads the recordings in" in " ".join(done.stdout.split())
