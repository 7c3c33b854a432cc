"""Reads the recording of a process, and finds out whether and how the process ended."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import signal
import stat
import struct
import time
from collections.abc import Collection
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from stagespan import _core
from stagespan.errors import StagespanError, TooLargeError
from stagespan.live import statistics
from stagespan.live.span_kinds import KINDS, KINDS_OF_NAMES
from stagespan.process.files import cannot_open
from stagespan.process.times import stat_fields, stat_folder
from stagespan.recording.segments import Details, Failures, Request, Segment, began_here
from stagespan.recording.source import RecordedOpenSpan, RequestSource, Thread

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from stagespan.live.span_kinds import AnyKind
    from stagespan.live.statistics import Stats
    from stagespan.recording.slowness import Slowness
    from stagespan.recording.spans import Amounts

REMOVED = "Recordings are removed at a clean exit; STAGESPAN_RECORDING=keep keeps them."
"""What an error says about a process or a job that may have ended."""
MEMFD = "/memfd:stagespan (deleted)"
_F_OFD_GETLK = 36
ENDED_STATES = "ZX"
"""States of /proc/PID/stat of a process that has ended. A zombie's status has not been read yet."""
_LONGEST_STOP_NS = 600 * 10**9
"""A process that continues for longer after SIGTERM has handled it, and ends for another reason."""
_REFUSALS = (
    "the tmpfs was full",
    "the program had closed the file",
    "the system refused to map the file",
)
"""Why parts of a recording are not in its file, by the bits that `_core` uses."""


class LiveProcess(NamedTuple):
    """A live process, as its recording identifies it."""

    pid: int
    """Its id in its own pid namespace."""
    pid_namespace: int
    """The inode of that namespace; 0 if unknown."""
    start_ticks: int


class SentMessage(NamedTuple):
    """A message that a request has sent with `inject`."""

    hop: int
    """Its id."""
    request: int
    """The number of the segment that has sent it."""
    queue: str
    """The name of its queue; the pipeline of the process if `inject` was told none."""
    sent_ns: int
    nth: int
    """The number of messages that the process has sent to the queue, up to this one."""


