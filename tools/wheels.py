"""Builds the sdist and the wheels that are published, and checks them: `make wheels`.

    python tools/wheels.py [--version 3.12 ...] [--machine aarch64 ...] [--libc musl ...]
                           [--output dist]

The compiler is zig, a package of the package index that compiles for each processor and for an old
glibc, so that neither a container nor another machine is needed. A wheel needs the interpreter of
its version on this machine, with headers; the version is left out without one. The wheels for
another processor or for musl are built with the same headers: CPython's differ only in sizes that
64-bit Linux machines have in common. The wheel for Python 3.11 on aarch64 is tried in qemu-user, if
this runs as root and can install it. The workflow `wheels` tries all wheels where they are used.

The last lines are a table of all files in Markdown, and what failed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from email.parser import Parser
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

from common import COMPILED_SOURCES, ROOT, STATE, StepError, apt_install, fingerprint, run

WORK = STATE / "wheels"
VENV = WORK / "venv"
BACKEND = WORK / "backend"
# With these variables, a Python finds the backend of the build, and that finds CMake and ninja.
ON_BACKEND = {
    "PYTHONPATH": str(BACKEND),
    "PATH": f"{BACKEND / 'bin'}{os.pathsep}{os.environ['PATH']}",
}
ZIG_CACHE = WORK / "zig"
REQUIREMENTS = ROOT / "requirements-wheels.txt"
# What wheels are made from.
SOURCES = (*COMPILED_SOURCES, "python", "licenses", "LICENSE", "README.md")
BUILD_PACKAGES = (
    *("scikit-build-core", "pybind11", "cmake", "ninja"),
    *("exceptiongroup", "tomli", "typing-extensions"),
)

VERSIONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
MACHINES = ("x86_64", "aarch64")
LIBCS = ("gnu", "musl")
GLIBC, MUSL = "2.28", "1.2"
MOST_BYTES = 2_000_000
MEMORY = Path("/dev/shm")
LICENSES = {"LICENSE", "licenses/pybind11.txt", "licenses/llvm.txt", "licenses/zig.txt"}
NAME_OF_MODULE = re.compile(r"([a-zA-Z_]\w*/)*[a-zA-Z_]\w*\.py")
HOOK = "stagespan/packing/hook-stagespan.py"
# zig finds objects in its cache, such as those of the core for another Python, if it need not list
# the files that they include. The sources of a build do not change, so ninja need not know them.
TOOL = """#!/bin/sh
last=
for word in "$@"; do
  shift
  case "$last" in -MT|-MF) last=; continue ;; esac
  case "$word" in -MD) ;; -MT|-MF) last=$word ;; *) set -- "$@" "$word" ;; esac
