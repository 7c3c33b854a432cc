"""Traces for HTML pages."""

from __future__ import annotations

from pathlib import Path

from planted import Program

HOSTILE = (
    "</script><script>window.hostile = 1</script>",
    "<img src=x onerror='window.hostile = 1'>",
    "\"'`;window.hostile=1//${window.hostile=1}",
    "\x1b[31mred\x07\u202egnirts\u2066",
    "<b>bold</b><a href='http://example.invalid/'>link</a>&lt;i&gt;",
    "<!--<script>",
    "x" * 10_000,
    "\ud83d\ude80 שלום 模型 {{ data }}",
)


def a_program(names: tuple[str, ...] = ("one", "two")) -> Program:
    """Two streams, waits, steps and stages, with the given names."""
    program = Program()
    for step in range(12):
        with program.within(f"ProfilerStep#{step}", "user_annotation"):
            for name in names:
                stage = program.within(f"stage {name}", "user_annotation")
                with stage, program.within(f"aten::{name}"):
                    program.launch(f"kernel {name}", 80)
                    program.launch(f"ncclKernel {name}", 200, stream=20)
                with program.within("aten::item"):
                    program.wait(call=f"cudaStreamSynchronize{name}", tail=150)
            program.work(900)
    return program


def a_trace(
    folder: Path, steps: int = 3, us: int = 40, tail: int = 100, name: str = "planted"
) -> Path:
    """Steps with waits, Python stacks, and memory that is allocated and freed."""
    made = Program()
    used = 0
    for step in range(steps):
        begin = made.now
        with made.within(f"ProfilerStep#{step}", "user_annotation"):
            made.operator(us=us + 10 * step)
            for size in (3 << 20, -(1 << 20)):
                used += size
                made.events.append({
                    "ph": "i", "name": "[memory]", "pid": 100, "tid": 100, "ts": made.now,
                    "s": "t", "args": {"Total Reserved": 1 << 26, "Total Allocated": used,
                                       "Bytes": size, "Addr": 7 * step + 1, "Device Id": 0,
                                       "Device Type": 1},
                })  # fmt: skip
                made.work(5)
            with made.within("aten::item"):
                made.wait(tail=tail)
        for line, outset in ((1, 2), (2, 1)):
            made.event(f"train.py({line}): f{line}", "python_function", begin - outset,
                       made.now + outset, **{"Python id": 2 * step + line,
                                            "Python parent id": 2 * step + line - 1})  # fmt: skip
        made.work(300)
    made.trace(folder)
    return (folder / "planted.json").rename(folder / f"{name}.json")
