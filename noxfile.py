"""The checks of the project, as `make test` runs them: `nox -l` lists them.

Sessions run in `.venv`, which `make setup` builds; only those for other Pythons have environments
of their own. A check that this machine cannot run is skipped with its reason.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import nox

ROOT = Path(__file__).parent
sys.path.insert(0, str(ROOT / "tools"))

from bootstrap import read_stamp  # noqa: E402
from common import (  # noqa: E402
    PACKAGE_SOURCES,
    STATE,
    apt_install,
    compiles,
    fingerprint,
    in_ci,
    python_versions,
)

nox.options.default_venv_backend = "none"
nox.options.reuse_venv = "yes"
nox.options.download_python = "never"
nox.options.error_on_missing_interpreters = False
nox.options.stop_on_first_error = False

# pyenv's shims fail for versions that are not activated; its interpreters work.
os.environ["PATH"] = os.pathsep.join(
    [str(ROOT / ".venv/bin"), *python_versions(), os.environ.get("PATH", os.defpath)]
)
# Compiled and rewritten by pytest once, not by each worker of each run.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
for _variable in ("PYTHONPATH", "VIRTUAL_ENV"):
    os.environ.pop(_variable, None)  # tests see the installed package only

OTHER_PYTHONS = ("3.12", "3.13")
OLD_PIP = "22.0.2"
PYTEST_LIMIT = "45m"  # pyproject.toml limits each test; this ends a pytest that hangs outside one
WHEELS = STATE / "wheels"
SANITIZERS = {"plain": "", "asan": "address,undefined", "tsan": "thread"}
SANITIZER_OPTIONS = {
    "ASAN_OPTIONS": "detect_stack_use_after_return=1:strict_string_checks=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "second_deadlock_stack=1:halt_on_error=1",
}
# The other Pythons run the tests of everything that depends on the interpreter's version: the
# extension, contexts and decorators, threads, tasks, forks, signals, the end of a process,
# recordings, signatures and the command line. The following tests do not depend on it and run only
# in .venv, like all tests with the marker `slow`.
ONE_PYTHON_IS_ENOUGH = (
    "fuzz",
    "gpu",
    "integration/test_pytest_plugin.py",
    "integration/test_recordings_of_ranks.py",
    "integration/test_wrong_clock.py",
    "npu_standin",
    "unit/harness",
    "unit/profiling",
    "unit/report",
    "unit/test_docs_links.py",
    "unit/test_docs_production.py",
    "unit/test_docs_reference.py",
    "unit/test_docs_settings.py",
    "unit/test_import_directions.py",
    "unit/trace/analyses",
    "unit/trace/ascend",
    "unit/trace/compare",
    "unit/trace/derived",
    "unit/trace/ncu",
    "unit/trace/ranks",
    "unit/trace/read",
    "unit/trace/render",
)


def run_pytest(session: nox.Session, name: str, python: str, *arguments: str) -> None:
    """Run pytest with an interpreter; tools/check.py prints what it reports."""
    folder = STATE / "pytest"
    folder.mkdir(parents=True, exist_ok=True)
    session.run(
        *("timeout", "--kill-after=60", PYTEST_LIMIT),
        *(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--dist", "worksteal"),
        *(*arguments, *session.posargs),
        # The workers use all cores, so more threads in torch would only wait for each other.
        env={"STAGESPAN_TEST_REPORT": str(folder / f"{name}.json"), "OMP_NUM_THREADS": "1"},
        external=True,
    )


def compile_package(session: nox.Session, python: str) -> None:
    """Compile the modules in the source folder, because the programs of tests write no bytecode."""
    session.run(python, "-m", "compileall", "-q", "python/stagespan", external=True)


@nox.session
def lint(session: nox.Session) -> None:
    """Format, style and types: the hooks of .pre-commit-config.yaml on all files."""
    if not (ROOT / ".git").exists():
        session.skip("not a git checkout; pre-commit needs one")
    session.run("pre-commit", "run", "--all-files", "--color", "never", silent=True)


@nox.session
@nox.parametrize("variant", list(SANITIZERS))
def cpp(session: nox.Session, variant: str) -> None:
    """The C++ tests: plain, under ASan with UBSan, under TSan."""
    gtest = "#include <gtest/gtest.h>\nTEST(A, B) {}\n"
    links = ("-lgtest_main", "-lgtest", "-pthread")
    if not compiles(gtest, *links):
        reason = apt_install("libgtest-dev")
        if not compiles(gtest, *links):
            session.skip(f"GoogleTest (libgtest-dev) is not installed: {reason}")
    prefix: tuple[str, ...] = ()
    if sanitize := SANITIZERS[variant]:
        # Older ThreadSanitizers fail if the kernel randomises addresses widely.
        wrappers = ((), ("setarch", os.uname().machine, "-R"))
        threads = "#include <thread>\nint main() { std::thread([] {}).join(); }\n"
        flags = (f"-fsanitize={sanitize}", "-pthread")
        found = next((w for w in wrappers if compiles(threads, *flags, then_run=w)), None)
        if found is None:
            session.skip(f"programs built with -fsanitize={sanitize} do not run on this machine")
        prefix = found
    build = str(ROOT / "build" / f"cpp-{variant}")
    session.run(
        *("cmake", "-G", "Ninja", "-S", str(ROOT), "-B", build, "-DCMAKE_BUILD_TYPE=Release"),
        *("-DSTAGESPAN_BUILD_PYTHON=OFF", "-DSTAGESPAN_BUILD_TESTS=ON", "-DSTAGESPAN_LTO=OFF"),
        f"-DSTAGESPAN_SANITIZE={sanitize}",
        f"-DSTAGESPAN_WERROR={'ON' if in_ci() else 'OFF'}",
        silent=True,
    )
    session.run("cmake", "--build", build, "-j", "2", silent=True)
    session.run(
        *(*prefix, "ctest", "--test-dir", build, "--output-on-failure", "-j", "2"),
        *("--timeout", "600", "--no-tests=error"),
        env=SANITIZER_OPTIONS,
        external=True,
        silent=True,
    )


@nox.session
def demo(session: nox.Session) -> None:
    """The demo, as `make demo` runs it."""
    if reason := read_stamp().get("without_torch"):
        session.skip(str(reason))
    output = str(STATE / "demo")
    session.run("python", "examples/wan_pipeline/demo.py", "--output", output, silent=True)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation as a site; warnings, such as dead links, are errors."""
    session.run("python", "-m", "mkdocs", "build", "--quiet", "--strict")


