"""Packs a folder with which a machine with an NVIDIA GPU tries all device code: `make gpu`.

    python tools/gpu/pack.py [--version 3.12] [--output dist/gpu]

The folder contains the wheel of stagespan, the wheels that a machine with PyTorch may lack, tests,
benchmarks and the demo, and run.py, which needs no network there.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MOST_BYTES = 60_000_000
MACHINE = "x86_64"
GLIBC = range(28, 16, -1)
# From requirements-dev.txt, whose versions are those that the tests are run with here.
NAMES = ("numpy", "msgspec", "rich", "click", "pytest", "diffusers", "transformers", "packaging")
# Needed only to download weights.
LEFT_OUT = ("hf_xet-",)
FILES = (
    *("tests/gpu/*.py", "tests/gpu/*.cu", "tests/device_spans.py"),
    *("benchmarks/__init__.py", "benchmarks/device.py", "examples/wan_pipeline/*.py", "LICENSE"),
)


def main() -> int:
    """Pack the folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--version", default="3.12", help="Python of the target")
    parser.add_argument("--output", type=Path, default=ROOT / "dist" / "gpu")
    options = parser.parse_args()
    output: Path = options.output.resolve()
    shutil.rmtree(output, ignore_errors=True)
    wheels = output / "wheels"
    wheels.mkdir(parents=True)
    wheel = build(options.version)
    shutil.copy2(wheel, wheels)
    download(options.version, wheels)
    for pattern in FILES:
        for path in sorted(ROOT.glob(pattern)):
            target = output / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target)
    shutil.copy2(Path(__file__).with_name("run.py"), output)
    packed = {"python": options.version, "machine": MACHINE, "stagespan": wheel.name}
    (output / "packed.json").write_text(json.dumps(packed))
    size = sum(path.stat().st_size for path in output.rglob("*") if path.is_file())
    print(f"{output}: {size:,} bytes. Copy it to the machine, and run there: python3 run.py")
    if size > MOST_BYTES:
        print(f"error: {size:,} bytes are more than {MOST_BYTES:,}.")
        return 1
    return 0


def build(version: str) -> Path:
    """Build the wheel as it is published, and return it."""
    folder = ROOT / ".make" / "gpu"
    command = (ROOT / "tools/wheels.py", "--version", version, "--machine", MACHINE)
    subprocess.run([sys.executable, *command, "--libc", "gnu", "--output", folder], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def download(version: str, folder: Path) -> None:
    """Download the wheels of the other packages for the target."""
    lines = (ROOT / "requirements-dev.txt").read_text().splitlines()
    lines += (ROOT / "requirements-test.txt").read_text().splitlines()
    chosen = {}
    for line in lines:
        requirement, _, marker = line.partition(";")
        name = requirement.split("=")[0].split(">")[0].strip()
        if name in NAMES and "<" not in marker:  # the other line is for old Pythons
            chosen.setdefault(name, requirement.strip())
    platforms = [f"--platform=manylinux_2_{minor}_{MACHINE}" for minor in GLIBC]
    subprocess.run(
        [
            # The environment in which the wheel was built has a current pip.
            *(ROOT / ".make/wheels/venv/bin/python", "-m", "pip", "download", "-q"),
            "--only-binary=:all:",
            *("--dest", folder, "--implementation", "cp", "--python-version", version),
            *(*platforms, f"--platform=manylinux2014_{MACHINE}"),
            *(chosen.get(name, name) for name in NAMES),
        ],
        check=True,
    )
    for path in folder.glob("*.whl"):
        if path.name.startswith(LEFT_OUT):
            path.unlink()


if __name__ == "__main__":
    sys.exit(main())
