"""Runs the code blocks of README.md and docs/*.md, so that what they show is what happens.

Every fenced block marked ``python`` or ``console`` runs, in order, in a temporary folder that the
blocks of one document share. Blocks in other languages are not run. In a ``console`` block, lines
that begin with ``$ `` are commands (a backslash at the end continues a command on the next line),
and the lines below a command are its expected output (stdout and stderr together). Without such
lines only the exit status is checked, which must be 0. In expected output, ``...`` matches any
text, also across lines, and spaces at the ends of lines are ignored.

An HTML comment directly above a block, which is not visible on the page, is a directive:

``<!-- run: skip, REASON -->``      the block does not run; the reason is listed at the end
``<!-- run: file NAME -->``         any block: its text is written to this file, not run
``<!-- run: early -->``             with ``file``: the file is written before any block runs, so
                                    that a page can show a command above its program
``<!-- run: continue -->``          a ``python`` block: the ``python`` block before it runs first
``<!-- run: output -->``            any block: what the ``python`` block before it printed on stdout
``<!-- run: env NAME=VALUE ... -->`` runs with these variables
``<!-- run: torch -->``             skipped if torch is not installed
``<!-- run: figures -->``           numbers, their units of time, the widths of columns and line
                                    breaks in the output may differ
A block may have several directives. A port of this machine in a block (``--port 8731``,
``127.0.0.1:9464``) stands for a free one, so that pages can run beside each other.
"""

from __future__ import annotations

import atexit
import dataclasses
import functools
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import preloaded
from running import free_port

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    path for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))) if path.exists()
]
TAKES_LONG = {"compiled.md", "gate.md", "kernels.md", "training.md"}
"""Pages whose blocks compile, repeat, or start several ranks."""
_COMMENT = re.compile(r"\s*<!--\s*run:\s*(.*?)\s*-->\s*")
_PORT = re.compile(r"(127\.0\.0\.1:|--(?:port|prometheus|web) )(\d{4,5})\b")
_FENCE = re.compile(r"(\s*)(`{3,}|~{3,})\s*([\w+-]*)\s*")


@dataclass
class Block:
    """A fenced block: its language, text, first line, and directives."""

    language: str
    text: str
    line: int
    directives: list[tuple[str, str]] = field(default_factory=list)

    def directive(self, name: str) -> str | None:
        """Return what follows a directive's name; None if it was not given."""
        return next((rest for given, rest in self.directives if given == name), None)


def blocks_of(document: str) -> list[Block]:
    """Return all fenced blocks of a Markdown text."""
    blocks: list[Block] = []
    directives: list[tuple[str, str]] = []
    lines = iter(enumerate(document.splitlines(), 1))
    for number, line in lines:
        if comment := _COMMENT.fullmatch(line):
            name, _, rest = comment.group(1).replace(",", " ", 1).partition(" ")
            directives.append((name, rest.strip()))
        elif fence := _FENCE.fullmatch(line):
            indent, mark, language = fence.groups()
            body = []
            for _, inner in lines:
                if inner.strip() == mark:
                    break
                body.append(inner.removeprefix(indent))
            blocks.append(Block(language, "\n".join(body) + "\n", number, directives))
            directives = []
        elif line.strip():
            directives = []
    return blocks


def commands_of(text: str) -> list[tuple[str, str]]:
    """Return the commands of a console block, each with its expected output."""
    found: list[tuple[str, list[str]]] = []
    lines = iter(text.splitlines())
    for line in lines:
        if line.startswith("$ "):
            command = line[2:]
            while command.endswith("\\"):
                command = command[:-1] + next(lines).removeprefix("> ")
            found.append((command, []))
        elif found:
            found[-1][1].append(line)
    return [(command, "\n".join(output)) for command, output in found]


def matches(expected: str, printed: str, any_figures: bool = False) -> bool:
    """Whether the output is the expected one, ``...`` standing for any text, or for no line.

    With ``any_figures`` a number matches any number in any unit of time, as does the unit of a
    column, a rule matches a rule of any length, and blanks match line breaks, because numbers
    change where lines break.
    """
    if any_figures:
        tidy = [" ".join(text.split()) for text in (expected, printed)]
    else:
        tidy = [
            "\n".join(line.rstrip() for line in text.strip().splitlines())
            for text in (expected, printed)
        ]
    parts = [re.escape(part) for part in tidy[0].split("...")]
    if any_figures:
        # One pass, so that a placeholder is not mistaken for text with a number in it.
        number = r"(?P<number>(?:\\[+-])?\d(?:[\d,]|\\\.(?=\d))*)"
        unit = r"(?P<unit>\\ (?:ns|µs|ms|s)\b)"
        column = r"(?P<column>\\\((?:ns|µs|ms|s)\\\))"
        loose = re.compile(f"{number}{unit}?|(?P<rule>[─━]+)|{column}")
        any_number = r"[+-]?\d[\d,.]*"
        stands_for = {
            "number": any_number,
            "unit": f"{any_number} (?:ns|µs|ms|s)",
            "rule": "[─━]+",
            "column": r"\((?:ns|µs|ms|s)\)",
        }
        parts = [loose.sub(lambda found: stands_for[str(found.lastgroup)], part) for part in parts]
    # A line `...` may also match nothing.
    between = re.escape(" " if any_figures else "\n")
    pattern = ".*".join(parts).replace(f"{between}.*{between}", f"{between}(?:.*{between})?")
    if pattern.endswith(f"{between}.*"):
        pattern = f"{pattern.removesuffix(f'{between}.*')}(?:{between}.*)?"
    return re.fullmatch(pattern, tidy[1], flags=re.DOTALL) is not None


