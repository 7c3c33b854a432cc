"""Properties of the build: an extension that needs only libc, one entry, headers in the wheel."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import stagespan
from running import ran
from stagespan import _core

ROOT = Path(__file__).parents[2]
EXTENSION = Path(_core.__file__)

# glibc in parts (one library since 2.34) and its loader, or musl.
C_LIBRARY = re.compile(
    r"(libc|libm|libpthread|libdl|librt)\.so\.\d+|ld-linux[\w-]*\.so\.\d+|libc(\.musl-\w+\.so\.1|\.so)"
)


def tool(*command: str) -> str:
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} (binutils) is not installed")
    return ran(command, status=0).stdout


def test_extension_links_to_nothing_but_the_c_library() -> None:
    needed = re.findall(
        r"\(NEEDED\).*\[(.+?)\]", tool("readelf", "--dynamic", "--wide", str(EXTENSION))
    )

    # THEN it only contains parts of the C library
    assert needed
    assert [name for name in needed if not C_LIBRARY.fullmatch(name)] == []


def test_extension_exports_its_entry_and_nothing_else() -> None:
    lines = tool("nm", "--dynamic", "--defined-only", str(EXTENSION)).splitlines()

    assert [line.split()[-1] for line in lines] == ["PyInit__core"]


def test_extension_is_found_by_the_python_that_it_was_built_for() -> None:
    tag = f"cpython-{sys.version_info[0]}{sys.version_info[1]}"

    assert tag in EXTENSION.name


def test_headers_are_where_get_include_says() -> None:
    folder = Path(stagespan.get_include())

    headers = {str(path.relative_to(folder)) for path in folder.rglob("*.h")}
    assert "stagespan/python.h" in headers
    assert "stagespan/api.h" in headers
    for header in headers:
        text = (folder / header).read_text()
        for included in re.findall(r'#include "([^"]+)"', text):
            found = str((folder / header).parent.joinpath(included).relative_to(folder))
            assert {found, included} & headers, f"{header} includes {included}"


@pytest.mark.parametrize(("state", "folder"), [("wheel", ""), ("sdist", ""), ("editable", "build")])
def test_only_editable_builds_leave_something_in_the_clone(state: str, folder: str) -> None:
    settings = pytest.importorskip("scikit_build_core.settings.skbuild_read_settings")
    found = settings.SettingsReader.from_file(ROOT / "pyproject.toml", {}, state=state)
    # An empty name is that of a temporary folder.
    assert found.settings.build_dir.partition("/")[0] == folder


def test_every_public_header_compiles_on_its_own(tmp_path: Path) -> None:
    # GIVEN a C++20 compiler
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler (c++) on PATH")
    folder = Path(stagespan.get_include())
    python = sysconfig_include()

    for header in sorted(folder.rglob("*.h")):
        source = tmp_path / "one.cpp"
        source.write_text(f'#include "{header.relative_to(folder)}"\n')
        command = [compiler, "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror"]
        ran([*command, f"-I{folder}", f"-isystem{python}", str(source)], status=0)


def sysconfig_include() -> str:
    import sysconfig

    return sysconfig.get_paths()["include"]


def test_import_is_light() -> None:
    program = "import sys, stagespan, stagespan._core; print(' '.join(sorted(sys.modules)))"

    done = ran([sys.executable, "-c", program], status=0)

    # THEN none of the heavy libraries was imported with it
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert loaded & {"torch", "numpy", "rich", "click", "msgspec", "diffusers"} == set()


def build_wheel(tmp_path: Path) -> Path:
    """Build a wheel as `pip install .` does, from sources without the results of earlier builds."""
    source = tmp_path / "source"
    source.mkdir()
    for name in ("pyproject.toml", "CMakeLists.txt", "LICENSE", "README.md"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, source)
    for name in ("cmake", "csrc", "licenses", "python"):
        skip = shutil.ignore_patterns("*.so", "__pycache__")
        shutil.copytree(ROOT / name, source / name, ignore=skip)

    environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
    ran(
        [sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", str(tmp_path), str(source)],
        env=environment,
        status=0,
    )
    (wheel,) = tmp_path.glob("stagespan-*.whl")
    return wheel


@pytest.mark.slow
@pytest.mark.wheel
def test_isolated_wheel_holds_extension_headers_and_types(tmp_path: Path) -> None:
    built = os.environ.get("STAGESPAN_TEST_WHEEL")
    wheel = Path(built) if built else build_wheel(tmp_path)

    archive = zipfile.ZipFile(wheel)
    names = archive.namelist()
    assert sum(name.startswith("stagespan/_core.") and name.endswith(".so") for name in names) == 1
    package = {
        path.relative_to(ROOT / "python").as_posix()
        for path in (ROOT / "python").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".so"
    }
    assert package <= set(names)
    headers = {name.partition("include/")[2] for name in names if "/include/" in name}
    assert headers == {"stagespan/api.h", "stagespan/python.h"}
    assert [name for name in names if name.endswith((".cpp", ".pyc"))] == []
    assert {name.partition("/")[0] for name in names} <= {
        "stagespan",
        f"stagespan-{stagespan.__version__}.dist-info",
    }

    # THEN it contains its own license, and those of the code that is compiled into the extension;
    # `make wheels` adds those of what its compiler links into it
    licenses = {name.partition("/licenses/")[2] for name in names if "/licenses/" in name}
    assert licenses - {"licenses/llvm.txt", "licenses/zig.txt"} == {
        "LICENSE",
        "licenses/pybind11.txt",
    }

    # THEN torch is an extra, and not required otherwise
    metadata = archive.read(f"stagespan-{stagespan.__version__}.dist-info/METADATA").decode()
    needed = re.findall(r"^Requires-Dist: ([\w-]+)(.*)$", metadata, flags=re.MULTILINE)
    always = {name for name, rest in needed if "extra ==" not in rest}
    assert always == {"numpy", "msgspec", "rich", "click"}
    assert "Provides-Extra: torch\n" in metadata
    assert "torch" in {name for name, rest in needed if "extra ==" in rest}


def configure(
    folder: Path, environment: dict[str, str], **definitions: str
) -> subprocess.CompletedProcess[str]:
    """Run CMake for the extension, as in a build of the wheel; nothing is compiled."""
    pybind11 = pytest.importorskip("pybind11")
    if shutil.which("cmake") is None or shutil.which("ninja") is None:
        pytest.skip("cmake or ninja is not on PATH")
    definitions |= {
        "STAGESPAN_LTO": "OFF",
        "Python_EXECUTABLE": sys.executable,
        "pybind11_DIR": pybind11.get_cmake_dir(),
    }
    return ran(
        [
            *("cmake", "-G", "Ninja", "-S", str(ROOT), "-B", str(folder)),
            *(f"-D{name}={value}" for name, value in definitions.items()),
        ],
        **environment,
    )


@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / "csrc").is_dir(), reason="csrc/ is missing: run it in a clone")
def test_the_extension_for_another_machine_has_its_name(tmp_path: Path) -> None:
    # GIVEN the suffix that scikit-build-core gives in a build for aarch64
    soabi = "cpython-311-aarch64-linux-gnu"

    done = configure(tmp_path, {}, SKBUILD_SOABI=soabi)
    assert done.returncode == 0, done.stderr

    # THEN the extension that it makes has that suffix, which the tag of the wheel has too
    targets = re.findall(
        r"^build (_core\.\S+): ", (tmp_path / "build.ninja").read_text(), re.MULTILINE
    )
    assert targets == [f"_core.{soabi}.so"]


@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / "csrc").is_dir(), reason="csrc/ is missing: run it in a clone")
@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13", "3.14"])
def test_what_depends_on_the_version_of_python_compiles(version: str, tmp_path: Path) -> None:
    include = "import sysconfig; print(sysconfig.get_path('include'))"
    # A shim of pyenv can be there without the interpreter.
    done = subprocess.run(
        ["env", f"python{version}", "-c", include], text=True, capture_output=True
    )
    headers = Path(done.stdout.strip() or "/nonexistent")
    if not (headers / "Python.h").is_file():
        pytest.skip(f"Python.h of {version} is not installed")
    sources = [
        path
        for path in sorted((ROOT / "csrc").rglob("*.c*"))
        if "PY_VERSION_HEX" in path.read_text()
    ]
    assert sources
    stub, docstrings = ROOT / "python/stagespan/_core.pyi", tmp_path / "docstrings.h"
    ran([sys.executable, str(ROOT / "cmake/docstrings.py"), str(stub), str(docstrings)], status=0)
    folders = f"-I{ROOT / 'csrc'}", f"-I{tmp_path}", "-isystem", str(headers)
    for source in sources:
        language = ("cc", "-std=c11") if source.suffix == ".c" else ("c++", "-std=c++20")
        ran([*language, "-fsyntax-only", "-Werror=shadow", *folders, str(source)], status=0)


@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / "csrc").is_dir(), reason="csrc/ is missing: run it in a clone")
def test_a_free_threaded_python_is_refused_before_anything_is_compiled(tmp_path: Path) -> None:
    startup = "import sysconfig\nsysconfig.get_config_vars()['Py_GIL_DISABLED'] = 1\n"
    (tmp_path / "sitecustomize.py").write_text(startup)

    done = configure(tmp_path / "build", {"PYTHONPATH": str(tmp_path)})

    assert done.returncode != 0
    assert "does not support free-threaded Python yet" in " ".join(done.stderr.split())
