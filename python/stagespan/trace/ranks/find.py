"""Find the traces in a folder, the rank of each, and the size of the job."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from stagespan.errors import TraceError
from stagespan.trace.ascend.folder import MATRIX_JSON, is_ascend_folder
from stagespan.trace.rates.collectives import distributed_info
from stagespan.trace.read.model import Trace

_ENDINGS = (".json", ".json.gz")
# `rank3_trace.json`, `trace_rank_3.json`, `worker3_step_12.pt.trace.json`, `r3.json`, `3.json`. If
# letters follow the number, it belongs to another name, such as that of the host `r1t03`.
_NUMBERED = re.compile(
    r"(?:^|[^a-z])(?:(?:global_?)?rank[-_. =]?(\d+)(?!\d)"
    r"|(?:worker|proc(?:ess)?|gpu|r)[-_. =]?(\d+)(?!\d|(?!of\d)[a-z]))",
    re.IGNORECASE,
)
_BARE = re.compile(
    r"^(\d+)\.|^trace[-_](\d+)\.|[-_](\d+)\.(?:pt\.)?(?:trace\.)?json", re.IGNORECASE
)
# Other files that stagespan writes into its output folder.
_NO_TRACE = re.compile(r"^timing\w*\.json$|_(?:breakdown|io_signature|compile_times)\.json$")
# `1718116821.77-TP-0-DP-1.trace.json.gz`: the place in the groups of each kind of parallelism, from
# the kind whose ranks are neighbours to the one whose ranks are farthest apart.
_PLACE = re.compile(r"(?:^|[^a-z])(tp|cp|ep|dp|pp)[-_. =]?(\d{1,6})(?![0-9a-z])", re.IGNORECASE)
# `node1_rank3.json`, where the ranks of each node begin at 0.
_NODE = re.compile(r"(?:^|[^a-z])(?:node|host|machine)[-_. =]?(\d{1,6})(?![0-9a-z])", re.IGNORECASE)
_PARALLELISM = ("tp", "cp", "ep", "dp", "pp")
# Larger numbers are times or process ids.
MOST_RANKS = 1_000_000


def traces_in(folder: str | os.PathLike[str]) -> list[Path]:
    """Return files that may be traces, and Ascend result folders, or else those in subfolders.

    Raises TraceError if none are found.
    """
    folder = Path(folder)
    paths = _directly_in(folder)
    if not paths:
        for below, folders, _ in os.walk(folder):
            folders.sort()
            # Files in a result folder belong to it.
            folders[:] = [each for each in folders if not is_ascend_folder(Path(below) / each)]
            if Path(below) != folder:
                paths += _directly_in(Path(below))
    if not paths and (folder.name.startswith("PROF_") or any(folder.glob("PROF_*"))):
        raise TraceError(
            f"{folder} contains only raw data of an Ascend profiler: parse it with"
            " torch_npu.profiler.profiler.analyse(path), or with msprof, first."
        )
    if not paths:
        raise TraceError(
            f"{folder} contains no traces: pass a folder with .json or .json.gz files of the"
            " profiler, or one such file."
        )
    return paths


def _directly_in(folder: Path) -> list[Path]:
    try:
        entries = sorted(folder.iterdir(), key=lambda path: _by_number(path.name))
    except OSError as error:
        raise TraceError(
            f"{folder} cannot be read ({error.strerror or error}): check its permissions."
        ) from error
    paths = [
        path
        for path in entries
        if not path.name.startswith(".")
        and (path.name.lower().endswith(_ENDINGS) if path.is_file() else is_ascend_folder(path))
    ]
    return [path for path in paths if not is_no_trace(path)] or paths


def is_no_trace(path: Path) -> bool:
    """Whether a file has the name of a timing report, breakdown or signature of stagespan."""
    return _NO_TRACE.search(path.name) is not None


def _by_number(name: str) -> list[tuple[int, str]]:
    """Return a sort key that puts rank 10 after rank 9."""
    return [
        (int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)
    ]


def rank_of(
    trace: Trace, path: Path, folder: Path | None = None, rank_of_folder: int | None = None
) -> tuple[int | None, str | None]:
    """Return the trace's rank and its source, "metadata" or "name"; (None, None) if unknown.

    If the trace does not contain it, `rank_of_folder` is used, which is the rank in the metadata of
    an Ascend folder. For a file in a subfolder of `folder`, the subfolder's name is used if the
    file's has no rank.
    """
    for rank in (_number(distributed_info(trace).get("rank")), rank_of_folder):
        if rank is not None and 0 <= rank < MOST_RANKS:
            return rank, "metadata"
    match = _NUMBERED.search(path.name)
    if match is None and _PLACE.search(path.name):
        return None, None  # see `ranks_by_place`
    match = match or _BARE.search(path.name)
    if match is None and folder is not None and path.parent != folder:
        match = _NUMBERED.search(path.parent.name)
    if match is None:
        return None, None
    number = next(int(group) for group in match.groups() if group is not None)
    return (number, "name") if number < MOST_RANKS else (None, None)


def rank_in_name(path: Path) -> int | None:
    """Return the number after the word "rank" in a file's name; None without it."""
    match = _NUMBERED.search(path.name)
    number = None if match is None or match[1] is None else int(match[1])
    return number if number is None or number < MOST_RANKS else None


