"""No advice contradicts its trace: each piece is checked against the raw events."""

from __future__ import annotations

import functools
import re
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from plain_json import entries_of
from real_traces import read_real

from stagespan.pages.result import Finding
from stagespan.trace.analysis import analyze
from stagespan.trace.derived.advice import EVERY

Entry = dict[str, Any]
DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "mtia_ccp_events", "Kernel", "Memcpy", "Memset")
RUNTIME = ("cuda_runtime", "cuda_driver", "Runtime", "mtia_runtime")
OPERATOR = ("cpu_op", "Operator")


class Raw:
    """A trace read with Python's own json module, and simple queries on it."""

    def __init__(self, path: Path) -> None:
        self.entries = [e for e in entries_of(path) if e.get("ph") == "X"]
        self.begin = min((float(e["ts"]) for e in self.entries), default=0.0)
        self.by_name: dict[str, list[Entry]] = {}
        self.by_category: dict[str | None, list[Entry]] = {}
        for entry in self.entries:
            self.by_name.setdefault(entry["name"], []).append(entry)
            self.by_category.setdefault(entry.get("cat"), []).append(entry)

    def named(self, pattern: str, *categories: str) -> list[Entry]:
        found = re.compile(pattern)
        return [
            e
            for name, entries in self.by_name.items()
            if found.search(name)
            for e in entries
            if not categories or e.get("cat") in categories
        ]

    def of(self, *categories: str) -> list[Entry]:
        return [e for category in categories for e in self.by_category.get(category, [])]

    @property
    def span(self) -> float:
        device = self.of(*DEVICE)
        return max(e["ts"] + e["dur"] for e in device) - min(e["ts"] for e in device)

    @property
    def compiled(self) -> bool:
        return bool(self.named("^Torch-Compiled Region|^CompiledFunction|CompiledFxGraph"))

    @property
    def graphs(self) -> bool:
        return bool(self.named("GraphLaunch|GraphExec", *RUNTIME))

    @property
    def stacks(self) -> bool:
        return bool(self.of("python_function"))

    def allocations(self) -> tuple[list[float], int, int]:
        """Return the durations of calls that allocate or free device memory, and their numbers."""
        calls = self.named("^(cuda|hip|cu|aclrt)(Mem)?(Malloc|Alloc|Free)", *RUNTIME)
        calls = [e for e in calls if "Host" not in e["name"]]
        frees = [e for e in calls if "Free" in e["name"]]
        return [e["dur"] for e in calls], len(calls) - len(frees), len(frees)


def few_calls_are_most(times: list[float]) -> bool:
    return 2 * sum(sorted(times)[-3:]) > sum(times)


def caches_nothing(raw: Raw, finding: Finding) -> bool:
    times, taken, given = raw.allocations()
    said = [
        int(number.replace(",", ""))
        for number in re.findall(r"[\d,]+(?= calls| freed it)", finding.text)
    ]
    return (
        taken >= 50
        and 2 * given >= taken
        and not few_calls_are_most(times)
        and (said == [taken, given])
    )


def started(raw: Raw, finding: Finding) -> bool:
    """Return whether evidence is an annotated warm-up, or a first and by far longest call."""
    for each in finding.evidence:
        assert each.time_ns is not None
        name = each.event.removeprefix("calls of ")
        mine = [e for e in raw.entries if e["name"] == name]
        first = min(mine, key=lambda e: float(e["ts"]))
        if "warmup" in each.event:
            return True
        others = [e["dur"] for e in mine if e is not first]
        is_first = abs((first["ts"] - raw.begin) * 1000 - each.time_ns) < 1000
        if is_first and others and first["dur"] >= 10 * statistics.median(others):
            return True
    return False


def pageable_share(raw: Raw) -> float:
    copies = raw.named("Pageable", "gpu_memcpy", "Memcpy")
    return 100 * sum(e["dur"] for e in copies) / raw.span


