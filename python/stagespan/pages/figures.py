"""The figures of a result as structs: times in nanoseconds inside, microseconds in JSON.

A result describes its figures once, as a class derived from `Figures`. Their JSON and its JSON
Schema follow from that class. The key of a field is its name with `_us` in place of `_ns`; a field
whose key differs has `msgspec.field(name=...)`. A field of type `Internal` is not written, and of a
list with `first(...)` only its first elements are. Of a field of type `Flat`, the keys of its
figures are written in its place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from operator import methodcaller
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
from msgspec import inspect

_NANOSECONDS = re.compile(r"_ns(?=_|$)")
_UNIT = {"unit": "ns"}
_INTERNAL = {"internal": True}
_FLAT = {"flat": True}
_T = TypeVar("_T")

if TYPE_CHECKING:
    from typing_extensions import Self

    Ns = int
else:
    # Written as microseconds with decimals, so the schema describes a number.
    Ns = Annotated[float, msgspec.Meta(extra=_UNIT)]
"""A time in integer nanoseconds. In JSON it is a number of microseconds."""

if TYPE_CHECKING:
    MeanNs = float
else:
    MeanNs = Ns
"""A mean time, in nanoseconds with decimals. In JSON it is a number of microseconds."""

if TYPE_CHECKING:
    Flat = Annotated[_T, "its own keys"]
else:

    class Flat:
        """A field with figures whose keys stand beside those of the other fields in JSON."""

        def __class_getitem__(cls, figures):
            return Annotated[figures, msgspec.Meta(extra=_FLAT, extra_json_schema=_FLAT)]


if TYPE_CHECKING:
    Internal = Annotated[_T, "not written"]
else:

    class Internal:
        """A field that is not in the JSON: `evidence: Internal[Evidence]`. Any type is allowed.

        If another field has its name as the key, the field needs a name of its own.
        """

        def __class_getitem__(cls, _):
            return Annotated[Any, msgspec.Meta(extra=_INTERNAL, extra_json_schema=_INTERNAL)]


Count = Annotated[int, msgspec.Meta(ge=0)]
Path = Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
"""The names of the enclosing nodes from the outside in, followed by the own name."""


def one_of(values: Iterable[str]) -> msgspec.Meta:
    """Return the constraint that a text is one of `values`, for `Annotated[str, one_of(...)]`."""
    return msgspec.Meta(extra_json_schema={"enum": list(values)})


def first(most: int) -> msgspec.Meta:
    """Return the mark of a list of which JSON contains the first elements, for `Annotated`."""
    return msgspec.Meta(max_length=most)


def _key(name: str) -> str:
    return _NANOSECONDS.sub("_us", name)


class Figures(msgspec.Struct, frozen=True, rename=_key):
    """Base class of all structs of figures. An unknown figure is None, never 0."""

    @classmethod
    def taken(cls, source: Any, **others: Any) -> Self:
        """Return the figures that are the attributes of an object, and `others`."""
        names = (name for name in cls.__struct_fields__ if name not in others)
        return cls(**{name: getattr(source, name) for name in names}, **others)

    def to_dict(self) -> dict[str, Any]:
        """Return plain dicts, lists, numbers and texts for JSON, with times in microseconds."""
        written: dict[str, Any] = _writer_of(type(self))(self)
        return written


class RecordedFigures(Figures, frozen=True, rename=str):
    """Figures of recordings: times are integer nanoseconds in JSON, too, as the core counts them.

    Fields of times are plain `int`, and keys are the names of the fields.
    """


class CountedTime(Figures, frozen=True):
    """The number of some events, and their time."""

    count: Count
    time_ns: Ns


def in_us(numbers: Mapping[str, float]) -> dict[str, float]:
    """Convert times to microseconds: the names of times end in `_ns`, those returned in `_us`."""
    return {
        _key(name): value / 1000 if _NANOSECONDS.search(name) else value
        for name, value in numbers.items()
    }


def schema_of(types: Sequence[type[Figures]]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the JSON Schemas of the types, and the definitions to which they refer (`$defs`)."""
    schemas, definitions = msgspec.json.schema_components(
        types, schema_hook=lambda _: {"type": "string"}, ref_template="#/$defs/{name}"
    )
    for definition in definitions.values():
        if "properties" in definition:
            definition["properties"] = _written(definition["properties"], definitions)
            # A field with a default is also written.
            definition["required"] = list(definition["properties"])
    return list(schemas), definitions


