"""``stagespan analyze``: what a trace says, on one screen and in files."""

from __future__ import annotations

from pathlib import Path

import click

from stagespan.cli.output import write_to


def _print_schema(context: click.Context, _: click.Parameter, asked: bool) -> None:
    if not asked:
        return
    import json

    from stagespan.trace.render.json_schema import json_schema

    click.echo(json.dumps(json_schema(), indent=1))
    context.exit()


def _possible(context: click.Context, option: click.Parameter, jobs: int) -> int:
    if jobs == 0:
        raise click.BadParameter("0 is not a number of traces: give 1 or more, or -1.")
    source = context.get_parameter_source(option.name or "")
    if jobs != 1 and source is click.core.ParameterSource.COMMANDLINE:
        from importlib.util import find_spec

        if find_spec("joblib") is None:
            raise click.BadParameter(
                "reading several traces at a time needs joblib (the extra 'ranks'): install it "
                "with `pip install joblib`, or leave the option out."
            )
    return jobs


@click.command()
@click.argument("path", metavar="PATH", type=click.Path(path_type=Path))
@click.option(
    "--against",
    metavar="BEFORE",
    type=click.Path(path_type=Path),
    help="Say what changed since this trace of the same program, and why.",
)
@click.option(
    "--merge",
    "merge_file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Of a folder write all ranks' timelines as one (.json.gz), for Perfetto.",
)
@click.option(
    "--jobs",
    metavar="N",
    type=int,
    callback=_possible,
    default=-1,
    show_default="one a core",
    help="Number of traces of a folder to read at a time (needs joblib).",
)
@click.option(
    "--json",
    "json_file",
    metavar="FILE",
    help="Write all figures as JSON; - is standard output, without the page.",
)
@click.option("--markdown", "markdown_file", metavar="FILE", help="Write all tables as Markdown.")
@click.option(
    "--html",
    "html_file",
    metavar="FILE",
    help="Write one page with charts, which needs no network.",
)
@click.option(
    "--flame",
    "flame_file",
    metavar="FILE",
    help="Write the recorded stacks, folded, as tools that draw flame graphs read them.",
)
@click.option(
    "--json-schema",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_schema,
    help="Print the JSON Schema of what --json writes.",
)
def command(
    path: Path,
    against: Path | None,
    merge_file: Path | None,
    jobs: int,
    json_file: str | None,
    markdown_file: str | None,
    html_file: str | None,
    flame_file: str | None,
) -> None:
    """Say where the time of a trace went and why the device was idle.

    PATH is what torch.profiler exported, .json or .json.gz; or the folder that torch_npu.profiler
    wrote for a process; or one with the traces of many ranks: then it says who waited for whom.
    """
    from stagespan.trace.paths import analyze_path, merge_ranks

    analysis = analyze_path(path, against, jobs)
    if merge_file is not None:
        merge_ranks(analysis, merge_file)
    if json_file is not None:
        import json

        text = json.dumps(analysis.to_dict(), indent=1) + "\n"
        write_to(json_file, text)
    if markdown_file is not None:
        from stagespan.trace.render.markdown import markdown

        write_to(markdown_file, markdown(analysis))
    if html_file is not None:
        from stagespan.trace.render.html import html_page

        write_to(html_file, html_page(analysis))
    if flame_file is not None:
        from stagespan.trace.analyses.flame import folded_of

        write_to(flame_file, folded_of(analysis.results.get("flame")))
    if "-" not in (json_file, markdown_file, html_file, flame_file):
        from stagespan.trace.paths import print_page_of

        print_page_of(analysis)