class Recording(RequestSource):
    """A copy of everything that a process had recorded up to the moment of the copy.

    `stagespan.recording.open` returns one, and `refresh` returns a new one. Times are Unix times in
    ns.
    """

    def __init__(self, path: str, *, everything: bool = True, handle: int | None = None) -> None:
        """Read the file at ``path``, or the open file ``handle``, which stays open."""
        self.path = path
        self._everything = everything
        is_own = handle is None
        handle = open_file(path) if handle is None else handle
        try:
            self._copy = _core.recording_read(handle, os.fsencode(path), everything)
            self._is_deleted = _is_deleted(path, handle)
            info: dict[str, Any] = self._copy.info()
            life = _life(info, handle)
            # Its last threads may still record after the end that it has written.
            self._has_gone = life == "dead"
            self.state = "exited" if info["end_ns"] else ("died" if life == "dead" else life)
            self.stop_signal = _stop_signal(info, self._copy.open_spans())
        except ValueError as error:
            raise StagespanError(f"{error}.") from None
        except MemoryError:
            raise TooLargeError(f"{path} is too large to be read.") from None
        finally:
            if is_own:
                os.close(handle)
        # If threads are not in the file, their spans may have been open.
        is_whole = not (info["missing_bytes"] or info["damaged"] or info["threads_not_in_file"])
        is_idle = is_whole and not self._copy.open_spans()
        is_final = info["stop_is_final"] and self.state in ("exited", "died")
        if is_final or (self.state == "died" and (is_idle or self.stop_signal is not None)):
            self.state = "stopped"
        self.pid = info["pid"]
        self.pid_namespace = info["pid_namespace"] or None
        self.rank = None if info["shares_rank"] else info["rank"]
        self.worker_of_rank = info["rank"] if info["shares_rank"] else None
        self.world_size = info["world_size"]
        self.job = info["job"] or None
        self.pipeline = info["pipeline"]
        self.worker = info["worker"] or None
        self.program, self.name = _program(info), _name(info)
        self.host = info["host"]
        self.version, self.python_version = info["version"], info["python_version"]
        self.begin_ns = info["begin_ns"]
        self.end_ns = info["end_ns"] or (info["stop_ns"] if info["stop_is_final"] else None) or None
        self.read_ns = info["now_ns"]
        self.clock, self.unix_offset_ns = info["clock"], info["unix_offset_ns"]
        self.most_segments = info["segment_entries"]  # STAGESPAN_REQUESTS
        self.amounts_since_ns = info["amounts_since_ns"]
        numbers = (info["boot"], info["pid_namespace"], self.pid, info["start_ticks"])
        self.identity = "-".join(f"{number:x}" for number in (*numbers, self.begin_ns))
        self.ring_spans: int = info["ring_spans"]
        """How many spans the ring of a thread keeps."""
        self._info = info
        self._made_ns = time.monotonic_ns()

    @property
    def has_spans(self) -> bool:
        """Whether the copy contains the finished spans."""
        return self._everything

    def stage_names(self) -> list[str]:
        """Return the names of all stages; the ``stage`` column of `spans` is an index into it."""
        return self._copy.stage_names()

    def stage_kinds(self) -> list[str]:
        """Return the kinds of all stages: execution, queue, handoff, batch, remote, and so on."""
        return [KINDS_OF_NAMES[kind] for kind in self._copy.stage_kinds()]

    @cached_property
    def _snapshot(self) -> _core.Snapshot:
        return self._copy.snapshot()

    def snapshot(self) -> _core.Snapshot:
        """Return the statistics as a snapshot; subtract an earlier one with `Snapshot.since`."""
        return self._snapshot

    def _stats_of(self, kind: AnyKind) -> Stats:
        return statistics.of_recording(self._snapshot, self.lost(), self.begin_ns, kind)

    @cached_property
    def _spans(self) -> NDArray[np.void]:
        return self._copy.spans()

    def spans(self) -> NDArray[np.void]:
        """Return the latest spans of each thread, ordered by begin, as `stagespan.spans` does.

        The kind of a span is that of its stage (`stage_kinds`), and the ids of a request are those
        with its number in `requests`.

        Raises StagespanError if the recording was opened without its spans.
        """
        if not self._everything:
            raise StagespanError(f"{self.path} was opened without its spans.")
        return self._spans

    def only_rows(self) -> Recording:
        """Keep of the finished spans what `spans` returns, without the copy that it is made from.

        That is half as much again. Return this recording.
        """
        if self._everything:
            self.spans()
            self._copy.drop_spans()
        return self

    def open_spans(self) -> list[RecordedOpenSpan]:
        """Return the open spans of each thread, outermost first, as `stagespan.open_spans` does."""
        spans = self._copy.open_spans()
        numbers = {number for span in spans if (number := span["request"]) < 1 << 63}
        requests = {one["number"]: one for one in self.segments(numbers)} if numbers else {}
        for span in spans:
            span["kind"] = KINDS[span["kind"]]
            number = span["request"]
            request = requests.get(number)
            span["request"] = None if request is None else request["id"]
            span["request_number"] = number or None
            span["trace_id"] = None if request is None else request["trace_id"]
            if self.state not in ("alive", "unknown"):
                span["elapsed_ns"] = None
        return cast("list[RecordedOpenSpan]", spans)

    def requests(self) -> list[Request]:
        """Return the latest requests, ordered by number. ``end_ns`` of open requests is None."""
        segments = (one for one in self.segments() if one["origin"] != "return")
        found = [{name: one[name] for name in Request.__annotations__} for one in segments]  # type: ignore[literal-required]
        return cast("list[Request]", found)

    @cached_property
    def _keys(self) -> list[int]:
        return self._copy.segment_keys()

    @cached_property
    def segment_keys(self) -> frozenset[int]:
        """What identifies each segment and returned hop.

        It is the number of a segment, and a negative number of a hop, whose own number is that of
        the segment that it has come back to.
        """
        return frozenset(self._keys)

    @property
    def left_open(self) -> list[Segment]:
        """The requests that began here and were open when the process ended."""
        return [one for one in self.open_segments if began_here(one)] if self.has_gone else []

    @property
    def has_free_entries(self) -> bool:
        """Whether there is room for another segment, so that none has been displaced."""
        return len(self._keys) < self.most_segments

    def _segments_of(self, keys: Collection[int] | None) -> list[Segment]:
        found = self._copy.segment_dicts(None if keys is None else list(keys), self._has_ended)
        return cast("list[Segment]", found)

    @property
    def _has_ended(self) -> bool:
        return self.state not in ("alive", "unknown")

    def segment_rows(self, keys: NDArray[np.int64] | None = None) -> NDArray[np.void]:
        """Return the latest segments and returned hops as a structured array, ordered by number.

        The fields are those of `Segment`, and ``key`` (`segment_keys`). Unknown times are
        `_core.UNKNOWN_NS`, other unknown numbers 0, and the names of stages indices into
        `stage_names`. With ``keys``, only those with these keys.
        """
        if keys is None:
            return self._rows
        return self._copy.segments(keys.tolist(), self._has_ended)

    @cached_property
    def _rows(self) -> NDArray[np.void]:
        return self._copy.segments(None, self._has_ended)

    def segment_ends(self) -> NDArray[np.void]:
        """Return the ``key``, ``end_ns`` and halves of the trace of each segment and returned hop.

        The end of a hop is when it was received; that of an open segment is 0.
        """
        return self._copy.segment_ends()

    @cached_property
    def _segments(self) -> list[Segment]:
        return self._segments_of(None)

    def segments(self, keys: Collection[int] | None = None) -> list[Segment]:
        """Return the latest segments and returned hops, ordered by number; see `Segment`.

        With ``keys``, only those with these keys (`segment_keys`).
        """
        return self._segments if keys is None else self._segments_of(keys)

    def latest_requests(self, since_ns: int) -> list[Segment]:
        """Return some of the requests that began here and have ended since a Unix time.

        They are the latest one of each pipeline, status and bucket of exported histograms.
        """
        return self.segments(self._copy.latest_requests(since_ns))

    @cached_property
    def open_segments(self) -> list[Segment]:
        """The segments that had not ended."""
        found = self.segments(self._copy.segment_keys(only_open=True))
        return [one for one in found if one["origin"] != "return" and one["end_ns"] is None]

    def details(self, rows: NDArray[np.void]) -> Details:
        """Return what rows of segments refer to, besides names of stages."""
        has_failed = (rows["status"] == _core.STATUSES.index("error")).any()
        failures = self._copy.failures(of_requests=True) if has_failed else {}
        return Details(self._copy.fields(rows["number"].tolist()), failures)

    def links(self) -> NDArray[np.void]:
        """Return which requests batches have served, as a structured array.

        It has the id of the ``span``, the number of the ``request``, and the ``size`` of the batch.
        The newest four times `STAGESPAN_REQUESTS` links are kept. Raises StagespanError if the
        recording was opened without its spans.
        """
        if not self._everything:
            raise StagespanError(f"{self.path} was opened without its spans.")
        return self._copy.records("Link")

    def sent_messages(self) -> list[SentMessage]:
        """Return the latest messages that requests have sent, in order.

        The newest four times `STAGESPAN_REQUESTS` are kept, and none from before a reset.
        """
        return self._sent

    @cached_property
    def _sent(self) -> list[SentMessage]:
        return [SentMessage(*one) for one in self._copy.sent()]

    def received_messages(self) -> set[int]:
        """Return the ids of the messages that the latest requests were received with."""
        return self._copy.received()

    @cached_property
    def _failures(self) -> Failures:
        return self._copy.failures()

    def gauges(self) -> dict[str, float]:
        """Return the latest values of what the program has passed to `stagespan.gauge`."""
        return self._copy.gauges()

    def failures(self) -> Failures:
        """Return the exceptions of the latest spans that have failed, by span id."""
        return self._failures

    def slowness(self) -> dict[int, Slowness]:
        """Return nothing: only exporters note why a request was slow."""
        return {}

    def amounts(self, spans: set[int] | None = None) -> Amounts:
        """Return what was counted with `span.add`, by span id and unit; integers are exact.

        With ``spans``, only that of the spans with these ids. The newest eight times
        `STAGESPAN_REQUESTS` amounts are kept: those of a span that began at `amounts_since_ns` or
        earlier may be missing. Raises StagespanError if the recording was opened without its spans.
        """
        if not self._everything:
            raise StagespanError(f"{self.path} was opened without its spans.")
        return self._copy.amounts(spans)

    @property
    def amounts_written(self) -> int:
        """How many amounts of spans have been written so far."""
        return int(self._info["amounts_written"])

    @property
    def most_amounts(self) -> int:
        """How many amounts of spans it keeps."""
        return int(self._info["amounts_kept"])

    @property
    def is_exact(self) -> bool:
        """Whether no figures were being moved when it was read, and the file is whole."""
        return not (self._info["is_moving"] or self._info["missing_bytes"])

    @property
    def is_partly_in_file(self) -> bool:
        """Whether there was no space in the file for all of the figures."""
        return bool(self._info["threads_not_in_file"] or self._info["blocks_not_in_file"])

    @property
    def is_deferred(self) -> bool:
        """Whether the process has ended cleanly and has left its file to others to be removed."""
        return bool(self._info["is_deferred"])

    @property
    def service(self) -> str:
        """What it is called in metrics: STAGESPAN_JOB, else OTEL_SERVICE_NAME, else the program."""
        return str(self._info["service"] or self._info["program"]) or "(unknown)"

    @property
    def start_ticks(self) -> int:
        """Field 22 of /proc/PID/stat of the process; 0 if unknown."""
        return int(self._info["start_ticks"])

    @property
    def has_gone(self) -> bool:
        """Whether the process has ended, so that the recording does not change any more."""
        return self._has_gone

    def threads(self) -> list[Thread]:
        """Return the threads that have opened spans."""
        return cast("list[Thread]", self._copy.threads())

    def lost(self) -> dict[str, int]:
        """Return what was lost, by cause, as `stagespan.lost` does."""
        return self._copy.lost()

    def warnings(self) -> list[str]:
        """Return a sentence for each problem of this copy or its file."""
        sentences = []
        missing, damaged = self._info["missing_bytes"], self._info["damaged"]
        if self._is_deleted:
            sentences.append(
                "The file has been deleted: the recording is lost when the process ends."
            )
        if missing:
            sentences.append(f"The file is cut off: {missing:,} bytes are missing.")
        if damaged:
            sentences.append(
                f"The file is damaged: {damaged:,} of its numbers are impossible and were left "
                "out, so figures may be wrong."
            )
        if self.is_partly_in_file:
            bits = self._info["refusals"]
            causes = [cause for bit, cause in enumerate(_REFUSALS) if bits >> bit & 1]
            sentences.append(
                f"Spans of {self._info['threads_not_in_file']:,} threads and figures of "
                f"{self._info['blocks_not_in_file']:,} stages of threads are not in the file"
                + (f", because {' and '.join(causes)}." if causes else ".")
            )
        if self._info["is_moving"]:
            sentences.append(
                "Figures were being moved when the file was read: those of one thread may be "
                "missing or counted twice."
            )
        return sentences

    @cached_property
    def last_ns(self) -> int | None:
        """The latest begin or end of a span in the recording.

        None if it contains no spans, or was opened without its finished spans.
        """
        if not self._everything:
            return None
        times = [span["begin_ns"] for span in self.open_spans()]
        if len(self.spans()):
            times.append(int(self.spans()["end_ns"].max()))
        return max(times, default=None)

    def is_of(self, process: LiveProcess) -> bool:
        """Return whether this is the recording of a process."""
        mine = self.pid, self._info["start_ticks"], self._info["boot"]
        is_known = self.pid_namespace is not None and process.pid_namespace != 0
        return mine == (process.pid, process.start_ticks, _core.recording_boot()) and (
            not is_known or self.pid_namespace == process.pid_namespace
        )

    @cached_property
    def complete_ns(self) -> int:
        """The Unix time from which `spans` contains all spans that ended in a thread with a ring.

        0 if no span has been overwritten. Raises StagespanError if the recording was opened without
        its spans.
        """
        spans = self.spans()
        if not self.lost()["overwritten"] or not len(spans):
            return 0
        in_order = spans[(spans["flags"] & _core.FLAG_RECORDED) == 0]
        by_thread = [in_order[in_order["thread"] == one["thread"]] for one in self.threads()]
        by_thread = [found for found in by_thread if len(found)] or [spans]
        full = [found for found in by_thread if len(found) + 1 >= self._info["ring_spans"]]
        # Without a full ring, threads share the rings of threads that have ended.
        return max(int(found["end_ns"].min()) for found in full or by_thread)

    def reuse(self, handle: int) -> Recording | None:
        """Return a recording with this copy, made now: if nothing was recorded since, it is equal.

        `_core.recording_marks` shows whether anything was. None if the process, whose open file is
        ``handle``, may have ended.
        """
        if self.state != "alive" or not self._info["is_locked"] or not is_locked(handle):
            return None
        reused = copy(self)
        reused._made_ns = time.monotonic_ns()
        if self.read_ns is not None:
            reused.read_ns = self.read_ns + reused._made_ns - self._made_ns
        return reused

    def shares_copy_with(self, other: Recording) -> bool:
        """Whether the copy of one of them was reused for the other (`reuse`)."""
        return self._copy is other._copy

    def refresh(self) -> Recording:
        """Return a new copy. Raises StagespanError if the recording is gone."""
        return Recording(self.path, everything=self._everything)

    def __repr__(self) -> str:
        return f"<Recording of process {self.pid}, {self.state}, {self.path!r}>"


