"""``stagespan run`` of programs whose work is done by other processes: one table of all."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import textwrap
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import pytest

from running import PROGRAMS, ended, free_port, ran, start_command

WORK = """
    def fork(): pass
    def spawn(): pass
    def forkserver(): pass
    def pool(): pass
    def left(): pass
    def killed(): pass
    def command(): pass
    def loky(): pass
    def here(): pass
"""
"""A module with a function for each way to start a process."""

STARTS = PROGRAMS / "starting.py"

COUNTS = {
    "here": 2,
    "fork": 3,
    "spawn": 4,
    "forkserver": 5,
    "pool": 20,
    "left": 4,
    "killed": 3,
    "command": 2,
    "loky": 5,
}


def run(
    cwd: Path, *arguments: str, start: Sequence[str] = (sys.executable,), **variables: str
) -> subprocess.CompletedProcess[str]:
    return ran([*start, "-m", "stagespan", "run", *arguments], cwd=cwd, timeout_s=300, **variables)


def write(folder: Path, **modules: str | Path) -> None:
    for name, text in modules.items():
        content = text.read_text() if isinstance(text, Path) else textwrap.dedent(text)
        (folder / f"{name}.py").write_text(content)


def counts_in(folder: Path, pattern: str = "timing*.json") -> dict[str, int]:
    """Return the runs of each stage in the reports of a folder."""
    found: dict[str, int] = {}
    for path in folder.glob(pattern):
        if "signature" not in path.name:
            for name, stage in json.loads(path.read_text())["stages"].items():
                found[name] = found.get(name, 0) + stage["count"]
    return found


def counts_told(done: subprocess.CompletedProcess[str]) -> dict[str, int]:
    """Return the runs of each stage in a table without children."""
    lines = [re.sub(r"^\[[^]]*\] ", "", line) for line in done.stderr.splitlines()]
    (head,) = (number for number, line in enumerate(lines) if "runs" in line.split())
    end = lines[head].index(" runs") + len(" runs")  # figures stand below the end of the heading
    rows = (re.match(r" *(\S+) .* ([\d,]+)$", line[:end]) for line in lines[head + 1 :])
    return {row[1]: int(row[2].replace(",", "")) for row in rows if row}


def stages(*names: str, module: str = "work") -> list[str]:
    return [part for name in names for part in ("--stage", f"{module}:{name}")]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["default", "debug", "off"])
def test_all_processes_of_a_program_are_in_one_table(
    mode: str, folder: Path, tmp_path: Path
) -> None:
    write(tmp_path, work=WORK, starts=STARTS)
    done = run(
        tmp_path,
        *(["--debug"] if mode == "debug" else []),
        *(*stages(*COUNTS), "--output", "out", "starts.py"),
        **({"STAGESPAN_RECORDING": "off"} if mode == "off" else {}),
    )
    assert done.returncode == 0, done.stderr
    # THEN each call is in the table, except for processes that ended without a word and without a
    # recording
    silent = {"left", "killed"} if mode == "off" else set()
    expected = {name: count for name, count in COUNTS.items() if name not in silent}
    assert counts_told(done) == expected
    if mode == "default":
        assert counts_in(tmp_path / "out", "*") == expected
    else:
        silent = {"left", "killed"}
        files = {name: count for name, count in expected.items() if name not in silent}
        assert counts_in(tmp_path / "out") == files
        assert counts_in(tmp_path / "out", "timing.json") == {"here": 2}
    told = [line for line in done.stderr.splitlines() if line.startswith("stagespan: stage")]
    assert len(told) == len(silent) * (mode == "off")
    assert "no stage ran" not in done.stderr
    assert not list(folder.glob(".run-*"))


MAIN = PROGRAMS / "starting_itself.py"


@pytest.mark.slow
def test_functions_of_the_main_program_are_timed_in_its_processes(tmp_path: Path) -> None:
    write(tmp_path, own=MAIN)
    (tmp_path / "folder").mkdir()
    write(tmp_path / "folder", other=MAIN)
    plain = ran([sys.executable, "own.py"], cwd=tmp_path, timeout_s=300)
    done = run(tmp_path, "--stage", "__main__:step", "own.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout == plain.stdout
    assert counts_told(done) == {"step": 13}


@pytest.mark.slow
def test_the_exceptions_and_the_status_of_a_started_script_are_its_own(tmp_path: Path) -> None:
    write(tmp_path, fails="def go(): pass\n\ndef fail():\n    go()\n    1 / 0\n\nfail()\n")
    write(
        tmp_path,
        starts="""
            import subprocess, sys
            print(subprocess.run([sys.executable, "fails.py"]).returncode)
        """,
    )
    plain = ran([sys.executable, "starts.py"], cwd=tmp_path, timeout_s=300)
    done = run(tmp_path, "--stage", "__main__:go", "starts.py")
    assert (done.stdout, plain.stdout) == ("1\n", "1\n")
    assert done.stderr.startswith(plain.stderr)
    assert counts_told(done) == {"go": 1}


def test_pythons_that_cannot_be_reached_are_counted(tmp_path: Path) -> None:
    write(tmp_path, work=WORK)
    write(
        tmp_path,
        starts="""
            import subprocess, sys
            call = "import sys; sys.path.insert(0, '.'); import work; work.here()"
            for option in ("-I", "-E", "-S", "-u"):
                subprocess.run([sys.executable, option, "-c", call], check=True)
            subprocess.run([sys.executable, "-c", call], check=True, env={})
            subprocess.run(["true"], check=True)
        """,
    )
    done = run(tmp_path, *stages("here"), "starts.py")
    assert done.returncode == 0, done.stderr
    assert counts_told(done) == {"here": 1}
    (sentence,) = (line for line in done.stderr.splitlines() if line.startswith("stagespan: "))
    assert "4 processes of Python could not be reached" in sentence


def test_what_starts_with_the_interpreter_still_starts(tmp_path: Path) -> None:
    (tmp_path / "startup").mkdir()
    write(tmp_path / "startup", sitecustomize="import sys\nsys.own_startup = 'ran'\n")
    write(
        tmp_path,
        prints="""
            import sys, sitecustomize
            print(sys.own_startup, sys.path, sitecustomize.__file__)
        """,
        starts="import subprocess, sys\nsubprocess.run([sys.executable, 'prints.py'])",
    )
    path = {"PYTHONPATH": str(tmp_path / "startup")}
    plain = ran([sys.executable, "prints.py"], cwd=tmp_path, timeout_s=300, **path)
    done = run(tmp_path, *stages("here"), "starts.py", **path)
    assert plain.stdout.startswith("ran")
    assert done.stdout == plain.stdout


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (
            """
            HANDLERS = {}
            def handles(path):
                return lambda function: HANDLERS.setdefault(path, function)
            @handles("/")
            def handle(): pass
            def main(): HANDLERS["/"]()
            """,
            "@handles holds the function itself; name what it calls",
        ),
        (
            """
            class Table:
                def handle(self): pass
                rows = [handle]
            def handle(): pass
            def main(): Table.rows[0](None)
            HANDLERS = {"/": handle}
            """,
            "app.py:7 holds the function itself; name what it calls",
        ),
        ("def handle(): pass\ndef main(): pass", "nothing has called it"),
    ],
)
def test_a_stage_that_never_ran_is_named_with_the_likely_reason(
    module: str, reason: str, tmp_path: Path
) -> None:
    # GIVEN a function that the program calls in another way than by its name, or not at all
    write(tmp_path, app=module)
    write(
        tmp_path,
        starts="""
            import multiprocessing
            if __name__ == "__main__":
                import app
                app.main()
                process = multiprocessing.get_context("spawn").Process(target=app.main)
                process.start()
                process.join()
        """,
    )
    done = run(tmp_path, *stages("handle", module="app"), "starts.py")
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stderr.splitlines() if line.startswith("stagespan: ")]
    assert told == ["stagespan: no stage ran", f"stagespan: stage app:handle never ran: {reason}"]


def test_a_stage_that_only_another_process_looked_for_is_reported(tmp_path: Path) -> None:
    write(tmp_path, app="def handel(): pass")
    write(
        tmp_path,
        starts="import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'import app'])",
    )
    done = run(tmp_path, *stages("handle", module="app"), "starts.py")
    assert "app has no 'handle'; similar names: handel" in done.stderr


def test_the_variable_times_stages_without_the_command(tmp_path: Path) -> None:
    write(
        tmp_path,
        work=WORK,
        uses="""
            import stagespan, work
            def own(): work.fork(), work.fork()
            own()
            print({name: stage.count for name, stage in stagespan.stats().items()})
        """,
    )
    done = ran(
        [sys.executable, "uses.py"],
        cwd=tmp_path,
        timeout_s=300,
        STAGESPAN_STAGES="work:fork\n\n nonsense \nload=work:spawn",
    )
    assert done.stdout == "{'fork': 2}\n", done.stderr
    assert done.stderr.count("STAGESPAN_STAGES") == 1
    assert "'nonsense' must be written as pkg.mod:Class.method" in done.stderr


@pytest.mark.full
def test_many_processes_take_little_space_and_are_all_counted(folder: Path, tmp_path: Path) -> None:
    write(tmp_path, work=WORK)
    write(
        tmp_path,
        starts="""
            import os, sys, work
            def size_of(folder):
                found = {}
                for path, _, names in os.walk(folder):
                    for name in names:
                        status = os.lstat(os.path.join(path, name))
                        found[status.st_ino] = status.st_blocks * 512
                return sum(found.values())
            largest = 0
            for _ in range(100):
                if os.fork() == 0:
                    work.here()
                    sys.exit()
                os.wait()
                largest = max(largest, size_of(os.environ["STAGESPAN_RECORDING_DIR"]))
            print(largest)
        """,
    )
    done = run(tmp_path, *stages("here"), "starts.py")
    # THEN all of them are counted, although few recordings are kept
    assert done.returncode == 0, done.stderr
    assert counts_told(done) == {"here": 100}
    assert 0 < int(done.stdout) < 100 * 2**20
    assert not list(folder.glob(".run-*"))


def test_a_program_that_sets_its_own_search_path_is_reached(tmp_path: Path) -> None:
    write(tmp_path, work=WORK)
    write(
        tmp_path,
        starts="""
            import os, subprocess, sys
            call = (
                "import work, os, sys;"
                "work.here(); print(os.environ['PYTHONPATH'][-4:], sys.path[1])"
            )
            os.environ["PYTHONPATH"] = "/own"
            subprocess.run([sys.executable, "-c", call], check=True)
            own = {**os.environ, "PYTHONPATH": "/its"}
            subprocess.run([sys.executable, "-c", call], check=True, env=own)
        """,
    )
    done = run(tmp_path, *stages("here"), "starts.py")
    assert done.stdout == "/own /own\n/its /its\n", done.stderr
    assert counts_told(done) == {"here": 2}
    assert "could not be reached" not in done.stderr


SERVED = """
    def work(): pass

    def wsgi(environment, start):
        work()
        start("200 OK", [])
        return [b"x"]

    async def asgi(scope, receive, send):
        if scope["type"] == "http":
            work()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"x"})
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("server", "options"),
    [
        ("gunicorn", "-w 2 --max-requests 5 app:wsgi -b 127.0.0.1:{port}"),
        pytest.param(
            *("gunicorn", "-w 2 --preload -k gevent app:wsgi -b 127.0.0.1:{port}"),
            marks=pytest.mark.full,
        ),
        ("uvicorn", "app:asgi --workers 2 --lifespan off --port {port}"),
        ("uvicorn", "app:asgi --reload --lifespan off --port {port}"),
    ],
)
def test_the_workers_of_a_server_are_counted(server: str, options: str, tmp_path: Path) -> None:
    pytest.importorskip(server)
    if "gevent" in options:
        pytest.importorskip("gevent")
    write(tmp_path, app=SERVED)
    port = free_port()
    command = [sys.executable, "-m", "stagespan", "run", *stages("work", module="app")]
    process = start_command(
        [*command, "-m", server, *options.format(port=port).split()],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
    )
    answered = 0
    while answered < 30 and process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=60):
                answered += 1
        except OSError:  # it does not listen yet, or a worker is replaced
            time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    error = ended(process, timeout_s=120)[1]
    done = subprocess.CompletedProcess("", 0, "", error)
    assert counts_told(done)["work"] >= answered == 30
    assert "no stage ran" not in error