done
exec "{zig}" {tool} {options} "$@"
"""
C_LIBRARY = {
    "gnu": re.compile(r"(libc|libm|libpthread|libdl|librt)\.so\.\d+|ld-linux[\w-]*\.so\.\d+"),
    "musl": re.compile(r"libc\.so"),
}
# The functions that musl has added since 1.2.0, which auditwheel does not know.
NEWER_IN_MUSL = {
    *("_Fork", "gettid", "reallocarray", "tcgetwinsize", "tcsetwinsize"),  # 1.2.2
    *("pthread_getname_np", "qsort_r"),  # 1.2.3
    *("preadv2", "pwritev2", "renameat2", "statx"),  # 1.2.4 and later
}
# The Python for aarch64 that is tried, the Debian that has it, and the first torch for it.
TRIED, SUITE, OLDEST_TORCH = "3.11", "bookworm", "torch==2.0.0"
MIRROR = os.environ.get("DEBIAN", "http://deb.debian.org/debian")


class Platform(NamedTuple):
    """A processor and a C library for which there are wheels."""

    machine: str
    libc: str

    def __str__(self) -> str:
        """The part of the names of folders that tells it from the others."""
        return self.machine if self.libc == "gnu" else f"{self.machine}-{self.libc}"

    @property
    def is_native(self) -> bool:
        """Whether the usual Pythons of this machine are for it."""
        return self == Platform(os.uname().machine, "gnu")

    @property
    def target(self) -> str:
        """The options that make zig compile for it."""
        if self.libc == "gnu":
            return f"-target {self.machine}-linux-gnu.{GLIBC}"
        return f"-target {self.machine}-linux-musl -dynamic"

    @property
    def tags(self) -> list[str]:
        """The tags of wheels that run on it, beginning with that of the wheels for it."""
        if self.libc == "musl":
            names = [f"musllinux_1_{minor}" for minor in range(int(MUSL.split(".")[1]), 0, -1)]
        else:
            names = [f"manylinux_2_{minor}" for minor in range(int(GLIBC.split(".")[1]), 4, -1)]
            names.append("manylinux2014")
        return [f"{name}_{self.machine}" for name in names]

    def suffix(self, version: str) -> str:
        """Return the end of the name of an extension. CPython 3.10 calls every C library gnu."""
        libc = "gnu" if version == "3.10" else self.libc
        return f".cpython-{version.replace('.', '')}-{self.machine}-linux-{libc}.so"


PLATFORMS = (Platform("x86_64", "gnu"), Platform("aarch64", "gnu"), Platform("x86_64", "musl"))


# --- what the builds need ---------------------------------------------------------------------


def prepare() -> None:
    """Install zig and the checks in an environment of their own, and go on in that."""
    if Path(sys.prefix) == VENV:
        return
    wanted = fingerprint([REQUIREMENTS], sys.version)
    stamp = VENV / "complete"
    if not stamp.is_file() or stamp.read_text() != wanted:
        print("installing zig and the checks", flush=True)
        shutil.rmtree(VENV, ignore_errors=True)
        shutil.rmtree(BACKEND, ignore_errors=True)
        run(sys.executable, "-m", "venv", VENV)
        pip = (VENV / "bin/python", "-m", "pip", "install", "-q")
        run(*pip, "-r", REQUIREMENTS)
        # One copy for all interpreters, with what the oldest of them needs.
        lines = REQUIREMENTS.read_text().splitlines()
        build = [line for line in lines if line.startswith(BUILD_PACKAGES)]
        oldest = ("--only-binary=:all:", "--python-version", VERSIONS[0], "--target", BACKEND)
        run(*pip, *oldest, *build)
        stamp.write_text(wanted)
    os.execv(VENV / "bin/python", [str(VENV / "bin/python"), *sys.argv])


def has_headers(python: str | Path, version: str) -> bool:
    """Whether an interpreter works, and extensions of this version can be built with it."""
    program = (
        "import os, platform, sysconfig as s; "
        "print(platform.python_implementation(), s.get_python_version(), "
        "os.path.exists(os.path.join(s.get_path('include'), 'Python.h')), "
        "bool(s.get_config_var('Py_GIL_DISABLED')))"
    )
    try:
        return run(python, "-c", program).split() == ["CPython", version, "True", "False"]
    except StepError:
        return False


def interpreters(versions: Sequence[str]) -> dict[str, str | Path]:
    """Return the interpreters with headers on this machine, by version."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    usable = {}
    for version in versions:
        candidates: list[str | Path] = list(filter(None, [shutil.which(f"python{version}")]))
        candidates += pyenv.glob(f"versions/{version}.*/bin/python")
        for python in filter(lambda python: has_headers(python, version), candidates):
            usable.setdefault(version, python)
    return usable


def foreign_root(machine: str) -> Path:
    """Return a folder with a Python of Debian for another processor. Raises StepError."""
    root = STATE / "roots" / f"{machine}-{TRIED}"
    if (root / "complete").exists():
        return root
    for program, package in {"mmdebstrap": "mmdebstrap", f"qemu-{machine}": "qemu-user"}.items():
        reason = None if shutil.which(program) else apt_install(package)
        if reason is not None:
            raise StepError(reason)
    shutil.rmtree(root, ignore_errors=True)
    root.parent.mkdir(parents=True, exist_ok=True)
    architecture = {"aarch64": "arm64", "x86_64": "amd64"}[machine]
    options = ("--variant=extract", f"--arch={architecture}", "--include=python3,libstdc++6")
    run("mmdebstrap", "--quiet", *options, SUITE, root, MIRROR)
    if not (root / "lib").exists():  # a merged /usr
        (root / "lib").symlink_to("usr/lib")
    (root / "complete").touch()
    return root


