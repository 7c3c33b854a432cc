"""``open_spans()``: the names of threads."""

from __future__ import annotations

import threading

import stagespan


def test_open_spans_carry_the_names_of_pythons_threads() -> None:
    # GIVEN a thread with a name longer than the system keeps, inside two spans
    entered, leave = threading.Event(), threading.Event()

    def work() -> None:
        with stagespan.span("outer"), stagespan.span("inner"):
            entered.set()
            leave.wait(10.0)

    thread = threading.Thread(target=work, name="uploader of large files")
    thread.start()
    entered.wait(10.0)

    mine = [span for span in stagespan.open_spans() if span["thread"] == thread.native_id]
    leave.set()
    thread.join()

    assert [span["stage"] for span in mine] == ["outer", "inner"]
    assert {span["thread_name"] for span in mine} == {"uploader of large files"}
    assert all(span["thread"] != thread.native_id for span in stagespan.open_spans())


def test_detached_spans_have_no_thread() -> None:
    token = stagespan.begin("upload")

    found = [span for span in stagespan.open_spans() if span["id"] == token.id]
    stagespan.end(token)

    assert [(span["detached"], span["thread_name"]) for span in found] == [(True, None)]
