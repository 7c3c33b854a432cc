"""The output of commands: the options that all share, and how a page is shown or written."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, TypeVar, cast

import click

from stagespan.errors import StagespanError
from stagespan.process.files import json_bytes, whole_file

if TYPE_CHECKING:
    from stagespan.pages.page import Page

_F = TypeVar("_F", bound=Callable[..., Any])
_FORMATS = {".json": "json", ".md": "markdown", ".html": "html"}
_FILES = "stagespan.files"


class Output(NamedTuple):
    """How and where a command shows its page."""

    form: str
    """json, markdown or html; "" for the terminal."""
    file: str
    """Where it is written; ``-`` is standard output."""
    html: str | None
    """The file of a second copy as HTML."""
    others: dict[str, str]
    """Files by their form: what stands after --json and --markdown in commands that took it."""

    def show(self, page: Page, *, on_terminal: bool = True) -> None:
        """Print or write the page, without a format only with ``on_terminal``.

        Raises StagespanError if a file cannot be written.
        """
        if self.html is not None:
            write_to(self.html, _written(page, "html"))
        for form, file in self.others.items():
            write_to(file, _written(page, form))
        if self.form and not self.others:
            write_to(self.file, _written(page, self.form))
        elif not self.others and on_terminal:
            from stagespan.pages.terminal import print_page

            print_page(page)


def _written(page: Page, form: str) -> str:
    if form == "json":
        return json_bytes(page.to_dict(), indent=2).decode() + "\n"
    if form == "html":
        from stagespan.pages.html import html_page

        return html_page(page)
    from stagespan.pages.markdown import markdown

    return markdown(page)


def either(*schemas: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON Schema of a document that has one of several schemas."""
    parts = [
        {k: v for k, v in schema.items() if k not in ("$schema", "$defs")} for schema in schemas
    ]
    definitions = {name: each for schema in schemas for name, each in schema["$defs"].items()}
    return {"$schema": schemas[0]["$schema"], "anyOf": parts, "$defs": definitions}


def schema_option(schema: Callable[[], dict[str, Any]]) -> Callable[[_F], _F]:
    """Add --json-schema to a command, which prints what `schema` returns."""

    def print_schema(context: click.Context, _: click.Parameter, is_asked: bool) -> None:
        if is_asked:
            import json

            click.echo(json.dumps(schema(), indent=1))
            context.exit()

    return click.option(
        "--json-schema",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=print_schema,
        help="Print the JSON Schema of the output of --json.",
    )


def output_options(schema: Callable[[], dict[str, Any]]) -> Callable[[_F], _F]:
    """Add the options of output to a command, which gets an `Output` as ``output``.

    `schema` returns the JSON Schema of the page, for --json-schema.
    """

    options = (
        click.option("--json", "as_json", is_flag=True, help="Print all figures as JSON."),
        click.option("--markdown", "as_markdown", is_flag=True, help="Print all tables."),
        click.option(
            "--html", metavar="FILE", help="Also write one page that works without a network."
        ),
        click.option(
            "-o",
            "file",
            metavar="FILE",
            help="Write to a file instead, as JSON, Markdown or HTML by its suffix (.json, .md, "
            ".html) if no format is named.",
        ),
        schema_option(schema),
    )

    def decorate(function: _F) -> _F:
        @functools.wraps(function)
        def call(
            *args: Any,
            as_json: bool,
            as_markdown: bool,
            html: str | None,
            file: str | None,
            **rest: Any,
        ) -> Any:
            return function(*args, output=_output(as_json, as_markdown, html, file), **rest)

        for option in reversed(options):
            call = option(call)
        return cast(_F, call)

    return decorate


def _output(as_json: bool, as_markdown: bool, html: str | None, file: str | None) -> Output:
    if as_json and as_markdown:
        raise click.UsageError("Choose --json or --markdown, or call the command twice.")
    form = "json" if as_json else "markdown" if as_markdown else ""
    if file is not None and file != "-" and not form:
        suffix = Path(file.removesuffix(".gz")).suffix
        if suffix not in _FORMATS:
            raise click.UsageError(
                f"-o {file} does not tell the format: name it with --json or --markdown, or use "
                "the suffix .json, .md or .html."
            )
        form = _FORMATS[suffix]
    others = click.get_current_context().meta.get(_FILES, {})
    return Output(form, file or "-", html, others)


class PageCommand(click.Command):
    """A command with `output_options`, whose --json and --markdown may be followed by ``-``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        kept: list[str] = []
        for arg in args:
            if arg != "-" or not kept or kept[-1] not in ("--json", "--markdown"):
                kept.append(arg)
        return super().parse_args(ctx, kept)


class FormerFilesCommand(PageCommand):
    """A page command whose --json and --markdown took the name of a file until 0.1.0.

    A name after them that does not exist yet is written, if it is one argument too many.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        needs_none = not any(param.required for param in self.params)
        kept, files = list(args), dict[str, str]()
        for option in ("--json", "--markdown"):
            kept = [part for arg in kept for part in _split(arg, option)]
            at = kept.index(option) + 1 if option in kept else len(kept)
            if at >= len(kept) or kept[at].startswith("-") or os.path.exists(kept[at]):
                continue
            _, left, _ = self.make_parser(ctx).parse_args(list(kept))
            if left or needs_none:
                _, files[option.removeprefix("--")] = kept[at - 1 : at + 1]
                del kept[at - 1 : at + 1]
                click.echo(
                    f"`{option} FILE` is read as `{option} -o FILE`, which you should use instead.",
                    err=True,
                )
        ctx.meta[_FILES] = files
        return super().parse_args(ctx, kept)


def _split(arg: str, option: str) -> list[str]:
    return [option, arg.removeprefix(f"{option}=")] if arg.startswith(f"{option}=") else [arg]


def write_to(file: str, content: str | bytes | Iterator[bytes]) -> None:
    """Write text or bytes, also in parts, to a file completely or not at all.

    ``-`` is standard output. The file is compressed if its name ends with ``.gz``.

    Raises StagespanError if the file cannot be written, or if bytes would go to a terminal; parts
    are those of text.
    """
    if file == "-" and isinstance(content, bytes) and sys.stdout.isatty():
        raise StagespanError("A binary format cannot be shown on a terminal: pass a file with -o.")

    if file == "-":
        for part in [content] if isinstance(content, str | bytes) else map(bytes.decode, content):
            click.echo(part, nl=False)
        return
    raw = content.encode() if isinstance(content, str) else content
    parts = [raw] if isinstance(raw, bytes) else raw
    try:
        with whole_file(file) as target, _writer(target, file) as writer:
            for part in parts:
                writer.write(part)
    except OSError as error:
        raise StagespanError(
            f"{file} cannot be written ({error.strerror or error}): choose another file."
        ) from error


def _writer(target: BinaryIO, name: str) -> AbstractContextManager[Any]:
    """Return what writes to an open file, compressed if its name says so."""
    if not name.endswith(".gz"):
        return nullcontext(target)
    import gzip

    return gzip.GzipFile("", "wb", fileobj=target, mtime=0)


def print_json(page: dict[str, Any]) -> None:
    """Print a page as JSON, with indentation."""
    click.echo(json_bytes(page, indent=2).decode())
