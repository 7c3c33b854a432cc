"""Sets up `.venv`: the interpreter, the pinned development packages, stagespan itself.

    python3 tools/bootstrap.py [--need-torch | --without-torch]

Run it with the Python for `.venv`. If torch cannot be installed, the rest is installed and the
reason is stored in `.venv/without_torch`; with --need-torch, the set-up fails instead. Finished
steps are stored in `.venv`, so that a second run takes no time. A `.venv` of another Python, or
one that is incomplete, is replaced.
"""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from common import (
    COMPILED_SOURCES,
    ROOT,
    STATE,
    VENV,
    StepError,
    apt_install,
    fingerprint,
    in_ci,
    run,
)

PYTHON = VENV / "bin" / "python"
REQUIREMENTS = ("requirements-dev.txt", "requirements-test.txt")
BUILD_PACKAGES = ("scikit-build-core", "pybind11", "cmake", "ninja")
PIPELINE_PACKAGES = ("torch", "diffusers", "transformers")
COMPILERS = {"CC": ("gcc", "clang", "cc"), "CXX": ("g++", "clang++", "c++")}
UNREACHED = ("NewConnectionError", "NameResolutionError", "ConnectTimeoutError", "ProxyError")
# Exists if torch and the packages of the demo could not be installed; contains the reason.
WITHOUT_TORCH = VENV / "without_torch"


def pip_install(*arguments: str | Path, **variables: str) -> None:
    """Install with the pip of `.venv`."""
    try:
        run(PYTHON, "-m", "pip", "install", "--no-compile", *arguments, **variables)
    except StepError as error:
        if not any(name in str(error) for name in UNREACHED):
            raise
        raise StepError(
            "The package index cannot be reached: check the network, or name an index that can be "
            "reached in PIP_INDEX_URL."
        ) from error


def venv_problem() -> str | None:
    """Return the reason why the existing `.venv` cannot be used, or None."""
    program = "import pip, platform, sys; print(platform.python_version(), sys.prefix)"
    try:
        version, _, prefix = run(PYTHON, "-c", program).strip().partition(" ")
    except StepError:
        return "its interpreter does not run, or it has no pip"
    if version != platform.python_version():
        return f"it was made with Python {version}, this is {platform.python_version()}"
    if Path(prefix).resolve() != VENV.resolve():
        return "it was moved here from another folder"
    return None


def make_venv() -> None:
    """Create `.venv`, or replace it if it cannot be used."""
    if VENV.exists() or VENV.is_symlink():
        problem = venv_problem()
        if problem is None:
            return
        print(f"  replacing .venv: {problem}", flush=True)
        if VENV.is_symlink() or not VENV.is_dir():
            VENV.unlink()
        else:
            shutil.rmtree(VENV)
    print(f"  making .venv with Python {platform.python_version()}", flush=True)
    try:
        run(sys.executable, "-m", "venv", VENV)
    except StepError:
        # Debian and Ubuntu ship venv's pip as a package of its own.
        reason = apt_install("python{}.{}-venv".format(*sys.version_info[:2]))
        shutil.rmtree(VENV, ignore_errors=True)
        if reason is not None:
            raise StepError(
                f"No virtual environment can be made ({reason}): install your distribution's "
                "python3-venv, or name another Python with PYTHON=."
            ) from None
        run(sys.executable, "-m", "venv", VENV)


def is_done(step: str, wanted: str) -> bool:
    """Whether an earlier run has finished a step for this content."""
    stamp = VENV / f"{step}.done"
    return stamp.is_file() and stamp.read_text() == wanted


def lines_of(requirements: Path) -> Iterator[str]:
    """Return the lines of a file of requirements and of the files that it includes."""
    for line in requirements.read_text().splitlines():
        if line.startswith("-r "):
            yield from lines_of(requirements.parent / line.removeprefix("-r "))
        else:
            yield line


