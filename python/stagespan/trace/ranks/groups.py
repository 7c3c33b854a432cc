"""How many ranks a job has at least, from what its traces say about process groups."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from stagespan.trace.ascend.communication import MATRIX
from stagespan.trace.model import Trace
from stagespan.trace.ranks.find import MOST_RANKS, distributed_info

_RANK = re.compile(r"\d{1,9}")
_PAIR = re.compile(r"^(\d{1,9})-(\d{1,9})$")


def least_ranks(trace: Trace, documents: dict[str, Any]) -> tuple[int, str] | None:
    """The number, and what says so; None if nothing tells.

    `documents` are those of an Ascend folder, else empty.
    """
    found = [
        (_of_config(distributed_info(trace).get("pg_config")), "pg_config"),
        (_of_arguments(trace), "the collectives' process groups"),
        (_of_matrix(documents.get(MATRIX)), MATRIX),
    ]
    known = [(count, source) for count, source in found if 0 < count <= MOST_RANKS]
    return max(known, key=lambda each: each[0], default=None)


def _of_config(config: object) -> int:
    """`pg_config` of `distributedInfo`: a list of groups, in some versions as text."""
    if isinstance(config, str):
        try:
            config = msgspec.json.decode(config)
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
            return 0
    groups = [each for each in config if isinstance(each, dict)] if isinstance(config, list) else []
    return max((max(_size(each), _of_ranks(each.get("ranks"))) for each in groups), default=0)


def _size(group: dict[str, Any]) -> int:
    size = group.get("pg_size")
    return size if isinstance(size, int) and not isinstance(size, bool) else 0


def _of_ranks(ranks: object) -> int:
    """One more than the highest rank of a list, or of its text; 0 without any."""
    if isinstance(ranks, str):
        return max((int(each) + 1 for each in _RANK.findall(ranks)), default=0)
    if not isinstance(ranks, list):
        return 0
    numbers = (each for each in ranks if isinstance(each, int) and not isinstance(each, bool))
    return max((each + 1 for each in numbers), default=0)


def _of_arguments(trace: Trace) -> int:
    """The arguments of collectives: their groups' sizes and ranks."""
    sizes = trace.argument("Group size")
    largest = 0
    if sizes is not None and sizes.numbers is not None and len(sizes.numbers):
        largest = int(sizes.numbers.max())
    ranks = trace.argument("Process Group Ranks")
    texts: Iterable[str] = () if ranks is None or ranks.numbers is not None else ranks.texts
    return max([largest, *map(_of_ranks, texts)])


def _of_matrix(document: object) -> int:
    """communication_matrix.json: pairs such as "0-7", which number the ranks of each group."""
    highest = -1
    left = [document]
    # Step, kind of collective, operation, pair.
    for _ in range(3):
        left = [value for each in left if isinstance(each, dict) for value in each.values()]
    for operation in left:
        for pair in operation if isinstance(operation, dict) else ():
            found = _PAIR.match(pair)
            if found:
                highest = max(highest, int(found[1]), int(found[2]))
    return highest + 1
