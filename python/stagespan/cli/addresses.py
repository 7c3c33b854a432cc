"""The type of options that are addresses of servers."""

from __future__ import annotations

import re
from typing import Any

import click


class Address(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """HOST:PORT, [HOST]:PORT or PORT."""

    name = "address"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        """Return host and port; the host is this machine's own if none is named."""
        match = re.fullmatch(r"(?:(\[[^\]]+\]|[^:\[\]]*):)?(\d{1,5})", str(value).strip())
        if match is None or int(match[2]) > 65535:
            self.fail(f"{value!r} is not an address: pass HOST:PORT, as in 127.0.0.1:9464.")
        return (match[1] or "").strip("[]") or "127.0.0.1", int(match[2])


def url(host: str, port: int) -> str:
    """Return the URL of a server without a path."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
