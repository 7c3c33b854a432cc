"""Debug contexts wait for the device at both ends, so that their host time covers all their work.

Always-on contexts never wait.
"""

from __future__ import annotations

from stagespan import _core
from stagespan.contexts import context
from stagespan.contexts.dynamo import compiling
from stagespan.device import platforms


class SynchronizeHook(context.Hook):
    """Waits for the current device before the clock starts and before it stops."""

    name = "synchronize"

    def wants(self, call: context.Call) -> bool:
        """Whether this is a debug context and the process uses a device."""
        return call.kind == "debug" and platforms.accelerator_in_use() is not None

    def enter(self, call: context.Call) -> None:
        """Wait for earlier work before the clock starts, or for the stage's before it stops."""
        platform = platforms.accelerator_in_use()
        if platform is None:
            return
        if compiling() or platform.is_capturing():
            # The code is being compiled or captured, not executed, and waiting would break that.
            call.flags |= _core.FLAG_CAPTURED
            return
        platform.synchronize()

    leave = enter