def _program(info: dict[str, Any]) -> str:
    program = str(info["program"])
    return _of_worker(info, _script(program)) if info["worker"] else program


def _name(info: dict[str, Any]) -> str:
    if info["name"]:
        return _of_worker(info, info["name"])
    if info["argument"]:
        return _of_worker(info, f"{_script(info['program'])} {info['argument']}")
    return _program(info)


def _script(program: str) -> str:
    """Return what says enough of "python train.py" and "python -m train": script or module."""
    return re.sub(r"^(?:python|pypy)\S* (?:-m )?(?=[^-])", "", program)


def _of_worker(info: dict[str, Any], name: str) -> str:
    of_rank = f" of rank {info['rank']}" if info["shares_rank"] else ""
    return f"{name}, {info['worker']}{of_rank}" if info["worker"] else name


def open_file(path: str) -> int:
    """Open a file for reading, and return its descriptor.

    Raises StagespanError if it is not a regular file, or cannot be opened; ShortageError if this
    process lacks descriptors or memory for it.
    """
    # The entries of /proc/PID/fd are links without a real path. All other links are refused.
    follow = 0 if re.fullmatch(r"/proc/\d+/fd/\d+", path) else os.O_NOFOLLOW
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | follow)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise StagespanError(f"{path} is a link: pass the file that it leads to.") from None
        if error.errno == errno.ENOENT:
            raise StagespanError(
                f"There is no file {path}: the path is wrong, or the process has ended. {REMOVED}"
            ) from None
        raise cannot_open(path, error) from None
    except ValueError as error:
        raise StagespanError(f"{path!r} is not the name of a file: {error}.") from None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise StagespanError(
            f"{path} is not a file: pass the file or the process id of a recording."
        )
    return handle


