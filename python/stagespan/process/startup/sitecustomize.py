"""Lets a Python that a program under `stagespan run` has started time the stages.

`process/command.py` puts this folder at the front of PYTHONPATH, so any Python can import this
module: it has no syntax and no imports that old versions lack, and it prints nothing.
"""

import os
import sys


def _run_hidden():
    """Run the `sitecustomize` that this one hides, and take this folder off the search path."""
    folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != folder]
    this_module = sys.modules.pop("sitecustomize")
    try:
        import sitecustomize  # noqa: F401
    except ImportError as error:
        if getattr(error, "name", "sitecustomize") != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = this_module


def _time_stages():
    python = "%d %s %s" % (sys.hexversion, getattr(sys, "abiflags", ""), sys.prefix)
    if os.environ.get("_STAGESPAN_COMMAND_PYTHON") != python or _is_sub_interpreter():
        return
    try:
        import stagespan.process.command

        stagespan.process.command.reached()
    except Exception:
        pass  # the program runs as without stagespan


def _is_sub_interpreter():
    try:
        import _interpreters
    except ImportError:
        import _xxsubinterpreters as _interpreters
    return _interpreters.get_current() != _interpreters.get_main()


try:
    _run_hidden()
finally:
    _time_stages()
