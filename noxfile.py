"""The checks of the project: `nox -l` lists them, `make test` and `make test-all` run them.

Sessions run in `.venv`, which `make setup` builds; only those for other Pythons have environments
of their own. A check that this machine cannot run is skipped with its reason.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from fnmatch import fnmatch
from pathlib import Path

import nox

ROOT = Path(__file__).parent
sys.path.insert(0, str(ROOT / "tools"))

from common import STATE, VENV, apt_install, in_ci  # noqa: E402

nox.options.default_venv_backend = "none"
nox.options.reuse_venv = "yes"
nox.options.download_python = "never"
nox.options.error_on_missing_interpreters = False
nox.options.stop_on_first_error = False
nox.options.allow_parallel = True

# pyenv's shims fail for versions that are not activated; its interpreters work.
_PYENV = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
os.environ["PATH"] = os.pathsep.join(
    [
        str(VENV / "bin"),
        *(str(path) for path in sorted(_PYENV.glob("versions/3.*/bin"), reverse=True)),
        os.environ.get("PATH", os.defpath),
    ]
)
# Compiled and rewritten by pytest once, not by each worker of each run.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
for _variable in ("PYTHONPATH", "VIRTUAL_ENV"):
    os.environ.pop(_variable, None)  # tests see the installed package only

OTHER_PYTHONS = ("3.12", "3.13", "3.14")
OLD_PIP = "22.0.2"
# pyproject.toml limits each test; this ends a pytest that hangs outside one.
PYTEST_LIMIT = os.environ.get("PYTEST_LIMIT", "60m")
SANITIZER_OPTIONS = {
    "ASAN_OPTIONS": "detect_stack_use_after_return=1:strict_string_checks=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "second_deadlock_stack=1:halt_on_error=1",
}
PROGRAMS = {
    "chromium": ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"),
    "prometheus": ("prometheus",),
}
# The other Pythons do not run tests with the marker `slow`, and those of analyses and pages.
ONE_PYTHON_IS_ENOUGH = (
    *("fuzz", "gpu", "npu_standin"),
    *("unit/harness", "unit/profiling", "unit/report", "unit/trace"),
)


def run_pytest(session: nox.Session, python: str, *arguments: str) -> None:
    """Run pytest with a Python."""
    # Here, because the programs that tests start write no bytecode.
    session.run(python, "-m", "compileall", "-q", "python/stagespan", external=True)
    session.run(
        *("timeout", "--kill-after=60", PYTEST_LIMIT),
        *(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--dist", "worksteal"),
        *("--durations", "60", "--durations-min", "5"),
        *(*arguments, *session.posargs),
        # The workers use all cores, so more threads in torch would only wait for each other.
        env={"OMP_NUM_THREADS": "1"},
        external=True,
    )


def compiles(
    source: str, *flags: str, compiler: str = "c++", then_run: Sequence[str] | None = None
) -> bool:
    """Whether a small C++ program builds with these flags and, if asked, runs under a prefix."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "probe"
        build = [compiler, "-std=c++20", "-x", "c++", "-", "-o", str(program), *flags]
        commands = [build] if then_run is None else [build, [*then_run, str(program)]]
        try:
            return all(
                subprocess.run(command, input=source, text=True, capture_output=True).returncode
                == 0
                for command in commands
            )
        except OSError:
            return False


def need(session: nox.Session, package: str, works: Callable[[], object]) -> None:
    """Install a package unless what it is for works, and skip the session where it does not."""
    reason = None if works() else apt_install(package)
    if not works():
        session.skip(f"{package} does not work on this machine: {reason}")


def install_missing(*packages: str) -> None:
    """Install packages. Without one, the tests that need it are skipped, or no picture is built."""
    for package in packages:
        if not any(map(shutil.which, PROGRAMS[package])):
            apt_install(package)


@nox.session
def lint(session: nox.Session) -> None:
    """Format, style and types: the hooks of .pre-commit-config.yaml on all files."""
    if not (ROOT / ".git").exists():
        session.skip("not a git checkout; pre-commit needs one")
    session.run("pre-commit", "run", "--all-files", "--color", "never", silent=True)


