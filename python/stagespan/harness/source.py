"""Python source of a stage's mock inputs: what `stagespan.signature.mock` makes, written down."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stagespan.signature.model import TYPE, UNREPLAYABLE, TensorSignature, is_tensor

LINE = 100
_ESCAPE = re.compile(r"\\(.)")


@dataclass(frozen=True)
class Group:
    """Brackets with items between them, each with a prefix such as ``"key": `` or ``name=``."""

    opening: str
    items: Sequence[tuple[str, Source]]
    closing: str
    one_tuple: bool = False

    @property
    def is_call(self) -> bool:
        """Whether the arguments may share a line of their own, as formatters have it for calls."""
        return self.opening[:1].isidentifier()


Source = str | Group


def flat(source: Source) -> str:
    """The source on one line."""
    if isinstance(source, str):
        return source
    inner = ", ".join(prefix + flat(item) for prefix, item in source.items)
    return source.opening + inner + ("," if source.one_tuple else "") + source.closing


def render(source: Source, indent: int, before: int = 0, after: int = 0) -> str:
    """The source with lines broken as a formatter would, its first line behind ``before`` columns.

    ``after`` columns follow its last line, such as a comma.
    """
    line = flat(source)
    if isinstance(source, str) or not source.items or before + len(line) + after <= LINE:
        return line
    inside = " " * (indent + 4)
    body = ", ".join(prefix + flat(item) for prefix, item in source.items)
    if source.is_call and len(inside) + len(body) <= LINE:
        return f"{source.opening}\n{inside}{body}\n{' ' * indent}{source.closing}"
    lines = [source.opening]
    for prefix, item in source.items:
        text = render(item, indent + 4, indent + 4 + len(prefix), 1)
        lines.append(f"{inside}{prefix}{text},")
    lines.append(f"{' ' * indent}{source.closing}")
    return "\n".join(lines)


def quoted(text: str) -> str:
    """A string literal, in double quotes unless single ones need fewer escapes."""
    # With a double quote in front, repr always takes single quotes around.
    body = repr(f'"{text}')[2:-1]
    body = _ESCAPE.sub(lambda found: "'" if found[1] == "'" else found[0], body)
    quote = "'" if body.count('"') > body.count("'") else '"'
    return quote + body.replace(quote, f"\\{quote}") + quote


def literal(value: Any) -> Source:
    """A literal of numbers, strings, None and lists of them."""
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, (list, tuple)):
        return Group("[", [("", literal(item)) for item in value], "]")
    if isinstance(value, dict):
        return Group("{", [(f"{quoted(str(k))}: ", literal(v)) for k, v in value.items()], "}")
    if isinstance(value, float) and repr(value) in ("inf", "-inf", "nan"):
        return f'float("{value}")'
    return repr(value)


def input_source(node: Any, path: str) -> Source:
    """Return source that makes the value of a node; ``mock`` is its name for a `MockInputs`."""
    if isinstance(node, list):
        items = [("", input_source(item, f"{path}[{i}]")) for i, item in enumerate(node)]
        return Group("[", items, "]")
    if not isinstance(node, dict):
        return literal(node)
    if UNREPLAYABLE in node:
        return _call("Missing", quoted(str(node[UNREPLAYABLE])))
    if is_tensor(node):
        tensor = TensorSignature.from_json(node, f"input {path!r}")
        return _tensor("mock.tensor", path, tensor, quoted(tensor.device))
    if TYPE not in node:
        pairs = [(f"{quoted(k)}: ", input_source(v, f"{path}.{k}")) for k, v in node.items()]
        return Group("{", pairs, "}")
    return _special(node, path)


def _call(function: str, *arguments: Source, **named: Source) -> Group:
    items = [("", argument) for argument in arguments]
    return Group(f"{function}(", items + [(f"{k}=", v) for k, v in named.items()], ")")


def _tensor(function: str, path: str, tensor: TensorSignature, *device: str) -> Group:
    from stagespan.signature.mock import content_of

    content = {name: literal(value) for name, value in content_of(tensor).items()}
    shape = literal(list(tensor.shape))
    return _call(function, quoted(path), shape, quoted(tensor.dtype), *device, **content)


def _sequence(node: dict[str, Any], path: str, opening: str, closing: str) -> Group:
    inner = input_source(list(node["items"]), path)
    assert isinstance(inner, Group)
    return Group(opening, inner.items, closing, opening == "(" and len(inner.items) == 1)


def _special(node: dict[str, Any], path: str) -> Source:
    kind = node[TYPE]
    if kind == "tuple":
        return _sequence(node, path, "(", ")")
    if kind == "set":
        return _call("set", _sequence(node, path, "[", "]"))
    if kind == "list":
        repeated = _call("repeat", _sequence(node, path, "[", "]"), literal(node["length"]))
        return _call("tuple", repeated) if node.get("of") == "tuple" else repeated
    if kind in ("dataclass", "namedtuple"):
        return _call("instance", quoted(node["class"]), input_source(dict(node["fields"]), path))
    if kind == "object":
        fields = input_source(dict(node["fields"]), path)
        return _call("plain_object", quoted(node["class"]), fields)
    if kind == "class":
        return _call("find_class", quoted(node["class"]))
    if kind == "shared":
        return _call("mock.shared", quoted(node["of"]))
    if kind == "dict":
        pairs = [
            Group(
                "(",
                [("", input_source(k, f"{path}.key")), ("", input_source(v, f"{path}.{k}"))],
                ")",
            )
            for k, v in node["items"]
        ]
        made = _call("dict", Group("[", [("", pair) for pair in pairs], "]"))
        return _call("mapping", quoted(node["class"]), made) if "class" in node else made
    if kind == "userdict":
        return _call("mapping", quoted(node["class"]), input_source(node["data"], path))
    if kind == "enum":
        return _call("member", quoted(node["class"]), quoted(node["name"]))
    if kind == "str" and "text" in node:
        return _call("stretch", quoted(node["text"]), literal(node["length"]))
    if kind == "str":
        return _call("mock.text", quoted(path), literal(node["length"]))
    if kind == "float":
        return literal(float(node["value"]))
    if kind == "complex":
        return _call("complex", input_source(node["real"], path), input_source(node["imag"], path))
    if kind == "path":
        if "value" in node:
            return _call("Path", quoted(node["value"]))
        return _call("Path", _call("mock.text", quoted(path), literal(node["length"])))
    if kind == "bytes":
        return repr(bytes.fromhex(node["hex"])) if "hex" in node else f"bytes({node['length']})"
    if kind in ("range", "slice"):
        return _call(kind, *(input_source(item, path) for item in node["args"]))
    if kind == "image":
        return _call("mock.image", quoted(path), literal(node["size"]), quoted(node["mode"]))
    if kind == "ndarray":
        return _tensor("mock.array", path, TensorSignature.from_json(node, f"input {path!r}"))
    if kind == "torch.Generator":
        return _call("mock.generator", quoted(path), quoted(node["device"]))
    if kind == "torch.device":
        return _call("torch.device", _call("mock.place", quoted(node["value"])))
    from stagespan.signature.mock import torch_name

    return f"torch.{torch_name(node)}"
