"""Importing this registers the hook that captures signatures; `context` does so in debug mode."""

from __future__ import annotations

from stagespan import _core, context
from stagespan.signature.recorder import SignatureHook

context.register_hook(SignatureHook(_core.MISSING, _core.FLAG_FIRST_OF_SHAPE))
