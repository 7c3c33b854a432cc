"""The processes of a job together: their statistics, and what each of them is called."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
from recorded_process import command_here, recordings_in, start, started

from running import PROGRAMS, end, ready, tell, until
from stagespan import _core, recording
from stagespan.errors import StagespanError
from stagespan.live.statistics import Stats

JOBS = PROGRAMS / "jobs.py"

# Recordings of other programs on this machine are read too. No job of theirs has these names.
SERVICE, OTHER, TRAINING = (f"{name}-{os.getpid()}" for name in ("svc", "other", "training"))

# Two ways to be busy, so that the percentiles of the workers differ.


@pytest.fixture
def service(folder: Path) -> list[subprocess.Popen[str]]:
    """Two workers of one service without ranks, and a program that does not belong to it."""
    return [
        started(JOBS, "serve", "300", "1000000", STAGESPAN_JOB=SERVICE),
        started(JOBS, "serve", "100", "30000000", STAGESPAN_JOB=SERVICE),
        started(JOBS, "serve", "5", "900000000", STAGESPAN_JOB=OTHER),
    ]


def test_statistics_of_a_service_are_those_of_all_its_workers(
    service: list[subprocess.Popen[str]],
) -> None:
    parts = [recording.open(program.pid).stats() for program in service[:2]]

    found = recording.job(SERVICE).stats()

    assert type(found) is type(parts[0])
    assert found.is_lifetime
    for name in ("decode", "check"):
        mine, theirs = found[name], [part[name] for part in parts]
        assert (mine.count, mine.errors) == (400, sum(one.errors for one in theirs))
        assert mine.min_ns == min(one.min_ns for one in theirs)
        # Two clocks convert the same ticks, each by its own rate.
        assert mine.max_ns == pytest.approx(max(one.max_ns for one in theirs), rel=1e-6)
        assert mine.total_ns == pytest.approx(sum(one.total_ns for one in theirs), rel=1e-6)
        assert mine.work == ({"tokens": 1200.0} if name == "check" else {})
        assert sum(count for _, count in mine.buckets_ns()) == 400
    durations = [1e6 * (1 + i % 7) for i in range(300)] + [3e7 * (1 + i % 7) for i in range(100)]
    for q in (0.0, 0.5, 0.74, 0.76, 0.95, 0.99, 1.0):
        exact = float(np.quantile(durations, q, method="inverted_cdf"))
        assert found["decode"].quantile_ns(q) == pytest.approx(exact, rel=0.03)
    assert found["decode"].p99_ns == found["decode"].quantile_ns(0.99)
    with pytest.raises(ValueError, match="from 0 to 1"):
        found["decode"].quantile_ns(1.5)
    assert found.lost["overwritten"] == sum(part.lost["overwritten"] for part in parts)


def test_a_window_of_a_service(service: list[subprocess.Popen[str]]) -> None:
    job = recording.job(SERVICE)
    began_s = time.time()
    assert job.stats()["decode"].count == 400
    # WHEN its workers do more, so much that their rings do not reach back
    tell(service[0], "200 2000000")
    tell(service[1], "250 2000000")

    # THEN a window that begins at the earlier reading has all that was done since, as soon as the
    # time that a reading takes is small against the window
    readings: list[tuple[float, Stats]] = []

    def is_whole() -> bool:
        window_s = time.time() - began_s
        readings.append((window_s, job.stats(window_s=window_s)))
        decode = readings[-1][1].get("decode")
        return decode is not None and decode.count == 450

    until(is_whole)
    window_s, found = readings[-1]
    assert not found.is_lifetime
    assert found.window_s == pytest.approx(window_s, rel=0.5)
    assert found["decode"].total_ns == pytest.approx(
        sum(2_000_000 * (1 + i % 7) for n in (200, 250) for i in range(n)), rel=0.001
    )
    assert found["check"].work == {"tokens": 1350.0}
    # AND without an earlier reading, a window is as long as the rings allow
    short = recording.job(SERVICE).stats(window_s=3600)
    assert short.window_s is not None
    assert 0 < short.window_s < 3000
    assert 0 < short["decode"].count < 450
    with pytest.raises(ValueError, match="above 0"):
        job.stats(window_s=0)


def test_a_window_from_the_rings(folder: Path) -> None:
    [started(JOBS, "serve", "20", "1000000", STAGESPAN_JOB=SERVICE) for _ in range(2)]
    found = recording.job(SERVICE).stats(window_s=3600)
    assert (found["decode"].count, found["check"].errors) == (40, 4)
    assert found["decode"].quantile_ns(0.5) == pytest.approx(4e6, rel=0.001)
    assert found.window_s == pytest.approx(3600)


def test_the_commands_show_a_service_together(service: list[subprocess.Popen[str]]) -> None:
    pages = {verb: command_here(verb, "--job", SERVICE) for verb in ("ps", "show")}
    pages["top"] = command_here("top", "--once", "--interval", "0.1", "--job", SERVICE)
    for page in pages.values():
        assert page.returncode == 0, page.stderr
        # THEN a worker that does less is not accused, because workers do not run in step
        assert "finished" not in page.stdout
    assert f"job {SERVICE}: 2 processes" in pages["top"].stdout
    for verb in ("ps", "show"):
        assert "Statistics of all processes" in pages[verb].stdout
        (line,) = (one for one in pages[verb].stdout.splitlines() if one.startswith("decode"))
        assert line.split()[1] == "400"
    told = json.loads(command_here("show", "--job", SERVICE, "--json").stdout)
    assert told["findings"] == []
    assert told["stages"]["check"]["count"] == 400
    with pytest.raises(StagespanError, match=f"the jobs are .*{OTHER}.*{SERVICE}"):
        recording.job(f"nobody-{os.getpid()}")


def test_a_job_that_is_named_is_not_that_of_the_launcher(folder: Path) -> None:
    launcher = {"TORCHELASTIC_RUN_ID": "run-1", "SLURM_JOB_ID": "7"}
    code = "import stagespan\nwith stagespan.span('x'): print('ready', flush=True); input()"
    programs = [
        started(code, STAGESPAN_JOB=" mine ", **launcher),
        started(code, STAGESPAN_JOB="", **launcher),
    ]
    assert [recording.open(program.pid).job for program in programs] == ["mine", "run-1"]


def test_workers_of_an_earlier_run_of_the_job_do_not_count(folder: Path) -> None:
    earlier = started(JOBS, "serve", "1000", "1000000", STAGESPAN_JOB=SERVICE)
    end(earlier)
    now = [started(JOBS, "serve", "10", "1000000", STAGESPAN_JOB=SERVICE) for _ in range(2)]
    tell(now[0], "5 1000")
    end(now[0])
    assert recording.job(SERVICE).stats()["decode"].count == 25
    end(now[1])
    assert recording.job(SERVICE).stats()["decode"].count == 1025


def test_jobs_of_one_name_in_two_containers(folder: Path) -> None:
    program = "import stagespan\nwith stagespan.span('x'): print('ready', flush=True); input()"
    here = start(program, STAGESPAN_JOB=SERVICE, RANK="0")
    there = start(
        program,
        python=("unshare", "--pid", "--fork", "--kill-child", sys.executable),
        STAGESPAN_JOB=SERVICE,
        RANK="0",
    )
    ready(here)
    assert there.stdout is not None
    if not there.stdout.readline():
        pytest.skip("cannot create a namespace: run as root")
    done = command_here("show", "--job", SERVICE)
    assert done.returncode == 2
    assert f"Two jobs in different containers are called {SERVICE!r}" in done.stderr


def test_an_error_says_that_recordings_are_removed_at_a_clean_exit(folder: Path) -> None:
    process = started(
        "import stagespan\nwith stagespan.span('x'): pass\nprint('ready', flush=True)"
    )
    process.communicate(timeout=30)
    for arguments in (
        *(("ps", "--job", "ended"), ("requests", "--job", "ended"), ("top", "--job", "ended")),
        *(("show", str(process.pid)), ("dump", str(folder / f"{process.pid}-1.stagespan"))),
    ):
        errors = " ".join(command_here(*arguments).stderr.split())
        assert "removed at a clean exit; STAGESPAN_RECORDING=keep keeps them." in errors
    assert "standard input" in command_here("requests", "-").stderr


# --- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ("python3.11 -X dev -W error serve.py --token secret", "python3.11 serve.py"),
        ("/usr/bin/python -m package.serve --port 80", "python -m package.serve"),
        ("python -c print(1) secret", "python -c"),
        ("python -u", "python"),
        ("./engine secret", "engine"),
        ("/venv/bin/python /venv/bin/uvicorn service:app --workers 2", "uvicorn service:app"),
        ("python -m uvicorn --host 0.0.0.0 --port 80 my.app:make", "uvicorn my.app:make"),
        ("python /bin/gunicorn -w 2 -b localhost:80 pkg.wsgi:app.x", "gunicorn pkg.wsgi:app.x"),
        ("/opt/gunicorn --reload service:app", "gunicorn service:app"),
        ("hypercorn --keyfile-password user:word service:app", "hypercorn service:app"),
        ("python -m uvicorn --uds /run/x.sock", "uvicorn"),
        ("python -m celery -A shop.tasks worker -c 2", "celery shop.tasks"),
        ("celery --app=shop worker", "celery shop"),
        ("", ""),
    ],
)  # fmt: skip
def test_the_name_of_a_program_has_no_other_arguments(arguments: str, name: str) -> None:
    assert _core.recording_program_name(arguments.replace(" ", "\0").encode() + b"\0") == name


@pytest.mark.parametrize(
    ("arguments", "variables", "name"),
    [
        (["decode"], {}, "{script} decode"),
        (["--port", "80", "prefill-worker", "x"], {}, "{script} prefill-worker"),
        (["--token", "hunter"], {}, "{python} {script}"),
        (["--role=front"], {}, "{python} {script}"),
        (["data.json", "w2", "é", "a" * 33], {}, "{python} {script}"),
        (["a" * 32], {}, "{script} " + "a" * 32),
        (["decode"], {"STAGESPAN_PROCESS_NAME": "decode 3"}, "decode 3"),
    ],
)
def test_a_process_is_called_by_its_first_plain_argument(
    arguments: list[str], variables: dict[str, str], name: str, folder: Path, tmp_path: Path
) -> None:
    script = tmp_path / "engine.py"
    script.write_text(
        "import stagespan\n"
        "with stagespan.request('r'), stagespan.span('step'):\n"
        "    print('ready', flush=True)\n"
        "    input()\n"
    )
    process = started(script, *arguments, **variables)
    python = Path(sys.executable).name
    expected = name.format(python=python, script="engine.py")
    rows = json.loads(command_here("ps", "--json").stdout)["processes"]
    row = next(row for row in rows if row["pid"] == process.pid)
    top = command_here("top", str(process.pid), "--once", "--interval", "0.1").stdout
    requests = command_here("requests", str(process.pid), "--id", "r").stdout
    found = recording.open(process.pid)
    assert row["name"] == expected
    assert f"{process.pid} {expected}: alive" in top
    assert f"{expected} {process.pid}" in requests
    # THEN the labels of metrics do not
    assert (found.program, found.service) == (f"{python} engine.py",) * 2


WORKERS = """
    import multiprocessing, sys

    def work(pipe):
        import stagespan
        with stagespan.span("work"):
            pipe.send(1)
            pipe.recv()

    if __name__ == "__main__":
        method = sys.argv[1]
        if sys.argv[2] == "imported":
            import stagespan
        context = multiprocessing.get_context(method)
        pipes = [context.Pipe() for _ in range(3)]
        for i, (_, there) in enumerate(pipes):
            name = "decoder" if i == 2 else None
            context.Process(target=work, args=(there,), name=name, daemon=True).start()
        for here, _ in pipes:
            here.recv()
        print("ready", flush=True)
        sys.stdin.read()
