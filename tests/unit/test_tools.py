"""The scripts behind the Makefile: what they repair, and what they hash."""

from __future__ import annotations

import datetime
import importlib
import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from running import ran

TOOLS = Path(__file__).parents[2] / "tools"


def load(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(TOOLS))
    return importlib.import_module(name)


def fake_venv(folder: Path, answer: str, status: int = 0) -> Path:
    """Create a folder whose interpreter gives the same answer to every question."""
    python = folder / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\necho '{answer}'\nexit {status}\n")
    python.chmod(0o755)
    return python


@pytest.mark.parametrize(
    ("answer", "status", "problem"),
    [
        ("", 1, "does not run"),
        ("3.1.4 {venv}", 0, "made with Python 3.1.4"),
        ("{own} /somewhere/else", 0, "moved here"),
        ("{own} {venv}", 0, None),
    ],
)
def test_venv_problems_are_named(
    answer: str, status: int, problem: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bootstrap = load("bootstrap", monkeypatch)
    venv = tmp_path / "venv"
    said = answer.format(own=platform.python_version(), venv=venv)
    monkeypatch.setattr(bootstrap, "VENV", venv)
    monkeypatch.setattr(bootstrap, "PYTHON", fake_venv(venv, said, status))

    found = bootstrap.venv_problem()

    assert (found is None) if problem is None else (problem in found)


@pytest.mark.slow
@pytest.mark.full
def test_incomplete_venv_is_created_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bootstrap = load("bootstrap", monkeypatch)
    venv = tmp_path / "venv"
    (venv / "lib").mkdir(parents=True)
    (venv / "lib" / "left").write_text("over")
    monkeypatch.setattr(bootstrap, "VENV", venv)
    monkeypatch.setattr(bootstrap, "PYTHON", venv / "bin" / "python")

    bootstrap.make_venv()

    # THEN it works, and nothing of the old one is left
    assert bootstrap.venv_problem() is None
    assert not (venv / "lib" / "left").exists()


def test_a_finished_step_counts_for_its_content_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bootstrap = load("bootstrap", monkeypatch)
    monkeypatch.setattr(bootstrap, "VENV", tmp_path)
    (tmp_path / "package.done").write_text("abc")

    assert bootstrap.is_done("package", "abc")
    assert not bootstrap.is_done("package", "abd")
    assert not bootstrap.is_done("requirements", "abc")


def test_fingerprint_follows_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a folder with a source and a compiled file
    common = load("common", monkeypatch)
    monkeypatch.setattr(common, "ROOT", tmp_path)
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.cpp").write_text("1")
    first = common.fingerprint(["src", "missing.md"])

    # WHEN a compiled file is added, a source changes, and a source is renamed
    (tmp_path / "src" / "a.so").write_text("built")
    with_compiled = common.fingerprint(["src", "missing.md"])
    (tmp_path / "src" / "a.cpp").write_text("2")
    changed = common.fingerprint(["src", "missing.md"])
    (tmp_path / "src" / "a.cpp").rename(tmp_path / "src" / "b.cpp")
    renamed = common.fingerprint(["src", "missing.md"])

    # THEN only the sources count, by name and content
    assert first == with_compiled
    assert len({first, changed, renamed}) == 3


def test_find_python_says_what_is_wrong_with_a_choice() -> None:
    environment = {**os.environ, "PYTHON": "/no/such/python"}

    done = ran([str(TOOLS / "find_python.sh")], env=environment)

    # THEN it is named in the error, and no other one is chosen
    assert done.returncode != 0
    assert done.stdout == ""
    assert "/no/such/python" in done.stderr


def test_find_python_returns_the_given_one() -> None:
    environment = {**os.environ, "PYTHON": sys.executable}

    done = ran([str(TOOLS / "find_python.sh")], env=environment)

    assert done.stdout.strip() == sys.executable


def test_everything_but_torch_is_installed_without_a_version_of_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a machine without a version of torch: pip fails on every file that contains it
    bootstrap = load("bootstrap", monkeypatch)
    installed: list[str] = []

    def pip_install(*arguments: Any) -> None:
        installed.append(Path(arguments[-1]).read_text())
        if "torch==" in installed[-1]:
            raise bootstrap.StepError("ERROR: No matching distribution")

    monkeypatch.setattr(bootstrap, "pip_install", pip_install)
    monkeypatch.setattr(bootstrap, "PYTHON", Path("/bin/true"))
    monkeypatch.setattr(bootstrap, "STATE", tmp_path)
    monkeypatch.setattr(bootstrap, "VENV", tmp_path)
    monkeypatch.setattr(bootstrap, "WITHOUT_TORCH", tmp_path / "without_torch")

    bootstrap.install_requirements()

    # THEN all others are installed, and pip's own message about the missing one is kept
    assert "ruff==" in installed[-1]
    assert not any(name in installed[-1] for name in ("torch==", "diffusers==", "transformers=="))
    assert "No matching distribution" in (tmp_path / "without_torch").read_text()


@pytest.mark.parametrize(
    ("programs", "named"),
    [
        (("gcc", "g++"), {}),
        (("clang", "clang++"), {"CC": "clang", "CXX": "clang++"}),
        (("gcc", "clang++"), {"CXX": "clang++"}),
    ],
)
def test_the_build_gets_the_compilers_that_are_there(
    programs: tuple[str, ...],
    named: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bootstrap = load("bootstrap", monkeypatch)
    built_with = {"CC": "gcc -pthread", "CXX": "g++ -pthread"}
    monkeypatch.setattr(bootstrap.sysconfig, "get_config_var", built_with.get)
    for program in programs:
        (tmp_path / program).touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.delenv("CXX", raising=False)

    # THEN the build is told where it would look for one that is missing
    assert bootstrap.compilers() == named
    monkeypatch.setenv("CXX", programs[1])
    assert bootstrap.compilers() == {key: name for key, name in named.items() if key == "CC"}
    monkeypatch.setenv("CXX", "g++-99")
    with pytest.raises(bootstrap.StepError, match=r"CXX=g\+\+-99 is not a program here"):
        bootstrap.compilers()


def test_an_index_that_cannot_be_reached_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # GIVEN an index at an address where nothing listens
    bootstrap = load("bootstrap", monkeypatch)
    monkeypatch.setattr(bootstrap, "PYTHON", Path(sys.executable))
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")

    elsewhere = ("--target", str(tmp_path))
    with pytest.raises(bootstrap.StepError) as raised:
        bootstrap.pip_install(*elsewhere, "--no-deps", "stagespan-has-no-such-dependency")

    assert str(raised.value).startswith("The package index cannot be reached")
    assert "\n" not in str(raised.value)


OTHER_CITATION = "version: 1.2.2\nrepository-code: https://example.org/a\n"


def project(folder: Path, **changed: str) -> Path:
    """Write the files of a project that is ready for its release, but for those that are given."""
    files = {
        "python/stagespan/__init__.py": '__version__ = "1.2.3"\n',
        "CHANGELOG.md": "# Changelog\n\n## 1.2.3 (2026-01-31)\n",
        "CITATION.cff": "version: 1.2.3\nrepository-code: https://example.org/a\n",
        "mkdocs.yml": "repo_url: https://example.org/a\n",
        "conda/recipe.yaml": '  version: "1.2.3"\n',
        "pyproject.toml": '[project.urls]\nSource = "https://example.org"\n',
        "README.md": "[a](https://example.org/a.md) [b](#use)\n",
    }
    for name, text in (files | changed).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    git(folder, "init", "--quiet")
    commit(folder)
    return folder


def git(folder: Path, *arguments: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    ran(["git", *who, *arguments], cwd=folder, status=0)


def commit(folder: Path) -> None:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--allow-empty", "--no-verify", "--message", "a")


@pytest.mark.parametrize(
    ("tag", "changed", "problem"),
    [
        ("v1.2.3", {}, None),
        ("v1.2.4", {}, "the tag is v1.2.4, but the version"),
        ("1.2.3", {}, "the tag is 1.2.3, but the version"),
        ("v1.2.3rc1", {}, "the tag is v1.2.3rc1, but the version"),
        ("v1.2.3", {"CHANGELOG.md": "## Unreleased\n"}, "CHANGELOG.md begins with 'Unreleased'"),
        ("v1.2.3", {"CHANGELOG.md": "## 1.2.3 (2026-01-31)\n" + "- a\n" * 70}, "has 71 lines"),
        ("v1.2.3", {"CHANGELOG.md": "## 1.2.2 (2026-01-31)\n"}, "CHANGELOG.md begins with '1.2.2"),
        ("v1.2.3", {"CHANGELOG.md": "## 1.2.3 (2999-01-01)\n"}, "is in the future"),
        ("v1.2.3", {"CHANGELOG.md": "## 1.2.3 (2026-02-30)\n"}, "does not exist: 2026-02-30"),
        ("v1.2.3", {"CITATION.cff": OTHER_CITATION}, "CITATION.cff names another version"),
        ("v1.2.3", {"conda/recipe.yaml": "version: 1\n"}, "recipe.yaml names another version"),
        ("v1.2.3", {"pyproject.toml": "# [project.urls]\n"}, "pyproject.toml does not have the"),
        ("v1.2.3", {"pyproject.toml": '[project.urls]\n"A b" = "https://example.org"\n'}, None),
        ("v1.2.3", {"pyproject.toml": "[project.urls]\nA = 'https://example.org'\n"}, None),
        ("v1.2.3", {"mkdocs.yml": 'repo_url: "https://example.org/a"\n'}, None),
        ("v1.2.3", {"pyproject.toml": "[project.urls]\n"}, "pyproject.toml does not have the"),
        ("v1.2.3", {"mkdocs.yml": "site_name: a\n"}, "mkdocs.yml does not have the address"),
        ("v1.2.3", {"CITATION.cff": "version: 1.2.3\n"}, "CITATION.cff does not have the address"),
        ("v1.2.3", {"README.md": "![a](docs/a.png)\n"}, "README.md links to docs/a.png"),
        ("v1.2.3", {"README.md": '<img src="docs/a.png">\n'}, "README.md links to docs/a.png"),
        ("v1.2.3", {"README.md": "[a]\n\n[a]: docs/a.md\n"}, "README.md links to docs/a.md"),
    ],
)
def test_what_is_not_ready_is_not_released(
    tag: str,
    changed: dict[str, str],
    problem: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    release = load("release", monkeypatch)
    monkeypatch.setattr(release, "ROOT", project(tmp_path, **changed))
    problems = release.problems_of(tag)
    assert len(problems) == (problem is not None)
    assert all(problem in one for one in problems)


def test_a_tag_is_for_one_complete_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = load("release", monkeypatch)
    folder = project(tmp_path)
    monkeypatch.setattr(release, "ROOT", folder)
    git(folder, "tag", "--annotate", "v1.2.3", "--message", "a")
    assert release.problems_of("v1.2.3") == []

    (folder / "README.md").write_text("changed\n")
    (problem,) = release.problems_of("v1.2.3")
    assert problem == "not committed: README.md"

    commit(folder)
    (problem,) = release.problems_of("v1.2.3")
    assert "the tag v1.2.3 exists at another commit" in problem


@pytest.mark.parametrize("hours", [14, -12])
def test_the_date_of_a_release_is_that_of_utc(hours: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a maintainer in another time zone than the machine that publishes
    monkeypatch.setenv("TZ", f"X{-hours:+d}")
    time.tzset()
    try:
        release = load("release", monkeypatch)
        today = datetime.datetime.now(datetime.timezone.utc).date()
        tomorrow = today + datetime.timedelta(days=1)
        assert release.date_problem(str(today)) is None
        assert "is in the future" in str(release.date_problem(str(tomorrow)))
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_package_above_its_size_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN folders in each other, with rows for two of them and for a file
    sizes = load("sizes", monkeypatch)
    monkeypatch.setattr(sizes, "ROOT", tmp_path)
    (tmp_path / "a" / "inner" / "deep").mkdir(parents=True)
    (tmp_path / "a" / "one.py").write_text("1\n2\n")
    (tmp_path / "a" / "text.txt").write_text("1\n2\n3\n")
    (tmp_path / "a" / "inner" / "deep" / "two.cpp").write_text("1\n2\n3\n")
    (tmp_path / "Makefile").write_text("1\n")
    table = tmp_path / "sizes.toml"

    # THEN the lines of sources count for the innermost row, and each row above its number is named
    table.write_text('# the most\n"a" = 2\n"a/inner" = 3\n"Makefile" = 1\n')
    assert sizes.problems() == []
    table.write_text('"a" = 1\n"a/inner" = 3\n"Makefile" = 0\n')
    makefile, folder = sizes.problems()
    assert makefile.startswith("Makefile has 1 lines, but sizes.toml allows 0: ")
    assert folder.startswith("a has 2 lines, but sizes.toml allows 1: ")


def test_all_files_name_the_version_of_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    problems = load("release", monkeypatch).problems_of("v0.0.0")
    assert not [problem for problem in problems if "names another version" in problem]


def test_the_conda_recipe_has_the_requirements_of_the_package() -> None:
    yaml = pytest.importorskip("yaml")
    tomllib = pytest.importorskip("tomllib")
    root = TOOLS.parent
    recipe = yaml.safe_load((root / "conda" / "recipe.yaml").read_text())
    project = tomllib.loads((root / "pyproject.toml").read_text())

    def without_blanks(requirements: list[str]) -> set[str]:
        return {one.replace(" ", "") for one in requirements if "python_version" not in one}

    run, host = (without_blanks(recipe["requirements"][part]) for part in ("run", "host"))
    python = f"python{project['project']['requires-python']}"
    assert run == {python, *without_blanks(project["project"]["dependencies"])}
    assert host == {python, "pip", *without_blanks(project["build-system"]["requires"])}
    scripts = [f"{name} = {entry}" for name, entry in project["project"]["scripts"].items()]
    assert recipe["build"]["python"]["entry_points"] == scripts
    assert all((root / name).is_file() for name in recipe["about"]["license_file"])


def test_the_dev_container_has_an_image_and_a_command_that_exists() -> None:
    root = TOOLS.parent
    found = json.loads((root / ".devcontainer" / "devcontainer.json").read_text())
    assert (root / ".devcontainer" / found["build"]["dockerfile"]).is_file()
    program, *targets = found["postCreateCommand"].split()
    assert program == "make"
    assert targets
    ran(["make", "--dry-run", *targets], cwd=root, status=0)