CHECKS: dict[str, Callable[[Raw, Finding], bool]] = {
    "launch.compile_or_graph": lambda raw, _: not raw.compiled and not raw.graphs,
    "launch.graph": lambda raw, _: not raw.graphs,
    "launch.larger": lambda raw, _: raw.graphs,
    "launch.graph_of_compiled": lambda raw, _: (
        bool(raw.named("torchinductor_|CompiledFxGraph")) and not raw.graphs
    ),
    "wait.later": lambda raw, _: bool(
        raw.named("ynchroni|Memcpy|Event", *RUNTIME) or raw.named("^aten::item", *OPERATOR)
    ),
    "steps.overlap": lambda raw, _: len(raw.named("#|^step|^execute_")) > 1,
    "loader.workers": lambda raw, _: bool(raw.named("_SingleProcessDataLoaderIter"))
    and not raw.named("_MultiProcessingDataLoaderIter"),
    "loader.more_workers": lambda raw, _: bool(raw.named("_MultiProcessingDataLoaderIter")),
    "loader.ahead": lambda raw, _: not raw.named("_(Single|Multi)Process\\w*DataLoaderIter"),
    "loader.persistent": lambda raw, _: len(raw.named("dataloader.py.*: __iter__")) > 1,
    "loader.pin": lambda raw, _: pageable_share(raw) > 1,
    "memory.caching": caches_nothing,
    "memory.growing": lambda raw, _: raw.allocations()[1] > 3,
    "memory.once": lambda raw, _: few_calls_are_most(raw.allocations()[0]),
    "runtime_call.first_use": lambda raw, _: bool(raw.of(*RUNTIME)),
    "queue.compile_or_graph": lambda raw, _: not raw.compiled and not raw.graphs,
    "queue.larger": lambda raw, _: raw.compiled or raw.graphs,
    "unseen.stacks": lambda raw, _: not raw.stacks,
    "unseen.annotate": lambda raw, _: raw.stacks,
    "operators.compile": lambda raw, _: not raw.compiled,
    "operators.larger": lambda raw, _: raw.compiled,
    "operators.stacks": lambda raw, _: raw.stacks,
    "earlier_work.synchronise": lambda raw, _: (
        raw.named("ynchroni", *RUNTIME)[0]["ts"] < raw.of(*DEVICE)[0]["ts"]
    ),
    "profiler.cost": lambda raw, _: bool(raw.of("overhead")),
    "start_up.warm_up": started,
}  # fmt: skip


def computes_where(raw: Raw, pattern: str) -> bool:
    """Return whether most work of a name runs on streams that compute for longer than it."""
    times: dict[Any, list[float]] = {}
    for e in raw.of(*DEVICE):
        args = e.get("args", {})
        mine = times.setdefault((args.get("device"), args.get("stream", e["tid"])), [0.0, 0.0])
        if re.search(pattern, e["name"]):
            mine[0] += e["dur"]
        elif e["cat"] in ("kernel", "Kernel"):
            mine[1] += e["dur"]
    shared = sum(of for of, other in times.values() if other > of)
    return 2 * shared > sum(of for of, _ in times.values())


def communicates_apart(raw: Raw, finding: Finding) -> bool:
    shared = computes_where(raw, "nccl|rccl")
    return shared == ("on a stream that computes" in finding.text)


def share_of_kernels(raw: Raw, pattern: str) -> float:
    kernels = raw.of("kernel", "Kernel")
    named = [e["dur"] for e in kernels if re.search(pattern, e["name"], re.IGNORECASE)]
    return 100 * sum(named) / sum(e["dur"] for e in raw.of(*DEVICE))


def percent_in(finding: Finding) -> float:
    found = re.search(r"([\d.]+) % of (?:device work|those|what)", finding.text)
    assert found is not None
    return float(found[1])


LAYOUTS = "nchwtonhwc|nhwctonchw|nchw2nhwc|nhwc2nchw|batched_transpose_"


def changes_layout(raw: Raw, finding: Finding) -> bool:
    share = share_of_kernels(raw, LAYOUTS)
    is_amd = bool(raw.named("^hip|^Cijk_|^batched_transpose_"))
    return abs(share - percent_in(finding)) < 0.1 and is_amd == ("MIOPEN" in finding.text)


def attends_in_parts(raw: Raw, finding: Finding) -> bool:
    fused = raw.named("(?i)flash|fmha|attention|efficient_att|aotriton|sdpa", "kernel", "Kernel")
    return not fused and abs(share_of_kernels(raw, "softmax") - percent_in(finding)) < 0.1


def uses_no_matrix_units(raw: Raw, finding: Finding) -> bool:
    name = finding.evidence[0].event
    return (
        any(e["name"].startswith(name) for e in raw.of("kernel", "Kernel"))
        and re.search("tf32|h884|1688|16816|f16|bf16|half|tensorop", name) is None
    )


def is_dominant(raw: Raw, finding: Finding) -> bool:
    kernels = raw.named(f"^{re.escape(finding.evidence[0].event)}$", *DEVICE)
    times = sum(e["dur"] for e in kernels)
    waits = raw.named("^event_(wait|record)$", *DEVICE)
    whole = sum(e["dur"] for e in raw.of(*DEVICE)) - sum(e["dur"] for e in waits)
    return abs(100 * times / whole - percent_in(finding)) < 0.1


