"""What sampling found, as a result with figures and a table for each role."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stagespan.pages.amounts import counted, duration
from stagespan.pages.figures import Figures, Internal
from stagespan.pages.result import Bar, BarPart, Block, Line, StructResult, Table
from stagespan.sampling import rows, stages
from stagespan.sampling.calls import COLLECTIONS, IMPORTS, Call, Kind, Role, roles_of
from stagespan.sampling.rows import Row, most_of
from stagespan.sampling.stacks import Process

SCHEMA_VERSION = 1
_LEAST_SHARE = 0.001
_MOST_ROLES = 6
_COLOURS = {
    "Python": "computing",
    "native code": "copying",
    "waiting": "idle",
    IMPORTS: "communicating",
    COLLECTIONS: "",
}
"""The parts of the time of a role, and their colours in a bar."""


class TreeNode(Figures, frozen=True):
    """A call below its callers, or what it did itself outside of Python."""

    name: str
    place: str | None
    """MODULE:FUNCTION, if it can be named as a stage."""
    kind: Kind
    wall_ms: float
    cpu_ms: float
    share: float
    """Part of the time of the role, from 0 to 1."""
    children: list[TreeNode]


class RoleFigures(Figures, frozen=True):
    """Processes of one kind, with the tree of their calls."""

    name: str
    processes: int
    tree: list[TreeNode]


class RoleRows(msgspec.Struct, frozen=True):
    """A role, and the rows of its table."""

    role: Role
    rows: list[Row]


class Sampled(StructResult, frozen=True):
    """Where the time of a program went."""

    schema_version: int
    samples: int
    interval_ms: float
    wall_ms: float
    """The longest time for which a process was sampled."""
    roles: list[RoleFigures]
    """The main process and its workers, the role with most time first."""
    suggested_stages: list[str]
    """Functions that would make good stages, as MODULE:FUNCTION."""
    shown: Internal[list[RoleRows]]

    def tables(self) -> list[Table]:
        """Return a table for each of the largest roles."""
        return [_table(role) for role in self.shown]

    def line(self) -> str:
        """Return how often and how long the program was sampled."""
        return (
            f"{counted(self.samples, 'sample')} in {duration(self.wall_ms * 1e6)}, one every"
            f" {self.interval_ms:g} ms"
        )

    def head(self) -> list[Block]:
        """Return what takes most of the time, what that time is, and the tables."""
        return [Line(self.verdict(), "strong"), Line(self.line()), *self._bar(), *self.tables()]

    def verdict(self) -> str:
        """Return which call of the first role takes most of the time."""
        row = most_of(self.shown[0].rows)
        if row is None:
            return "No function takes much of the time."
        mostly = f", mostly {row.mostly}" if row.mostly else ""
        return f"{row.label} takes {100 * row.share:.1f} % of the time{mostly}."

    def _bar(self) -> list[Bar]:
        """Return the time of the first role, by what it was spent on."""
        times_ns = dict.fromkeys(_COLOURS, 0)
        left = list(self.shown[0].role.top.children.values())
        while left:
            call = left.pop()
            if call.kind != "call":
                times_ns[IMPORTS if call.kind == "import" else COLLECTIONS] += call.wall_ns
                continue
            for kind, time_ns in call.own_ns().items():
                times_ns[kind] += time_ns
            left.extend(call.children.values())
        parts = [BarPart(name, ns, _COLOURS[name]) for name, ns in times_ns.items() if ns]
        return [Bar(self.shown[0].role.name.capitalize(), parts)] if parts else []


def sampled(processes: Sequence[Process]) -> Sampled | None:
    """Return what samplers have seen; None if that is nothing."""
    roles = [role for role in roles_of(processes) if role.top.children]
    if not roles:
        return None
    shown = [RoleRows(role, rows.rows_of(role.top)) for role in roles[:_MOST_ROLES]]
    return Sampled(
        schema_version=SCHEMA_VERSION,
        samples=sum(process.samples for process in processes),
        interval_ms=processes[0].interval_ns / 1e6,
        wall_ms=max(process.wall_ns for process in processes) / 1e6,
        roles=[RoleFigures(role.name, role.processes, _tree(role.top)) for role in roles],
        suggested_stages=stages.suggested(row for role_rows in shown for row in role_rows.rows),
        shown=shown,
    )


def _table(shown: RoleRows) -> Table:
    role = shown.role
    idle = ", ".join(
        f"{where} {duration(time_ns)}"
        for where, time_ns in sorted(role.idle_ns.items(), key=lambda pair: -pair[1])
        if time_ns >= _LEAST_SHARE * role.top.wall_ns
    )
    return Table(
        role.name if role.processes == 1 else f"{role.name}, {role.processes} processes",
        (("function", ""), ("share", "%"), ("time", "ns"), ("mostly", "")),
        [
            (
                row.guide + row.label,
                100 * row.share,
                row.calls[0].wall_ns,
                row.mostly,
            )
            for row in shown.rows
        ],
        f"Waiting, not in the table: {idle}." if idle else "",
    )


def _tree(top: Call) -> list[TreeNode]:
    """Return what is below a call, without what takes almost no time."""
    least_ns = _LEAST_SHARE * top.wall_ns

    def node(
        name: str, kind: Kind, wall_ns: int, cpu_ns: int, place: str | None, below: list[TreeNode]
    ) -> TreeNode:
        share = wall_ns / top.wall_ns if top.wall_ns else 0.0
        return TreeNode(name, place, kind, wall_ns / 1e6, cpu_ns / 1e6, share, below)

    made: dict[Call, list[TreeNode]] = {}
    for call in reversed(list(top.everything())):
        below = [
            node(child.name, child.kind, child.wall_ns, child.cpu_ns, child.place, made[child])
            for child in call.by_time()
            if child.wall_ns >= least_ns
        ]
        active_ns = call.python_ns + sum(call.native_ns.values())
        below += [
            node(line or "native code", "native", ns, call.own_cpu_ns * ns // active_ns, None, [])
            for line, ns in call.native_ns.items()
            if ns > least_ns
        ]
        waiting_ns = sum(call.waiting_ns.values())
        if waiting_ns > least_ns:
            below.append(node("waiting", "wait", waiting_ns, 0, None, []))
        made[call] = below
    return made[top]
