"""Text that cannot end a line, control a terminal, format Markdown or become a formula."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from logging import LogRecord

_STARTS_A_FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
# An underscore between letters or digits has no meaning in Markdown.
_IN_MARKDOWN = re.compile(r"[\\`*{}\[\]<>|#~$]|(?<![^\W_])_|_(?![^\W_])")


def one_line(text: str) -> str:
    """Return text without characters that end a line or control a terminal, which are escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def escaped(text: str) -> str:
    """Return text on one line that Markdown shows as it is, also in a cell of a table."""
    return _IN_MARKDOWN.sub(r"\\\g<0>", one_line(" ".join(text.split())))


def code(text: str) -> str:
    """Return text on one line as a code span of Markdown."""
    # A code span ends at its first backtick, and a newline would end the paragraph.
    return "`" + one_line(" ".join(text.replace("`", "'").split())) + "`"


def csv_cell(text: str) -> str:
    """Return text for a cell of a CSV file, which neither a terminal nor a spreadsheet runs.

    Controls are escaped as in `one_line`. A text that a spreadsheet would take for a formula gets
    an apostrophe in front of it.
    """
    shown = one_line(text)
    return f"'{shown}" if shown.lstrip(" ").startswith(_STARTS_A_FORMULA) else shown


def escape_arguments(record: LogRecord) -> bool:
    """Escape what ends a line or controls a terminal in the arguments of a log message.

    This is a filter of logging, which lets every record pass. Names among the arguments can contain
    anything. The message itself is written by stagespan and can have lines.
    """
    if isinstance(record.args, tuple) and not record.getMessage().isprintable():
        record.args = tuple(
            one_line(str(each)) if isinstance(each, (str, BaseException)) else each
            for each in record.args
        )
    return True