@functools.cache
def preloaded_programs() -> Path:
    """Return a folder with `python` and `stagespan` that fork a process with torch imported."""
    folder = tempfile.TemporaryDirectory(prefix="programs")
    atexit.register(folder.cleanup)
    start = shlex.join(preloaded.python())
    for name, options in ("python", ""), ("stagespan", "-m stagespan"):
        path = Path(folder.name) / name
        path.write_text(f'#!/bin/sh\nexec {start} {options} "$@"\n')
        path.chmod(0o755)
    return Path(folder.name)


class Runner:
    """Runs the blocks of one document."""

    def __init__(
        self,
        name: str,
        folder: Path,
        note_skip: Callable[[str], None],
        recordings: str | None = None,
    ) -> None:
        """`recordings` is a folder of its own, so that no page shows processes of other tests."""
        self.name = name
        self.folder = folder
        self.recordings = recordings
        self.note_skip = note_skip
        self.program = ""
        self.printed: str | None = None
        self.ran = 0
        self._ports: dict[str, int] = {}

    def run(self, block: Block) -> None:
        """Run a block; if it goes wrong, fail the test with the block's position."""
        place = f"{self.name}:{block.line}"
        known = {"skip", "file", "early", "continue", "output", "env", "torch", "figures"}
        any_figures = block.directive("figures") is not None
        unknown = {name for name, _ in block.directives} - known
        assert not unknown, (
            f"{place}: unknown directive {unknown}; the head of this test lists them"
        )
        if (reason := block.directive("skip")) is not None:
            assert reason, f"{place}: say why the block is skipped"
            self.note_skip(f"{place}: {reason}")
            return
        if block.directive("file") is None:
            block = dataclasses.replace(block, text=self.with_free_ports(block.text))
        if block.directive("torch") is not None and importlib.util.find_spec("torch") is None:
            self.note_skip(f"{place}: needs torch")
            self.printed = None
            return
        programs = None if block.directive("torch") is None else preloaded_programs()
        variables = dict(word.split("=", 1) for word in (block.directive("env") or "").split())
        if block.directive("file") is not None:
            self.write(block)
        elif block.directive("output") is not None:
            if self.printed is not None:
                self.compare(place, block.text, self.printed, any_figures)
        elif block.language == "python":
            before = self.program if block.directive("continue") is not None else ""
            self.program = before + block.text
            # A file and not `-c`, because pickling, new processes and compilers look for the
            # source.
            script = self.folder / f"_block_{block.line}.py"
            script.write_text(self.program)
            python = [sys.executable] if programs is None else preloaded.python()
            done = self.execute([*python, str(script)], variables, merged=False)
            assert done.returncode == 0, f"{place}:\n{done.stdout}\n{done.stderr}"
            self.printed = done.stdout
            self.ran += 1
        elif block.language == "console":
            for command, expected in commands_of(block.text):
                done = self.execute(["/bin/sh", "-c", command], variables, True, programs)
                assert done.returncode == 0, f"{place}: $ {command}\n{done.stdout}"
                if expected.strip():
                    self.compare(place, expected, done.stdout, any_figures)
            self.ran += 1

    def run_all(self, blocks: list[Block]) -> None:
        """Run the blocks of a document in order, after its early files were written."""
        for block in blocks:
            if block.directive("early") is not None:
                self.write(block)
        for block in blocks:
            self.run(block)

    def write(self, block: Block) -> None:
        """Write the text of a block to the file that it names."""
        place, target = f"{self.name}:{block.line}", block.directive("file")
        assert target is not None, f"{place}: only files are written early"
        path = (self.folder / target).resolve()
        assert path.is_relative_to(self.folder.resolve()), f"{place}: {target} is elsewhere"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.with_free_ports(block.text))

    def with_free_ports(self, text: str) -> str:
        """Return a text with a free port for each one in it, the same in the whole document."""

        def free(found: re.Match[str]) -> str:
            before, port = found.groups()
            if port not in self._ports:
                self._ports[port] = free_port()
            return f"{before}{self._ports[port]}"

        return _PORT.sub(free, text)

    def execute(
        self,
        command: list[str],
        variables: dict[str, str],
        merged: bool,
        programs: Path | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the document's folder, with these programs or Python's first on PATH."""
        # A terminal as wide as the page, without colours and screen control, which cannot be
        # compared.
        environment = {**os.environ, "NO_COLOR": "1", "TERM": "dumb"}
        environment["PET_MASTER_PORT"] = str(free_port())  # torchrun's
        environment.pop("_STAGESPAN_RUN", None)  # programs of users do not belong to this run
        environment.pop("COLUMNS", None)  # pages have the width that they have in a pipe
        if self.recordings is not None:
            environment["STAGESPAN_RECORDING_DIR"] = self.recordings
        folders = [str(programs or ""), str(Path(sys.executable).parent), os.environ["PATH"]]
        environment["PATH"] = os.pathsep.join(filter(None, folders))
        return subprocess.run(
            command,
            cwd=self.folder,
            env={**environment, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if merged else subprocess.PIPE,
            text=True,
            timeout=300,
        )

    @staticmethod
    def compare(place: str, expected: str, printed: str, any_figures: bool) -> None:
        """Fail if the output is not the expected one."""
        same = matches(expected, printed, any_figures)
        assert same, f"{place}: expected\n{expected}\nbut got\n{printed}"


@pytest.fixture
def own_recordings() -> Iterator[str | None]:
    """A folder for recordings on a tmpfs; None if this machine has no usual one."""
    if not Path("/dev/shm").is_dir():
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="stagespan-docs-", dir="/dev/shm") as folder:
        yield folder


@pytest.mark.slow
@pytest.mark.parametrize(
    "document",
    [
        pytest.param(path, marks=[pytest.mark.full] * (path.name in TAKES_LONG))
        for path in DOCUMENTS
    ],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_code_blocks_run_as_shown(
    document: Path,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
    own_recordings: str | None,
) -> None:
    # GIVEN a document, and an empty folder that looks like a checkout to the examples
    blocks = blocks_of(document.read_text())
    shutil.copytree(
        ROOT / "examples",
        tmp_path / "examples",
        ignore=shutil.ignore_patterns("build", "__pycache__", "work_dirs", "*.so"),
    )
    runner = Runner(
        str(document.relative_to(ROOT)),
        tmp_path,
        lambda reason: record_property("skipped_part", reason),
        own_recordings,
    )

    runner.run_all(blocks)

    # THEN each did what the document shows: every difference has failed above


SAMPLE = """
Text.

```python
x = 20
print("x is", x)
```

<!-- run: output -->
```text
x is ...
```

<!-- run: continue -->
<!-- run: env NAME=world -->
```python
import os
open("made.txt", "w").write(f"{x} {os.environ['NAME']}")
```

```console
$ cat made.txt
20 world
$ printf 'one\\ntwo\\nthree\\n'
one
...
three
```

<!-- run: figures -->
```console
$ printf 'took 1.5 ms,\\n  20.0 %% of 7.5 ms\\n'
took 250.0 µs, 3.0 % of 8 ms
```

<!-- run: file sub/module.py -->
```python
raise RuntimeError("not run")
```

<!-- run: skip, needs a network -->
```console
$ false
```

```console
$ cat early.txt
written before
```

<!-- run: early -->
<!-- run: file early.txt -->
```text
written before
```

```cpp
int never_run;
```
"""


def run_sample(text: str, folder: Path) -> tuple[Runner, list[str]]:
    skipped: list[str] = []
    runner = Runner("sample.md", folder, skipped.append)
    runner.run_all(blocks_of(text))
    return runner, skipped


def test_runner_runs_compares_writes_and_skips(tmp_path: Path) -> None:
    # GIVEN a document that uses every directive
    runner, skipped = run_sample(SAMPLE, tmp_path)

    # THEN two programs and three consoles ran, two files were written, and one block was left out
    assert runner.ran == 5
    assert (tmp_path / "sub" / "module.py").read_text() == 'raise RuntimeError("not run")\n'
    assert skipped == ["sample.md:42: needs a network"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("```python\nraise SystemExit(3)\n```\n", "sample.md:1"),
        ("```console\n$ false\n```\n", "false"),
        ("```console\n$ echo no\nyes\n```\n", "expected"),
        ("```python\nprint(1)\n```\n<!-- run: output -->\n```\n2\n```\n", "expected"),
        ("<!-- run: figures -->\n```console\n$ echo 5 MB\n5 ms\n```\n", "expected"),
        ("<!-- run: sometimes -->\n```python\n```\n", "unknown directive"),
        ("<!-- run: skip -->\n```python\n```\n", "say why"),
        ("<!-- run: early -->\n```python\n```\n", "only files"),
        ("<!-- run: file ../out.py -->\n```python\n```\n", "elsewhere"),
    ],
)
def test_runner_fails_where_the_page_is_wrong(text: str, message: str, tmp_path: Path) -> None:
    # GIVEN a document that shows what does not happen
    with pytest.raises(AssertionError, match=message):
        run_sample(text, tmp_path)