@pytest.mark.slow
@pytest.mark.parametrize(
    ("needed", "program"),
    [
        ("xdist", "pytest -q -n 2 -p no:cacheprovider test_app.py"),
        ("torch", "torch.distributed.run --nproc_per_node 2 ranks.py"),
        ("celery", "celery -A tasks worker -c 1 --max-tasks-per-child 3 -l WARNING"),
    ],
)
def test_the_workers_of_other_programs_are_counted(
    needed: str, program: str, tmp_path: Path
) -> None:
    pytest.importorskip(needed)
    write(
        tmp_path,
        app="def work(): pass",
        test_app="""
            import app, pytest
            @pytest.mark.parametrize("number", range(3))
            def test_work(number): app.work()
        """,
        ranks="import app, os\nfor _ in range(int(os.environ['RANK']) + 1): app.work()",
        tasks="""
            import app as work, os, subprocess
            from celery import Celery
            app = Celery("tasks", broker="filesystem://")
            app.conf.broker_transport_options = {
                "data_folder_in": "queue", "data_folder_out": "queue", "processed_folder": "done",
            }
            @app.task
            def run(number):
                work.work()
                open(f"ran/{number}", "w").close()
                if len(os.listdir("ran")) == 8:  # once the result has reached the worker
                    subprocess.Popen(["sh", "-c", f"sleep 2; kill {os.getppid()}"])
        """,
    )
    if needed == "celery":
        for name in ("queue", "done", "ran"):
            (tmp_path / name).mkdir()
        call = "import tasks\nfor number in range(8): tasks.run.delay(number)"
        ran([sys.executable, "-c", call], cwd=tmp_path, status=0)
    done = run(tmp_path, *stages("work", module="app"), "-m", *program.split())
    assert counts_told(done) == {"work": 8 if needed == "celery" else 3}, done.stderr