# --- building ---------------------------------------------------------------------------------


def make_sdist(output: Path) -> Path:
    """Build the sdist and return it."""
    program = (
        "import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])"
    )
    run(sys.executable, "-c", program, output, **ON_BACKEND)
    (sdist,) = output.glob("*.tar.gz")
    return sdist


def unpack(sdist: Path) -> Path:
    """Unpack the sdist, and add the licences of what zig links into a wheel."""
    import ziglang

    # zig 0.17.1 has taken an old object from its cache after a source at the same path had changed;
    # all files of an sdist have the same time. Therefore other sources have another path.
    shutil.rmtree(WORK / "source", ignore_errors=True)
    folder = WORK / "source" / fingerprint([*SOURCES, REQUIREMENTS])
    shutil.unpack_archive(sdist, folder)
    (source,) = folder.iterdir()
    zig = Path(ziglang.__file__).parent
    shutil.copy(zig / "lib/libcxx/LICENSE.TXT", source / "licenses/llvm.txt")
    shutil.copy(zig / "LICENSE", source / "licenses/zig.txt")
    return source


def zig_tools(platform: Platform) -> dict[str, str]:
    """Return the variables that make CMake use zig, and write the scripts that they name."""
    import ziglang

    zig = Path(ziglang.__file__).parent / "zig"
    folder = WORK / f"zig-{platform}"
    folder.mkdir(parents=True, exist_ok=True)
    # zig compiles its C++ library, for minutes, once for each set of options. So CMake's tests
    # get those of the build, also those that CMake would add to the build alone. It has no strip.
    target = f"{platform.target} -O3 -fPIC -Wl,-s"
    for tool, options in {"cc": target, "c++": target, "ar": "", "ranlib": ""}.items():
        script = folder / tool
        script.write_text(TOOL.format(zig=zig, tool=tool, options=options))
        script.chmod(0o755)
    definitions = {
        **{f"CMAKE_{name}": folder / name.lower() for name in ("AR", "RANLIB")},
        **{f"CMAKE_CXX_COMPILER_{name}": folder / name.lower() for name in ("AR", "RANLIB")},
        # A file that lacks an include does not compile here.
        "CMAKE_DISABLE_PRECOMPILE_HEADERS": "ON",
        # The answers to what pybind11 tests and is not asked for.
        **dict.fromkeys(("HAS_FLTO", "HAS_FLTO_THIN"), "OFF"),
        # It saves less than 1 % of a span's instructions here, and takes minutes.
        "STAGESPAN_LTO": "OFF",
    }
    if not platform.is_native:
        definitions |= {"CMAKE_SYSTEM_NAME": "Linux", "CMAKE_SYSTEM_PROCESSOR": platform.machine}
    return {
        "CC": str(folder / "cc"),
        "CXX": str(folder / "c++"),
        **dict.fromkeys(("CFLAGS", "CXXFLAGS", "LDFLAGS"), ""),
        "CMAKE_ARGS": ";".join(f"-D{name}={value}" for name, value in definitions.items()),
        "ZIG_GLOBAL_CACHE_DIR": str(ZIG_CACHE),
        "CMAKE_BUILD_PARALLEL_LEVEL": os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", "2"),
    }


class Build(NamedTuple):
    """What a wheel is built from and for."""

    source: Path
    """The unpacked sdist, in a folder that is named after what wheels are made from."""
    python: str | Path
    version: str
    platform: Platform

    @property
    def tag(self) -> str:
        """The part of the names of its folders that tells it from the others."""
        return f"cp{self.version.replace('.', '')}-{self.platform}"