def build_cpp(session: nox.Session, name: str, *definitions: str) -> str:
    """Build the C++ targets that CMake's definitions ask for, and return the folder."""
    folder = str(ROOT / "build" / name)
    session.run(
        *("cmake", "-G", "Ninja", "-S", str(ROOT), "-B", folder, "-DSTAGESPAN_BUILD_PYTHON=OFF"),
        *definitions,
        silent=True,
    )
    session.run("cmake", "--build", folder, "-j", "2", silent=True)
    return folder


def run_cpp_tests(
    session: nox.Session, build: str, sanitize: str, *prefix: str, target: Sequence[str] = ()
) -> None:
    """Build the C++ tests with sanitizers, or for another target of CMake, and run them."""
    gtest = "#include <gtest/gtest.h>\nTEST(A, B) {}\n"
    links = ("-lgtest_main", "-lgtest", "-pthread")
    if not target:
        need(session, "libgtest-dev", lambda: compiles(gtest, *links))
    folder = build_cpp(
        *(session, build, "-DCMAKE_BUILD_TYPE=Release"),
        *("-DSTAGESPAN_BUILD_TESTS=ON", "-DSTAGESPAN_LTO=OFF"),
        f"-DSTAGESPAN_SANITIZE={sanitize}",
        # Off in the plain build, so that a file that lacks an include does not compile there.
        f"-DCMAKE_DISABLE_PRECOMPILE_HEADERS={'OFF' if sanitize or target else 'ON'}",
        f"-DSTAGESPAN_WERROR={'ON' if in_ci() else 'OFF'}",
        *target,
    )
    session.run(
        *(*prefix, "ctest", "--test-dir", folder, "--output-on-failure", "-j", "2"),
        *("--timeout", "600", "--no-tests=error"),
        env=SANITIZER_OPTIONS,
        external=True,
        silent=True,
    )


@nox.session
def cpp(session: nox.Session) -> None:
    """The C++ tests, plain and with ASan and UBSan."""
    run_cpp_tests(session, "cpp-plain", "")
    if not compiles("int main() {}\n", "-fsanitize=address,undefined", then_run=()):
        session.skip("programs built with ASan and UBSan do not run on this machine")
    run_cpp_tests(session, "cpp-asan", "address,undefined")


@nox.session(name="cpp-tsan", default=False)
def cpp_tsan(session: nox.Session) -> None:
    """The C++ tests with TSan."""
    # Older ThreadSanitizers fail if the kernel randomises addresses widely.
    threads = "#include <thread>\nint main() { std::thread([] {}).join(); }\n"
    for prefix in ((), ("setarch", os.uname().machine, "-R")):
        if compiles(threads, "-fsanitize=thread", "-pthread", then_run=prefix):
            run_cpp_tests(session, "cpp-tsan", "thread", *prefix)
            return
    session.skip("programs built with TSan do not run on this machine")


@nox.session(default=False)
def aarch64(session: nox.Session) -> None:
    """The C++ tests for aarch64 in qemu-user, and the smoke test of that wheel."""
    source = Path("/usr/src/googletest/googletest")
    need(session, "g++-aarch64-linux-gnu", lambda: shutil.which("aarch64-linux-gnu-g++"))
    need(session, "qemu-user", lambda: shutil.which("qemu-aarch64"))
    need(session, "googletest", source.is_dir)
    target = {
        "CMAKE_SYSTEM_NAME": "Linux",
        "CMAKE_SYSTEM_PROCESSOR": "aarch64",
        "CMAKE_C_COMPILER": "aarch64-linux-gnu-gcc",
        "CMAKE_CXX_COMPILER": "aarch64-linux-gnu-g++",
        "CMAKE_CROSSCOMPILING_EMULATOR": "qemu-aarch64;-L;/usr/aarch64-linux-gnu",
        "STAGESPAN_GTEST_SOURCE": str(source),
    }
    definitions = [f"-D{name}={value}" for name, value in target.items()]
    run_cpp_tests(session, "cpp-aarch64", "", target=definitions)
    chosen = ("--machine", "aarch64", "--version", "3.11", "--output", str(STATE / "aarch64"))
    session.run("python", "tools/wheels.py", *chosen)


