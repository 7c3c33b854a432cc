"""A program runs on where the extension cannot be imported."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy
import pytest

import stagespan
from stagespan import _core, without_core
from stagespan.errors import StagespanError

BLOCKED = "import sys; sys.modules['stagespan._core'] = None\n"  # Python then refuses the import


def run(program: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a process that cannot import the extension."""
    return subprocess.run(
        [sys.executable, "-c", BLOCKED + textwrap.dedent(program), *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=120,
    )


def test_a_program_runs_on_and_is_told_once(tmp_path: Path) -> None:
    # GIVEN a program that uses spans, requests, threads, statistics and reports
    done = run(
        """
        import asyncio, json, threading, stagespan

        def plain(x):
            return x + 1

        decorated = [
            stagespan.span("a")(plain), stagespan.span(plain), stagespan.span()(plain),
            stagespan.ProfilingContext("a")(plain), stagespan.ProfilingContext4Debug(plain),
        ]

        async def awaits():
            async with stagespan.span("async") as span, stagespan.request("inner"):
                span.add(tokens=1)
            return stagespan.current_request().id

        with stagespan.request("r", user="u") as request, stagespan.queued("wait"):
            request.chunk(3)
            request.set_status("cancelled")
            awaited = asyncio.run(awaits())
            seen = []
            bound = stagespan.bind(lambda: seen.append(stagespan.current_request().id))
            thread = threading.Thread(target=bound)
            thread.start()
            thread.join()
        with stagespan.extract({"traceparent": "x"}) as remote:
            pass
        with stagespan.batch("batch", [remote]) as batch:
            batch.add(tokens=3)
        stagespan.end(stagespan.begin("token", kind="queue"))
        stagespan.record("r", 1, 2)
        stagespan.disable()
        stagespan.enable(device_every=3)
        stagespan.set_debug(True)
        stagespan.propagate_to_threads()
        stagespan.set_timing_metadata("k", 1)
        stagespan.print_timing_summary()
        stagespan.reset_timing_registry("again")
        print(json.dumps([
            all(one is plain for one in decorated), awaited, seen, stagespan.is_available(),
            stagespan.is_enabled(), stagespan.is_debug(), len(stagespan.stats()),
            len(stagespan.stats(60)), len(stagespan.spans(since=stagespan.SpanCursor())),
            stagespan.open_spans(), stagespan.inject(), stagespan.flush(),
            stagespan.timing_report()["stages"], stagespan.current_request(),
        ]))
        """,
        tmp_path,
    )
    # THEN nothing is recorded, and requests are still known
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [
        *(True, "r", ["r"], False, False, False, 0, 0, 0, [], {}, True, {}, None),
    ]
    # AND one line says why
    assert done.stderr.count("\n") == 1
    assert "the extension cannot be imported (import of stagespan._core halted" in done.stderr


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    # GIVEN an installation for another Python
    package = Path(stagespan.__file__).parent
    shutil.copytree(package, tmp_path / "stagespan", ignore=shutil.ignore_patterns("*.so"))
    path = os.pathsep.join((str(tmp_path), str(Path(numpy.__file__).parents[1])))

    # WHEN it is imported, in a process without the paths of the installed one
    done = subprocess.run(
        [sys.executable, "-S", "-c", "import stagespan; print(stagespan.is_available())"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )

    # THEN the reason says which file this Python needs
    assert done.stdout == "False\n", done.stderr
    assert "No module named 'stagespan._core'; its file for this Python ends in " in done.stderr
    assert _core.__file__.endswith(done.stderr.split(" ends in ")[1].split(")")[0])


def test_all_public_names_are_there(tmp_path: Path) -> None:
    done = run("import stagespan; [getattr(stagespan, n) for n in stagespan.__all__]", tmp_path)
    assert done.returncode == 0, done.stderr


def test_spans_have_the_same_fields() -> None:
    assert without_core.spans().dtype == _core.spans().dtype
    assert stagespan.is_available()


def test_only_names_of_the_extension_are_replaced() -> None:
    # GIVEN what the module defines for others, except what it has of its own
    own = {"NoSpan", "NoToken", "TYPE_CHECKING", "install", "reason", "refuse"}
    defined = {
        name
        for name, value in vars(without_core).items()
        if name[0] != "_" and getattr(value, "__module__", None) == without_core.__name__
    }
    assert defined - own
    assert defined - own - set(dir(_core)) == set()


@pytest.mark.parametrize("command", [["analyze", "t.json"], ["ps"], ["run", "t.json"]])
def test_reading_traces_and_recordings_is_refused(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text("[]")
    done = run("from stagespan.cli import main; main()", tmp_path, *command)
    warning, refusal = done.stderr.splitlines()
    assert done.returncode == 2
    assert "nothing is timed" in warning
    assert refusal.startswith("Error: This needs stagespan's extension")


def test_the_doctor_calls_it_a_failure(tmp_path: Path) -> None:
    program = "sys.modules['torch'] = None; from stagespan.cli import main; main()"
    done = run(program, tmp_path, "doctor", "--json", "--no-device")
    found = json.loads(done.stdout)
    assert done.returncode == 1
    assert not found["works"]
    failing = [finding for finding in found["findings"] if finding["state"] == "fails"]
    assert [(finding["area"], finding["name"]) for finding in failing] == [
        ("recorder", "stagespan")
    ]
    assert "the extension cannot be imported" in failing[0]["text"]


def test_code_may_ask_the_stand_in_for_any_name() -> None:
    """As pickle asks every imported module, with and without the extension."""
    assert not hasattr(without_core, "a_name_that_no_module_has")
    with pytest.raises(StagespanError, match="needs stagespan's extension"):
        _ = without_core.read_recording