def options_of_headers(build: Build) -> str:
    """Return the options with which zig finds all headers of a Python.

    Debian has a pyconfig.h for each processor in /usr/include, where zig does not look.
    """
    program = (
        "import os, sysconfig as s; include = s.get_path('include'); "
        "place = os.path.join(os.path.dirname(include), s.get_config_var('MULTIARCH') or '', "
        "os.path.basename(include)); "
        "print(place if place != include and os.path.isdir(place) else '')"
    )
    place = run(build.python, "-c", program).strip()
    if not place:
        return ""
    folder = WORK / "include" / build.tag
    link = folder / f"{build.platform.machine}-linux-gnu" / Path(place).name
    shutil.rmtree(folder, ignore_errors=True)
    link.parent.mkdir(parents=True)
    link.symlink_to(place)
    return f'-isystem "{folder}"'


def build_wheel(build: Build) -> Path:
    """Build a wheel with the tag of its C library, and return it."""
    folder = WORK / "built" / build.tag
    objects = WORK / f"build-{build.tag}"
    for old in (folder, objects):
        shutil.rmtree(old, ignore_errors=True)
    variables = zig_tools(build.platform)
    variables |= dict.fromkeys(("CFLAGS", "CXXFLAGS"), options_of_headers(build))
    if not build.platform.is_native:
        variables |= {"SETUPTOOLS_EXT_SUFFIX": build.platform.suffix(build.version)}
        variables |= {"_PYTHON_HOST_PLATFORM": f"linux-{build.platform.machine}"}
    settings = {
        # As an option, because a variable is split at blanks, which a path can contain.
        "cmake.args": variables.pop("CMAKE_ARGS"),
        "build-dir": str(objects),
        "install.strip": "false",
    }
    program = (
        "import json, sys; from scikit_build_core.build import build_wheel; "
        "build_wheel(sys.argv[1], json.loads(sys.argv[2]))"
    )
    run(
        *(build.python, "-s", "-c", program, folder, json.dumps(settings)),
        cwd=build.source,
        **variables,
        **ON_BACKEND,
    )
    shutil.rmtree(objects)
    (built,) = folder.glob("*.whl")
    tag = build.platform.tags[0]
    run(sys.executable, "-m", "wheel", "tags", "--remove", "--platform-tag", tag, built)
    (tagged,) = folder.glob("*.whl")
    return tagged


# --- checks -----------------------------------------------------------------------------------


def problems_of(wheel: Path, build: Build) -> Iterator[str]:
    """Return what is wrong with the content of a wheel."""
    from elftools.elf.elffile import ELFFile

    python = "cp" + build.version.replace(".", "")
    tag = f"{python}-{python}-{build.platform.tags[0]}"
    if not wheel.stem.endswith(f"-{tag}"):
        yield f"its tag is not {tag}"
    if wheel.stat().st_size > MOST_BYTES:
        yield f"{wheel.stat().st_size:,} bytes are more than {MOST_BYTES:,}"
    with zipfile.ZipFile(wheel) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    extension = f"stagespan/_core{build.platform.suffix(build.version)}"
    if [name for name in contents if name.endswith(".so")] != [extension]:
        yield f"the extension is not named {extension}, as the tag {tag} demands"
        return
    modules = (name for name in contents if name.endswith(".py"))
    not_modules = [name for name in modules if not NAME_OF_MODULE.fullmatch(name)]
    if not_modules != [HOOK]:
        yield f"the files without a module's name are {not_modules}, not only PyInstaller's {HOOK}"
    paths = (str(ROOT).encode(), str(Path.home()).encode(), str(WORK).encode())
    for name, content in contents.items():
        if any(path in content for path in paths if len(path) > 1):
            yield f"{name} contains a path of this machine"
    (metadata,) = (name for name in contents if name.endswith(".dist-info/METADATA"))
    licenses = {name.split("/licenses/", 1)[1] for name in contents if "/licenses/" in name}
    if licenses != LICENSES:
        yield f"the licences are {sorted(licenses)}, not {sorted(LICENSES)}"
    declared = set(Parser().parsestr(contents[metadata].decode()).get_all("License-File", []))
    if declared != licenses:
        yield f"the licences in the metadata are {sorted(declared)}"
    elf = ELFFile(BytesIO(contents[extension]))
    machines = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}
    if elf["e_machine"] != machines[build.platform.machine]:
        yield f"the extension is for {elf['e_machine']}"
    symbols = [s for s in elf.get_section_by_name(".dynsym").iter_symbols() if s.name]
    exported = [s.name for s in symbols if s["st_shndx"] != "SHN_UNDEF"]
    if exported != ["PyInit__core"]:
        yield f"the extension exports {exported}"
    newer = NEWER_IN_MUSL.intersection(s.name for s in symbols)
    if build.platform.libc == "musl" and newer:
        yield f"the extension needs {sorted(newer)}, which musl {MUSL}.0 lacks"
    needed = [t.needed for t in elf.get_section_by_name(".dynamic").iter_tags("DT_NEEDED")]
    if not all(C_LIBRARY[build.platform.libc].fullmatch(name) for name in needed):
        yield f"the extension needs {needed}"


