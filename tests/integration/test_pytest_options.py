"""The pytest plugin does not change how pytest ends: each of its options, in an empty folder."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import preloaded

# Its import takes most of the time of a short test run.
WITHOUT_HYPOTHESIS = ["-p", "no:hypothesispytest"]
WITHOUT_OTHERS = ["-p", "no:xdist", "-p", "no:xdist.looponfail", "-p", "no:pytest_cov"]
PARTS = 8
"""The number of tests that share the options."""
OPTION = re.compile(r"(?P<name>--?[\w-]+)(?:[ =](?P<value>\S+))?")
VALUES = {
    "modulename:classname": "bdb:Bdb",
    "method": "sys",
    "style": "short",
    "color": "no",
    "mode": "failed",
    "PYTHONWARNINGS": "error",
    "ROOTDIR": ".",
    "name": "no:doctest",
    "OVERRIDE_INI": "cache_dir=cache",
    "MODE": "plain",
    "LEVEL": "DEBUG",
    "LOG_CLI_LEVEL": "DEBUG",
    "LOG_FILE_LEVEL": "DEBUG",
    "distmode": "load",
    "xspec": "popen",
    "TYPE": "term",
    "PERCENT": "5%",
}
"""A value for each kind of value that cannot be 1."""
NEVER_ENDS = "--looponfail"


def run_pytest(folder: Path, *arguments: str) -> tuple[int, str]:
    """Run pytest with all plugins in a new, empty folder; return its status and its output."""
    folder.mkdir()
    done = subprocess.run(
        [*preloaded.python("pytest", "numpy"), "-m", "pytest", *WITHOUT_HYPOTHESIS, *arguments],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    return done.returncode, done.stdout


def problem(folder: Path, *arguments: str) -> str | None:
    """Return what differs from a run without the plugin, or None.

    In an empty folder, pytest ends with 0, or 5 as it collects no tests. It can end otherwise, such
    as for a value that does not suit an option, if it also does so without the plugin.
    """
    status, output = run_pytest(folder, *arguments)
    if 'pytest_plugin.py", line' not in output:
        if status in (0, 5):
            return None
        other = "no:stagespan"
        if (
            run_pytest(folder.with_name(f"{folder.name}-other"), *arguments, "-p", other)[0]
            == status
        ):
            return None
    return f"pytest {' '.join(arguments)} ends with {status}:\n{output[-2000:]}"


def options(folder: Path) -> Iterator[list[str]]:
    """Yield each option that `pytest --help` lists, with a value if it needs one."""
    _, text = run_pytest(folder, "--help")
    for line in text.splitlines():
        if line.startswith("  -"):
            spellings = re.split(r"\s{2,}", line.strip())[0].split(", ")
            match = OPTION.fullmatch(spellings[-1])
            assert match, line
            name, value = match["name"], match["value"]
            if name == NEVER_ENDS:
                continue
            if value is None or value.startswith("["):
                yield [name]
            else:
                choices = value.strip("{}").split(",")
                yield [name, choices[0] if len(choices) > 1 else VALUES.get(value, "1")]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["-h", "--cov", "-n1", "--stage-repeats=2"],
        ["--help", *WITHOUT_OTHERS, "--stage-baseline=baseline.json"],
        ["--help", "--version", "--disable-plugin-autoload", "-p", "stagespan.pytest_plugin"],
        ["-VV"],
        ["--markers"],
        ["--cov", "-n1"],
    ],
    ids=" ".join,
)
def test_pytest_ends_as_without_the_plugin(arguments: list[str], tmp_path: Path) -> None:
    assert problem(tmp_path / "empty", *arguments) is None


@pytest.mark.full
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize(
    "others",
    [[], ["--help"], WITHOUT_OTHERS, ["--cov"]],
    ids=lambda others: " ".join(others) or "alone",
)
def test_pytest_ends_with_each_option_as_without_the_plugin(
    others: list[str], part: int, tmp_path: Path
) -> None:
    listed = list(options(tmp_path / "help"))
    own = {name for name, *_ in listed if name.startswith("--stage-")}
    assert len(listed) > 80
    assert {"--stage-baseline", "--stage-repeats"} <= own
    is_refused = {"--stage-baseline-write", "--stage-baseline-replace"}  # without --stage-baseline
    problems = [
        problem(tmp_path / str(i), *option, *others)
        for i, option in enumerate(listed[part::PARTS])
        if option[0] not in is_refused
    ]
    assert [text for text in problems if text is not None] == []


@pytest.mark.full
@pytest.mark.parametrize("part", range(PARTS))
def test_pytest_ends_without_each_of_its_plugins_as_without_this_one(
    part: int, tmp_path: Path
) -> None:
    _, output = run_pytest(tmp_path / "names", "--collect-only", "--trace-config")
    listed = output.partition("active plugins:\n")[2]
    names = re.findall(r"^    ([A-Za-z][\w.-]*) *:", listed, re.MULTILINE)
    assert {"terminal", "xdist", "stagespan-session"} <= set(names)
    problems = [
        problem(tmp_path / f"{name}-{len(others)}", *others, "-p", f"no:{name}")
        for name in names[part::PARTS]
        if name != "stagespan"
        for others in ([], ["--help"])
    ]
    assert [text for text in problems if text is not None] == []
