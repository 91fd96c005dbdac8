"""``samplewise report``: a page about one run or several."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from samplewise.cli.outcome import begin, emit_json, note
from samplewise.errors import ConfigurationError

if TYPE_CHECKING:
    from samplewise.report.readers import Reader

__all__ = ["readers", "report"]


def readers() -> list[Reader]:
    """What knows a kind of run, each asked in turn: a new kind of run adds its reader here."""
    from samplewise.report.fits import read_fit
    from samplewise.studies.chest.for_report import read_classifier_training
    from samplewise.studies.mnist.for_report import read_study
    from samplewise.watermark.run_reports import read_evaluation, read_training

    return [read_study, read_training, read_evaluation, read_classifier_training, read_fit]


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            help="Folders of fit, of mnist, of watermark train or evaluate, or of chest classifier.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    title: Annotated[str | None, typer.Option(help="Title of the page; the run's name if not given.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what holds in each run as JSON.")] = False,
) -> None:
    """Make one self-contained HTML page: what was asked, what holds, how it went, which samples fail."""
    begin(f"report: reading {', '.join(map(str, runs))}")
    from samplewise.report.page import write_page
    from samplewise.report.readers import read_reports
    from samplewise.report.words import comparison, verdict

    if out.is_dir():
        raise ConfigurationError(f"expected --out as a file, got the folder {out}: give {out / 'report.html'}")
    found = read_reports(runs, readers())
    write_page(out, found, title=title)
    if as_json:
        results = [
            {"name": run.name, "folder": run.folder, "verdict": verdict(run), "splits": [asdict(s) for s in run.splits]}
            for run in found
        ]
        emit_json({"page": str(out), "runs": results})
    else:
        print(verdict(found[0]) if len(found) == 1 else comparison(found))
        note(f"The report is in {out}")
