"""Text from files in Markdown, on one line."""

from __future__ import annotations

from stagespan.live.lines import one_line


def escaped(text: str) -> str:
    """Return text that cannot end its cell of a table."""
    return one_line(" ".join(text.split())).replace("\\", "\\\\").replace("|", "\\|")


def code(text: str) -> str:
    """Return a code span."""
    # A code span ends at its first backtick, and a newline would end the paragraph.
    return "`" + one_line(" ".join(text.replace("`", "'").split())) + "`"
