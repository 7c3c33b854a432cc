"""Keeps this process's recording up to date, in the service thread."""

from __future__ import annotations

from stagespan import _core
from stagespan.live import service
from stagespan.process import run

_described: tuple[int, int] | None = None


def _describe() -> None:
    """Write the rank of torch.distributed, once it is initialised."""
    global _described
    rank = run.explicit_rank()
    description = (-1 if rank is None else rank, run.world_size() if rank is not None else 0)
    if description != _described:
        _core.recording_describe_process(*description)
        _described = description


service.on_tick(_describe)
