"""The verbs, their help, and first words that are no verb."""

from __future__ import annotations

import gzip
import json
import re
import shlex
import sys
import zipfile
from pathlib import Path

import click
import pytest

from running import ran
from stagespan.cli import VERBS, command, with_verb
from stagespan.cli.contents import Kind, kind_of

TRACE = {"traceEvents": [{"ph": "X", "name": "a", "ts": 1, "dur": 2, "pid": 1, "tid": 1}]}
REPORT = {"num_stages": 1, "stages": {"a": {"duration_ms": 1.0, "count": 1}}}


@pytest.mark.parametrize("verb", VERBS)
def test_each_help_has_two_examples_that_can_be_parsed(verb: str) -> None:
    context = click.Context(command)
    found = command.get_command(context, verb)
    assert found is not None
    text = found.get_help(click.Context(found, info_name=verb))
    _, _, examples = text.partition("Examples:\n")
    lines = [line.strip() for line in examples.partition("\n\n")[0].splitlines()]
    assert len(lines) == 2
    for line in lines:
        program, named, *arguments = shlex.split(line)
        assert (program, named) == ("stagespan", verb)
        found.make_context(verb, arguments, context)


@pytest.mark.parametrize("verb", VERBS)
def test_help_imports_nothing_large(verb: str) -> None:
    code = (
        f"import sys; sys.argv = ['stagespan', {verb!r}, '--help']\n"
        "from stagespan.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "large = 'torch', 'numpy', 'rich', 'msgspec', 'stagespan.pages.page'\n"
        "loaded = [name for name in large if name in sys.modules]\n"
        "assert not loaded, loaded"
    )
    assert f"stagespan {verb}" in ran([sys.executable, "-c", code], status=0).stdout


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print('it ran')\n")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__main__.py").write_text("print('it ran')\n")
    with zipfile.ZipFile("program.zip", "w") as file:
        file.writestr("__main__.py", "print('it ran')\n")
    with zipfile.ZipFile("traces.zip", "w") as file:
        file.writestr("trace.json", json.dumps(TRACE))
    (tmp_path / "trace.json").write_text(json.dumps(TRACE))
    (tmp_path / "trace.json.gz").write_bytes(gzip.compress(json.dumps(TRACE).encode()))
    (tmp_path / "my times").write_text(json.dumps(REPORT))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "timing.json").write_text(json.dumps(REPORT))
    (tmp_path / "ranks").mkdir()
    (tmp_path / "ranks" / "rank0.json").write_text(json.dumps(TRACE))
    call = {"stage_name": "call", "input_signatures": {"x": 1}}
    (tmp_path / "calls").write_text(json.dumps({"schema_version": 1, "stages": {"call": call}}))
    (tmp_path / "copied").write_bytes(b"STAGESPN" + bytes(56))
    (tmp_path / "show").write_text(json.dumps(REPORT))
    return tmp_path


@pytest.mark.parametrize(
    ("word", "verb"),
    [
        ("train.py", "run"),
        ("package", "run"),
        ("program.zip", "run"),
        ("traces.zip", "analyze"),
        ("trace.json", "analyze"),
        ("trace.json.gz", "analyze"),
        ("ranks", "analyze"),
        ("my times", "show"),
        ("run/timing.json", "show"),
        ("./run", "show"),
        ("calls", "show"),
        ("copied", "show"),
        ("4711", "show"),
        ("missing.py", None),
        ("s3://bucket/run", None),
        ("zzz", None),
    ],
)
@pytest.mark.usefixtures("folder")
def test_a_word_that_is_no_verb_is_what_it_contains(word: str, verb: str | None) -> None:
    assert with_verb([word, "--x"]) == ([word, "--x"] if verb is None else [verb, word, "--x"])


@pytest.mark.usefixtures("folder")
def test_the_name_of_a_verb_is_the_verb() -> None:
    assert with_verb(["show"]) == ["show"]
    assert with_verb(["./show"]) == ["show", "./show"]
    # `run` is a folder here too
    assert with_verb(["run"]) == ["run"]


def test_programs_and_files_without_a_verb(folder: Path) -> None:
    def stagespan(*words: str, status: int = 0) -> str:
        done = ran([sys.executable, "-m", "stagespan", *words], cwd=folder, status=status)
        return done.stdout + done.stderr

    for program in ("train.py", "package", "program.zip"):
        assert "it ran" in stagespan(program)
    assert "Timing report, 1 stage" in stagespan("my times")
    assert "x: 1" in stagespan("calls")
    assert stagespan("trace.json") == stagespan("analyze", "trace.json")
    assert "There is no process 4194304" in stagespan("4194304", status=2)
    assert "missing.py does not exist" in stagespan("missing.py", status=2)


@pytest.mark.parametrize(
    "content", [b"", b"\0\1", b"{", b"\x1f\x8bcut", b'{"other": 1}', b"PK\x03\x04"]
)
def test_any_other_content_is_refused_in_one_sentence(content: bytes, folder: Path) -> None:
    (folder / "other").write_bytes(content)
    assert kind_of("other") is Kind.TRACE
    done = ran([sys.executable, "-m", "stagespan", "show", "other"], cwd=folder, status=2)
    assert re.fullmatch(r"Error: .*other.*\n", done.stderr)


def test_a_program_is_not_shown(folder: Path) -> None:
    done = ran([sys.executable, "-m", "stagespan", "show", "train.py"], cwd=folder, status=2)
    assert "train.py contains a program: run it with `stagespan run train.py`" in done.stderr


def test_comparing_traces_has_no_tolerance(folder: Path) -> None:
    arguments = ["compare", "trace.json", "trace.json.gz", "--tolerance", "3%"]
    done = ran([sys.executable, "-m", "stagespan", *arguments], cwd=folder, status=2)
    assert "--tolerance is for files of times, not for traces" in done.stderr


@pytest.mark.parametrize("option", ["--top", "--csv"])
def test_options_of_ncu_need_it(option: str, folder: Path) -> None:
    arguments = ["bench", "calls", "--factory", "m:f", option, "3"]
    done = ran([sys.executable, "-m", "stagespan", *arguments], cwd=folder, status=2)
    assert f"{option} needs --ncu" in done.stderr
