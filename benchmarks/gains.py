"""Predicted gains of findings compared with the measured gains of the fixes.

    python -m benchmarks.gains [--steps N] [--turns N] [--json FILE] [--keep DIR] [NAME ...]

Each pair is a program with a known problem and the same program with its fix. Both are recorded
with torch.profiler on the CPU, in alternating turns, and the traces of the program with the problem
are analysed. The table has the gain of the finding about the problem, the measured gain, and its
spread (from the least to the most of the turns), per step, in the median of the turns. A gain is a
sum over all steps, so the measured one is the difference of the mean steps. "Fastest" is the
difference of the fastest steps of all turns, which other programs on the machine disturb least. A
prediction is an upper bound, and should be of use: `low` is a measured gain of more than 5 % above
it, `high` a prediction of more than 1.5 times the measured gain. The exit status is 1 if a
prediction is low or missing, or if more than a fifth are high. Traces that `--keep` has kept are
used again. Needs torch; pairs that compile need a C++ compiler.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import stagespan

ROOT = Path(__file__).parent.parent
# A measured gain may be so much larger than the prediction, and a prediction than the gain.
_MOST_ABOVE, _MOST_TIMES = 1.05, 1.5
_MOST_HIGH = 0.2
_WARM_UP = 3
# After about a second, the kernel lets other programs run for 50 ms.
_UNDISTURBED_S, _LETS_OTHERS_RUN_S = 0.6, 0.3


@dataclass(frozen=True)
class Pair:
    """A problem with its fix."""

    code: str
    """The code of the finding about the problem."""
    make: Callable[[bool], Callable[[int], Any]]
    """Returns one step of the program, with the problem or with the fix."""
    ranks: int = 1
    stacks: bool = False
    """Whether the finding needs Python's stacks."""


@dataclass(frozen=True)
class Outcome:
    """The figures of a pair, in ms of a step."""

    name: str
    code: str
    predicted_ms: float | None
    """None if the trace does not have the finding, or not with a gain."""
    at_most: bool
    measured_ms: float
    spread_ms: float
    fastest_ms: float
    """The difference of the fastest steps."""
    before_ms: float
    after_ms: float

    @property
    def judgement(self) -> str:
        """What is wrong with the prediction: "none", "low", "high" or ""."""
        if self.predicted_ms is None:
            return "none"
        if self.measured_ms > _MOST_ABOVE * self.predicted_ms:
            return "low"
        return "high" if self.predicted_ms > _MOST_TIMES * self.measured_ms else ""


# --- The programs ---


def _hidden_copy(fixed: bool) -> Callable[[int], Any]:
    """A transposed tensor that an operator copies in each step, or one that fits it."""
    import torch

    weight = torch.randn(2048, 4096)
    rows = weight if fixed else weight.t().contiguous().t()
    x = torch.randn(64, 4096)

    def step(_: int) -> Any:
        out = x @ weight.t()
        return out.sum() + torch.layer_norm(rows.contiguous().view(-1, 64), (64,)).sum()

    return step


def _items(fixed: bool) -> Callable[[int], Any]:
    """Values of a tensor that are read one by one with .item(), or at once."""
    import torch

    x = torch.randn(256, 256)

    def step(_: int) -> Any:
        y = (x @ x).sum(1)
        return sum(y.tolist()) if fixed else sum(y[at].item() for at in range(len(y)))

    return step


def _double(fixed: bool) -> Callable[[int], Any]:
    """Products in double precision, or in single precision."""
    import torch

    dtype = torch.float32 if fixed else torch.float64
    a, b = torch.randn(768, 768, dtype=dtype), torch.randn(768, 768, dtype=dtype)
    return lambda _: (a @ b) @ b


def _small_operators(fixed: bool) -> Callable[[int], Any]:
    """An update of many small tensors one by one, or of one tensor that holds them all."""
    import torch

    parts = [torch.randn(16) for _ in range(400)]
    flat = torch.cat(parts)
    a = torch.randn(384, 384)

    def step(_: int) -> None:
        a @ a
        if fixed:
            flat.mul_(0.99).add_(0.01)
        else:
            for part in parts:
                part.mul_(0.99).add_(0.01)

    return step


