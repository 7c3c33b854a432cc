"""The command line: its verbs, and its answers to wrong arguments."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zlib
from pathlib import Path

import click
import pytest

from click_runner import cli_runner
from running import ran
from stagespan.cli import VERBS, command


@pytest.fixture
def timing(tmp_path: Path) -> Path:
    path = tmp_path / "timing.json"
    path.write_text(json.dumps({"stages": {"denoise": {"duration_ms": 1000.0, "count": 2}}}))
    return path


def run(*arguments: object) -> tuple[int, str, str]:
    result = cli_runner().invoke(command, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.stdout, result.stderr


def test_help_names_every_verb_without_importing_any() -> None:
    code = (
        "import sys; sys.argv = ['stagespan', '--help']\n"
        "from stagespan.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "loaded = [m for m in ('torch', 'rich', 'stagespan.cli.run') if m in sys.modules]\n"
        "assert not loaded, loaded"
    )
    done = ran([sys.executable, "-c", code], status=0)
    for verb in VERBS:
        assert f"  {verb} " in done.stdout


def test_show_shows_a_table(timing: Path) -> None:
    status, out, _ = run("show", timing)
    assert status == 0
    assert "denoise" in out
    assert "1,000" in out


@pytest.mark.parametrize("content", [None, "{", "[]", '{"stages": 3}'])
def test_show_refuses_other_files_in_one_sentence(content: str | None, tmp_path: Path) -> None:
    path = tmp_path / "timing.json"
    if content is not None:
        path.write_text(content)
    status, out, error = run("show", path)
    assert (status, out) == (2, "")
    assert error.startswith("Error: ")
    assert error.count("\n") == 1


def test_show_says_of_a_text_file_what_it_reads(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("hello\n")
    status, out, error = run("show", path)
    assert (status, out) == (2, "")
    assert error.startswith(f"Error: {path} is not JSON. `stagespan show` reads process ids, jobs,")
    assert "exported" not in error


def options_of_all_verbs() -> list[tuple[str, click.Option]]:
    assert isinstance(command, click.Group)
    found = []
    for verb in command.list_commands(click.Context(command)):
        made = command.get_command(click.Context(command), verb)
        assert made is not None
        found += [(verb, each) for each in made.params if isinstance(each, click.Option)]
    return [(verb, each) for verb, each in found if not each.is_flag]


def test_an_option_that_is_given_twice_adds_up_or_is_refused() -> None:
    found = options_of_all_verbs()
    assert len(found) > 40
    for verb, option in found:
        for spelling in option.opts:
            # WHEN one is given twice, THEN the first value is never dropped without a word
            status, _, error = run(verb, spelling, "1", spelling, "2")
            refusal = f"{option.opts[-1]} is given twice, but takes one value: give it once."
            assert option.multiple or (status == 2 and refusal in error), (verb, spelling, error)


def test_flags_can_be_repeated_and_arguments_may_look_like_options(timing: Path) -> None:
    assert run("doctor", "--json", "--no-device", "--json", "--no-device")[0] == 0
    status, _, error = run("compare", "--", "--tolerance", "--tolerance")
    assert (status, "twice" in error) == (2, False)


def test_the_module_is_the_command() -> None:
    done = ran([sys.executable, "-m", "stagespan", "--help"], status=0)
    assert done.stdout.startswith("Usage: stagespan ")


@pytest.mark.skipif(
    not os.path.exists("/dev/full"),
    reason="this system has no /dev/full, which reports a full disk",
)
def test_a_full_disk_is_reported_in_one_sentence(timing: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "stagespan", "show", timing],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )

    assert done.returncode == 2
    assert done.stderr.startswith("Error: the output cannot be written: No space left on device")
    assert done.stderr.count("\n") == 1


def test_a_table_is_shown_in_any_encoding(tmp_path: Path) -> None:
    # GIVEN a tree, and a terminal with an old encoding
    stages = {
        "a": {"duration_ms": 2.0, "unattributed_ms": 1.0},
        "b \u2192 c": {"duration_ms": 1.0, "parents": [{"parent": "a", "duration_ms": 1.0}]},
    }
    (tmp_path / "timing.json").write_text(json.dumps({"stages": stages}))

    done = ran(
        [sys.executable, "-m", "stagespan", "show", tmp_path / "timing.json"],
        status=0,
        PYTHONIOENCODING="ascii",
    )

    assert "b ? c" in done.stdout
    assert "(unattributed)" in done.stdout


@pytest.mark.parametrize("depth", [400, 900, 100_000])
def test_deep_nesting_is_refused_in_one_sentence(depth: int, tmp_path: Path) -> None:
    nested = "[" * depth + "]" * depth
    signature = tmp_path / "signatures.json"
    signature.write_text(
        '{"schema_version": 1, "request_id": "x", "stages": {"s": {"stage_name": "s",'
        f' "input_signatures": {{"x": {nested}}}, "output_signature": null, "key": "k",'
        ' "count": 1}}}'
    )
    report = tmp_path / "report.json"
    report.write_text(f'{{"schema_version": 1, "stages": {{"a": {nested}}}}}')
    for arguments in (("show", signature), ("show", report), ("compare", report, report)):
        status, _, error = run(*arguments)
        # THEN the answer is one sentence, or the file's levels do not matter
        assert status in (0, 2)
        assert "Traceback" not in error
        assert status == 0 or error.count("Error: ") == 1


def test_too_little_memory_is_one_sentence(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    path = tmp_path / "many.json.gz"
    packer = zlib.compressobj(1, wbits=31)
    event = b'{"ph":"X","cat":"cpu_op","name":"a","ts":1,"dur":2,"pid":1,"tid":1},'
    with path.open("wb") as file:
        file.write(packer.compress(b"["))
        for _ in range(200):
            file.write(packer.compress(event * 10_000))
        file.write(packer.compress(b"{}]") + packer.flush())
    code = (
        "import resource, sys; from stagespan.cli import main; import stagespan.trace.analysis\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "limit = used + (320 << 20); resource.setrlimit(resource.RLIMIT_AS, (limit, limit))\n"
        f"sys.argv = ['stagespan', 'analyze', {str(path)!r}]; main()"
    )
    assert resource is not None
    done = ran([sys.executable, "-c", code], timeout_s=300)
    assert done.returncode == 2, done.stderr[-2000:]
    assert "more memory than there is" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_error_of_a_script_stays_an_error_of_the_script(tmp_path: Path) -> None:
    # GIVEN a script that recurses without an end
    path = tmp_path / "endless.py"
    path.write_text("def f():\n    return f()\nf()\n")
    done = ran([sys.executable, "-m", "stagespan", "run", str(path)], cwd=tmp_path)  # fmt: skip
    # THEN Python shows where it failed
    assert "RecursionError" in done.stderr
    assert "endless.py" in done.stderr