def check_wheel(wheel: Path, build: Build) -> str:
    """Check a wheel and return the oldest platform that it runs on. Raises StepError."""
    problems = list(problems_of(wheel, build))
    if problems:
        raise StepError(f"{wheel.name}: {'; '.join(problems)}.")
    programs = VENV / "bin"
    # Names that no module can have (W004) are compared above.
    run(programs / "check-wheel-contents", "--ignore", "W004", wheel)
    if build.platform.libc == "musl":
        # auditwheel knows only the name of musl in Alpine; musl itself takes any libc.* for itself.
        return build.platform.tags[0]
    said = run(programs / "auditwheel", "show", wheel)
    oldest = re.search(r'platform\s+tag:\s+"(\w+)"', said)
    if oldest is None or oldest[1] not in build.platform.tags:
        raise StepError(f"{wheel.name} needs more than {build.platform.tags[0]}: {said}")
    return oldest[1]


def lowest(wheel: Path, build: Build) -> list[str]:
    """Return the requirements of a wheel at their lowest versions."""
    from packaging.requirements import Requirement
    from packaging.version import Version

    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        lines = Parser().parsestr(archive.read(metadata).decode()).get_all("Requires-Dist", [])
    version = build.version
    environment = {"python_version": version, "python_full_version": f"{version}.0", "extra": ""}
    bounds: dict[str, Version] = {}
    for requirement in map(Requirement, lines):
        if requirement.marker is None or requirement.marker.evaluate(environment):
            (bound,) = requirement.specifier
            name = requirement.name
            bounds[name] = max(Version(bound.version), bounds.get(name, Version("0")))
    return [f"{name}=={version}" for name, version in bounds.items()]


def smoke_test(wheel: Path, build: Build, *pins: str) -> str:
    """Install a wheel in a clean environment and run tools/smoke.py; return what that prints.

    If torch is among the pins, also run examples that use it.
    """
    folder = WORK / "smoke"
    shutil.rmtree(folder, ignore_errors=True)
    variables = {"OMP_NUM_THREADS": "1", "STAGESPAN_OUTPUT_DIR": str(folder / "output")}
    interpreter: tuple[str | Path, ...] = (folder / "bin/python",)
    if build.platform.is_native:
        run(build.python, "-m", "venv", folder)
        run(*interpreter, "-m", "pip", "install", "-q", wheel, *pins)
    else:
        machine = build.platform.machine
        root = foreign_root(machine)
        options = [f"--platform={tag}" for tag in build.platform.tags]
        run(
            *(sys.executable, "-m", "pip", "install", "-q", "--only-binary=:all:"),
            *("--target", folder, "--python-version", build.version, *options, wheel, *pins),
        )
        # Without `site`, which would look for the packages of this machine.
        python = f"{root}/usr/bin/python{build.version}"
        interpreter = (f"qemu-{machine}", "-L", root, python, "-S")
        # Pythons for aarch64 sign return addresses, which qemu computes ten times faster so.
        variables |= {"QEMU_CPU": "max,pauth-impdef=on", "PYTHONPATH": str(folder)}
    number = wheel.name.split("-")[1]
    # Where no other program, such as a test that runs at the same time, removes recordings.
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as recordings:
        variables["STAGESPAN_RECORDING_DIR"] = recordings
        said = run(*interpreter, ROOT / "tools/smoke.py", number, cwd=folder, **variables)
        if any(pin.startswith("torch") for pin in pins):
            for name in ("find_slow_stage.py", "replay_stage.py"):
                run(*interpreter, ROOT / "examples" / name, cwd=folder, **variables)
    return said.strip()