def install_requirements() -> None:
    """Install the development packages, if possible with torch and the packages of the demo."""
    with_torch = "--without-torch" not in sys.argv
    wanted = fingerprint(REQUIREMENTS, str(with_torch))
    if is_done("requirements", wanted):
        return
    note = " (torch is one of them: this takes a while)" if with_torch else ""
    print(f"  installing the development packages{note}", flush=True)
    WITHOUT_TORCH.unlink(missing_ok=True)
    everything = ROOT / REQUIREMENTS[0]
    reason = "set up with --without-torch"
    if with_torch:
        try:
            pip_install("-r", everything)
        except StepError as error:
            lines = [line for line in str(error).splitlines() if "ERROR" in line]
            reason = lines[-1] if lines else str(error)
            with_torch = False
    if not with_torch:
        kept = [line for line in lines_of(everything) if not line.startswith(PIPELINE_PACKAGES)]
        rest = STATE / "requirements-without-torch.txt"
        rest.write_text("\n".join(kept) + "\n")
        pip_install("-r", rest)
        WITHOUT_TORCH.write_text(
            f"torch and the packages of the demo are not installed on Python "
            f"{platform.python_version()}: {reason}"
        )
        print(f"  {WITHOUT_TORCH.read_text()}", flush=True)
    # pip compiles on one core. Some packages contain files that are not Python; these may fail.
    packages = VENV / "lib" / "python{}.{}".format(*sys.version_info[:2]) / "site-packages"
    subprocess.run([str(PYTHON), "-m", "compileall", "-qq", "-j", "0", str(packages)])
    (VENV / "requirements.done").write_text(wanted)


def compilers() -> dict[str, str]:
    """Return CC and CXX for the build, where it would not find a compiler without them.

    The build uses the compilers that the environment names, or those with which the interpreter was
    built. Raises StepError if there is no compiler.
    """
    named = {}
    for variable, names in COMPILERS.items():
        usual = os.environ.get(variable) or sysconfig.get_config_var(variable) or names[0]
        if shutil.which(usual.split()[0]):
            continue
        if os.environ.get(variable):
            raise StepError(f"{variable}={usual} is not a program here: name another compiler.")
        there = next((name for name in names if shutil.which(name)), None)
        reason = apt_install("g++") if there is None else None
        if reason is not None:
            raise StepError(
                f"No compiler was found ({reason}): install g++ 11 or later, or clang, with its C "
                "compiler."
            )
        if there is not None:
            named[variable] = there
    return named


def install_package() -> None:
    """Build the extension and install stagespan in editable mode, if its sources have changed."""
    wanted = fingerprint(COMPILED_SOURCES, str(in_ci()))
    if is_done("package", wanted):
        return
    variables = compilers()
    print("  building stagespan", flush=True)
    # In the environment, because pip before 23.1 has no option for it.
    variables["SKBUILD_CMAKE_DEFINE"] = f"STAGESPAN_WERROR={'ON' if in_ci() else 'OFF'}"
    pip_install("--no-build-isolation", "--no-deps", "-e", ".", **variables)
    (VENV / "package.done").write_text(wanted)


def main() -> int:
    """Bring `.venv` up to date."""
    STATE.mkdir(exist_ok=True)
    begin_s = time.monotonic()
    with (STATE / "lock").open("w") as lock:
        # Two runs of make at the same time would overwrite each other's files.
        fcntl.flock(lock, fcntl.LOCK_EX)
        make_venv()
        if not (VENV / "requirements.done").is_file():
            # First, because one of the parts would replace them while the other uses them.
            lines = (ROOT / REQUIREMENTS[0]).read_text().splitlines()
            pip_install(*(line for line in lines if line.startswith(BUILD_PACKAGES)))
        # Packages are downloaded and unpacked on one core, while the compiler has the other.
        with ThreadPoolExecutor() as pool:
            parts = [pool.submit(part) for part in (install_requirements, install_package)]
        for part in parts:
            part.result()
        run(PYTHON, "-c", "import stagespan._core")
    if time.monotonic() - begin_s > 10:
        print(f"  .venv is complete ({time.monotonic() - begin_s:.0f} s)", flush=True)
    if "--need-torch" in sys.argv and WITHOUT_TORCH.is_file():
        print(f"error: {WITHOUT_TORCH.read_text()}")
        print("Name another Python, for which it can be: make PYTHON=/path/to/python demo")
        return 1
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except StepError as error:
        print(f"error: {error}")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
