"""Makes `.venv` complete: the interpreter, the pinned development packages, stagespan itself.

    python3 tools/bootstrap.py [--need-torch]

Runs with the Python that `.venv` is to be made with; with --need-torch it fails where torch cannot
be installed, which is otherwise only remembered. What is done is written to `.make/`, so that a
second run takes no time; a `.venv` of another Python, or one that was left half made, is made anew.
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
    """What earlier runs have done to the `.venv` that is there now; empty when unknown."""
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
    """Remember what was done, tied to the very `.venv` that it was done to."""
    identity = (VENV / "pyvenv.cfg").stat()
    stamp["identity"] = [identity.st_ino, identity.st_mtime_ns]
    STATE.mkdir(exist_ok=True)
    temporary = STAMP.with_suffix(".tmp")
    temporary.write_text(json.dumps(stamp, indent=1))
    temporary.replace(STAMP)


def venv_problem() -> str | None:
    """Why the `.venv` that is there cannot be used, or None."""
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
    """Make `.venv`, or make it anew when the one that is there cannot be used."""
    if VENV.exists() or VENV.is_symlink():
        problem = venv_problem()
        if problem is None:
            return
        say(f"  .venv is made anew: {problem}")
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
    """Raise StepError when there is no C++ compiler and none can be installed."""
    if any(shutil.which(name) for name in ("c++", "g++", "clang++")):
        return
    reason = apt_install("g++")
    if reason is not None:
        raise StepError(f"No C++ compiler found and {reason}: install g++ 11 or later.")


def requirements_wanted() -> str:
    """What the stamp holds once the development packages are those of the files."""
    return fingerprint(REQUIREMENTS, platform.python_version())


def install_requirements(stamp: dict[str, Any]) -> None:
    """Install the development packages; torch and the pipeline's are left out where they cannot be.

    What was left out, and why, is in the stamp under ``without_torch``.
    """
    wanted = requirements_wanted()
    if stamp.get("requirements") == wanted:
        return
    say("  installing the development packages (torch among them: this takes a while)")
    pip = [VENV_PYTHON, "-m", "pip", "install", "--no-compile"]
    everything = ROOT / REQUIREMENTS[0]
    stamp.pop("without_torch", None)
    if run([*pip, "-r", everything], "requirements", check=False) != 0:
        lines = everything.read_text().splitlines()
        torch = next(line for line in lines if line.startswith("torch=="))
        rest = STATE / "requirements-without-torch.txt"
        kept = [line for line in lines if not line.startswith(PIPELINE_PACKAGES)]
        kept = [line.replace("-r ", f"-r {ROOT}/") for line in kept]
        rest.write_text("\n".join(kept) + "\n")
        if run([*pip, "-r", rest], "requirements-without-torch", check=False) != 0:
            # Not torch's fault: the first log tells.
            raise StepError(
                "The development packages could not be installed.",
                STATE / "logs" / "requirements.log",
            )
        errors = [line for line in log_text("requirements").splitlines() if "ERROR" in line]
        stamp["without_torch"] = (
            f"{torch} and the demo's packages could not be installed on Python "
            f"{platform.python_version()}: {errors[-1] if errors else 'see the log'}"
        )
        say(f"  {stamp['without_torch']}")
    # Pip would do this on one core. Some packages hold files that are no Python: never mind.
    packages = VENV / "lib" / "python{}.{}".format(*sys.version_info[:2]) / "site-packages"
    command = [VENV_PYTHON, "-m", "compileall", "-q", "-j", "0", packages]
    run(command, "requirements-compiled", check=False)
    stamp["requirements"] = wanted


def install_build_tools() -> None:
    """Install what builds stagespan, where it is missing."""
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
    run(
        [
            VENV_PYTHON, "-m", "pip", "install", "--no-build-isolation", "--no-deps", "-e", ".",
            f"-Ccmake.define.STAGESPAN_WERROR={'ON' if in_ci() else 'OFF'}",
        ],
        "package",
    )  # fmt: skip
    stamp["package"] = wanted


def main() -> int:
    """Bring `.venv` up to date."""
    STATE.mkdir(exist_ok=True)
    with (STATE / "lock").open("w") as lock:
        # Two makes at once would install over each other.
        fcntl.flock(lock, fcntl.LOCK_EX)
        timer = Timer()
        make_venv()
        stamp = read_stamp()
        before = json.dumps(stamp, sort_keys=True)
        if stamp.get("requirements") != requirements_wanted():
            # First, as one of the parts would replace them while the other uses them.
            install_build_tools()
        # Packages are downloaded and unpacked on one core, while the compiler has the other.
        with ThreadPoolExecutor() as pool:
            parts = [pool.submit(part, stamp) for part in (install_requirements, install_package)]
        has_changed = json.dumps(stamp, sort_keys=True) != before
        if has_changed:
            # Before errors are raised: what one part has done stays done when the other fails.
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
