"""Traces that no program writes: deep, crossing, crowded, or with everything at one time.

Each function returns about `count` entries, or a few times as many. Times are in us.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Events = list[dict[str, Any]]
HOST: dict[str, Any] = {"ph": "X", "pid": 1, "tid": 1}


def _launch(number: int, at: float, thread: int = 1, stream: int = 7, device: int = 0) -> Events:
    """A launch at a time, and its kernel of 1 µs."""
    return [
        {**HOST, "tid": thread, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": at,
         "dur": 0.5, "args": {"correlation": number}},
        {"ph": "X", "pid": device, "tid": stream, "cat": "kernel", "name": f"k{number % 7}",
         "ts": at + 2, "dur": 1,
         "args": {"correlation": number, "device": device, "stream": stream}},
    ]  # fmt: skip


def _nested(count: int, cat: str, name: str, names: int = 50) -> Events:
    """Each within the previous one, with a launch, and as many launches after all have ended."""
    deep = [
        {**HOST, "cat": cat, "name": f"{name}{at % names}", "ts": at * 3, "dur": 9 * count - 6 * at}
        for at in range(count)
    ]
    inside = [each for at in range(count) for each in _launch(at, at * 3 + 1)]
    behind = [each for at in range(count) for each in _launch(count + at, 6 * count + at * 2.9)]
    return deep + inside + behind


def nested_annotations(count: int) -> Events:
    return _nested(count, "user_annotation", "stage ")


def nested_annotations_of_many_names(count: int) -> Events:
    return _nested(count, "user_annotation", "stage ", names=250)


def nested_operators(count: int) -> Events:
    return _nested(count, "cpu_op", "aten::op")


def nested_calls(count: int) -> Events:
    return _nested(count, "cuda_runtime", "cudaStreamSynchronize")


def nested_modules(count: int) -> Events:
    frames = _nested(count, "python_function", "nn.Module: Block_")
    for at, frame in enumerate(frames[:count]):
        frame["args"] = {"Python id": at + 1, "Python parent id": at or None,
                         "Python module id": at}  # fmt: skip
    return frames


def nested_frames(count: int) -> Events:
    frames = _nested(count, "python_function", "model.py(7): f")
    for at, frame in enumerate(frames[:count]):
        frame["args"] = {"Python id": at + 1, "Python parent id": at or None}
    operators = [
        {**HOST, "cat": "cpu_op", "name": "aten::mm", "ts": at * 3 + 0.5, "dur": 1.5}
        for at in range(count)
    ]
    return frames + operators


def nested_compiled_regions(count: int) -> Events:
    regions = _nested(count, "cpu_op", "Torch-Compiled Region: ")
    compiled = [
        {**HOST, "cat": "cpu_op", "name": f"compile_file{at % 9} (dynamo_timed)", "ts": at * 3 + 1,
         "dur": 1, "args": {"compile_id": f"{at}/0"}}
        for at in range(count)
    ]  # fmt: skip
    return regions + compiled


def _crossing(count: int, cat: str, name: str) -> Events:
    """Each starts within all earlier ones, and ends after them."""
    over = [
        {**HOST, "cat": cat, "name": f"{name}{at % 50}", "ts": at * 3, "dur": 3 * count + at}
        for at in range(count)
    ]
    return over + [each for at in range(count) for each in _launch(at, at * 6 + 1)]


def crossing_annotations(count: int) -> Events:
    return _crossing(count, "user_annotation", "stage ")


def crossing_operators(count: int) -> Events:
    return _crossing(count, "cpu_op", "aten::op")


def crossing_frames(count: int) -> Events:
    return _crossing(count, "python_function", "model.py(7): f") + crossing_operators(count)


def overlapping_kernels(count: int) -> Events:
    """Kernels that all run until the end, on two streams, launched by calls that wait for each."""
    events = [each for at in range(count) for each in _launch(at, at * 4, stream=7 + at % 2)]
    for at, kernel in enumerate(events[1::2]):
        kernel["dur"] = 8 * count - 8 * at + at % 5
    return events


def one_time(count: int) -> Events:
    """Everything at one time, with the same duration."""
    events: Events = []
    for at in range(count):
        events += [
            {**HOST, "cat": "user_annotation", "name": f"stage {at % 9}", "ts": 5, "dur": 10},
            {**HOST, "cat": "cpu_op", "name": f"aten::op{at % 9}", "ts": 5, "dur": 10},
            *_launch(at, 5),
        ]
    for each in events:
        each["dur"] = 10
    return events


def no_durations(count: int) -> Events:
    events = [{**each, "ts": each["ts"] // 7} for each in one_time(count)]
    for at, each in enumerate(events):
        each["dur"], each["ts"] = 0, at // 100
    return events


def many_names(count: int) -> Events:
    """A separate name for each operator, kernel and stage, and a shape."""
    events: Events = []
    for at in range(count):
        launch, kernel = _launch(at, at * 5)
        kernel["name"] = f"kernel_{at:x}_x"
        events += [
            {**HOST, "cat": "user_annotation", "name": f"stage {at:x}_x", "ts": at * 5 - 1,
             "dur": 4},
            {**HOST, "cat": "cpu_op", "name": f"aten::op_{at:x}_x", "ts": at * 5 - 1, "dur": 3,
             "args": {"Input Dims": [[at, 3]], "Input type": ["float"]}},
            launch, kernel,
        ]  # fmt: skip
    return events


def many_streams(count: int) -> Events:
    return [each for at in range(count) for each in _launch(at, at * 5, stream=at)]


def many_devices(count: int) -> Events:
    return [each for at in range(count) for each in _launch(at, at * 5, device=at)]


def many_threads(count: int) -> Events:
    """A stage, an operator, a frame and a launch on each thread."""
    events: Events = []
    for at in range(count):
        thread = {**HOST, "tid": at + 1}
        events += [
            {**thread, "cat": "user_annotation", "name": "stage", "ts": at * 5, "dur": 4},
            {**thread, "cat": "python_function", "name": "train.py(1): f", "ts": at * 5, "dur": 4,
             "args": {"Python id": at + 1, "Python parent id": None}},
            {**thread, "cat": "cpu_op", "name": "autograd::engine::evaluate_function: AddBackward0",
             "ts": at * 5 + 0.5, "dur": 3},
            *_launch(at, at * 5 + 1, thread=at + 1),
        ]  # fmt: skip
    return events


def many_processes(count: int) -> Events:
    events = many_threads(count)
    for each in events:
        if each["cat"] != "kernel":
            each["pid"] = 1_000 + each["tid"]
    names: Events = [
        {"ph": "M", "name": "process_name", "pid": 1_000 + at, "args": {"name": "stagespan"}}
        for at in range(count)
    ]
    return events + names


def many_steps(count: int) -> Events:
    events: Events = []
    for at in range(count):
        events += [
            {**HOST, "cat": "user_annotation", "name": f"ProfilerStep#{at}", "ts": at * 9,
             "dur": 8.5},
            {**HOST, "cat": "user_annotation", "name": f"stage {at % 40}", "ts": at * 9 + 1,
             "dur": 4},
            {**HOST, "cat": "cpu_op", "name": "aten::mm", "ts": at * 9 + 1, "dur": 3},
            *_launch(at, at * 9 + 2),
        ]  # fmt: skip
    return events


def many_named_steps(count: int) -> Events:
    events = many_steps(count)
    for at, each in enumerate(events[::5]):
        each["name"] = f"iteration {at}"
    return events


def many_arrows(count: int) -> Events:
    """Flows from forward to backward operators, half of them with the same id."""
    events: Events = []
    for at in range(count):
        ident = at if at % 2 else 1
        arrow = {"pid": 1, "cat": "fwdbwd", "name": "fwdbwd", "id": ident}
        events += [
            {**HOST, "cat": "cpu_op", "name": "aten::mm", "ts": at * 9, "dur": 3,
             "args": {"Sequence number": at % 100, "Fwd thread id": 0}},
            {**HOST, "tid": 2, "cat": "cpu_op", "name": "MmBackward0", "ts": at * 9 + 4, "dur": 3,
             "args": {"Sequence number": at % 100, "Fwd thread id": 1}},
            {**arrow, "ph": "s", "tid": 1, "ts": at * 9},
            {**arrow, "ph": "f", "tid": 2, "ts": at * 9 + 4, "bp": "e"},
            *_launch(at, at * 9 + 5, thread=2),
        ]  # fmt: skip
    return events


def one_graph(count: int) -> Events:
    """One launch of all kernels."""
    events = [each for at in range(count) for each in _launch(0, at * 3)[1:]]
    return [
        {**HOST, "cat": "cuda_runtime", "name": "cudaGraphLaunch", "ts": 0, "dur": 1,
         "args": {"correlation": 0}},
        *events,
    ]  # fmt: skip


def many_waits(count: int) -> Events:
    """Waits of every kind, each in an operator and with its own line."""
    events: Events = []
    calls = ("cudaStreamSynchronize", "cudaMalloc", "cudaEventSynchronize", "cudaModuleLoadData")
    for at in range(count):
        events += [
            {**HOST, "cat": "python_function", "name": f"train.py({at}): f", "ts": at * 20,
             "dur": 18, "args": {"Python id": at + 1, "Python parent id": None}},
            {**HOST, "cat": "cpu_op", "name": f"aten::item{at}", "ts": at * 20, "dur": 17},
            *_launch(at, at * 20 + 1),
            {**HOST, "cat": "cuda_runtime", "name": calls[at % 4], "ts": at * 20 + 4, "dur": 12},
        ]  # fmt: skip
    return events


def many_allocations(count: int) -> Events:
    events = many_steps(count)
    used = 0
    for at in range(count):
        size = 512 * (1 + at % 7)
        used += size
        events.append({
            "ph": "i", "name": "[memory]", "pid": 1, "tid": 1, "ts": at * 9 + 1, "s": "t",
            "args": {"Total Reserved": 1 << 40, "Total Allocated": used, "Bytes": size,
                     "Addr": at, "Device Id": 0, "Device Type": 1},
        })  # fmt: skip
    return events


def long_stacks(count: int) -> Events:
    """Call stacks as old profilers wrote them: with one more frame for each operator, up to 100."""
    return [
        {**HOST, "cat": "cpu_op", "name": "aten::mm", "ts": at * 5, "dur": 4,
         "args": {"Call stack": ";".join(f"m.py({at % 977}): f{n}" for n in range(at % 100))}}
        for at in range(count)
    ]  # fmt: skip


def many_collectives(count: int) -> Events:
    events = [each for at in range(count) for each in _launch(at, at * 5, stream=7 + 13 * (at % 2))]
    for at, kernel in enumerate(events[1::2]):
        if at % 2:
            kernel["name"] = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
            kernel["dur"] = 11
    return events


def repeated_kernels(count: int) -> Events:
    """Names in an order that repeats at every length: a, ab, aba, ..."""
    events = [each for at in range(count) for each in _launch(at, at * 5)]
    for at, kernel in enumerate(events[1::2]):
        kernel["name"] = f"k{(at & -at).bit_length()}"
    return events


HOSTILE: tuple[Callable[[int], Events], ...] = (
    nested_annotations, nested_annotations_of_many_names, nested_operators, nested_calls,
    nested_modules, nested_frames, nested_compiled_regions, crossing_annotations,
    crossing_operators, crossing_frames, overlapping_kernels, one_time, no_durations, many_names,
    many_streams, many_devices, many_threads, many_processes, many_steps, many_named_steps,
    many_arrows, one_graph, many_waits, many_allocations, long_stacks, many_collectives,
    repeated_kernels,
)  # fmt: skip