def _recompilation(fixed: bool) -> Callable[[int], Any]:
    """A compiled function that is compiled again for each size, or once for all sizes."""
    import torch

    def work(x: Any) -> Any:
        return (x * 2 + 1).relu().sum()

    torch._dynamo.reset()
    torch._dynamo.config.recompile_limit = 64
    compiled = torch.compile(work, dynamic=fixed, backend="aot_eager")
    compiled(torch.randn(100, 64))
    sizes = iter(range(128, 100_000))

    def step(_: int) -> Any:
        return compiled(torch.randn(next(sizes), 64))

    return step


def _slow_loader(fixed: bool) -> Callable[[int], Any]:
    """A data set that computes each sample anew, or has it ready."""
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Samples(Dataset[Any]):
        def __init__(self) -> None:
            self.ready = [self.made(at) for at in range(64)]

        def made(self, at: int) -> Any:
            values = torch.arange(256 * 256, dtype=torch.float32).view(256, 256)
            return torch.fft.fft2(values + at).abs()[:64, :64].flatten()

        def __len__(self) -> int:
            return 100_000

        def __getitem__(self, at: int) -> Any:
            return self.ready[at % 64] if fixed else self.made(at)

    model = torch.nn.Sequential(torch.nn.Linear(4096, 1024), torch.nn.Linear(1024, 64))
    batches = iter(DataLoader(Samples(), batch_size=16))
    return lambda _: model(next(batches)).sum().backward()


def _late_rank(fixed: bool) -> Callable[[int], Any]:
    """A rank that computes more than the other one before each all-reduce, or as much."""
    import torch
    import torch.distributed as dist

    late = dist.get_rank() == 1 and not fixed
    a, gradient = torch.randn(384, 384), torch.randn(1000)

    def step(_: int) -> None:
        for _ in range(8 if late else 2):
            a @ a
        dist.all_reduce(gradient)

    return step


def _uncompiled(fixed: bool) -> Callable[[int], Any]:
    """A chain of elementwise operators that is not compiled, or compiled into one loop."""
    import torch

    def work(x: Any, y: Any) -> Any:
        z = x * y
        z = z + x
        z = z * 0.5
        z = z - y
        z = z * x
        return (z + 1.0).relu()

    torch._dynamo.reset()
    x, y = torch.randn(4 << 20), torch.randn(4 << 20)
    work = torch.compile(work) if fixed else work
    work(x, y)
    return lambda _: work(x, y)


def _converted(fixed: bool) -> Callable[[int], Any]:
    """Inputs that each step converts to the type of the weights, or that have it."""
    import torch

    images = torch.randn(64, 3, 128, 128, dtype=torch.float32 if fixed else torch.float64)
    weight = torch.randn(16, 3, 8, 8)

    def step(_: int) -> Any:
        return torch.conv2d(images.to(torch.float32), weight, stride=8).sum()

    return step


def _double_training(fixed: bool) -> Callable[[int], Any]:
    """Training of a model whose inputs came from numpy, in double or in single precision."""
    import torch

    dtype = torch.float32 if fixed else torch.float64
    model = torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.ReLU()).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(256, 1024, dtype=dtype)

    def step(_: int) -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return step


def _gelu_by_hand(fixed: bool) -> Callable[[int], Any]:
    """An activation that is written as a formula, interpreted or compiled."""
    import torch

    layer = torch.nn.Linear(512, 2048)
    x = torch.randn(1024, 512)

    def gelu(y: Any) -> Any:
        return 0.5 * y * (1.0 + torch.tanh(0.79788456 * (y + 0.044715 * y * y * y)))

    torch._dynamo.reset()
    work = torch.compile(gelu) if fixed else gelu

    def step(_: int) -> Any:
        with torch.no_grad():
            return work(layer(x))

    step(0)
    return step