def _is_deleted(path: str, handle: int) -> bool:
    """Return whether a file that a process has open has been deleted; a memfd counts as not."""
    try:
        target = os.readlink(path)
    except OSError:  # not an entry of /proc/PID/fd
        return False
    return target != MEMFD and os.fstat(handle).st_nlink == 0


# --- processes ------------------------------------------------------------------------------------


Life = Literal["alive", "dead", "unknown"]


def _life(info: dict[str, Any], handle: int) -> Life:
    """Return whether the process of a recording lives.

    It is only dead if it has no lock on the file, and if /proc says so or cannot know it: an error
    of this process, such as a lack of descriptors, says nothing about it.
    """
    boots = info["boot"], _core.recording_boot()
    if 0 not in boots and boots[0] != boots[1]:
        return "dead"
    held = is_locked(handle) if info["is_locked"] else None
    try:
        namespace = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        namespace = 0
    if namespace == 0 or namespace != info["pid_namespace"] or not shows_this_namespace():
        # Process ids of another container cannot be compared with those here, but the lock can be
        # checked.
        return "unknown" if held is None else ("alive" if held else "dead")
    is_running = runs(info["pid"], info["start_ticks"])
    if held:
        return "unknown" if is_running is False else "alive"
    if is_running and held is False:
        # Unless it maps the file, the process has called exec and runs another program.
        is_running = _maps(info["pid"], os.fstat(handle))
    if is_running is None:
        return "unknown"
    return "alive" if is_running else "dead"