"""


@pytest.mark.parametrize("title", ["embed: batch 7/90", "pool [tcp://127.0.0.1:41]", "worker(3)"])
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("imported", ["imported", "not imported"])
def test_a_process_title_is_not_a_program(
    imported: str, method: str, title: str, folder: Path, tmp_path: Path
) -> None:
    pytest.importorskip("setproctitle")
    titled = f"import setproctitle\nsetproctitle.setproctitle({title!r})\n"
    (tmp_path / "serve.py").write_text(titled + textwrap.dedent(WORKERS))
    started(tmp_path / "serve.py", method, imported)
    programs = {recorded.program for recorded in recordings_in(folder)}
    assert programs == {"serve.py, worker 1", "serve.py, worker 2", "serve.py, decoder"}


@pytest.mark.parametrize("imported", ["imported", "not imported"])
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_are_called_by_what_they_are(
    method: str, imported: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # other tests' processes are in the list too
    (tmp_path / "serve.py").write_text(textwrap.dedent(WORKERS))
    started(tmp_path / "serve.py", method, imported)
    found = {one.program: one for one in recordings_in(folder)}
    assert set(found) == {"serve.py, worker 1", "serve.py, worker 2", "serve.py, decoder"}
    assert found["serve.py, worker 2"].worker == "worker 2"
    shown = command_here("ps").stdout
    assert f"serve.py {method}, worker 2" in shown


LOADING = """
    import multiprocessing, os, sys
    import torch
    import stagespan

    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return 4
        def __getitem__(self, i):
            with stagespan.span("getitem"):
                return torch.zeros(1)

    if __name__ == "__main__":
        with stagespan.span("train"):
            loader = torch.utils.data.DataLoader(
                Data(), num_workers=2, persistent_workers=True, multiprocessing_context="fork"
            )
            for _ in loader:
                pass
            print("ready", flush=True)
            sys.stdin.read()