@nox.session(name="old-pip")
def old_pip(session: nox.Session) -> None:
    """`make setup` on Python 3.10 with an old pip and without torch, then the tests."""
    interpreter = shutil.which("python3.10")
    if interpreter is None:
        session.skip("no python3.10 on PATH or under pyenv")
    clone = STATE / "old-pip"
    python = clone / ".venv/bin/python"
    files = session.run("git", "ls-files", "-co", "--exclude-standard", silent=True, external=True)
    if not isinstance(files, str):
        session.skip("not a git checkout")
    kept = {clone / name for name in files.splitlines()}
    for stale in clone.rglob("*"):
        outside = {".venv", ".make", "build", "__pycache__"}.isdisjoint(
            stale.relative_to(clone).parts
        )
        if outside and stale.is_file() and stale not in kept:
            stale.unlink()
    for name in files.splitlines():
        if (source := ROOT / name).is_file():
            target = clone / name
            if not target.is_file() or target.read_bytes() != source.read_bytes():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)
    if not python.exists():
        session.run(interpreter, "-m", "venv", str(clone / ".venv"), external=True)
        session.run(str(python), "-m", "pip", "install", "-q", f"pip=={OLD_PIP}")
    session.run(interpreter, str(clone / "tools/bootstrap.py"), "--without-torch", external=True)
    with session.chdir(clone):
        compile_package(session, str(python))
        _torch_free_tests(session, "3.10", str(python))


@nox.session(venv_backend="venv", python=list(OTHER_PYTHONS))
def python(session: nox.Session) -> None:
    """The tests that need no torch, against a wheel, on another Python."""
    folder = WHEELS / str(session.python)
    stamp = folder / "sources"
    wanted = fingerprint((*PACKAGE_SOURCES, "requirements-test.txt"), session.bin)
    if not stamp.is_file() or stamp.read_text() != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        session.install("-q", "-r", "requirements-test.txt")
        # Isolated, as `pip install stagespan` builds it for a user.
        session.run("pip", "wheel", "-q", "--no-deps", "-w", str(folder), ".", silent=True)
        (wheel,) = folder.glob("*.whl")
        session.install("-q", str(wheel))
        session.install("-q", "--force-reinstall", "--no-deps", str(wheel))
        stamp.write_text(wanted)
    (wheel,) = folder.glob("*.whl")
    session.env["STAGESPAN_TEST_WHEEL"] = str(wheel)
    _torch_free_tests(session, str(session.python), "python", "not slow or wheel")


def _torch_free_tests(
    session: nox.Session, version: str, python: str, chosen: str = "not slow"
) -> None:
    # Three workers on two cores, because these tests wait for other processes half of the time.
    ignored = [f"--ignore=tests/{folder}" for folder in ONE_PYTHON_IS_ENOUGH]
    run_pytest(session, f"python-{version}", python, "-m", chosen, "-n", "3", *ignored)


@nox.session
def tests(session: nox.Session) -> None:
    """The Python tests in `.venv`, with torch."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    if not any(shutil.which(name) for name in names):
        apt_install("chromium")  # without a browser, the tests of the HTML page are skipped
    # The sessions of other Pythons check the wheel that they build.
    other_pythons = any(shutil.which(f"python{version}") for version in OTHER_PYTHONS)
    chosen = ("-m", "not wheel") if other_pythons else ()
    compile_package(session, "python")
    run_pytest(session, "python-own", "python", "-n", "3", *chosen)