def shows_this_namespace() -> bool:
    """Whether /proc shows this process's pid namespace, and not that of another container."""
    try:
        return os.readlink("/proc/self") == str(os.getpid())
    except OSError:
        return False


def _stop_signal(info: dict[str, Any], open_spans: list[dict[str, Any]]) -> str | None:
    """Return the name of the signal that ended a process or asked it to end; None without one.

    A signal that the program has handled a long time before it ended does not count.
    """
    number = info["stop_signal"]
    if not number:
        return None
    if not info["stop_is_final"]:
        latest_ns = max((span["begin_ns"] for span in open_spans), default=0)
        if max(latest_ns, info["end_ns"]) - info["stop_ns"] > _LONGEST_STOP_NS:
            return None
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def is_locked(handle: int) -> bool | None:
    """Whether the process that created a file still holds its lock; None if that is unknown.

    The system releases the lock when the process ends, however it ends.
    """
    question = struct.pack("hhqqi4x", fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
    try:
        answer = fcntl.fcntl(handle, _F_OFD_GETLK, question)
    except OSError:
        return None
    return bool(struct.unpack("hhqqi4x", answer)[0] != fcntl.F_UNLCK)


def runs(pid: int, start_ticks: int) -> bool | None:
    """Return whether a process of this container runs; None if that cannot be found out."""
    try:
        fields = stat_fields(stat_folder(pid))
    except (FileNotFoundError, ProcessLookupError):
        return False if os.path.exists("/proc/self/stat") else None
    except OSError:
        return None
    if len(fields) < 20 or start_ticks == 0:
        return None
    return fields[0] not in ENDED_STATES and fields[19] == str(start_ticks)


def _maps(pid: int, status: os.stat_result) -> bool | None:
    """Return whether a process has mapped a file; None if that cannot be found out."""
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
    try:
        with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as file:
            return any(line.split()[3:5] == [device, str(status.st_ino)] for line in file)
    except (FileNotFoundError, ProcessLookupError):
        return False
    except OSError:
        return None
