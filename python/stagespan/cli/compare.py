"""``stagespan compare``: shows which stages are slower than before."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stagespan.cli.contents import Kind, kind_of
from stagespan.cli.lean import trace_analyses
from stagespan.cli.output import FormerFilesCommand, Output, either, output_options
from stagespan.errors import ReportError

if TYPE_CHECKING:
    from stagespan.report.changes import TimingComparison

_FILE = click.Path(path_type=Path)


def _tolerance(ctx: click.Context, option: click.Parameter, text: str | None) -> float | None:
    from stagespan.pages.amounts import milliseconds, share

    try:
        if text is None:
            return None
        return milliseconds(text) if option.name == "tolerance_ms" else share(text)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, option) from None


def _schema() -> dict[str, Any]:
    from stagespan.report import changes_pages
    from stagespan.trace.json_schema import json_schema

    return either(changes_pages.json_schema(), json_schema())


@click.command("compare", cls=FormerFilesCommand)
@click.argument("before", type=_FILE)
@click.argument("after", type=_FILE)
@click.option(
    "--tolerance",
    default="5%",
    show_default=True,
    metavar="PERCENT",
    callback=_tolerance,
    help="Ignore changes of a median up to this percentage.",
)
@click.option(
    "--tolerance-ms",
    default="0.01",
    show_default=True,
    metavar="MS",
    callback=_tolerance,
    help="Ignore changes up to this time in milliseconds. The larger of the two applies.",
)
@click.option(
    "--noise-limit",
    metavar="PERCENT",
    callback=_tolerance,
    help="Exit with 2 if something is neither slower nor faster, and its noise is larger than this "
    "percentage or not known. [default: no limit]",
)
@click.option("--fail-on-missing", is_flag=True, help="Exit with 1 also if a stage is missing.")
@output_options(_schema)
@click.pass_context
def command(
    ctx: click.Context,
    before: Path,
    after: Path,
    tolerance: float,
    tolerance_ms: float,
    noise_limit: float | None,
    fail_on_missing: bool,
    output: Output,
) -> None:
    """Compare two traces, timing reports, kernel breakdowns, bench results or baselines.

    A change of a median counts if it is larger than both tolerances and outside of the noise of
    both files. If the noise is larger than both tolerances, or not known, it is not known whether
    the time has changed.

    A stage that is not slower is worse if its runs fail more often, if it does less work a second,
    or if its runs take longer on average.

    Exit status: 0 if nothing is known to be slower or worse, 1 if something is, 2 if the files
    cannot be compared, or not precisely enough for --noise-limit.

    Of two traces, the page says what changed and why; one run of each does not show its noise, so
    there is no tolerance, and the exit status is 0.

    \b
    Examples:
      stagespan compare before/timing.json after/timing.json --tolerance 3%
      stagespan compare before.json.gz after.json.gz --html page.html
    """
    # A file that is missing is named by the reader of the other one's kind.
    if {kind_of(str(before)), kind_of(str(after))} - {None} == {Kind.TRACE}:
        for option in ("tolerance", "tolerance_ms", "noise_limit", "fail_on_missing"):
            if ctx.get_parameter_source(option) is click.core.ParameterSource.COMMANDLINE:
                raise click.UsageError(
                    f"--{option.replace('_', '-')} is for files of times, not for traces."
                )
        with trace_analyses():
            from stagespan.recording.any_path import analyze

            output.show(analyze(after, before))
        return
    from stagespan.report import changes_pages
    from stagespan.report.changes import Tolerance, compare_files

    comparison = compare_files(before, after, Tolerance(tolerance, tolerance_ms))
    output.show(changes_pages.ComparisonPage(comparison))
    if comparison.is_worse or (fail_on_missing and comparison.is_missing):
        ctx.exit(1)
    if noise_limit is not None:
        _check_noise(comparison, noise_limit)


def _check_noise(comparison: TimingComparison, limit: float) -> None:
    """Raise ReportError, which is shown with exit status 2, if the noise is above the limit."""
    from stagespan.pages.amounts import percent, quoted

    noisy = [change for change in comparison.changes if change.exceeds_noise(limit)]
    if noisy:
        worst = max((change.noise for change in noisy if change.noise is not None), default=None)
        noise = "not known" if worst is None else f"up to {percent(worst)} of the time before"
        raise ReportError(
            f"the noise of {quoted(change.name for change in noisy)} is {noise}, but --noise-limit "
            f"allows {percent(limit)}: measure in more processes, or on a calmer machine."
        )