def world_size_of(trace: Trace) -> int | None:
    """Return the number of ranks of the job; None if the trace does not contain it."""
    size = _number(distributed_info(trace).get("world_size"))
    return size if size is not None and 0 < size <= MOST_RANKS else None


def _number(value: object) -> int | None:
    """Return an integer that may be written as text; None for anything else."""
    if isinstance(value, str) and _RANK.fullmatch(value.strip()):
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def ranks_by_place(paths: Sequence[Path]) -> tuple[dict[Path, int], list[str]]:
    """Return the ranks of files that are named by their places in groups (`TP-0-DP-1`).

    The second value contains the kinds of parallelism that number the ranks, those of neighbours
    first. Kinds that follow from the others, such as expert parallelism within tensor parallelism,
    do not count. The result is empty if two files cannot be told apart by their places.
    """
    places = {
        path: {kind.lower(): int(number) for kind, number in _PLACE.findall(path.name)}
        for path in paths
    }
    places = {path: place for path, place in places.items() if place}
    kinds = [kind for kind in _PARALLELISM if all(kind in place for place in places.values())]
    used: list[str] = []
    different = 1
    for kind in kinds:
        count = len({tuple(place[each] for each in (*used, kind)) for place in places.values()})
        if count > different:
            used.append(kind)
            different = count
    if not used:
        return {}, []
    sizes = [1 + max(place[kind] for place in places.values()) for kind in used]
    strides = [math.prod(sizes[:at]) for at in range(len(sizes))]
    if math.prod(sizes) > MOST_RANKS:
        return {}, []
    ranks = {
        path: sum(place[kind] * stride for kind, stride in zip(used, strides, strict=True))
        for path, place in places.items()
    }
    return ranks, used


def ranks_by_node(ranks: Mapping[Path, int]) -> dict[Path, int]:
    """Return the ranks of files whose names contain a node, if the ranks of each node begin again.

    ``ranks`` are the numbers in their names. The ranks of a node are neighbours. The result is
    empty if a name has no node, if no number occurs in two nodes, or if two files have the same
    node and number.
    """
    found = {path: _NODE.search(path.name) or _NODE.search(path.parent.name) for path in ranks}
    nodes = {path: int(node[1]) for path, node in found.items() if node is not None}
    places = {(node, ranks[path]) for path, node in nodes.items()}
    if len(places) < len(ranks) or len(set(ranks.values())) == len(ranks):
        return {}
    index = {node: at for at, node in enumerate(sorted(set(nodes.values())))}
    size = 1 + max(ranks.values())
    return {path: index[node] * size + ranks[path] for path, node in nodes.items()}


# --- The size of the job ---


_RANK = re.compile(r"\d{1,9}")
_PAIR = re.compile(r"^(\d{1,9})-(\d{1,9})$")


def least_ranks(trace: Trace, documents: dict[str, Any]) -> tuple[int, str] | None:
    """Return the least possible number of ranks, and its source; None if unknown.

    `documents` are the JSON files of an Ascend folder, otherwise empty.
    """
    counts = [
        (_of_config(distributed_info(trace).get("pg_config")), "pg_config"),
        (_of_arguments(trace), "the collectives' process groups"),
        (_of_matrix(documents.get(MATRIX_JSON)), MATRIX_JSON),
    ]
    known = [(count, source) for count, source in counts if 0 < count <= MOST_RANKS]
    return max(known, key=lambda each: each[0], default=None)


def _of_config(config: object) -> int:
    """`pg_config` of `distributedInfo`: a list of groups, a string in some versions."""
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
    """One more than the highest rank of a list, or of its text; 0 if it has no ranks."""
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
