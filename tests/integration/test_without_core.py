"""A program runs on where the extension cannot be imported."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy
import public_uses
import pytest

import stagespan
from running import ran
from stagespan import _core, cli, without_core
from stagespan.errors import StagespanError

BLOCKED = "import sys; sys.modules['stagespan._core'] = None\n"  # Python then refuses the import


def run(program: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a process that cannot import the extension."""
    return ran([sys.executable, "-c", BLOCKED + textwrap.dedent(program), *arguments], cwd=folder)


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
        with stagespan.extract({"traceparent": "x"}) as remote, remote:
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
            stagespan.is_enabled(), stagespan.is_debug(), len(stagespan.stats(kind="request")),
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


def copy_without_extension(folder: Path) -> Path:
    """Copy the package without its extension, and return the copy."""
    package = Path(stagespan.__file__).parent
    copied: Path = shutil.copytree(package, folder, ignore=shutil.ignore_patterns("*.so"))
    return copied


def warning_of_import(on_path: Path) -> str:
    """Import the package from this place in a process that does not find the installed one.

    Returns what the process writes to stderr.
    """
    path = os.pathsep.join((str(on_path), str(Path(numpy.__file__).parents[1])))
    done = ran(
        [sys.executable, "-S", "-c", "import stagespan; print(stagespan.is_available())"],
        PYTHONPATH=path,
    )
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr
    assert done.stderr.count("\n") == 1
    return done.stderr


NEEDED = f"_core{EXTENSION_SUFFIXES[0]}"
OTHER = "_core.cpython-39-x86_64-linux-gnu.so"


@pytest.mark.parametrize(
    ("package", "files", "wrong", "advice"),
    [
        ("stagespan", (), f"stagespan does not have {NEEDED}): install stagespan for this Py", ""),
        ("stagespan", (f"stagespan/{OTHER}",), f"stagespan does not have {NEEDED} but {OTHER}", ""),
        ("python/stagespan", ("CMakeLists.txt",), NEEDED, "run `pip install {folder}`, and do not"),
        ("packed.zip", (), "packed.zip/stagespan is in an archive", "unpack it, because"),
    ],
)
def test_a_missing_file_is_named(
    package: str, files: tuple[str, ...], wrong: str, advice: str, tmp_path: Path
) -> None:
    # GIVEN an installation for another Python, sources that were not built, or an archive
    folder = tmp_path / ("stagespan" if package.endswith(".zip") else package)
    on_path = copy_without_extension(folder).parent
    for name in files:
        (tmp_path / name).write_bytes(b"")
    if package.endswith(".zip"):
        on_path = tmp_path / package
        shutil.make_archive(str(on_path.with_suffix("")), "zip", tmp_path, "stagespan")
    warning = warning_of_import(on_path)
    # THEN one line says what is missing where, and what to do
    reason, _, said = warning.partition("): ")
    assert "No module named 'stagespan._core': " in reason
    assert wrong in warning
    assert advice.format(folder=tmp_path) in said


@pytest.mark.parametrize("suffix", [".py", EXTENSION_SUFFIXES[0]])
def test_a_program_runs_on_with_a_damaged_extension(suffix: str, tmp_path: Path) -> None:
    # GIVEN an extension whose import raises an error of its own, or that the system cannot load
    package = copy_without_extension(tmp_path / "stagespan")
    (package / f"_core{suffix}").write_text("raise RuntimeError('of this test')")
    # WHEN a program imports the package THEN it runs on, and the reason is in one line
    expected = "RuntimeError('of this test')" if suffix == ".py" else f"_core{suffix}: "
    warning = warning_of_import(tmp_path)
    assert expected in warning.partition("the extension cannot be imported (")[2]


# --- each public name -------------------------------------------------------------------------

REFUSED = {
    "stagespan.StageBenchHarness",
    "stagespan.analyze",
    "stagespan.capture",
    *(f"stagespan.recording.{name}" for name in ("Job", "Recording", "job", "open", "recordings")),
    *(f"stagespan.trace.{name}" for name in ("breakdown", "device_use", "read_trace")),
    "stagespan.compat.telefuser.stage_bench_harness.StageBenchHarness",
    "stagespan.export.prometheus.register",
}
"""The names that cannot do anything without the extension."""


class Uses(NamedTuple):
    """The errors that the uses of public names raise, and the folder with the files they read."""

    folder: Path
    present: dict[str, str]
    without: dict[str, str]


@pytest.fixture(scope="module")
def uses(tmp_path_factory: pytest.TempPathFactory) -> Uses:
    folder = tmp_path_factory.mktemp("uses")

    def errors(*arguments: str) -> dict[str, str]:
        command = [sys.executable, public_uses.__file__, *arguments]
        done = ran(command, cwd=folder, status=0)
        found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
        return found

    return Uses(folder, errors(), errors("blocked"))


def test_each_public_name_has_a_use_that_works(uses: Uses) -> None:
    assert {name: error for name, error in uses.present.items() if error} == {}