def build_and_try(build: Build) -> tuple[Path, str]:
    """Build, check and try a wheel; return it with its row of the table. Raises StepError."""
    wheel = build_wheel(build)
    runs_on = check_wheel(wheel, build)
    row = f"| `{wheel.name}` | {wheel.stat().st_size:,} | {runs_on} |"
    print(row, flush=True)
    machine, libc = build.platform
    pins = {"lowest": lowest(wheel, build), "newest": []}
    if not build.platform.is_native:
        if libc == "musl" or build.version != TRIED:
            return wheel, f"{row} no, not on this machine |"
        if os.geteuid() != 0:
            return wheel, f"{row} no: a Python for another processor needs root |"
        if machine == "aarch64":
            pins[OLDEST_TORCH] = [*pins["lowest"], OLDEST_TORCH]
    said = "{}"
    for what, chosen in pins.items():
        said = smoke_test(wheel, build, *chosen)
        print(f"  {what}: {said}", flush=True)
    where = "" if build.platform.is_native else f" in qemu-{machine}"
    return wheel, f"{row} Python {json.loads(said)['python']}{where}: {', '.join(pins)} |"


def main() -> int:
    """Build and check everything, and print the list of wheels."""
    parser = argparse.ArgumentParser(description="Build the sdist and the wheels, and check them.")
    parser.add_argument("--version", action="append", choices=VERSIONS)
    parser.add_argument("--machine", action="append", choices=MACHINES)
    parser.add_argument("--libc", action="append", choices=LIBCS)
    parser.add_argument("--output", type=Path, default=ROOT / "dist")
    chosen = parser.parse_args()
    prepare()
    output = chosen.output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    for old in (*output.glob("*.whl"), *output.glob("*.tar.gz")):
        old.unlink()
    versions, machines = chosen.version or VERSIONS, chosen.machine or MACHINES
    libcs = chosen.libc or LIBCS
    platforms = [at for at in PLATFORMS if at.machine in machines and at.libc in libcs]
    pythons = interpreters(versions)
    sdist = make_sdist(output)
    rows = ["| file | bytes | runs on | imported by |", "| --- | --- | --- | --- |"]
    rows.append(f"| `{sdist.name}` | {sdist.stat().st_size:,} | | |")
    source = unpack(sdist)
    failed = []
    for platform in platforms:
        for version, python in pythons.items():
            build = Build(source, python, version, platform)
            try:
                wheel, row = build_and_try(build)
                shutil.copy2(wheel, output)
                rows.append(row)
            except StepError as error:
                failed.append(build.tag)
                print(f"error: {build.tag}: {error}", flush=True)
    run(VENV / "bin/twine", "check", "--strict", *output.iterdir())
    print("", *rows, "", sep="\n")
    missing = [version for version in versions if version not in pythons]
    if missing:
        print(f"Left out, because there is no such Python with headers: {', '.join(missing)}.")
    if failed:
        print(f"Failed: {', '.join(failed)}.")
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except StepError as error:
        print(f"error: {error}")
        sys.exit(1)