# The advice in findings of other analyses, by code.
OF_CODES: dict[str, Callable[[Raw, Finding], bool]] = {
    "device_use.exposed_communication": communicates_apart,
    "device_use.exposed_copies": lambda raw, _: bool(raw.named("Mem", "gpu_memcpy", "Memcpy")),
    "kernels.layout": changes_layout,
    "kernels.attention_in_parts": attends_in_parts,
    "kernels.single_precision": uses_no_matrix_units,
    "kernels.memory_bound": lambda raw, _: not raw.compiled and not raw.named("^triton_"),
    "kernels.dominant": is_dominant,
    "kernels.few_blocks": lambda raw, _: any(
        0 < each["args"].get("blocks per SM", 1) < 1 for each in raw.of("kernel", "Kernel")
    ),
    "kernels.tiny": lambda raw, _: any(e["dur"] < 5 for e in raw.of("kernel", "Kernel")),
    "compiled.no_inductor": lambda raw, _: raw.compiled and not raw.named("^triton_", "kernel"),
    "compiled.graph_break": lambda raw, _: raw.compiled,
    "compiled.recompiled": lambda raw, _: bool(raw.named("compile_frame|_compile.compile_inner")),
    "compiled.fallback": lambda raw, _: raw.compiled,
    "compiled.guards": lambda raw, _: bool(raw.named("TorchDynamo Cache Lookup")),
    "compiled.in_window": lambda raw, _: bool(raw.named("compile|dynamo")),
    "compiled.variants": lambda raw, _: raw.compiled,
    "compiled.recompile_limit": lambda raw, _: raw.compiled,
}


def said_in(finding: Finding) -> list[str]:
    """Return the names of all advice in a finding."""
    return [
        advice.name
        for advice in EVERY
        if re.search(re.sub(r"\\\{\w+:,\\\}", r"[\\d,]+", re.escape(advice.text)), finding.text)
    ]


def contradictions(raw: Raw, findings: list[Finding]) -> list[tuple[str, str]]:
    return [
        (name, finding.text)
        for finding in findings
        for name in said_in(finding)
        if not CHECKS[name](raw, finding)
    ]


def test_each_advice_has_a_check() -> None:
    assert set(CHECKS) == {advice.name for advice in EVERY}


@pytest.fixture
def paths(traces: Path, every_trace: list[Path]) -> list[Path]:
    return [*every_trace, *sorted(traces.glob("nccl_dlrm_8rank/*.json.gz"))]


@functools.cache  # findings are small, and both tests below need them
def findings_of(path: Path) -> list[Finding]:
    names = ["idle", "host", "memory", "device_use", "kernels", "compiled"]
    return analyze(read_real(path), names).findings()


def test_no_advice_contradicts_a_real_trace(paths: list[Path]) -> None:
    # GIVEN all public traces, and the same events read with Python's json module
    given: set[str] = set()
    codes: set[str] = set()
    for path in paths:
        raw = Raw(path)
        findings = findings_of(path)
        assert contradictions(raw, findings) == [], path.name
        assert all(each.evidence for each in findings), path.name
        for each in findings:
            if not each.code.startswith(("idle.", "host.", "memory.")):
                assert OF_CODES[each.code](raw, each), (path.name, each.text)
                codes.add(each.code)
        own = [f for f in findings if f.code.split(".")[0] in ("idle", "host", "memory")]
        assert len(own) == len({f.code for f in own}), path.name
        given |= {name for finding in own for name in said_in(finding)}
    assert {
        "launch.compile_or_graph", "launch.graph", "launch.graph_of_compiled", "wait.later",
        "loader.workers", "memory.caching", "queue.compile_or_graph", "unseen.stacks",
        "start_up.warm_up",
    } <= given  # fmt: skip
    assert {
        "compiled.no_inductor", "device_use.exposed_communication", "device_use.exposed_copies",
        "kernels.attention_in_parts", "kernels.dominant", "kernels.layout", "kernels.memory_bound",
        "kernels.single_precision",
    } <= codes  # fmt: skip


def test_advice_on_copies_depends_on_their_kind(paths: list[Path]) -> None:
    # GIVEN the traces with findings about copies, and the copies' time by kind from raw events
    seen = 0
    for path in paths:
        copies = [f for f in findings_of(path) if f.code == "device_use.exposed_copies"]
        rows = Raw(path).of("gpu_memcpy", "Memcpy") if copies else []
        pageable = sum(e["dur"] for e in rows if "Pageable" in e["name"])
        within = sum(e["dur"] for e in rows if "DtoD" in e["name"])
        others = sum(e["dur"] for e in rows) - pageable - within
        for finding in copies:
            seen += 1
            advised = "pinned memory" in finding.text, "within the device" in finding.text
            longest = max(pageable, within, others)
            assert advised == (longest == pageable, longest == within), path.name
    if not seen:
        pytest.skip("no real trace has a finding about copies")