@nox.session(name="cpp-fuzz", default=False)
def cpp_fuzz(session: nox.Session) -> None:
    """libFuzzer on the readers of recordings and carriers, for a minute each."""
    target = 'extern "C" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }'
    flags = "-fsanitize=fuzzer,address,undefined"
    need(session, "clang", lambda: shutil.which("clang++"))
    need(session, "libclang-rt-dev", lambda: compiles(target, flags, compiler="clang++"))
    fuzzers = ("-DSTAGESPAN_BUILD_FUZZERS=ON", "-DSTAGESPAN_SANITIZE=address,undefined")
    folder = build_cpp(session, "cpp-fuzz", "-DCMAKE_CXX_COMPILER=clang++", *fuzzers)
    for target in ("fuzz_recording", "fuzz_carrier"):
        program = f"{folder}/tests/fuzz/{target}"
        session.run(program, "-max_total_time=60", "-len_control=0", external=True, silent=True)


@nox.session
def demo(session: nox.Session) -> None:
    """The demo, as `make demo` runs it."""
    without_torch = VENV / "without_torch"
    if without_torch.is_file():
        session.skip(without_torch.read_text())
    output = str(STATE / "demo")
    session.run("python", "examples/wan_pipeline/demo.py", "--output", output, silent=True)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the pictures that are old, then the site; warnings, such as dead links, are errors."""
    install_missing("chromium")
    session.run("python", "tools/pictures.py", silent=True)
    session.run("python", "-m", "mkdocs", "build", "--quiet", "--strict")


def copy_sources(session: nox.Session, clone: Path) -> None:
    """Copy the working tree, with what is not committed yet."""
    shutil.rmtree(clone, ignore_errors=True)
    files = session.run("git", "ls-files", "-co", "--exclude-standard", silent=True, external=True)
    for name in str(files).splitlines():
        if (ROOT / name).is_file():
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, clone / name)


@nox.session(name="fresh-machine", default=False)
def fresh_machine(session: nox.Session) -> None:
    """`make setup` in a fresh clone on Python 3.10 with an old pip and without torch; tests."""
    interpreter = shutil.which("python3.10")
    if interpreter is None:
        session.skip("no python3.10 on PATH or under pyenv")
    clone = STATE / "fresh machine"  # the blank in the path belongs to the check
    copy_sources(session, clone)
    python = str(clone / ".venv/bin/python")
    session.run(interpreter, "-m", "venv", str(clone / ".venv"), external=True)
    session.run(python, "-m", "pip", "install", "-q", f"pip=={OLD_PIP}", external=True)
    session.run(interpreter, str(clone / "tools/bootstrap.py"), "--without-torch", external=True)
    with session.chdir(clone):
        torch_free_tests(session, python, chosen="not slow")


@nox.session(name="plain-user", default=False)
def plain_user(session: nox.Session) -> None:
    """Debian's Python, a user without rights, blanks and umlauts in paths, clang only, offline."""
    python = "/usr/bin/python3"
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        session.skip("only root can act as another user")
    if not Path(python).exists() or not shutil.which("clang++"):
        session.skip("needs the distribution's python3 and clang")
    # Not in the clone, which other users may not be able to read.
    with tempfile.TemporaryDirectory(prefix="stagespan für é ") as home:
        clone = Path(home, "clone")
        copy_sources(session, clone)
        for compiler, others in (
            ("g++", ("clang*",)),
            ("clang++", ("gcc*", "*-gcc*", "g++*", "*-g++*", "cc", "c++")),
        ):
            # What is on PATH; apt-get is not, as if this user had no right to it.
            missing = ("apt*", "sudo", "cmake", "ninja", *others)
            programs = Path(home, compiler)
            programs.mkdir()
            for program in Path("/usr/bin").iterdir():
                if not any(fnmatch(program.name, pattern) for pattern in missing):
                    (programs / program.name).symlink_to(program)
        session.run("chown", "-hR", "nobody", home, external=True)

        def run(compiler: str, *command: str, network: bool = True) -> None:
            offline = () if network else ("/usr/bin/unshare", "--net")
            user = ("/usr/bin/setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups")
            session.run(
                *(*offline, *user, *command),
                env={
                    "PATH": f"{home}/{compiler}",
                    "HOME": home,
                    "TMPDIR": home,
                    "LC_ALL": "C.UTF-8",
                },
                external=True,
            )

        with session.chdir(clone):
            run("g++", python, "-m", "venv", "../venv")
            run("g++", "../venv/bin/python", "-m", "pip", "install", "-q", ".")
            run("g++", "../venv/bin/python", "tools/smoke.py")
            run("clang++", python, "tools/bootstrap.py", "--without-torch")
            for command in (("tools/bootstrap.py", "--without-torch"), ("tools/smoke.py",)):
                run("clang++", ".venv/bin/python", *command, network=False)


