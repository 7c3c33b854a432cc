"""Builds and runs the C++ tests: plain, under AddressSanitizer with UBSan, under ThreadSanitizer.

python tools/cpp_tests.py [plain] [asan] [tsan]        all three without arguments
"""

from __future__ import annotations

import platform
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from common import ROOT, StepError, Timer, apt_install, in_ci, log_text, main_guard, run, say


@dataclass(frozen=True)
class Variant:
    """One way to build the tests."""

    name: str
    title: str
    sanitize: str
    env: dict[str, str]


VARIANTS = (
    Variant("plain", "C++ tests", "", {}),
    Variant(
        "asan",
        "C++ tests under ASan and UBSan",
        "address,undefined",
        {
            "ASAN_OPTIONS": "detect_stack_use_after_return=1:strict_string_checks=1",
            "UBSAN_OPTIONS": "print_stacktrace=1",
        },
    ),
    Variant(
        "tsan",
        "C++ tests under TSan",
        "thread",
        {"TSAN_OPTIONS": "second_deadlock_stack=1:halt_on_error=1"},
    ),
)


class SkipError(Exception):
    """This machine cannot do it; the text says why."""


def compiles(source: str, *flags: str, then_run: tuple[str, ...] | None = None) -> bool:
    """Whether a small program builds with these flags and, if asked, runs under a prefix."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "probe"
        command = ["c++", "-std=c++20", "-x", "c++", "-", "-o", str(program), *flags]
        try:
            built = subprocess.run(
                command, input=source, text=True, capture_output=True, check=False
            )
            if built.returncode != 0:
                return False
            if then_run is None:
                return True
            ran = subprocess.run(
                [*then_run, str(program)],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
            )
        except OSError:
            return False
        return ran.returncode == 0


def need_googletest() -> None:
    """Install GoogleTest where it is missing and may be installed; raises SkipError else."""
    source = "#include <gtest/gtest.h>\nTEST(A, B) {}\n"
    flags = ("-lgtest_main", "-lgtest", "-pthread")
    if compiles(source, *flags):
        return
    reason = apt_install("libgtest-dev")
    if reason is None and compiles(source, *flags):
        return
    raise SkipError(f"GoogleTest (libgtest-dev) is not installed: {reason or 'it does not link'}")


def sanitizer_prefix(variant: Variant) -> tuple[str, ...]:
    """What to put before a sanitized program; SkipError where none helps."""
    if not variant.sanitize:
        return ()
    flag = f"-fsanitize={variant.sanitize}"
    source = "#include <thread>\nint main() { std::thread([] {}).join(); }\n"
    # Kernels that spread addresses widely break older ThreadSanitizers; setarch -R holds them.
    for prefix in ((), ("setarch", platform.machine(), "-R")):
        if compiles(source, flag, "-pthread", then_run=prefix):
            return prefix
    raise SkipError(f"programs built with {flag} do not build or run on this machine")


def run_variant(variant: Variant) -> str:
    """Build and run one variant; returns what to say. Raises SkipError or StepError."""
    need_googletest()
    prefix = sanitizer_prefix(variant)
    folder = ROOT / "build" / f"cpp-{variant.name}"
    log = f"cpp-{variant.name}"
    run(
        [
            "cmake", "-G", "Ninja", "-S", ROOT, "-B", folder,
            "-DCMAKE_BUILD_TYPE=Release", "-DSTAGESPAN_BUILD_PYTHON=OFF",
            "-DSTAGESPAN_BUILD_TESTS=ON", "-DSTAGESPAN_LTO=OFF",
            f"-DSTAGESPAN_SANITIZE={variant.sanitize}",
            f"-DSTAGESPAN_WERROR={'ON' if in_ci() else 'OFF'}",
        ],
        log,
    )  # fmt: skip
    run(["cmake", "--build", folder, "-j", "2"], log, append=True)
    run(
        [*prefix, "ctest", "--test-dir", folder, "--output-on-failure", "-j", "3"],
        log,
        append=True,
        env=variant.env,
    )
    found = re.search(r"tests passed.* out of (\d+)", log_text(log))
    if found is None or int(found.group(1)) == 0:
        raise StepError("ctest ran no test.", ROOT / ".make" / "logs" / f"{log}.log")
    return f"{found.group(1)} programs passed"


def main() -> int:
    """Run the variants named on the command line."""
    names = sys.argv[1:] or [variant.name for variant in VARIANTS]
    unknown = set(names) - {variant.name for variant in VARIANTS}
    if unknown:
        raise StepError(f"Unknown variant {', '.join(sorted(unknown))}: use plain, asan or tsan.")
    for variant in VARIANTS:
        if variant.name not in names:
            continue
        timer = Timer()
        try:
            said = run_variant(variant)
        except SkipError as reason:
            said = f"skipped: {reason}"
        say(f"{variant.title}: {said} ({timer.seconds():.1f} s)")
    return 0


if __name__ == "__main__":
    main_guard(main)
