"""One event as msgspec decodes it, and the patient way for events of another form."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from stagespan.trace.model import MISSING

Id = int | str | None


class Arguments(msgspec.Struct, gc=False):
    """The arguments that become columns; all others are skipped without being built."""

    correlation: Id = MISSING
    connection_id: Id = MISSING
    external_id: Id = msgspec.field(name="External id", default=MISSING)
    old_external_id: Id = msgspec.field(name="external id", default=MISSING)
    device: Id = MISSING
    stream: Id = MISSING
    python_id: Id = msgspec.field(name="Python id", default=MISSING)
    python_parent_id: Id = msgspec.field(name="Python parent id", default=MISSING)
    task_type: str = msgspec.field(name="Task Type", default="")
    name: str = ""
    labels: str = ""


_NO_ARGUMENTS = Arguments()
_ARGUMENT_FIELDS = msgspec.structs.fields(Arguments)
_NOTHING = msgspec.Raw(b"")


class _Literal(str):
    """A number with a fraction or exponent as it was written."""


class _Common(msgspec.Struct, gc=False):
    ph: str = ""
    name: str = ""
    cat: str = ""
    pid: Id = ""
    tid: Id = ""
    id: Id = MISSING


class Event(_Common, gc=False):
    """An event whose times fit a double."""

    ts: int | float | str | None = None
    dur: int | float | str | None = None
    args: Arguments | None = None


class ExactEvent(_Common, gc=False):
    """An event whose time is kept as written, because it is too large for a double."""

    ts: msgspec.Raw = _NOTHING
    dur: int | float | str | None = None
    args: Arguments | None = None


AnyEvent = Event | ExactEvent

events_decoder = msgspec.json.Decoder(list[Event])
exact_events_decoder = msgspec.json.Decoder(list[ExactEvent])
loose_decoder = msgspec.json.Decoder(list[Any], float_hook=_Literal)
_REASON_NO_OBJECT = "entry that is no object"


def arguments_of(event: AnyEvent) -> Arguments:
    """The event's arguments, or empty ones."""
    return event.args or _NO_ARGUMENTS


def coerce(entry: Any, left_out: Counter[str], adjusted: Counter[str]) -> Event | None:
    """An event from any JSON value, field by field; None, counted, when it cannot be one."""
    if not isinstance(entry, dict):
        left_out[_REASON_NO_OBJECT] += 1
        return None
    event = Event(
        ph=_text(entry.get("ph", ""), "phase", adjusted),
        name=_text(entry.get("name", ""), "name", adjusted),
        cat=_text(entry.get("cat", ""), "category", adjusted),
        pid=_id(entry.get("pid", ""), "pid", adjusted),
        tid=_id(entry.get("tid", ""), "tid", adjusted),
        id=_id(entry.get("id", MISSING), "id", adjusted),
        ts=_time(entry.get("ts")),
        dur=_time(entry.get("dur")),
    )
    args = entry.get("args")
    if isinstance(args, dict):
        event.args = _arguments(args, adjusted)
    elif args is not None:
        adjusted["arguments that are no object"] += 1
    return event


def _arguments(args: dict[str, Any], adjusted: Counter[str]) -> Arguments:
    known: dict[str, Any] = {}
    for field in _ARGUMENT_FIELDS:
        value = args.get(field.encode_name)
        if value is None:
            continue
        if isinstance(field.default, str):
            known[field.name] = _text(value, f"argument {field.encode_name!r}", adjusted)
        else:
            known[field.name] = _id(value, f"argument {field.encode_name!r}", adjusted)
    return Arguments(**known)


def _text(value: Any, what: str, adjusted: Counter[str]) -> str:
    if isinstance(value, str) and not isinstance(value, _Literal):
        return value
    if value is None:
        return ""
    adjusted[f"{what} that is no text"] += 1
    return str(value)


def _id(value: Any, what: str, adjusted: Counter[str]) -> Id:
    if isinstance(value, _Literal):
        number = float(value)
        if number.is_integer():
            return int(number)
    elif isinstance(value, (int, str)) and not isinstance(value, bool):
        return value
    elif value is None:
        return None
    adjusted[f"{what} that is no number or text"] += 1
    return str(value)


def _time(value: Any) -> Any:
    return value if isinstance(value, (int, str)) and not isinstance(value, bool) else None
