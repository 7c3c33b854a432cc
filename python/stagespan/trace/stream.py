"""The bytes of a trace file, plain or gzip, in chunks that are not kept."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from io import FileIO
from pathlib import Path

from stagespan.errors import TraceError

CHUNK_BYTES = 512 << 10
_GZIP_MAGIC = b"\x1f\x8b"
_COMPRESSED_BYTES = 256 << 10


class ByteStream:
    """A file's decompressed bytes; `damage` says, once they are read, what was wrong."""

    def __init__(self, path: str | os.PathLike[str], chunk_bytes: int = CHUNK_BYTES) -> None:
        self.path = Path(path)
        self.damage: str | None = None
        """Why the compressed data ended early, as the end of a sentence; None when it did not."""
        self._chunk_bytes = chunk_bytes

    def chunks(self) -> Iterator[bytes]:
        """The decompressed bytes in order. Raises TraceError if the file cannot be read."""
        try:
            with open(self.path, "rb", buffering=0) as file:
                start = file.read(max(self._chunk_bytes, len(_GZIP_MAGIC)))
                if start[:2] == _GZIP_MAGIC:
                    yield from _one_ahead(self._gunzip(start, file))
                    return
                while start:
                    yield start
                    start = file.read(self._chunk_bytes)
        except IsADirectoryError:
            raise TraceError(
                f"{self.path} is a folder: name one trace file (.json or .json.gz) in it."
            ) from None
        except FileNotFoundError:
            raise TraceError(f"There is no file {self.path}: check the path.") from None
        except OSError as error:
            raise TraceError(
                f"{self.path} cannot be read ({error.strerror or error}): check its permissions."
            ) from error
        except ValueError as error:  # a path with a NUL
            raise TraceError(f"{str(self.path)!r} is no path of a file: {error}.") from error

    def _gunzip(self, start: bytes, file: FileIO) -> Iterator[bytes]:
        member = zlib.decompressobj(wbits=31)
        data, started = start, False
        while True:
            if not data:
                data = file.read(_COMPRESSED_BYTES)
                if not data:
                    if started:
                        rest = member.flush()  # a full output buffer can hold back the last bytes
                        if rest:
                            yield rest
                        if not member.eof:
                            self.damage = "its gzip data is cut off"
                    return
            started = True
            try:
                out = member.decompress(data, self._chunk_bytes)
            except zlib.error as error:
                self.damage = f"its gzip data is damaged ({error})"
                return
            if out:
                yield out
            data = member.unconsumed_tail
            if member.eof:
                # More members may follow, and zeros that some writers pad with.
                data = (member.unused_data or file.read(_COMPRESSED_BYTES)).lstrip(b"\0")
                member, started = zlib.decompressobj(wbits=31), False


def _one_ahead(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The pieces, each made on another thread while the one before is in use."""
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="stagespan-gunzip") as thread:
        coming = thread.submit(next, pieces, None)
        while (piece := coming.result()) is not None:
            coming = thread.submit(next, pieces, None)
            yield piece