@nox.session(venv_backend="venv", python=list(OTHER_PYTHONS), default=False)
def python(session: nox.Session) -> None:
    """The tests that need no torch, against a wheel built by pip, on another Python."""
    folder = STATE / "wheels" / str(session.python)
    shutil.rmtree(folder, ignore_errors=True)
    built = ("-q", "--no-deps", "-w", str(folder), ".")
    session.run("python", "-m", "pip", "wheel", *built, silent=True)
    (wheel,) = map(str, folder.glob("*.whl"))
    test_wheel(session, wheel)


@nox.session(venv_backend="venv", python=["3.10", "3.11", *OTHER_PYTHONS], default=False)
def wheels(session: nox.Session) -> None:
    """The same against the wheel in dist/, where `make wheels` puts what is published."""
    tag = f"cp{str(session.python).replace('.', '')}"
    found = sorted((ROOT / "dist").glob(f"*-{tag}-{tag}-manylinux*_{os.uname().machine}.whl"))
    if not found:
        session.skip(f"no wheel for Python {session.python} in dist/: `make wheels` builds it")
    test_wheel(session, str(found[-1]))


def test_wheel(session: nox.Session, wheel: str) -> None:
    """Install a wheel in the environment of the session, and run the tests against it."""
    install = ("python", "-m", "pip", "install", "-q")
    session.run(*install, "-r", "requirements-test.txt")
    session.run(*install, wheel)  # also what it depends on
    session.run(*install, "--force-reinstall", "--no-deps", wheel)
    session.env["STAGESPAN_TEST_WHEEL"] = wheel
    torch_free_tests(session, "python", chosen="not slow or wheel")


def torch_free_tests(session: nox.Session, python: str, *, chosen: str) -> None:
    """Run the tests that depend on the version of Python."""
    # Three workers on two cores, because these tests wait for other processes half of the time.
    ignored = [f"--ignore=tests/{folder}" for folder in ONE_PYTHON_IS_ENOUGH]
    run_pytest(session, python, "-m", chosen, "-n", "3", *ignored)


def run_own_tests(session: nox.Session, chosen: str) -> None:
    """Run the Python tests in `.venv`, with torch."""
    install_missing(*PROGRAMS)
    run_pytest(session, "python", "-n", "3", "-m", chosen)


@nox.session
def tests(session: nox.Session) -> None:
    """The Python tests of every change, with the same examples in each run."""
    run_own_tests(session, "not full and not wheel")


@nox.session(name="tests-all", default=False)
def tests_all(session: nox.Session) -> None:
    """All Python tests: also stress, long properties and gates, with fresh examples."""
    session.env["STAGESPAN_TEST_FULL"] = "1"
    # The sessions of other Pythons check the wheel that they build.
    other_pythons = any(shutil.which(f"python{version}") for version in OTHER_PYTHONS)
    run_own_tests(session, "not wheel" if other_pythons else "wheel or not wheel")


@nox.session(default=False)
def coverage(session: nox.Session) -> None:
    """Which lines of the package the tests run; the report is in build/coverage/index.html."""
    run_pytest(
        *(session, "python", "-n", "3", "-m", "not full"),
        *("--cov=stagespan", "--cov-report=html:build/coverage", "--cov-report=term:skip-covered"),
    )