def _row_by_row(fixed: bool) -> Callable[[int], Any]:
    """Products of a matrix with the rows of a batch in a loop, or with the whole batch."""
    import torch

    weight, batch = torch.randn(64, 64), torch.randn(300, 64)
    large = torch.randn(512, 512)

    def step(_: int) -> Any:
        large @ large
        return batch @ weight if fixed else torch.stack([row @ weight for row in batch])

    return step


def _python_loop(fixed: bool) -> Callable[[int], Any]:
    """A statistic of a list of numbers that Python computes, or an operator."""
    import torch

    values = [(at * 7919 % 1000) / 1000 for at in range(50_000)]
    tensor = torch.tensor(values)
    a = torch.randn(512, 512)

    def variance() -> Any:
        if fixed:
            return (tensor - tensor.mean()).square().mean()
        mean = sum(values) / len(values)
        return sum((value - mean) ** 2 for value in values) / len(values)

    def step(_: int) -> Any:
        return (a @ a) * variance()

    return step


def _checkpoints(fixed: bool) -> Callable[[int], Any]:
    """Training that computes the forward pass of blocks again, or keeps its results."""
    import torch
    from torch.utils.checkpoint import checkpoint

    blocks = [
        torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 512))
        for _ in range(4)
    ]
    x = torch.randn(256, 512, requires_grad=True)

    def step(_: int) -> None:
        y = x
        for block in blocks:
            y = block(y) if fixed else checkpoint(block, y, use_reentrant=False)
        y.sum().backward()

    return step


def _new_workers(fixed: bool) -> Callable[[int], Any]:
    """A data loader whose workers are started for each epoch, or once."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    data = TensorDataset(torch.randn(256, 256))
    loader = DataLoader(data, batch_size=64, num_workers=1, persistent_workers=fixed)
    model = torch.nn.Sequential(torch.nn.Linear(256, 4096), torch.nn.Linear(4096, 64))

    def step(_: int) -> None:
        for (batch,) in loader:
            model(batch).sum().backward()

    return step


def _cleared_gradients(fixed: bool) -> Callable[[int], Any]:
    """Gradients that each step fills with zeros, or that it frees."""
    import torch

    model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(8, 1024)

    def step(_: int) -> None:
        optimizer.zero_grad(set_to_none=fixed)
        model(x).sum().backward()

    return step


def _by_tensor(fixed: bool) -> Callable[[int], Any]:
    """An optimizer that updates the parameters one by one, or all of them in one call."""
    import torch

    layers = (layer for _ in range(30) for layer in (torch.nn.Linear(64, 64), torch.nn.ReLU()))
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False, fused=fixed)
    x = torch.randn(256, 64)

    def step(_: int) -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return step


def _metrics(fixed: bool) -> Callable[[int], Any]:
    """Metrics of which each is read for a log with .item(), or all of them with .tolist()."""
    import torch

    weight, x = torch.randn(128, 128), torch.randn(128, 128)
    names = [f"{kind}/{at}" for kind in ("loss", "norm") for at in range(40)]

    def step(_: int) -> dict[str, float]:
        metrics = (x @ weight)[:80].mean(1)
        values = metrics.tolist() if fixed else (value.item() for value in metrics)
        return dict(zip(names, values, strict=True))

    return step


def _appended(fixed: bool) -> Callable[[int], Any]:
    """Results that a loop appends to a tensor, or that are joined once."""
    import torch

    weight, parts = torch.randn(256, 256), torch.randn(100, 16, 256)

    def step(_: int) -> Any:
        if fixed:
            return torch.cat([part @ weight for part in parts])
        joined = torch.empty(0, 256)
        for part in parts:
            joined = torch.cat((joined, part @ weight))
        return joined

    return step


def _batch_of_doubles(fixed: bool) -> Callable[[int], Any]:
    """Training on batches of numpy's doubles that each step converts, or the data set once."""
    import torch

    data = torch.randn(8, 512, 4096, dtype=torch.float64).numpy()
    batches = [torch.from_numpy(each) for each in data]
    if fixed:
        batches = [each.float() for each in batches]
    model = torch.nn.Linear(4096, 16)

    def step(number: int) -> None:
        model(batches[number % 8].float()).sum().backward()

    return step


