"""Files that URLs name, as fsspec reads them."""

from __future__ import annotations

import os
import re
from typing import Any

from stagespan.errors import TraceError
from stagespan.process.messages import message_of

_URL = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]+://")


def is_url(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is the URL of something in an object store."""
    return _URL.match(os.fspath(path)) is not None


def file_system(url: str) -> tuple[Any, str]:
    """Return fsspec's file system for a URL, and the path in it.

    Raises TraceError if fsspec, or its package for this kind of URL, is not installed.
    """
    try:
        import fsspec
    except ImportError as error:
        raise TraceError(
            f"{url} cannot be read without fsspec (the extra 'remote'): install it with"
            " `pip install fsspec`, and the package for this kind of URL, such as s3fs."
        ) from error
    try:
        system, path = fsspec.core.url_to_fs(url)
    # fsspec has one class for each kind of URL, each with exceptions of its own.
    except Exception as error:
        raise TraceError(
            f"{url} cannot be read: {message_of(error)}. Check the address, and install the package"
            " for this kind of URL, such as s3fs."
        ) from error
    return system, path
