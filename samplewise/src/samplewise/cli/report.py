"""``samplewise report``: a page about one run or several."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from samplewise.cli.outcome import JsonFlag, begin, emit, note
from samplewise.errors import ConfigurationError, DataError

if TYPE_CHECKING:
    from samplewise.report.run import RunReport

LARGE = 1_000_000  # bytes of a page from which it says why


def read_reports(folders: Sequence[Path]) -> list[RunReport]:
    """All runs in the folders; where there are several folders, each run's name begins with its folder's.

    Raises:
        DataError: a folder is no run, or its files cannot be read.
    """
    found = [_read(folder) for folder in folders]
    if len(found) == 1:
        return list(found[0])
    return [
        replace(run, name=name if len(runs) == 1 else f"{name}: {run.name}")
        for name, runs in zip(_short_names(folders), found, strict=True)
        for run in runs
    ]


def _read(folder: Path) -> Sequence[RunReport]:
    from samplewise.report.fits import read_fit

    if not folder.is_dir():
        found = "is a file" if folder.exists() else "there is no such folder"
        raise DataError(f"{folder}: {found}; give the folder of a run")
    # Each knows a kind of run, or gives None. Other packages add theirs as entry points; they may hold what fit wrote.
    for reader in (*_readers(), read_fit):
        if (runs := reader(folder)) is not None:
            return runs
    raise DataError(f"{folder}: holds no run that a report can be made of; give a folder that fit wrote, or a study")


def _readers() -> Iterator[Callable[[Path], Sequence[RunReport] | None]]:
    """Those of other packages; one that cannot be loaded is named, and left out."""
    for entry in entry_points(group="samplewise.runs"):
        try:
            yield entry.load()
        except ImportError as error:
            note(f"runs of {entry.name} are not looked for: {error}")


def _short_names(folders: Sequence[Path]) -> list[str]:
    """The shortest ends of the paths that tell the folders apart."""
    parts = [folder.resolve().parts[1:] for folder in folders]
    for length in range(1, max(map(len, parts), default=1) + 1):
        names = ["/".join(part[-length:]) for part in parts]
        if len(set(names)) == len(set(parts)):
            break
    return names


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Folders that fit wrote with checkpoint=..., or those of a study."),
    ],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    title: Annotated[str | None, typer.Option(help="Title of the page; the run's name if not given.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Make one self-contained HTML page: what was asked, what holds, how it went, which samples fail."""
    begin(f"report: reading {', '.join(map(str, runs))}")
    from samplewise.report.page import write_page
    from samplewise.report.words import comparison, verdict

    if out.is_dir():
        raise ConfigurationError(f"expected --out as a file, got the folder {out}: give {out / 'report.html'}")
    found = read_reports(runs)
    write_page(out, found, title=title)
    if (size := out.stat().st_size) > LARGE:
        note(f"{out} has {size / 1e6:.1f} MB: it holds {len(found)} runs with their pictures and curves")
    results = [
        {
            "name": run.name,
            "folder": run.folder,
            "verdict": verdict(run),
            "splits": [{**asdict(s), "trained_on": s.trained_on, "at_least": s.at_least} for s in run.splits],
        }
        for run in found
    ]
    text = verdict(found[0]) if len(found) == 1 else comparison(found)
    emit({"page": str(out), "runs": results}, text, f"The report is in {out}", as_json=as_json)
