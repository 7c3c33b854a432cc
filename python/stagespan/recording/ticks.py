"""What the service thread keeps up to date in this process's recording."""

from __future__ import annotations

from stagespan import _core, run, service

_described: tuple[int, int] | None = None


def _describe() -> None:
    """Write the rank that torch.distributed knows, once it has been set up."""
    global _described
    rank = run.explicit_rank()
    known = (-1 if rank is None else rank, run.world_size() if rank is not None else 0)
    if known != _described:
        _described = known
        _core.describe_process(*known)


service.on_tick(_describe)
