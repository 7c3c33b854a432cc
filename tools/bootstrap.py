"""Sets up `.venv`: the interpreter, the pinned development packages, stagespan itself.

    python3 tools/bootstrap.py [--need-torch | --without-torch]

Run it with the Python for `.venv`. If torch cannot be installed, the reason is stored and the rest
is installed; with --need-torch, the set-up fails instead. The finished steps are written to
`.make/`, so that a second run takes no time. A `.venv` of another Python, or one that is
incomplete, is replaced.
"""

from __future__ import annotations

import fcntl
import json
import platform
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from common import (
    COMPILED_SOURCES,
    ROOT,
    STATE,
    VENV,
    VENV_PYTHON,
    StepError,
    Timer,
    apt_install,
    fingerprint,
    in_ci,
    log_text,
    main_guard,
    output,
    run,
    say,
)

STAMP = STATE / "venv.json"
REQUIREMENTS = ("requirements-dev.txt", "requirements-test.txt")
BUILD_PACKAGES = ("scikit-build-core", "pybind11", "cmake", "ninja")
PIPELINE_PACKAGES = ("torch", "diffusers", "transformers")
IMPORTS = (VENV_PYTHON, "-c", "import stagespan._core")


def read_stamp() -> dict[str, Any]:
    """Return the steps that earlier runs have finished for this `.venv`; empty if unknown."""
    try:
        stamp = json.loads(STAMP.read_text())
        identity = (VENV / "pyvenv.cfg").stat()
    except (OSError, ValueError):
        return {}
    if not isinstance(stamp, dict) or stamp.get("identity") != [
        identity.st_ino,
        identity.st_mtime_ns,
    ]:
        return {}
    return stamp


def write_stamp(stamp: dict[str, Any]) -> None:
    """Store the finished steps together with the identity of `.venv`."""
    identity = (VENV / "pyvenv.cfg").stat()
    stamp["identity"] = [identity.st_ino, identity.st_mtime_ns]
    STATE.mkdir(exist_ok=True)
    temporary = STAMP.with_suffix(".tmp")
    temporary.write_text(json.dumps(stamp, indent=1))
    temporary.replace(STAMP)


def venv_problem() -> str | None:
    """Return the reason why the existing `.venv` cannot be used, or None."""
    version = output(
        [VENV_PYTHON, "-c", "import platform, sys; print(platform.python_version(), sys.prefix)"]
    )
    if version is None:
        return "its interpreter does not run"
    number, _, prefix = version.partition(" ")
    if number != platform.python_version():
        return f"it was made with Python {number}, this is {platform.python_version()}"
    if Path(prefix).resolve() != VENV.resolve():
        return "it was moved here from another folder"
    if output([VENV_PYTHON, "-m", "pip", "--version"]) is None:
        return "it has no pip"
    return None


def make_venv() -> None:
    """Create `.venv`, or replace it if it cannot be used."""
    if VENV.exists() or VENV.is_symlink():
        problem = venv_problem()
        if problem is None:
            return
        say(f"  replacing .venv: {problem}")
        if VENV.is_symlink() or not VENV.is_dir():
            VENV.unlink()
        else:
            shutil.rmtree(VENV)
    say(f"  making .venv with Python {platform.python_version()}")
    command = [sys.executable, "-m", "venv", str(VENV)]
    if run(command, "venv", check=False) != 0:
        # Debian and Ubuntu ship venv's pip as a package of its own.
        major, minor = sys.version_info[:2]
        reason = apt_install(f"python{major}.{minor}-venv")
        shutil.rmtree(VENV, ignore_errors=True)
        run(command, "venv", append=True, check=False)
        if venv_problem() is not None:
            shutil.rmtree(VENV, ignore_errors=True)
            raise StepError(
                f"`{' '.join(command)}` failed ({reason or 'also after installing its package'}); "
                "install your distribution's python3-venv, or name another Python with PYTHON=.",
                STATE / "logs" / "venv.log",
            )


def need_compiler() -> None:
    """Raise StepError if there is no C++ compiler and none can be installed."""
    if any(shutil.which(name) for name in ("c++", "g++", "clang++")):
        return
    reason = apt_install("g++")
    if reason is not None:
        raise StepError(f"No C++ compiler found and {reason}: install g++ 11 or later.")


def requirements_wanted() -> str:
    """Return the content of the stamp for the current requirements files."""
    torch = "without torch" if "--without-torch" in sys.argv else ""
    return fingerprint(REQUIREMENTS, platform.python_version(), torch)


