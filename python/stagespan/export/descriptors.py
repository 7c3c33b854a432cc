"""How many files an exporter may have open."""

from __future__ import annotations

import resource

_MOST = 1 << 16


def raise_limit() -> None:
    """Raise the limit of this process as far as it may, up to 65,536 files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def for_recordings() -> int:
    """Return how many processes may have two files open: a third of the limit.

    The last third is for all else.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (_MOST if soft == resource.RLIM_INFINITY else min(soft, _MOST)) // 3
