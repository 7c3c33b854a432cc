"""Tests of the deployments in docs/monitoring.md, with the real tools, and of scarce resources."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from exporting import REQUESTS, documented, exporter, innermost, of, scraped
from recorded_process import skip_unless_works, started

from running import PROGRAMS, end, ran, tell, until

EXPORTED = PROGRAMS / "exported.py"

COUNT = "stagespan_stage_duration_seconds_count"

pytestmark = pytest.mark.slow


def isolated(script: str) -> tuple[str, ...]:
    """Return a command that runs the next one with mounts and process ids of its own.

    ``script`` mounts what it needs. Skips the test if the system does not allow that.
    """
    command = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c")
    skip_unless_works(*command, "mount -t tmpfs none /mnt")
    return (*command, f'{script} && exec "$@"', "sh")


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed")
    text = documented("ini")
    assert "ExecStart=/opt/svc/bin/stagespan " in text
    unit = tmp_path / "stagespan-export.service"
    unit.write_text(text.replace("/opt/svc/bin/stagespan", f"{sys.executable} -m stagespan"))
    done = ran([program, "verify", "--man=no", str(unit)])
    about_it = [line for line in done.stderr.splitlines() if unit.name in line]
    if done.returncode != 0 and not about_it:
        pytest.skip(f"systemd-analyze cannot run here: {done.stderr.strip()[-200:]}")
    assert (done.returncode, about_it) == (0, [])
    unit.write_text(text.replace("Restart=", "Restrt="))
    done = ran([program, "verify", "--man=no", str(unit)])
    assert "Restrt" in done.stderr


def doctor(prefix: tuple[str, ...], **variables: str) -> str:
    """Return what doctor says of the exporter, as a command in a container says it."""
    done = ran(
        [*prefix, sys.executable, "-m", "stagespan", "doctor", "--json", "--no-device"], **variables
    )
    rows = json.loads(done.stdout)["findings"]
    return next(str(row["text"]) for row in rows if row["name"] == "exporter")


def test_the_containers_of_a_pod_share_their_recordings(folder: Path, tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    # GIVEN the pod of the documentation: two containers with a volume in memory
    pod = yaml.safe_load(documented("yaml"))["spec"]
    (volume,) = pod["volumes"]
    assert volume["emptyDir"]["medium"] == "Memory"
    service, side_car = pod["containers"]
    for one in (service, side_car):
        (mounted,) = one["volumeMounts"]
        assert mounted["name"] == volume["name"]
    inside = tmp_path / "inside"
    inside.mkdir()

    def variables(container: Any) -> dict[str, str]:
        path = container["volumeMounts"][0]["mountPath"]
        return {
            one["name"]: re.sub(f"^{path}(?=/|$)", str(inside), one["value"])
            for one in container["env"]
        }

    shared = isolated(f"mount --bind {folder} {inside}")
    arguments = side_car["command"]
    assert arguments[:3] == ["stagespan", "export", "--prometheus"]
    with exporter(*arguments[4:], prefix=shared, **variables(side_car)) as (_, port):
        process = started(
            EXPORTED, "runs", "10", "kill", python=(*shared, sys.executable), **variables(service)
        )
        up = {"service": variables(service)["STAGESPAN_JOB"]}
        assert until(lambda: of(scraped(port), "stagespan_process_up", **up) == 1)
        assert until(lambda: of(scraped(port), COUNT, stage="decode", **up) == 10)
        seen = {**variables(service), **variables(side_car)}
        assert doctor(shared, **seen).endswith(": 1 other live process")
        alone = doctor(isolated(f"mount -t tmpfs none {inside}"), **seen)
        assert alone.startswith("no `stagespan export` reads the recordings in ")
        process.communicate("\n", timeout=30)
        assert until(lambda: of(scraped(port), "stagespan_process_up", **up) == 0)
        assert until(lambda: of(scraped(port), COUNT, stage="decode", **up) == 10)


def test_a_full_disk_for_kept_requests_is_told_once_and_counted(
    folder: Path, tmp_path: Path
) -> None:
    # GIVEN a file system without any free space
    target = tmp_path / "kept"
    target.mkdir()
    full = isolated(
        f"mount -t tmpfs -o size=64k none {target} && ! head -c 1M /dev/zero > {target}/full"
    )
    with exporter("--keep", str(target), prefix=full) as (process, port):
        recorded = started(REQUESTS, "200", STAGESPAN_JOB="svc")
        assert until(lambda: of(scraped(port), "stagespan_lost_total", cause="keep") == 200, 40)
        assert until(lambda: of(scraped(port), COUNT, stage="decode") == 200)
        # THEN no part of a file is left
        side_car = innermost(process.pid)
        assert os.listdir(f"/proc/{side_car}/root{target}") == ["full"]
        os.kill(side_car, signal.SIGTERM)
        _, errors = process.communicate(timeout=20)
        end(recorded)
    about_it = [line for line in errors.splitlines() if "stagespan" in line or "kept" in line]
    assert len(about_it) == 1
    assert "No space left on device" in about_it[0]


def test_as_many_stages_as_a_process_can_have_are_exported(folder: Path) -> None:
    # GIVEN a process with more than the 4,096 stages that a recording has room for
    started(EXPORTED, "stages", "5000", STAGESPAN_JOB="svc")
    with exporter() as (_, port):
        samples = scraped(port)
        # THEN each run is counted, in a bounded number of series
        assert sum(samples[COUNT].values()) == 5000
        assert len(samples[COUNT]) == 201
        assert of(samples, "stagespan_stages_not_named") == pytest.approx(4096 - 200, abs=2)


@pytest.mark.full
def test_two_hundred_processes_are_exported(folder: Path) -> None:
    # GIVEN 200 processes of a service, which end in several ways while they are read
    with exporter() as (_, port):
        process = started(EXPORTED, "two_hundred_processes", STAGESPAN_JOB="svc")
        up = "stagespan_process_up"
        assert until(lambda: (of(scraped(port), up, service="svc") or 0) >= 200, 120)
        assert until(lambda: of(scraped(port), COUNT, stage="decode") == 2000, 120)
        tell(process)
        assert until(lambda: (of(scraped(port), up, service="svc") or 0) <= 1, 120)
        samples = scraped(port)
        assert of(samples, COUNT, stage="decode") == 2000
        assert len(samples[COUNT]) == 1
        end(process)