def test_each_public_name_works_or_is_refused_in_a_sentence(uses: Uses) -> None:
    # Without torch, a harness is created and cannot be set up.
    not_used = set() if public_uses.HAS_TORCH else {"stagespan.StageBenchHarness"}
    refused = (REFUSED & set(uses.without)) - not_used
    assert {name for name, error in uses.without.items() if error} == refused
    for name in refused:
        kind, text = uses.without[name].split(": ", 1)
        assert kind == "_NeedsExtension"
        assert text.startswith("This needs stagespan's extension, and the extension cannot be ")
        assert text.count(". ") == 0


VERBS = {
    "analyze": [public_uses.TRACE],
    "bench": [public_uses.SIGNATURES, "--stage", "used", "--factory", "builtins:list"],
    "capture": ["1", "--stage", "decode"],
    "compare": [public_uses.REPORT, public_uses.REPORT],
    "dump": ["1"],
    "export": ["--otlp", "http://127.0.0.1:1"],
    "ps": [],
    "requests": [],
    "run": ["script.py"],
    "show": [public_uses.REPORT],
    "top": ["1"],
}
READ_JSON_ONLY = {"compare", "show"}


def test_the_commands_are_all() -> None:
    # doctor has a test of its own.
    assert {*VERBS, "doctor"} == set(cli.command.list_commands(click.Context(cli.command)))


@pytest.mark.parametrize("verb", VERBS)
def test_each_command_works_or_is_refused(verb: str, uses: Uses) -> None:
    done = run("from stagespan.cli import main; main()", uses.folder, verb, *VERBS[verb])
    warning, *lines = done.stderr.splitlines()
    assert "nothing is timed" in warning
    assert "Traceback" not in done.stderr
    if verb in READ_JSON_ONLY:
        assert done.returncode == 0, done.stderr
    else:
        assert done.returncode == 2
        assert lines[-1].startswith("Error: This needs stagespan's extension, and the extension ")


def test_other_tests_run_where_the_plugin_is_installed(tmp_path: Path) -> None:
    test = "def test_one(pytestconfig):\n    assert pytestconfig.pluginmanager.{}\n"
    (tmp_path / "test_of_a_user.py").write_text(test.format("hasplugin('stagespan')"))
    program = "import pytest; sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider']))"
    done = run(program, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OWN = "stagespan=0af7651916cd43dd"


@pytest.mark.parametrize(
    ("headers", "passed_on"),
    [
        ({"traceparent": PARENT, "stagespan": "s"}, {"traceparent": PARENT, "stagespan": "s"}),
        (
            [(b"Traceparent", PARENT.encode()), (b"StageSpan", b"s"), (b"host", b"h")],
            {"traceparent": PARENT, "stagespan": "s"},
        ),
        (
            [("traceparent", PARENT), ("tracestate", "a=1"), ("tracestate", "B,c=2\r\n,d=3"), 4],
            {"traceparent": PARENT, "tracestate": "a=1,d=3"},
        ),
        (
            {"traceparent": PARENT, "tracestate": f"a=1,{OWN},b=2"},
            {"traceparent": PARENT, "tracestate": f"a=1,{OWN},b=2"},
        ),
        (
            {"traceparent": PARENT, "tracestate": f"{OWN},a=1,{OWN}"},
            {"traceparent": PARENT, "tracestate": "a=1"},
        ),
        ({"traceparent": PARENT, "tracestate": OWN[:-1]}, {"traceparent": PARENT}),
        ({"traceparent": [PARENT], "stagespan": ["s\n"]}, {"traceparent": PARENT}),
        ({"HTTP_TRACEPARENT": PARENT, "HTTP_STAGESPAN": "s" * 300}, {"traceparent": PARENT}),
        ({"traceparent": PARENT + "\n", "tracestate": "a=1"}, {}),
        ([("traceparent", PARENT), ("one", "two", "three"), (5, 6)], {"traceparent": PARENT}),
    ],
)
def test_requests_pass_on_what_a_header_can_contain(
    headers: Any, passed_on: dict[str, str], tmp_path: Path
) -> None:
    done = run(
        """
        import ast, email.message, json, stagespan
        headers = ast.literal_eval(sys.argv[1])
        message = email.message.Message()  # a carrier without update()
        trusted = stagespan.extract(headers).inject(message)
        untrusted = stagespan.extract(headers, trusted=False).inject()
        print(json.dumps([dict(trusted), untrusted]))
        """,
        tmp_path,
        repr(headers),
    )
    assert done.returncode == 0, done.stderr
    trusted, untrusted = json.loads(done.stdout)
    assert trusted == passed_on
    of_client = {name: passed_on[name] for name in passed_on if name != "stagespan"}
    if "tracestate" in of_client:
        of_client["tracestate"] = of_client["tracestate"].replace(f",{OWN}", "")
    assert untrusted == of_client
    # AND the extension does the same
    assert stagespan.extract(headers).inject() == passed_on
    assert stagespan.extract(headers, trusted=False).inject() == of_client


def test_spans_have_the_same_fields() -> None:
    assert without_core.spans().dtype == _core.spans().dtype
    assert stagespan.is_available()


def test_only_names_of_the_extension_are_replaced() -> None:
    # GIVEN what the module defines for others, except what it has of its own
    own = {"Nothing", "install", "refuse"}
    defined = {
        name
        for name, value in vars(without_core).items()
        if name[0] != "_" and getattr(value, "__module__", None) == without_core.__name__
    }
    assert defined - own
    assert defined - own - set(dir(_core)) == set()


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