def _written(properties: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the keys that are written, without defaults."""
    written: dict[str, Any] = {}
    for key, schema in properties.items():
        if schema.keys() >= _FLAT.keys():
            ref = schema.get("$ref") or schema["allOf"][0]["$ref"]
            inner = definitions[ref.rpartition("/")[2]]["properties"]
            written |= _written(inner, definitions)
        elif not schema.keys() >= _INTERNAL.keys():
            written[key] = {name: value for name, value in schema.items() if name != "default"}
    return written


def document_schema(*figures: type[Figures], title: str, version: int = 1) -> dict[str, Any]:
    """Return the JSON Schema, draft 2020-12, of a document with its version and figures.

    The figures are of one of these types.
    """
    schemas, definitions = schema_of(figures)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
        **(schemas[0] if len(schemas) == 1 else {"anyOf": schemas}),
        "required": ["schema_version"],
        "properties": {"schema_version": {"const": version}},
        "$defs": definitions,
    }


_Write = Callable[[Any], Any]


@cache
def _writer_of(struct: type[Figures]) -> _Write:
    """Return the function that converts a struct of this type to a dict for JSON."""
    info = inspect.type_info(struct)
    assert isinstance(info, inspect.StructType)
    # Trees are too deep for recursion: structs of the same type are written one after another.
    nested = [(of.name, of.encode_name) for of in info.fields if _is_list_of(struct, of)]
    fields = [
        (field.name, field.encode_name, _writer(field.type))
        for field in info.fields
        if not _is_list_of(struct, field) and not _is_marked(field, _INTERNAL, _FLAT)
    ]
    flat = [field.name for field in info.fields if _is_marked(field, _FLAT)]

    def write(figures: Any) -> dict[str, Any]:
        root: dict[str, Any] = {}
        waiting = [(figures, root)]
        while waiting:
            node, written = waiting.pop()
            for name, key, inner in fields:
                value = getattr(node, name)
                written[key] = value if inner is None else inner(value)
            for name in flat:
                written.update(getattr(node, name).to_dict())
            for name, key in nested:
                below = getattr(node, name)
                written[key] = [{} for _ in below]
                waiting += zip(below, written[key], strict=True)
        return root

    return write


def _is_marked(field: inspect.Field, *marks: dict[str, bool]) -> bool:
    return isinstance(field.type, inspect.Metadata) and field.type.extra in marks


def _is_list_of(struct: type[Figures], field: inspect.Field) -> bool:
    kind = field.type
    if not isinstance(kind, inspect.ListType) or not isinstance(kind.item_type, inspect.StructType):
        return False
    return kind.item_type.cls is struct


def _writer(kind: inspect.Type) -> _Write | None:
    """Return the function that converts a value of this type to JSON; None if not needed."""
    if isinstance(kind, inspect.Metadata):
        return (lambda ns: ns / 1000) if kind.extra == _UNIT else _writer(kind.type)
    if isinstance(kind, inspect.StructType):
        return methodcaller("to_dict")
    if isinstance(kind, inspect.DataclassType):
        return asdict
    if isinstance(kind, inspect.UnionType):
        found = [each for each in map(_writer, kind.types) if each is not None]
        assert len(found) < 2, "a field has one type of figures, or None"
        return _optional(found[0]) if found else None
    if isinstance(kind, inspect.DictType):
        value = _writer(kind.value_type)
        return dict if value is None else _of_dict(value)
    if isinstance(kind, (inspect.ListType, inspect.VarTupleType)):
        return _of_list(_writer(kind.item_type), kind.max_length)
    if isinstance(kind, inspect.TupleType):
        return _of_tuple([_writer(each) for each in kind.item_types])
    return None


def _optional(inner: _Write) -> _Write:
    return lambda value: None if value is None else inner(value)


def _of_dict(inner: _Write) -> _Write:
    return lambda values: {key: inner(value) for key, value in values.items()}


def _of_list(inner: _Write | None, most: int | None) -> _Write:
    if inner is None:
        return lambda values: list(values[:most])
    return lambda values: [inner(value) for value in values[:most]]


def _of_tuple(writers: list[_Write | None]) -> _Write:
    def write(values: Any) -> list[Any]:
        pairs = zip(values, writers, strict=True)
        return [value if inner is None else inner(value) for value, inner in pairs]

    return write
