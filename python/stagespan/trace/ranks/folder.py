"""Analyse a folder with the traces of many ranks: find, check and compare them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from msgspec import structs

from stagespan.errors import TraceError
from stagespan.pages.amounts import MOST_LISTED, counted, listed
from stagespan.trace.ranks.find import rank_in_name, ranks_by_node, ranks_by_place
from stagespan.trace.ranks.match import UNKNOWN_CLOCK, Clocks, Matched, align, match
from stagespan.trace.ranks.report import Ranks
from stagespan.trace.ranks.summary import RankSummary, UnreadableFile
from stagespan.trace.ranks.waits import waits

# Windows count as different if their lengths differ by more than this factor.
_DIFFERENT = 1.5
_DIGITS = re.compile(r"\d+")
_A_DAY_NS = 86_400 * 10**9
# The part of each window that must overlap with the others.
_OVERLAP = 0.5


def ranks_of(
    folder: str | os.PathLike[str], files: Sequence[RankSummary | UnreadableFile]
) -> Ranks:
    """The result from the summaries of all files.

    Raises TraceError if they are not summaries of one job's ranks.
    """
    unreadable = [each for each in files if isinstance(each, UnreadableFile)]
    readable, by_name = _settled([each for each in files if isinstance(each, RankSummary)])
    readable, by_place = _with_places(readable)
    if not readable:
        raise TraceError(
            f"No trace in {folder} can be read; the first problem: {unreadable[0].reason}"
        )
    without_rank = [each.path for each in readable if each.rank is None]
    if len(without_rank) == len(readable):
        if _is_one_process(readable):
            raise TraceError(
                f"The {len(readable)} traces in {folder} are of one process, such as those of"
                " training and validation, and not of several ranks: name one of them."
            )
        raise TraceError(
            f"None of the {len(readable)} traces in {folder} contains its rank: initialise"
            " torch.distributed before profiling, or name the files rank0.json, rank1.json, ..."
        )
    job, others, world = _one_job(readable)
    job, at_other_times = _one_time(job, world)
    summaries, duplicated = _one_of_each(job)
    if len(summaries) == 1 and len(readable) > 1:
        raise TraceError(
            f"The {len(readable)} traces in {folder} are not those of the ranks of one job: name"
            " one of them, or a folder with the traces of one job."
        )
    numbers = [each.rank for each in summaries if each.rank is not None]
    world_from = None if world is None else "metadata"
    if world is None:
        world, world_from = _world_of_groups(summaries)
    missing = sorted(set(range(world or max(numbers) + 1)) - set(numbers))
    matched = match(summaries)
    clocks = align(summaries, matched)
    remarks = [
        *by_name,
        *by_place,
        *_about_files(summaries, missing, world_from, duplicated, without_rank, unreadable),
        *_about_jobs(others, at_other_times),
        *_about_windows(summaries),
        *_about_matching(summaries, matched),
        *_about_clocks(summaries, matched, clocks),
    ]
    return Ranks(
        folder=str(folder),
        summaries=summaries,
        world_size=world,
        world_size_from=world_from,
        missing=missing,
        duplicated=duplicated,
        without_rank=without_rank,
        unreadable=unreadable,
        matched=structs.replace(matched, blocks=[]),  # they take much memory for many ranks
        clocks=clocks,
        waits=waits(summaries, matched, clocks),
        remarks=tuple(remarks),
    )


def _is_one_process(readable: list[RankSummary]) -> bool:
    """Whether all traces are of one process, at different times."""
    if len({(each.host, each.process) for each in readable}) > 1 or readable[0].process is None:
        return False
    in_order = sorted(readable, key=lambda each: each.begin_ns)
    return all(one.end_ns <= other.begin_ns for one, other in pairwise(in_order))


def _settled(readable: list[RankSummary]) -> tuple[list[RankSummary], list[str]]:
    """Return the traces with the ranks of the source that tells more of them apart, and a remark.

    The sources are the trace itself and the word "rank" in the name of its file. The remark names
    what both state if they differ.
    """
    both = {
        Path(each.path): (each.rank, named)
        for each in readable
        if each.rank_from == "metadata" and (named := rank_in_name(Path(each.path))) is not None
    }
    differ = [f"{path.name} is of rank {own}" for path, (own, name) in both.items() if own != name]
    if not differ:
        return readable, []
    traces, names = (len(set(ranks)) for ranks in zip(*both.values(), strict=True))
    remark = f"The ranks in traces and in the names of their files differ ({listed(differ)}): "
    if names <= traces:
        return readable, [f"{remark}those in the traces are used."]
    used = {path: name for path, (_, name) in both.items()}
    more = f"those of the names are used, which tell {names} ranks apart, and not {traces}."
    return _with_ranks(readable, used), [remark + more]


def _with_places(readable: list[RankSummary]) -> tuple[list[RankSummary], list[str]]:
    """Number the ranks by their nodes, or by their places in groups if no trace has its rank.

    Returns the traces, and a remark if several parts of the names number the ranks.
    """
    numbers = {Path(each.path): each.rank for each in readable if each.rank is not None}
    if numbers:
        are_names = len(numbers) == len(readable) and all(
            each.rank_from == "name" for each in readable
        )
        ranks = ranks_by_node(numbers) if are_names else {}
        remark = "The names of the files number the ranks: those of a node are neighbours."
        return _with_ranks(readable, ranks), [remark] if ranks else []
    ranks, kinds = ranks_by_place([Path(each.path) for each in readable])
    with_rank = _with_ranks(readable, ranks)
    if len(kinds) < 2:
        return with_rank, []
    order = ", then ".join(kind.upper() for kind in kinds)
    return with_rank, [f"The names of the files number the ranks: neighbours differ in {order}."]


def _with_ranks(readable: list[RankSummary], ranks: Mapping[Path, int]) -> list[RankSummary]:
    """Give the traces those ranks that are known by their names."""
    return [
        structs.replace(summary, rank=ranks[Path(summary.path)], rank_from="name")
        if Path(summary.path) in ranks
        else summary
        for summary in readable
    ]


def _world_of_groups(summaries: list[RankSummary]) -> tuple[int | None, str | None]:
    """The least possible number of ranks by the job's process groups, and its source."""
    least = [each.least_ranks for each in summaries if each.least_ranks is not None]
    if not least:
        return None, None
    count, source = max(least, key=lambda each: each[0])
    highest = max(each.rank for each in summaries if each.rank is not None)
    return max(count, highest + 1), source


