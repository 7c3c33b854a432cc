"""The breakdown of kernels as JSON and as tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from stagespan.trace.analysis.grouping import Group, grouped, prevailing
from stagespan.trace.analysis.kinds import KINDS
from stagespan.trace.analysis.result import Cell, Table, in_words, share
from stagespan.trace.breakdown import TOP, breakdown

if TYPE_CHECKING:
    from stagespan.trace.analysis.kernels import Kernels

_KINDS = list(KINDS)
_SHOWN = 15


def as_dict(kernels: Kernels) -> dict[str, Any]:
    """For JSON: lists are cut at 50 rows, sums are over all; times in us."""
    launched, time, total = kernels.launched, kernels.time_ns, kernels.total_ns
    rows: dict[str, Any] = {
        "on_device": kernels.on_device,
        "time_us": total / 1000,
        "count": len(kernels.rows),
        "names": len(np.unique(kernels.name)),
        "kernel_time_us": None,
        "kernels": None,
        "without_launch": None,
        "of_graphs": None,
        "by_kind": [
            {"kind": _KINDS[group.code], **_sums(group, total)} for group in kernels.by_kind()
        ],
        "top": _top(kernels),
        "by_stage": [
            {"stage": _name(kernels, group.code), **_sums(group, total)}
            for group in grouped(kernels.stage, time)
        ][:TOP],
        "by_shape": _by_shape(kernels),
        "by_forward_operator": _by_forward(kernels),
        "operators_by_device_time": None,
        "operators_by_host_time": _by_host_time(kernels),
        "breakdown": breakdown(kernels.trace, _stem(kernels.trace.path)).to_dict(),
    }
    if launched is not None:
        unknown, of_graph = launched.calls < 0, launched.of_graph
        calls = _calls(kernels.operator, kernels.call)
        rows |= {
            "kernel_time_us": int(time[kernels.is_kernel].sum()) / 1000,
            "kernels": int(kernels.is_kernel.sum()),
            "without_launch": {"count": int(unknown.sum()), "time_us": _us(time[unknown])},
            "of_graphs": {"count": int(of_graph.sum()), "time_us": _us(time[of_graph])},
            "operators_by_device_time": [
                {
                    "operator": _name(kernels, group.code),
                    **_sums(group, total),
                    "calls": calls.get(group.code),
                }
                for group in grouped(kernels.operator, time)
            ][:TOP],
        }
    return rows


def as_tables(kernels: Kernels) -> list[Table]:
    """The most important first; long ones are cut, and say so."""
    what = "kernel" if kernels.on_device else "operator"
    total = kernels.total_ns
    groups = kernels.by_name()
    operator = kernels.prevailing(kernels.operator) if kernels.on_device else {}
    stage = kernels.prevailing(kernels.stage)
    kind = kernels.kind_of_name
    rows: list[tuple[Cell, ...]] = []
    for group in groups[:TOP]:
        row: list[Cell] = [
            kernels.trace.names[group.code],
            group.time_ns,
            share(group.time_ns, total),
            group.count,
            round(group.mean_ns),
            _KINDS[kind[group.code]],
        ]
        if kernels.on_device:
            row.append(_name(kernels, operator.get(group.code, -1)))
        if stage:
            row.append(_name(kernels, stage.get(group.code, -1)))
        rows.append(tuple(row))
    columns = [
        (what, ""),
        ("time", "ns"),
        (_of(kernels), "%"),
        ("count", ""),
        ("mean", "ns"),
        ("kind", ""),
    ]
    columns += [("operator", "")] if kernels.on_device else []
    columns += [("stage", "")] if stage else []
    tables = [
        Table(
            "Kinds of work",
            (("", ""), ("time", "ns"), (_of(kernels), "%"), (_what(kernels), "")),
            [
                (KINDS[_KINDS[g.code]], g.time_ns, share(g.time_ns, total), g.count)
                for g in kernels.by_kind()
            ],
            _of_what(kernels),
        ),
        Table(
            "Kernels" if kernels.on_device else "Operators",
            tuple(columns),
            rows,
            _note(kernels, len(groups)),
        ),
    ]
    if kernels.on_device:
        tables.append(
            _groups("Operators by device time", "operator", kernels, kernels.operator, True)
        )
    if (kernels.stage >= 0).any():
        tables.append(_groups("Stages", "stage", kernels, kernels.stage))
    shapes = _by_shape(kernels) or []
    tables.append(
        Table(
            "Shapes",
            (("operator", ""), ("inputs", ""), ("time", "ns"), ("calls", ""), ("a call", "ns")),
            [
                (
                    r["operator"],
                    r["shape"],
                    round(r["time_us"] * 1000),
                    r["count"],
                    round(r["time_us"] * 1000 / r["count"]),
                )
                for r in shapes[:_SHOWN]
            ],
        )
    )
    return [table for table in tables if table.rows]


def _note(kernels: Kernels, names: int) -> str:
    notes = [f"{names - TOP:,} more names are left out."] if names > TOP else []
    if kernels.launched is not None:
        unknown = kernels.launched.calls < 0
        if unknown.any():
            time = int(kernels.time_ns[unknown].sum())
            notes.append(
                f"Of {int(unknown.sum()):,} device events ({in_words(time, 'ns')}) the trace does"
                " not have the launch, so their operator and stage are unknown."
            )
        graph = kernels.launched.of_graph
        if graph.any():
            notes.append(
                f"{int(graph.sum()):,} device events ran as part of device graphs: their operator"
                " is the graph's launch."
            )
    return " ".join(notes)


def _groups(
    title: str, what: str, kernels: Kernels, codes: NDArray[np.int64], with_calls: bool = False
) -> Table:
    groups, total = grouped(codes, kernels.time_ns), kernels.total_ns
    left = f"{len(groups) - _SHOWN:,} more are left out." if len(groups) > _SHOWN else ""
    calls = _calls(codes, kernels.call) if with_calls else {}
    columns = [(what, ""), ("time", "ns"), (_of(kernels), "%"), (_what(kernels), "")]
    rows: list[tuple[Cell, ...]] = []
    for group in groups[:_SHOWN]:
        row: list[Cell] = [_name(kernels, group.code), group.time_ns]
        row += [share(group.time_ns, total), group.count]
        rows.append((*row, calls.get(group.code)) if with_calls else tuple(row))
    return Table(title, (*columns, ("calls", "")) if with_calls else tuple(columns), rows, left)


def _of(kernels: Kernels) -> str:
    """The one thing that all shares of this analysis are of."""
    return "of device work" if kernels.on_device else "of operators"


def _what(kernels: Kernels) -> str:
    return "device events" if kernels.on_device else "calls"


def _of_what(kernels: Kernels) -> str:
    time = in_words(kernels.total_ns, "ns")
    if not kernels.on_device:
        return f"Operators by their own time on the host, {time} in all."
    return (
        f"Device work is the sum of the durations of all kernels, copies and memsets: {time}. All"
        " shares of kernels and operators are of it."
    )


def _top(kernels: Kernels) -> list[dict[str, Any]]:
    groups, total = kernels.by_name(), kernels.total_ns
    operator, stage = kernels.prevailing(kernels.operator), kernels.prevailing(kernels.stage)
    kind = kernels.kind_of_name
    return [
        {
            "name": kernels.trace.names[group.code],
            "kind": _KINDS[kind[group.code]],
            **_sums(group, total),
            "min_us": group.shortest_ns / 1000,
            "max_us": group.longest_ns / 1000,
            "operator": _name(kernels, operator.get(group.code, -1)),
            "stage": _name(kernels, stage.get(group.code, -1)),
        }
        for group in groups[:TOP]
    ]


def _by_shape(kernels: Kernels) -> list[dict[str, Any]] | None:
    """By operator and its inputs, with the number of its calls; None if no shapes were recorded."""
    known = kernels.shape >= 0
    if not known.any():
        return None
    size = len(kernels.shapes)
    code = kernels.operator[known] * size + kernels.shape[known]
    name = kernels.name[known]
    kernel = prevailing(code, name, kernels.time_ns[known]) if kernels.on_device else {}
    calls = _calls(code, kernels.call[known])
    return [
        {
            "operator": _name(kernels, group.code // size),
            "shape": kernels.shapes[group.code % size],
            "kernel": _name(kernels, kernel.get(group.code, -1)),
            **_sums(group, kernels.total_ns),
            "count": calls[group.code],
            "device_events": group.count if kernels.on_device else None,
        }
        for group in grouped(code, kernels.time_ns[known])[:TOP]
    ]


def _calls(code: NDArray[np.int64], call: NDArray[np.intp]) -> dict[int, int]:
    """By code how many calls its rows are of: one may launch several kernels, copies and memsets.

    Codes of which no call is known are left out.
    """
    code, call = code[call >= 0], call[call >= 0]
    pairs = np.unique(np.stack((code, call), axis=1), axis=0)
    codes, counts = np.unique(pairs[:, 0], return_counts=True)
    return dict(zip(codes.tolist(), counts.tolist(), strict=True))


def _by_forward(kernels: Kernels) -> list[dict[str, Any]] | None:
    """Time of backward passes by the forward operator; None without such links."""
    known = kernels.forward >= 0
    if not known.any():
        return None
    return [
        {"operator": _name(kernels, group.code), **_sums(group, kernels.total_ns)}
        for group in grouped(kernels.forward[known], kernels.time_ns[known])[:TOP]
    ]


def _by_host_time(kernels: Kernels) -> list[dict[str, Any]] | None:
    host = kernels.host
    if host is None or len(host.rows) == 0:
        return None
    events = kernels.trace.events
    name = events.name[host.rows].astype(np.int64)
    whole = np.bincount(name, weights=events.dur_ns[host.rows], minlength=1)
    return [
        {
            "operator": _name(kernels, group.code),
            "self_us": group.time_ns / 1000,
            "duration_us": whole[group.code] / 1000,
            "count": group.count,
        }
        for group in grouped(name, host.own_ns)[:TOP]
    ]


def _sums(group: Group, total: int) -> dict[str, Any]:
    return {
        "time_us": group.time_ns / 1000,
        "percent": share(group.time_ns, total),
        "count": group.count,
    }


def _name(kernels: Kernels, code: int) -> str | None:
    return kernels.trace.names[code] if code >= 0 else None


def _us(time_ns: NDArray[np.int64]) -> float:
    return int(time_ns.sum()) / 1000


def _stem(path: str) -> str:
    name = Path(path).name
    for suffix in (".gz", ".json", "_trace"):
        name = name.removesuffix(suffix)
    return name
