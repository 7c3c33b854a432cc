"""The folder that `make gpu` packs, on a machine without a network, a compiler or a GPU."""

from __future__ import annotations

import faulthandler
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from running import ran

ROOT = Path(__file__).resolve().parents[2]
NOBODY = 65534
MOST_BYTES = 60_000_000


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a folder that every user may enter."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        path.chmod(0o755)
        yield path


@pytest.mark.full
@pytest.mark.slow
def test_every_part_runs_or_is_skipped_with_its_reason(folder: Path) -> None:
    if os.geteuid() != 0 or shutil.which("unshare") is None or shutil.which("setpriv") is None:
        pytest.skip("cannot cut off the network for another user: run as root, with util-linux")
    # Building the wheel has a time limit of its own, which is longer than that of a test.
    faulthandler.cancel_dump_traceback_later()
    # GIVEN a packed folder that cannot be written, and a Python with nothing installed
    packed, target, home = folder / "packed", folder / "python", folder / "home"
    version = "{}.{}".format(*sys.version_info[:2])
    ran(
        [sys.executable, ROOT / "tools/gpu/pack.py", "--version", version, "--output", packed],
        timeout_s=1500,
        status=0,
    )
    assert sum(path.stat().st_size for path in packed.rglob("*")) < MOST_BYTES
    for path in (packed, *packed.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    without = shutil.ignore_patterns("site-packages", "test", "__pycache__")
    shutil.copytree(sys.base_prefix, target, ignore=without)
    home.mkdir()
    os.chown(home, NOBODY, NOBODY)

    command = [
        *("unshare", "--net", "setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY)),
        *("--clear-groups", target / "bin" / f"python{version}", packed / "run.py"),
        *("--output", home / "result"),
    ]
    environment = {"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": str(target / "lib")}
    ran(command, cwd=home, env=environment, timeout_s=500, status=0)

    text = (home / "result" / "result.json").read_text()
    assert len(text) < 1_000_000
    result = json.loads(text)
    assert "msgspec" in result["unpacked"]
    assert result["machine"]["torch"] is None
    for part in result["parts"].values():
        assert part["status"] == "skipped"
        assert "torch is not installed" in part["reason"]
    left = {path.name for path in (home / "result").iterdir()}
    assert left == {"logs", "result.json", "traces"}
