"""What the values of an integer or bool tensor are like, in few words. Needs torch alone.

The harness's scripts hold this text: one half describes a tensor, the other makes one like it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

MOST_RUNS = 128
MOST_DISTINCT = 64
KNOTS = 64
LARGEST_SORTED = 1 << 20
FREQUENT = 0.05
"""Of the elements: what occurs as often is kept with its number and its place."""


def describe_content(tensor: Any) -> dict[str, Any] | None:
    """The kind of a tensor's content, as a mock needs it; None if it is like random numbers."""
    count = tensor.numel()
    if not count or count > LARGEST_SORTED:
        return None
    flat = tensor.detach().flatten().to(torch.int64)
    rows = flat.reshape(-1, tensor.shape[-1])
    width = rows.shape[1]
    first = rows[0]
    if width > 2 and bool((rows == first).all()):
        step = int(first[1] - first[0])
        if step and bool((first[1:] - first[:-1] == step).all()):
            return {"kind": "range", "start": int(first[0]), "step": step}
    change = torch.nonzero(flat[1:] != flat[:-1]).flatten() + 1
    if len(change) < MOST_RUNS:
        ends = torch.cat([change, torch.tensor([count], device=change.device)])
        starts = torch.cat([torch.zeros(1, dtype=ends.dtype, device=ends.device), ends[:-1]])
        return {
            "kind": "runs",
            "values": flat[starts].tolist(),
            "lengths": (ends - starts).tolist(),
        }
    if bool((flat[1:] >= flat[:-1]).all()):
        at = torch.linspace(0, count - 1, KNOTS + 1, dtype=torch.float64).round().long()
        return {"kind": "sorted", "knots": flat[at.to(flat.device)].tolist()}
    if width > 2:
        wanted = torch.arange(width, device=rows.device)
        if bool((rows.sort(-1).values == wanted).all()):
            return {"kind": "permutation"}
    values, counts = flat.unique(return_counts=True)
    if len(values) <= MOST_DISTINCT:
        return {"kind": "counts", "values": values.tolist(), "counts": counts.tolist()}
    often = counts >= max(2, int(FREQUENT * count))
    if not bool(often.any()) and len(values) * 2 > min(count, int(values[-1] - values[0])):
        return None
    frequent = values[often].tolist()
    return {
        "kind": "frequent",
        "values": frequent,
        "counts": counts[often].tolist(),
        "first": [int((flat == value).nonzero()[0]) for value in frequent],
        "distinct": int((~often).sum()),
    }


def make_content(
    content: Mapping[str, Any],
    shape: Sequence[int],
    value_range: Sequence[int],
    generator: Any,
) -> Any:
    """An int64 tensor of this kind of content; raises ValueError for what is not one."""
    count = 1
    for size in shape:
        count *= size
    width = shape[-1] if len(shape) else 1
    kind = content["kind"]
    if kind == "range":
        row = torch.arange(width) * content["step"] + content["start"]
        return row.expand(tuple(shape)).contiguous() if len(shape) else row.reshape(())
    if kind == "runs":
        made = _repeated(content["values"], content["lengths"], count)
    elif kind == "counts":
        made = _repeated(content["values"], content["counts"], count)
        made = made[torch.randperm(count, generator=generator)]
    elif kind == "sorted":
        knots = torch.tensor(content["knots"], dtype=torch.float64)
        at = torch.linspace(0, len(knots) - 1, count, dtype=torch.float64)
        below = at.floor().long().clamp(max=max(len(knots) - 2, 0))
        above = (below + 1).clamp(max=len(knots) - 1)
        made = (knots[below] + (knots[above] - knots[below]) * (at - below)).floor().long()
    elif kind == "permutation":
        made = torch.rand((count // max(width, 1), width), generator=generator).argsort(-1)
    elif kind == "frequent":
        low, high = max(value_range[0], -(1 << 62)), min(value_range[1], 1 << 62)
        number = min(max(content["distinct"], 1), count)
        some = torch.randint(low, high + 1, (number,), generator=generator)
        made = some[torch.randint(0, len(some), (count,), generator=generator)]
        places = zip(content["values"], content["counts"], content["first"], strict=True)
        for value, times, first in places:
            made[first : first + times] = value
    else:
        raise ValueError(f"the content {kind!r} is not known")
    return made.reshape(tuple(shape))


def _repeated(values: Sequence[int], lengths: Sequence[int], count: int) -> Any:
    if len(values) != len(lengths) or sum(lengths) != count:
        raise ValueError(f"its content does not have the {count} values of its shape")
    return torch.repeat_interleave(
        torch.tensor(values, dtype=torch.int64), torch.tensor(lengths, dtype=torch.int64)
    )