def install_requirements(stamp: dict[str, Any]) -> None:
    """Install the development packages, if possible with torch and the packages of the demo.

    The stamp contains the packages that were left out, with the reason, under ``without_torch``.
    """
    wanted = requirements_wanted()
    if stamp.get("requirements") == wanted:
        return
    with_torch = "--without-torch" not in sys.argv
    note = " (torch is one of them: this takes a while)" if with_torch else ""
    say(f"  installing the development packages{note}")
    pip = [VENV_PYTHON, "-m", "pip", "install", "--no-compile"]
    everything = ROOT / REQUIREMENTS[0]
    stamp.pop("without_torch", None)
    if not with_torch or run([*pip, "-r", everything], "requirements", check=False) != 0:
        lines = everything.read_text().splitlines()
        torch = next(line for line in lines if line.startswith("torch=="))
        rest = STATE / "requirements-without-torch.txt"
        kept = [line for line in lines if not line.startswith(PIPELINE_PACKAGES)]
        kept = [line.replace("-r ", f"-r {ROOT}/") for line in kept]
        rest.write_text("\n".join(kept) + "\n")
        if run([*pip, "-r", rest], "requirements-without-torch", check=False) != 0:
            # The packages also fail without torch, so the first log contains the cause.
            log = "requirements" if with_torch else "requirements-without-torch"
            raise StepError(
                "The development packages could not be installed.", STATE / "logs" / f"{log}.log"
            )
        if with_torch:
            errors = [line for line in log_text("requirements").splitlines() if "ERROR" in line]
            stamp["without_torch"] = (
                f"{torch} and the packages of the demo could not be installed on Python "
                f"{platform.python_version()}: {errors[-1] if errors else 'see the log'}"
            )
            say(f"  {stamp['without_torch']}")
        else:
            stamp["without_torch"] = "set up with --without-torch"
    # pip compiles on one core. Some packages contain files that are not Python; these may fail.
    packages = VENV / "lib" / "python{}.{}".format(*sys.version_info[:2]) / "site-packages"
    command = [VENV_PYTHON, "-m", "compileall", "-q", "-j", "0", packages]
    run(command, "requirements-compiled", check=False)
    stamp["requirements"] = wanted


def install_build_tools() -> None:
    """Install the missing build tools of stagespan."""
    lines = (ROOT / REQUIREMENTS[0]).read_text().splitlines()
    tools = [line for line in lines if line.startswith(BUILD_PACKAGES)]
    run([VENV_PYTHON, "-m", "pip", "install", *tools], "build-tools")


def install_package(stamp: dict[str, Any]) -> None:
    """Build the extension and install stagespan in editable mode, when its sources have changed."""
    wanted = fingerprint(COMPILED_SOURCES, str(in_ci()))
    if stamp.get("package") == wanted and output(IMPORTS) is not None:
        return
    need_compiler()
    say("  building stagespan")
    # In the environment, because pip before 23.1 has no option for it.
    definition = f"STAGESPAN_WERROR={'ON' if in_ci() else 'OFF'}"
    run(
        [VENV_PYTHON, "-m", "pip", "install", "--no-build-isolation", "--no-deps", "-e", "."],
        "package",
        env={"SKBUILD_CMAKE_DEFINE": definition},
    )
    stamp["package"] = wanted


def main() -> int:
    """Bring `.venv` up to date."""
    STATE.mkdir(exist_ok=True)
    with (STATE / "lock").open("w") as lock:
        # Two runs of make at the same time would overwrite each other's files.
        fcntl.flock(lock, fcntl.LOCK_EX)
        timer = Timer()
        make_venv()
        stamp = read_stamp()
        before = json.dumps(stamp, sort_keys=True)
        if stamp.get("requirements") != requirements_wanted():
            # First, because one of the parts would replace them while the other uses them.
            install_build_tools()
        # Packages are downloaded and unpacked on one core, while the compiler has the other.
        with ThreadPoolExecutor() as pool:
            parts = [pool.submit(part, stamp) for part in (install_requirements, install_package)]
        has_changed = json.dumps(stamp, sort_keys=True) != before
        if has_changed:
            # Before errors are raised, so that the finished part is stored if the other one fails.
            write_stamp(stamp)
        for part in parts:
            part.result()
        if has_changed:
            run(IMPORTS, "package", append=True)
            say(f"  .venv is complete ({timer.seconds():.0f} s)")
    if "--need-torch" in sys.argv and "without_torch" in stamp:
        say(f"error: {stamp['without_torch']}")
        say("Name another Python, for which it can be: make PYTHON=/path/to/python demo")
        return 1
    return 0


if __name__ == "__main__":
    main_guard(main)
