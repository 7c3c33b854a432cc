"""Layers: the model's modules where they were recorded, else what repeats, said to be inferred."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stagespan.trace.analysis.layer_modules import Module, Modules, modules_of
from stagespan.trace.analysis.layer_repeats import Blocks, blocks_of
from stagespan.trace.analysis.result import (
    Evidence,
    Finding,
    Nothing,
    Table,
    in_words,
    largest,
    share,
    shortened,
)
from stagespan.trace.analysis.step_ranges import step_ranges
from stagespan.trace.model import Trace

_SHOWN = 40
_MOST_IN_JSON = 2_000
# A module of a repeated layer that takes so much longer than its like, and so much of all.
_TELLS = 40.0
_TIMES, _LEAST_PERCENT, _LEAST_LIKE = 1.5, 5.0, 4


@dataclass(frozen=True, slots=True)
class Layers:
    """The modules, and where they do not tell the layers the blocks that repeat."""

    modules: Modules | None
    blocks: Blocks | None

    def to_dict(self) -> dict[str, Any]:
        """For JSON, in microseconds."""
        modules = self.modules.modules if self.modules else []
        kept = largest(modules, _MOST_IN_JSON, lambda module: module.host_ns)
        blocks = self.blocks
        return {
            "told_from": "modules" if self.modules else "repetition",
            "inferred": self.modules is None,
            "modules": [module.to_dict() for module in kept],
            "modules_left_out": len(modules) - len(kept),
            "device_events_outside": self.modules.outside[0] if self.modules else None,
            "device_events_outside_us": self.modules.outside[1] / 1000 if self.modules else None,
            "blocks": [block.to_dict() for block in blocks.blocks] if blocks else [],
            "blocks_of": None
            if blocks is None
            else "kernels"
            if blocks.of_kernels
            else "operators",
            "blocks_in_step": None if blocks is None else blocks.step,
        }

    def findings(self) -> list[Finding]:
        """Modules of a repeated layer that take much longer than the others of it."""
        found = []
        for module in self.modules.modules if self.modules else []:
            _, median, most = module.call_ns
            whole = self.modules.device_ns if self.modules else None
            if not whole or module.instances < _LEAST_LIKE or most <= _TIMES * median:
                continue
            extra = (most - median) * module.calls // module.instances
            if median and share(extra, whole) >= _LEAST_PERCENT:
                sentence = (
                    f"{shortened(module.slowest)} takes the device {in_words(most, 'ns')} a call,"
                    f" the median of its {module.instances:,} like"
                    f" ({shortened(' / '.join(module.path), 80)}) {in_words(median, 'ns')}."
                )
                shown = Evidence(f"nn.Module: {module.slowest}", None, most, "ns")
                found.append(Finding("low", sentence, (shown,), "layers.slow_module"))
        return found[:2]

    def tables(self) -> list[Table]:
        """The modules, or the blocks."""
        tables = [] if self.modules is None else [_modules_table(self.modules)]
        return tables if self.blocks is None else [*tables, _blocks_table(self.blocks)]


def analyze(trace: Trace) -> Layers | Nothing:
    """Tell layers from modules, else from repetition; Nothing where there is neither."""
    modules = modules_of(trace) if len(trace.events) else None
    if modules is not None and _tells_layers(modules):
        return Layers(modules, None)
    blocks = blocks_of(trace, step_ranges(trace)) if len(trace.events) else None
    if modules is not None or blocks is not None:
        return Layers(modules, blocks)
    return Nothing(
        "The trace does not tell layers: it holds no modules, and nothing in it repeats as the"
        " layers of a model do. Record it with_stack=True, which names them."
    )


def _tells_layers(modules: Modules) -> bool:
    """Whether some class with several modules takes a good part of the time."""
    if modules.device_ns:
        time = {m.path: (m.device_ns or 0) + (m.backward_ns or 0) for m in modules.modules}
        whole = modules.device_ns
    else:
        time = {m.path: m.host_ns for m in modules.modules}
        whole = sum(m.host_self_ns for m in modules.modules)
    several = (m for m in modules.modules if m.instances >= _LEAST_LIKE)
    return any(share(time[m.path], whole) >= _TELLS for m in several)


def _modules_table(modules: Modules) -> Table:
    kept = largest(modules.modules, _SHOWN, _weight)
    on_device = modules.device_ns is not None
    with_backward = any(module.backward_ns for module in kept)
    columns = [("module", ""), ("instances", ""), ("calls", ""), ("host", "ns")]
    if on_device:
        columns += [("device", "ns"), ("device, own", "ns")]
    if with_backward:
        columns += [("backward", "ns")]
    columns += [("a call", "ns"), ("slowest", "")]
    rows: list[tuple[str | int | None, ...]] = []
    for module in kept:
        row: list[str | int | None] = [". " * (len(module.path) - 1) + module.path[-1]]
        row += [module.instances, module.calls, module.host_ns]
        if on_device:
            row += [module.device_ns, module.device_self_ns]
        if with_backward:
            row.append(module.backward_ns)
        row += [module.call_ns[1], module.slowest if module.instances > 1 else None]
        rows.append(tuple(row))
    note = ""
    if len(kept) < len(modules.modules):
        note = f"The {len(kept):,} longest of {len(modules.modules):,}."
    if on_device:
        note += (
            f" {modules.outside[0]:,} device events ({in_words(modules.outside[1], 'ns')}) were"
            " launched by no module's forward or backward."
        )
    return Table("Modules", tuple(columns), rows, note.strip())


def _weight(module: Module) -> int:
    return module.host_ns + (module.device_ns or 0) + (module.backward_ns or 0)


def _blocks_table(blocks: Blocks) -> Table:
    what = blocks.what
    where = "the trace" if blocks.step is None else shortened(blocks.step)
    rows = [
        (
            f"{block.length:,} {what} from {shortened(block.first, 40)}",
            block.times,
            block.layers,
            block.total_ns,
            share(block.total_ns, blocks.total_ns),
            block.block_ns[1],
            block.block_ns[2],
            shortened(block.heaviest, 40),
        )
        for block in blocks.blocks
    ]
    return Table(
        "What repeats",
        (
            ("block", ""),
            ("times", ""),
            ("layers", ""),
            ("time", "ns"),
            ("of all", "%"),
            ("a block", "ns"),
            ("most", "ns"),
            ("heaviest", ""),
        ),
        rows,
        f"Inferred: the same {what} in the same order, several times in a row, in {where}.",
    )
