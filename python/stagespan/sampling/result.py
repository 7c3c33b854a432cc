"""What sampling found, as a result with figures and a table for each role."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stagespan.pages.amounts import counted, duration, in_percent
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


class RoleTable(msgspec.Struct, frozen=True):
    """What pages show of a role."""

    name: str
    verdict: str
    """Which call takes most of the time."""
    times_ns: dict[str, int]
    """What its time was spent on."""
    table: str
    """The title of the table."""
    rows: list[tuple[str, float, int, str]]
    note: str


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
    role_tables: Internal[list[RoleTable]]

    def tables(self) -> list[Table]:
        """Return a table for each of the largest roles."""
        columns = (("function", ""), ("share", "%"), ("time", "ns"), ("mostly", ""))
        return [Table(role.table, columns, role.rows, role.note) for role in self.role_tables]

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
        return self.role_tables[0].verdict

    def _bar(self) -> list[Bar]:
        """Return the time of the first role, by what it was spent on."""
        role = self.role_tables[0]
        parts = [BarPart(name, role.times_ns[name], colour) for name, colour in _COLOURS.items()]
        parts = [part for part in parts if part.time_ns]
        return [Bar(role.name.capitalize(), parts)] if parts else []


def sampled(processes: Sequence[Process]) -> Sampled | None:
    """Return what samplers have seen; None if that is nothing."""
    roles = [role for role in roles_of(processes) if role.top.children]
    if not roles:
        return None
    of_roles = [(role, rows.rows_of(role.top)) for role in roles[:_MOST_ROLES]]
    return Sampled(
        schema_version=SCHEMA_VERSION,
        samples=sum(process.samples for process in processes),
        interval_ms=processes[0].interval_ns / 1e6,
        wall_ms=max(process.wall_ns for process in processes) / 1e6,
        roles=[RoleFigures(role.name, role.processes, _tree(role.top)) for role in roles],
        suggested_stages=stages.suggested(row for _, of_role in of_roles for row in of_role),
        role_tables=[_table(*pair) for pair in of_roles],
    )


def encoded(result: Sampled) -> bytes:
    """Return a result with what its pages show, for `decoded`."""
    return msgspec.json.encode(result)


def decoded(text: bytes) -> Sampled:
    """Return what `encoded` has written. Raises ValueError if it is something else."""
    result = msgspec.json.decode(text, type=Sampled)
    return msgspec.structs.replace(
        result, role_tables=msgspec.convert(result.role_tables, list[RoleTable])
    )


def _table(role: Role, rows: Sequence[Row]) -> RoleTable:
    idle = ", ".join(
        f"{where} {duration(time_ns)}"
        for where, time_ns in sorted(role.idle_ns.items(), key=lambda pair: -pair[1])
        if time_ns >= _LEAST_SHARE * role.top.wall_ns
    )
    return RoleTable(
        name=role.name,
        verdict=_verdict(rows),
        times_ns=_times_ns(role),
        table=role.name if role.processes == 1 else f"{role.name}, {role.processes} processes",
        rows=[
            (row.guide + row.label, 100 * row.share, row.calls[0].wall_ns, row.mostly)
            for row in rows
        ],
        note=f"Waiting, not in the table: {idle}." if idle else "",
    )


def _verdict(rows: Sequence[Row]) -> str:
    row = most_of(rows)
    if row is None:
        return "No function takes much of the time."
    mostly = f", mostly {row.mostly}" if row.mostly else ""
    return f"{row.label} takes {in_percent(100 * row.share)} of the time{mostly}."


def _times_ns(role: Role) -> dict[str, int]:
    """Return the time of a role by what it was spent on."""
    times_ns = dict.fromkeys(_COLOURS, 0)
    left = list(role.top.children.values())
    while left:
        call = left.pop()
        if call.kind != "call":
            times_ns[IMPORTS if call.kind == "import" else COLLECTIONS] += call.wall_ns
            continue
        for kind, time_ns in call.own_ns().items():
            times_ns[kind] += time_ns
        left.extend(call.children.values())
    return times_ns


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