PAIRS = {
    "hidden copy": Pair("operators.copies", _hidden_copy),
    "items": Pair("operators.read_one_by_one", _items),
    "float64": Pair("operators.float64", _double),
    "small operators": Pair("operators.small", _small_operators),
    "recompilation": Pair("compiled.recompiled", _recompilation),
    "slow loader": Pair("host.data_loader", _slow_loader),
    "late rank": Pair("ranks.late", _late_rank, ranks=2),
    "not compiled": Pair("operators.not_fused", _uncompiled),
    "converted inputs": Pair("operators.copies", _converted),
    "float64 training": Pair("operators.float64", _double_training),
    "formula": Pair("operators.not_fused", _gelu_by_hand),
    "row by row": Pair("operators.small", _row_by_row),
    "python loop": Pair("host.unseen", _python_loop),
    "checkpoints": Pair("training.recomputation", _checkpoints),
    "new workers": Pair("host.loader_start", _new_workers, stacks=True),
    "cleared gradients": Pair("training.zero_grad", _cleared_gradients),
    "by tensor": Pair("training.optimizer_by_tensor", _by_tensor),
    "metrics": Pair("operators.read_one_by_one", _metrics),
    "appended": Pair("rates.appended", _appended),
    "batch of doubles": Pair("operators.copies", _batch_of_doubles),
}


# --- Recording ---


def record(name: str, fixed: bool, steps: int, path: Path) -> None:
    """Record steps of one side of a pair, in this process."""
    import torch
    from torch.profiler import ProfilerActivity, profile, schedule

    torch.manual_seed(0)
    torch.set_num_threads(1)
    step = PAIRS[name].make(fixed)
    # Where this is allowed, other programs do not interrupt the steps.
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    begin = time.perf_counter()
    for number in range(_WARM_UP):
        step(number)
    if PAIRS[name].ranks == 1:
        took = (time.perf_counter() - begin) / _WARM_UP
        steps = max(min(steps, int(_UNDISTURBED_S / took)), 3)
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=0, warmup=_WARM_UP, active=steps, repeat=1),
        record_shapes=True,
        with_stack=PAIRS[name].stacks,
        on_trace_ready=lambda done: done.export_chrome_trace(str(path)),
    ) as running:
        for number in range(steps + _WARM_UP):
            if number == _WARM_UP - 1:
                time.sleep(_LETS_OTHERS_RUN_S)
            step(number)
            running.step()