"""


def test_workers_of_a_data_loader_are_not_ranks(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(textwrap.dedent(LOADING))
    job = {"WORLD_SIZE": "2", "STAGESPAN_JOB": TRAINING, "OMP_NUM_THREADS": "1"}
    programs = [start(tmp_path / "train.py", RANK=str(rank), **job) for rank in range(2)]
    for program in programs:
        ready(program)
    found = recordings_in(folder)
    workers = {one.program for one in found if one.worker is not None}
    assert workers == {
        f"train.py, data loader worker {number} of rank {rank}"
        for number in range(2)
        for rank in range(2)
    }
    assert sorted(one.rank for one in found if one.rank is not None) == [0, 1]
    told = json.loads(command_here("show", "--job", TRAINING, "--json").stdout)
    assert [rank["rank"] for rank in told["ranks"]] == [0, 1]
    # THEN the statistics are those of all processes
    assert told["stages"]["getitem"]["count"] == 8
    assert told["findings"] == []
    for program in programs:
        program.communicate("", timeout=60)


def test_a_rank_that_a_launcher_forked_is_a_rank(folder: Path) -> None:
    program = started(JOBS, "forked_ranks", STAGESPAN_JOB="launched")
    try:
        ready(program)
        found = [one for one in recordings_in(folder) if one.job == "launched"]
        assert sorted(one.rank for one in found if one.rank is not None) == [0, 1]
    finally:
        for one in recordings_in(folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(one.pid, signal.SIGKILL)