def _one_job(
    readable: list[RankSummary],
) -> tuple[list[RankSummary], list[RankSummary], int | None]:
    """The traces of the job with the most ranks found, those of other jobs, and the job's size."""
    with_rank = [each for each in readable if each.rank is not None]
    ranks: dict[int, set[int | None]] = {}
    for each in with_rank:
        if each.world_size is not None:
            ranks.setdefault(each.world_size, set()).add(each.rank)
    if not ranks:
        return with_rank, [], None
    world = max(ranks, key=lambda size: (len(ranks[size]), size))
    job = [each for each in with_rank if each.world_size in (None, world)]
    others = [each for each in with_rank if each.world_size not in (None, world)]
    return job, others, world


def _one_time(
    job: list[RankSummary], world: int | None
) -> tuple[list[RankSummary], list[RankSummary]]:
    """The traces of about one time, and those of other days."""
    sure = [e.begin_ns for e in job if e.unix_clock and e.world_size == world]
    if not sure:
        return job, []
    # An element, not a mean: the mean of two days may be on neither.
    about = sorted(sure)[len(sure) // 2]
    far = [e for e in job if e.unix_clock and abs(e.begin_ns - about) > _A_DAY_NS]
    return [e for e in job if all(e is not other for other in far)], far


def _one_of_each(
    readable: list[RankSummary],
) -> tuple[list[RankSummary], dict[int, list[str]]]:
    """One trace for each rank, sorted by rank, and the paths of the other traces by rank.

    If a rank has several, the one is taken whose name (without numbers) the most ranks share, such
    as the name of a stage; among these, the one nearest in time to the other ranks' traces.
    """
    by_rank: dict[int, list[RankSummary]] = {}
    ranks_of_name: dict[str, set[int]] = {}
    for summary in readable:
        if summary.rank is not None:
            by_rank.setdefault(summary.rank, []).append(summary)
            ranks_of_name.setdefault(_name_pattern(summary), set()).add(summary.rank)
    single = [each[0].begin_ns for each in by_rank.values() if len(each) == 1]
    about = int(np.median(single)) if single else min((e.begin_ns for e in readable), default=0)
    kept, duplicated = [], {}
    for rank in sorted(by_rank):
        several = sorted(
            by_rank[rank],
            key=lambda each: (-len(ranks_of_name[_name_pattern(each)]), abs(each.begin_ns - about)),
        )
        kept.append(several[0])
        if len(several) > 1:
            duplicated[rank] = [each.path for each in several[1:]]
    return kept, duplicated


def _name_pattern(summary: RankSummary) -> str:
    """The name of the rank's file with "#" instead of numbers."""
    return _DIGITS.sub("#", Path(summary.path).name)


def _about_files(
    summaries: list[RankSummary],
    missing: list[int],
    world_from: str | None,
    duplicated: dict[int, list[str]],
    without_rank: list[str],
    unreadable: list[UnreadableFile],
) -> list[str]:
    remarks = []
    if missing:
        ranks = listed(missing)
        number = len(missing) + len(summaries)
        if world_from in (None, "metadata"):
            sentence = f"{len(missing)} of {number} ranks are missing: {ranks}."
        else:
            sentence = (
                f"{len(missing)} of at least {number} ranks are missing, as {world_from} shows:"
                f" {ranks}."
            )
        remarks.append(f"{sentence} The last rank is known only among the ranks with a trace.")
    for rank, paths in list(duplicated.items())[:MOST_LISTED]:
        used = next(each.path for each in summaries if each.rank == rank)
        remarks.append(
            f"Rank {rank} has {len(paths) + 1} traces: {Path(used).name} is used, because its name"
            " and time match the other ranks best."
        )
    if len(duplicated) > MOST_LISTED:
        remarks.append(f"{len(duplicated) - MOST_LISTED} more ranks have several traces.")
    if without_rank:
        names = [Path(path).name for path in without_rank]
        remarks.append(f"Skipped, because their rank is unknown: {listed(names)}.")
    remarks += [f"Skipped: {each.reason}" for each in unreadable[:MOST_LISTED]]
    if len(unreadable) > MOST_LISTED:
        more = counted(len(unreadable) - MOST_LISTED, "more file")
        remarks.append(f"Skipped: {more} that could not be read (`unreadable` in JSON).")
    cut = [each.rank for each in summaries if each.incomplete]
    if cut:
        remarks.append(
            f"The traces of ranks {listed(cut)} are truncated or damaged; the complete part is"
            " used."
        )
    return remarks


def _about_jobs(others: list[RankSummary], at_other_times: list[RankSummary]) -> list[str]:
    remarks = []
    if others:
        names = [f"{Path(each.path).name} (of {each.world_size})" for each in others]
        remarks.append(
            "Skipped, because they are from jobs with a different number of ranks:"
            f" {listed(names)}."
        )
    if at_other_times:
        names = [Path(each.path).name for each in at_other_times]
        remarks.append(f"Skipped, because they were recorded on a different day: {listed(names)}.")
    return remarks


def _about_windows(summaries: list[RankSummary]) -> list[str]:
    remarks = []
    backends: dict[str, list[int | None]] = {}
    for each in summaries:
        backends.setdefault(each.backend, []).append(each.rank)
    if len(backends) > 1:
        parts = [f"{name} on {listed(ranks)}" for name, ranks in sorted(backends.items())]
        remarks.append(f"The ranks ran on different backends: {'; '.join(parts)}.")
    if len(summaries) < 2:
        return remarks
    lengths = [each.window_ns for each in summaries]
    if max(lengths) > _DIFFERENT * max(min(lengths), 1):
        remarks.append(
            "The traces have different lengths: only collectives that are in several of them are"
            " compared."
        )
    if all(each.unix_clock for each in summaries):
        begin, end = np.array([(each.begin_ns, each.end_ns) for each in summaries]).T
        overlap = np.minimum(end, np.median(end)) - np.maximum(begin, np.median(begin))
        other_times = [
            each.rank
            for each, length in zip(summaries, overlap.tolist(), strict=True)
            if length < _OVERLAP * min(each.window_ns, float(np.median(end) - np.median(begin)))
        ]
        if other_times:
            remarks.append(
                f"The traces of ranks {listed(other_times)} were recorded at a different time than"
                " most others."
            )
    return remarks


def _about_matching(summaries: list[RankSummary], matched: Matched) -> list[str]:
    remarks = []
    without = [each.rank for each in summaries if not len(each.collectives)]
    if without and len(summaries) > 1:
        remarks.append(f"The traces of ranks {listed(without)} contain no collectives.")
    if matched.unmatched and len(summaries) > 1:
        ranks = [summaries[at].rank for at in matched.unmatched]
        remarks.append(
            f"The collectives of ranks {listed(ranks)} do not match those of the others by group,"
            " operation and order, so their waiting is unknown."
        )
    if matched.alone:
        remarks.append(f"{matched.alone:,} sends and receives between two ranks are skipped.")
    left = sum(each.collectives.left_out for each in summaries)
    if left:
        kept = max(len(each.collectives) for each in summaries)
        remarks.append(f"{left:,} collectives beyond the first {kept:,} of each rank are skipped.")
    return remarks


def _about_clocks(summaries: list[RankSummary], matched: Matched, clocks: Clocks) -> list[str]:
    with_some = {rank for block in matched.blocks for rank in block.ranks.tolist()}
    unknown = [at for at in sorted(with_some) if clocks.how[at] == UNKNOWN_CLOCK]
    if not unknown:
        return []
    ranks = listed(summaries[at].rank for at in unknown)
    remark = (
        f"The offset of the clocks of ranks {ranks} is unknown, because they have no collectives"
        " that end on all ranks at the same time, and not all traces name the same host. So it is"
        " unknown how long these ranks waited."
    )
    return [remark]