def _record_elsewhere(name: str, fixed: bool, steps: int, folder: Path) -> Path:
    """Record one side in processes of its own, one for each rank; return the trace or folder."""
    ranks = PAIRS[name].ranks
    side = folder / f"{name.replace(' ', '_')}-{'after' if fixed else 'before'}"
    trace = side if ranks > 1 else side / "rank0.json"
    if side.is_dir():
        return trace
    side.mkdir()
    processes = []
    for rank in range(ranks):
        path = side / f"rank{rank}.json"
        command = [sys.executable, "-m", "benchmarks.gains", "--record", name, str(path)]
        command += ["--steps", str(steps), *(["--fixed"] if fixed else [])]
        variables = {"OMP_NUM_THREADS": "1", "RANK": str(rank), "WORLD_SIZE": str(ranks)}
        if ranks > 1:
            variables |= {"GAINS_STORE": str(side / "store")}
        processes.append(
            subprocess.Popen(
                # The profiler prints lines that nobody needs.
                command,
                cwd=ROOT,
                env=os.environ | variables,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
        )
    errors = [each.communicate()[1].decode(errors="replace") for each in processes]
    if any(each.returncode for each in processes):
        sys.exit(f"Recording {name} failed: {errors[0][-2000:]}")
    return trace


def _record_here(name: str, fixed: bool, steps: int, path: Path) -> None:
    if "GAINS_STORE" in os.environ:
        import torch.distributed as dist

        rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        store = dist.FileStore(os.environ["GAINS_STORE"], ranks)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
        record(name, fixed, steps, path)
        dist.destroy_process_group()
    else:
        record(name, fixed, steps, path)


# --- Figures ---


def steps_ms(trace: Path) -> list[float]:
    """Return the lengths of the marks of the profiler's steps, read from the events."""
    path = trace / "rank0.json" if trace.is_dir() else trace
    events = json.loads(path.read_text())["traceEvents"]
    return [
        each["dur"] / 1e3
        for each in events
        if each.get("ph") == "X" and each["name"].startswith("ProfilerStep#")
    ]


def compared(name: str, steps: int, turns: int, folder: Path) -> Outcome:
    """Record both sides of a pair in alternating turns, and compare the gains."""
    pair = PAIRS[name]
    before: list[list[float]] = []
    after: list[list[float]] = []
    predicted: list[float] = []
    at_most = False
    for turn in range(turns):
        here = folder / str(turn)
        here.mkdir(exist_ok=True)
        slow = _record_elsewhere(name, False, steps, here)
        before.append(steps_ms(slow))
        after.append(steps_ms(_record_elsewhere(name, True, steps, here)))
        for finding in stagespan.analyze(slow).findings():
            if finding.code == pair.code and finding.gain is not None:
                predicted.append(finding.gain.time_ns / 1e6 / len(before[-1]))
                at_most = finding.gain.at_most
    means = [[statistics.fmean(each) for each in side] for side in (before, after)]
    measured = [slow - fast for slow, fast in zip(*means, strict=True)]
    return Outcome(
        name=name,
        code=pair.code,
        predicted_ms=statistics.median(predicted) if predicted else None,
        at_most=at_most,
        measured_ms=statistics.median(measured),
        spread_ms=max(measured) - min(measured),
        fastest_ms=min(map(min, before)) - min(map(min, after)),
        before_ms=statistics.median(means[0]),
        after_ms=statistics.median(means[1]),
    )


def show(outcomes: list[Outcome]) -> None:
    """Print the table."""
    table = Table(
        "pair", "finding", "before", "after", "predicted", "measured", "spread", "fastest", ""
    )
    for outcome in outcomes:
        predicted = "none" if outcome.predicted_ms is None else f"{outcome.predicted_ms:.3f}"
        bound = "at most " if outcome.at_most else ""
        table.add_row(
            outcome.name,
            outcome.code,
            f"{outcome.before_ms:.3f}",
            f"{outcome.after_ms:.3f}",
            bound + predicted,
            f"{outcome.measured_ms:.3f}",
            f"{outcome.spread_ms:.3f}",
            f"{outcome.fastest_ms:.3f}",
            outcome.judgement,
        )
    console = Console(width=None if sys.stdout.isatty() else 130)
    console.print(table, "Times in ms of a step.")


def main() -> int:
    """Record, compare, print, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gains")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PAIRS)}")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the traces there")
    parser.add_argument("--record", nargs=2, metavar=("NAME", "FILE"), help=argparse.SUPPRESS)
    parser.add_argument("--fixed", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.record:
        _record_here(options.record[0], options.fixed, options.steps, Path(options.record[1]))
        return 0
    outcomes = []
    with tempfile.TemporaryDirectory() as temporary:
        for name in options.names or PAIRS:
            folder = (options.keep or Path(temporary)) / name.replace(" ", "_")
            folder.mkdir(parents=True, exist_ok=True)
            outcomes.append(compared(name, options.steps, options.turns, folder))
    show(outcomes)
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(each) for each in outcomes], indent=1))
    judgements = [each.judgement for each in outcomes]
    is_useful = judgements.count("high") <= _MOST_HIGH * len(outcomes)
    return 0 if is_useful and set(judgements) <= {"high", ""} else 1


if __name__ == "__main__":
    sys.exit(main())
