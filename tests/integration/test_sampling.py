"""``stagespan run`` without stages: samples of the stacks name what takes the time."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from running import PROGRAMS, ended, free_port, ran, ready, start_command

SAMPLED = PROGRAMS / "sampled.py"


def run(
    *arguments: str | Path, cwd: Path, command: tuple[str, ...] = ("-m", "stagespan", "run")
) -> subprocess.CompletedProcess[str]:
    return ran([sys.executable, *command, *map(str, arguments)], cwd=cwd, COLUMNS="100")


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(textwrap.dedent(text))
    return path


def rows_of(error: str, role: str = "main process") -> list[str]:
    """Return the rows of a role's table, without those of imports at the top level."""
    lines = error.splitlines()
    (start, *_) = (at for at, line in enumerate(lines) if re.match(rf" {role} +share ", line))
    rows = []
    for line in lines[start + 2 :]:
        if not line.strip():
            break
        rows.append(line)
    while rows and rows[0].startswith(" import"):
        del rows[0]
        while rows and rows[0].startswith((" ├", " └", " │", "  ")):
            del rows[0]
    return rows


def roles_in(path: Path) -> dict[str, dict[str, Any]]:
    return {role["name"]: role for role in json.loads(path.read_text())["roles"]}


def everything(tree: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [node for top in tree for node in (top, *everything(top["children"]))]


@pytest.mark.parametrize(
    ("program", "culprit"),
    [
        ("slow_import.py", "import slow_module"),
        ("json_parsing.py", "loads"),
        ("backtracking.py", "is_valid"),
        ("sorting.py", "rank"),
        ("tokenizing.py", "Tokenizer.encode"),
        ("locked.py", "update"),
        ("pooled.py", "checksum"),
        ("collecting.py", "garbage collection"),
        ("collating.py", "collate"),
    ],
)
def test_the_first_three_rows_name_what_takes_the_time(
    program: str, culprit: str, tmp_path: Path
) -> None:
    # GIVEN a program that spends most of its time in one place
    path = PROGRAMS / program
    plain = run(path, cwd=tmp_path, command=())
    # WHEN it is run without stages
    done = run(path, cwd=tmp_path)
    # THEN the first rows name the place, and the program did what it does otherwise
    assert any(culprit in row for row in rows_of(done.stderr)[:3]), done.stderr
    assert (done.returncode, done.stdout) == (plain.returncode, plain.stdout)


@pytest.mark.parametrize(
    ("program", "needed", "role", "culprits"),
    [
        ("serving_fastapi.py", "uvicorn", "main process", ["explain", "is_clean"]),
        ("answering_zeromq.py", "zmq", "worker", ["rank"]),
        pytest.param(
            *("loading_lightning.py", "lightning", "main process"),
            ["Measurements.__getitem__"],
            marks=pytest.mark.full,
        ),
        pytest.param(
            *("reading_items.py", "torch", "main process", ["accuracy"]), marks=pytest.mark.full
        ),
        pytest.param(
            *("recompiling.py", "torch", "main process", ["compilation"]), marks=pytest.mark.full
        ),
        pytest.param(
            *("collecting_diffusers.py", "diffusers", "main process", ["garbage collection"]),
            marks=pytest.mark.full,
        ),
        pytest.param(
            *("tokenizing_transformers.py", "transformers", "main process"),
            ["prompt > PreTrainedTokenizerBase.encode"],
            marks=pytest.mark.full,
        ),
    ],
)
def test_the_first_three_rows_name_it_in_programs_with_libraries(
    program: str, needed: str, role: str, culprits: list[str], tmp_path: Path
) -> None:
    pytest.importorskip(needed)
    # WHEN a program is run that uses a library and is slow in one place or two
    done = run(PROGRAMS / program, cwd=tmp_path)
    # THEN the first rows name the places, without a line about the library
    rows = rows_of(done.stderr, role)[:3]
    assert all(any(culprit in row for row in rows) for culprit in culprits), done.stderr
    assert done.returncode == 0
    # AND a function that torch.compile has compiled is not suggested
    assert "Scaled.forward" not in done.stderr


def test_the_suggested_command_times_these_functions(tmp_path: Path) -> None:
    # GIVEN the command that stands below the table
    path = write(tmp_path, "with space.py", (PROGRAMS / "json_parsing.py").read_text())
    done = run(path.name, "an argument", cwd=tmp_path)
    shown = done.stderr.partition("stages:\n\n")[2]
    assert "__main__:load" in shown
    # WHEN it is run as it stands, by a shell
    line = shown.replace("stagespan run", f"{sys.executable} -m stagespan run", 1)
    shell = ran(["sh", "-c", line], cwd=tmp_path)
    # THEN each of its stages has run
    assert re.search(r"load +[\d.,]+ +[\d.]+ % +30 ", shell.stderr), shell.stderr
    assert "stagespan: " not in shell.stderr


def test_time_under_the_lock_counts_in_full(tmp_path: Path) -> None:
    # GIVEN a function that holds the interpreter's lock ten times longer than another one runs
    run("-o", "samples.json", SAMPLED, "lock", cwd=tmp_path)
    # THEN their times have the right proportion, although the first gave one sample a call
    nodes = {
        node["name"]: node
        for node in everything(roles_in(tmp_path / "samples.json")["main process"]["tree"])
    }
    assert nodes["holds"]["wall_ms"] / nodes["runs"]["wall_ms"] == pytest.approx(2, rel=0.3)


def test_all_kinds_of_processes_have_a_tree(tmp_path: Path) -> None:
    # GIVEN a program whose work is done by workers, a forked child, and a worker that is killed
    done = run("-o", "samples.json", SAMPLED, "processes", cwd=tmp_path)
    # THEN each kind of process has its own tree, and workers of one kind are shown together
    roles = roles_in(tmp_path / "samples.json")
    assert {"main process", "worker", "forked process", "encoder", "python -c"} <= set(roles), done
    assert roles["worker"]["processes"] == 2
    for name in ("worker", "forked process", "encoder", "python -c"):
        assert "work" in [node["name"] for node in everything(roles[name]["tree"])], name
    # AND no process has the calls of the one that forked it
    assert "main" not in [node["name"] for node in everything(roles["encoder"]["tree"])]


@pytest.mark.parametrize("interval", ["1", "10"])
def test_the_sampler_takes_at_most_2_percent_of_the_cpu_time(interval: str, tmp_path: Path) -> None:
    # GIVEN a program whose samples are expensive, as it has many threads with deep stacks
    # WHEN it is sampled THEN this is done less often
    assert (
        0 < float(run("--sample-ms", interval, SAMPLED, "deep_stacks", cwd=tmp_path).stdout) < 0.02
    )


def test_frames_of_a_sample_are_not_kept(tmp_path: Path) -> None:
    # GIVEN a function that drops a large object while it is running, and looks whether it is gone
    # WHEN it is sampled THEN nothing keeps the object
    assert run(SAMPLED, "drops", cwd=tmp_path).stdout == "True\n"


def test_stages_of_the_script_come_first(tmp_path: Path) -> None:
    # GIVEN a script with a stage of its own
    script = (SAMPLED, "own_stage")
    # WHEN it is run THEN the table of stages stands above that of the samples
    error = run(*script, cwd=tmp_path).stderr
    assert error.startswith("Timing report, 1 stage")
    assert " work " in error.partition("Where the time went")[2]
    # AND --no-sample leaves the samples out
    error = run("--no-sample", *script, cwd=tmp_path).stderr
    assert error.startswith("Timing report, 1 stage")
    assert "Where the time went" not in error


def test_the_json_is_as_described() -> None:
    # GIVEN a module that calls, imports, waits and collects
    # WHEN it is run with -m and --json
    done = run("--sample-ms", "5", "--json", "-m", "sampled", "all_kinds", cwd=PROGRAMS)
    # THEN standard output is JSON with every kind, and shares are parts of the role's time
    found = json.loads(done.stdout)
    assert (found["schema_version"], found["interval_ms"]) == (1, 5.0)
    assert found["samples"] > 20
    (role,) = found["roles"]
    nodes = everything(role["tree"])
    kinds = {node["name"]: node["kind"] for node in nodes}
    assert kinds["imports"] == kinds["import slow_module"] == "import"
    assert kinds["computes"] == "call"
    assert kinds["garbage collection"] == "gc"
    assert {"wait", "native"} <= set(kinds.values())
    assert sum(node["share"] for node in role["tree"]) == pytest.approx(1, abs=0.02)
    assert "__main__:computes" in found["suggested_stages"]
    waits = next(node for node in nodes if node["name"] == "waits")
    assert waits["place"] == "__main__:waits"
    assert waits["cpu_ms"] < 0.2 * waits["wall_ms"]


TROUBLE = (
    *("forks", "execs", "crashes", "aborts", "raises", "exits", "leaves_no_descriptors"),
    *("leaves_at_once", "has_100_threads", "reads_stdin", "holds_the_lock"),
    *("starts_threads_at_exit", "warns_of_what_it_leaves_open", "profiles_itself", "is_traced"),
    *("uses_uvloop", "uses_gevent", "has_the_limits_of_debuggers"),
)


@pytest.mark.parametrize("kind", TROUBLE)
def test_output_warnings_and_status_are_those_of_the_plain_run(kind: str, tmp_path: Path) -> None:
    for library in ("uvloop", "gevent"):
        if library in kind:
            pytest.importorskip(library)
    # GIVEN what a script does by itself, with all warnings
    plain, sampled = (
        ran(
            [sys.executable, "-W", "always", *command, PROGRAMS / "troubled.py", kind],
            cwd=tmp_path,
            input="from stdin",
        )
        for command in ((), ("-m", "stagespan", "run"))
    )
    # WHEN it is sampled THEN it does the same, and a table may stand below its own output
    assert sampled.stdout == plain.stdout
    assert sampled.returncode == plain.returncode, sampled.stderr
    assert sampled.stderr.startswith(plain.stderr), (plain.stderr, sampled.stderr)
    more = sampled.stderr.removeprefix(plain.stderr)
    assert re.match(r"$|Where the time went|stagespan: ", more), more
    assert "Warning" not in more


@pytest.mark.parametrize("form", ["zip", "package", "folder"])
def test_programs_that_are_no_script(form: str, tmp_path: Path) -> None:
    # GIVEN a program with a module beside it
    folder = tmp_path / "program"
    folder.mkdir()
    text = """
    import sys, time, {module}
    def main():
        {module}.work(0.3)
        print(__name__, __package__, sys.argv[1:])
    main()
    """
    write(
        folder,
        "helper.py",
        """
        import time
        def work(seconds):
            until = time.perf_counter() + seconds
            while time.perf_counter() < until:
                pass
        """,
    )
    (folder / "__init__.py").touch()
    module = "program.helper" if form == "package" else "helper"
    write(folder, "__main__.py", text.format(module=module))
    called = {"zip": ["program.zip"], "package": ["-m", "program"], "folder": ["program"]}[form]
    if form == "zip":
        shutil.make_archive(str(folder), "zip", folder)
    plain = run(*called, "an argument", cwd=tmp_path, command=())
    assert plain.returncode == 0, plain.stderr
    done = run(*called, "an argument", cwd=tmp_path)
    # THEN it does the same, and the functions of its modules have the time
    assert (done.returncode, done.stdout) == (0, plain.stdout), done.stderr
    assert any("work" in row for row in rows_of(done.stderr)), done.stderr


def test_an_interrupt_shows_what_was_sampled(tmp_path: Path) -> None:
    # GIVEN a program that runs until it is interrupted
    process = start_command([sys.executable, "-m", "stagespan", "run", SAMPLED, "wait"])
    assert ready(process) == "ready"
    # WHEN it is interrupted after a moment
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    # THEN the table follows the traceback, and the process ends by the signal, as without sampling
    _, error = ended(process, -signal.SIGINT)
    assert "KeyboardInterrupt" in error
    assert any("wait" in row for row in rows_of(error)), error


def test_parent_and_child_are_sampled_after_a_fork(tmp_path: Path) -> None:
    # GIVEN a program that forks, and asks for the sampler's thread
    # WHEN it is sampled THEN parent and child have one each time
    done = run(SAMPLED, "forks", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_fork_finds_no_other_thread(tmp_path: Path) -> None:
    # GIVEN a handler that runs last before a fork, as Python's own count of threads does
    write(
        tmp_path,
        "sitecustomize.py",
        """
        import os
        def count():
            with open("threads.txt", "a") as file:
                print(len(os.listdir("/proc/self/task")), file=file)
        os.register_at_fork(before=count)
        """,
    )
    done = ran(
        [
            sys.executable,
            "-W",
            "error::DeprecationWarning",
            "-m",
            "stagespan",
            "run",
            SAMPLED,
            "ends_its_children",
        ],
        cwd=tmp_path,
        PYTHONPATH=str(tmp_path),
    )
    # THEN no thread of stagespan is there, and SIGTERM still ends parent and children with a table
    assert (tmp_path / "threads.txt").read_text().split() == ["1"] * 3, done.stderr
    assert done.returncode in (-signal.SIGTERM, 128 + signal.SIGTERM)
    assert "DeprecationWarning" not in done.stderr
    assert rows_of(done.stderr)


def test_greenlets_are_sampled_in_the_loop_of_gevent(tmp_path: Path) -> None:
    pytest.importorskip("gevent")
    # GIVEN a program whose functions are replaced by those of gevent
    # WHEN it is sampled THEN the function of the greenlets has the time
    done = run("-o", "samples.json", SAMPLED, "greenlets", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    nodes = everything(roles_in(tmp_path / "samples.json")["main process"]["tree"])
    assert sum(node["wall_ms"] for node in nodes if node["name"] == "handle") > 500


def test_an_active_profiler_is_named(tmp_path: Path) -> None:
    # GIVEN a program that profiles itself until it ends
    text = (PROGRAMS / "sorting.py").read_text()
    script = write(tmp_path, "profiled.py", f"import cProfile; cProfile.Profile().enable()\n{text}")
    # WHEN it is sampled THEN a sentence below the table says that the times are not its own
    done = run(script, cwd=tmp_path)
    assert "stagespan: cProfile made Python code slower" in done.stderr


@pytest.mark.full
def test_a_loader_and_its_workers_have_trees(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    # GIVEN a loop that waits for the workers of a data loader
    done = run("-o", "samples.json", SAMPLED, "loads", cwd=tmp_path)
    # THEN the function that is slow stands in the tree of the workers
    roles = roles_in(tmp_path / "samples.json")
    assert next(iter(roles)) == "main process", done.stderr
    names = [node["name"] for node in everything(roles["data loader worker"]["tree"])]
    assert {"Images.__getitem__", "augment"} <= set(names)
    # AND the main process waits for it in its loader
    nodes = everything(roles["main process"]["tree"])
    (loader,) = [node for node in nodes if node["name"] == "_BaseDataLoaderIter.__next__"]
    assert loader["cpu_ms"] < 0.5 * loader["wall_ms"]


def test_the_wait_of_a_compiled_event_loop_is_no_time_of_the_function_that_runs_it(
    tmp_path: Path,
) -> None:
    pytest.importorskip("uvloop")
    # GIVEN a program whose loop, which has no frames, mostly waits for the next event
    done = run(SAMPLED, "event_loop", cwd=tmp_path)
    # THEN this is no time of the script
    assert "Waiting, not in the table: event loop" in done.stderr


def test_a_service_shows_its_endpoint_and_not_its_loop(tmp_path: Path) -> None:
    pytest.importorskip("uvicorn")
    pytest.importorskip("fastapi")
    port = free_port()
    samples = tmp_path / "samples.json"
    arguments = ["-m", "stagespan", "run", "-o", samples, "-m", "uvicorn", "decoding_app:app"]
    process = start_command(
        [sys.executable, *arguments, "--port", str(port), "--log-level", "error"], cwd=PROGRAMS
    )
    # WHEN it answers a few requests, waits, and is stopped
    for _ in range(600):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=60).read()
            break
        except OSError:
            time.sleep(0.1)
    for _ in range(3):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=60).read()
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    ended(process)
    # THEN the tree has the endpoint's function, and the wait of the loop is not in it
    found = json.loads((tmp_path / "samples.json").read_text())
    nodes = everything(found["roles"][0]["tree"])
    decode = [node for node in nodes if node["name"] == "decode"]
    # Of 1.6 s. The thread of the pool is new when it is sampled first.
    assert sum(node["wall_ms"] for node in decode) > 1000
    assert sum(node["cpu_ms"] for node in decode) > 1000
    assert found["wall_ms"] > sum(node["wall_ms"] for node in found["roles"][0]["tree"])
    # AND the endpoint is not suggested, because the application holds the function itself
    assert "decoding_app:decode" in found["suggested_stages"]
    assert "decoding_app:generate" not in found["suggested_stages"]


def test_sampling_and_stages_are_not_mixed(tmp_path: Path) -> None:
    script = write(tmp_path, "nothing.py", "")
    # WHEN samples are to be written, but a stage is named THEN one sentence refuses
    done = run("--json", "--stage", "json:dumps", script, cwd=tmp_path)
    assert done.returncode == 2
    assert "write samples" in done.stderr


def test_samples_in_all_forms(tmp_path: Path) -> None:
    # GIVEN a program with an option --json of its own
    # WHEN its samples are asked for in each form THEN all have them
    of_program = [SAMPLED, "sorts", "--json", "-"]
    figures = json.loads(run("--json", *of_program, cwd=tmp_path).stdout)
    assert figures["samples"] > 0
    assert run("--markdown", *of_program, cwd=tmp_path).stdout.startswith("# Samples")
    done = run("--html", "page.html", *of_program, cwd=tmp_path)
    assert "Where the time went" in done.stderr
    assert "sorted" in (tmp_path / "page.html").read_text() or rows_of(done.stderr)
    # AND a file of JSON can be named as until 0.1.0, with one line about the new form
    for file in ("samples.json", "-"):
        done = run("--json", file, *of_program, cwd=tmp_path)
        text = done.stdout if file == "-" else (tmp_path / file).read_text()
        assert json.loads(text)["samples"] > 0
        assert ("--json -o FILE" in done.stderr) == (file != "-")
    schema = json.loads(run("--json-schema", "-", cwd=tmp_path).stdout)
    assert "suggested_stages" in json.dumps(schema)


def test_a_file_that_cannot_be_written_does_not_change_the_status(tmp_path: Path) -> None:
    # GIVEN a path below a file
    path = Path("/dev/null/samples.json")
    # WHEN the samples are to be written to it
    done = run("-o", path, PROGRAMS / "sorting.py", cwd=tmp_path)
    # THEN one sentence says why they are not
    assert done.returncode == 0
    assert re.fullmatch(rf"stagespan: {path} cannot be written \(.*\n", done.stderr)


def test_auto_times_what_takes_the_time(tmp_path: Path) -> None:
    # GIVEN a program that goes on doing the same
    # WHEN its functions are timed as soon as samples have shown them
    options = ("--auto", "--sample-ms", "4", "-o", "samples.json", "--output", "out")
    done = run(*options, PROGRAMS / "steady.py", cwd=tmp_path)
    # THEN the stages' totals agree with the shares of the samples
    assert done.returncode == 0, done.stderr
    stages = json.loads((tmp_path / "out" / "timing.json").read_text())["stages"]
    tree = roles_in(tmp_path / "samples.json")["main process"]["tree"]
    times = {node["name"]: node["wall_ms"] for node in everything(tree)}
    names = ["Model", "load", "rows", "fetch"]
    assert {"step", *names} <= set(stages), done.stderr
    for name in names:
        timed = stages[name]["duration_ms"] / stages["step"]["duration_ms"]
        assert timed == pytest.approx(times[name] / times["step"], abs=0.03), name
    # AND each of them is named, also what is only sampled
    assert "timed since --auto found them: __main__:step, " in done.stderr
    is_left = "sampled only: __main__:held, because this version of Python can time it by its name"
    assert (is_left in done.stderr) == ("held" not in stages) == (sys.version_info[:2] == (3, 11))


def test_auto_does_not_disturb_functions_that_come_and_go(tmp_path: Path) -> None:
    # GIVEN functions that are redefined or collected, a property, a constructor and one in C
    # WHEN --auto, which begins after 2 s, times some of them THEN the program does what it did
    done = run("--auto", PROGRAMS / "changing.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    assert "Traceback" not in done.stderr
    # AND says what became of them
    (timed,) = re.findall("timed since --auto found them: (.*)", done.stderr)
    assert {"__main__:Rows.total", "__main__:Made.__init__"} <= set(timed.split(", ")), done.stderr


@pytest.mark.full
def test_auto_leaves_alone_what_torch_has_compiled(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    # GIVEN a loop over a compiled function, which takes most of the time
    # WHEN it runs with --auto THEN nothing is compiled again, and the reason is named
    done = run("--auto", PROGRAMS / "compiled_loop.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
    if sys.version_info[:2] == (3, 11):
        assert "sampled only: __main__:wait, because torch.compile has seen it" in done.stderr


def test_auto_says_so_if_it_has_timed_nothing(tmp_path: Path) -> None:
    # GIVEN a function that runs until the end
    script = write(tmp_path, "once.py", "import time\ndef main(): time.sleep(3)\nmain()\n")
    done = run("--auto", script, cwd=tmp_path)
    sentence = "sampled only, because they were not called again: __main__:main"
    assert sentence in done.stderr, done.stderr
    # AND a program that is too short
    script = write(tmp_path, "short.py", "import time\ntime.sleep(0.3)\n")
    done = run("--auto", script, cwd=tmp_path)
    assert "--auto timed no function: it begins after 2 s" in done.stderr
    # AND it is refused together with stages
    done = run("--auto", "--stage", "json:dumps", script, cwd=tmp_path)
    assert done.returncode == 2
    assert "--auto chooses stages by samples" in done.stderr
