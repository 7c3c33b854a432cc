"""A program whose steps load, multiply and wait, with configurable times."""

from __future__ import annotations

from pathlib import Path

from planted import Program

from stagespan.trace import Trace


def training(
    folder: Path,
    name: str,
    steps: int = 4,
    load: int = 400,
    gemm: int = 100,
    kernel: str = "kernel_gemm",
    extra: bool = False,
    first: int = 1,
) -> Trace:
    """Steps that load, multiply, add, and wait: load + 18 + gemm + 50 + 2 µs each."""
    program = Program()
    for step in range(first, first + steps):
        with program.within(f"ProfilerStep#{step}", "user_annotation"):
            with program.within("enumerate(DataLoader)#x", "user_annotation"):
                program.work(load)
            with program.within("forward", "user_annotation"):
                with program.within("aten::mm"):
                    program.work(10)
                    program.launch(kernel, gemm)
                program.operator("aten::add", 50)
                if extra:
                    program.operator("aten::relu", 30)
            program.wait()
    (folder / name).mkdir(exist_ok=True)
    return program.trace(folder / name)
