"""The stage of a kept request that ``stagespan bench --from-request`` replays."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stagespan.errors import HarnessError, SignatureError

if TYPE_CHECKING:
    from stagespan.recording.slow_causes import SlowFigures
    from stagespan.recording.timelines import Timeline
    from stagespan.signature.model import StageSignature

_MOST_IDS = 8


class KeptStage(NamedTuple):
    """A run in a kept request."""

    request: str
    signature: StageSignature
    took_ms: float


def kept_stage(place: str, id_: str | None, stage: str | None, *, slowest: bool) -> KeptStage:
    """Return the slow stage of a kept request, or the one that is named.

    Raises HarnessError if there is no such request or if there are several, or if no run of the
    stage has a signature; SignatureError if the signature is not valid; StagespanError if the
    requests cannot be read.
    """
    from stagespan.pages.amounts import quoted
    from stagespan.recording.slow_causes import slow_figures
    from stagespan.signature.model import StageSignature

    request = _request(place, id_, slowest=slowest)
    slow = slow_figures(request)
    if slow is None:
        raise HarnessError(
            f"The request {request.id!r} in {place} was not kept because it was slow, so it has no "
            "signature: keep slow ones with `stagespan export --keep DIR --over 2.0xp99`."
        )
    if not slow.signatures:
        raise HarnessError(
            f"The request {request.id!r} in {place} has no signature of a stage: {_why(slow)}."
        )
    runs = [run for run in slow.signatures if stage in (None, run.stage)]
    if not runs:
        raise HarnessError(
            f"The request {request.id!r} in {place} has no signature of the stage {stage!r}: it "
            f"has that of {quoted(run.stage for run in slow.signatures)}."
        )
    run = max(runs, key=lambda run: run.took_ns)
    try:
        signature = StageSignature.from_json(run.stage, run.signature)
    except SignatureError as error:
        raise SignatureError(
            f"The signature of the request {request.id!r} in {place} cannot be used: {error}"
        ) from None
    return KeptStage(request.id, signature, run.took_ns / 1e6)


def _why(slow: SlowFigures) -> str:
    """Return why a slow request has no signature, without a full stop."""
    of_signatures = [text for text in slow.missing if "signature" in text]
    return of_signatures[0] if of_signatures else "the exporter that kept it did not ask for one"


def _request(place: str, id_: str | None, *, slowest: bool) -> Timeline:
    """Return a request in a file or folder. Raises HarnessError unless there is exactly one."""
    from stagespan.export import kept
    from stagespan.export.stores import is_kept
    from stagespan.pages.amounts import quoted
    from stagespan.recording.timelines import timelines
    from stagespan.trace.read.remote import local_path

    path = local_path(place)
    if not is_kept(path):
        raise HarnessError(
            f"{place} is not a file or folder of kept requests: pass what `stagespan export "
            "--keep` has written."
        )
    requests = timelines(kept.read({place: path}, 1 << 31).recordings, id_)
    if not requests:
        which = "" if id_ is None else f" with the id {id_!r}"
        raise HarnessError(
            f"There is no request{which} in {place}: `stagespan requests {place}` lists them."
        )
    if len(requests) > 1 and not slowest:
        ids = list(dict.fromkeys(one.id for one in requests.slowest(len(requests))))
        raise HarnessError(
            f"There are {len(requests):,} requests in {place}: choose one of "
            f"{quoted(ids, _MOST_IDS)} with --id, or the slowest one with --slowest."
            if len(ids) > 1
            else f"There are {len(requests):,} requests with the id {ids[0]!r} in {place}: choose "
            "the slowest one with --slowest."
        )
    return requests.slowest(1)[0]
