"""``studies mnist``: the paper's first study."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from samplewise.cli import JsonFlag, begin, emit
from samplewise.errors import ConfigurationError, DataError
from studies import options
from studies.progress import progress

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from studies.data import ImageData
    from studies.mnist.settings import StudySettings
    from studies.mnist.study import Job

EPILOG = (
    "\b\nExample: studies mnist --data download --rows all --out runs/mnist\n"
    "One row: studies mnist --data download --row penalty:100:1.01 --out runs/one\n"
    "Go on:   studies mnist --data download --rows all --out runs/mnist --resume"
)


@dataclass(frozen=True)
class Source:
    """Where the images come from, and where to train on them: what every process of the study makes for itself."""

    place: str
    """A folder, ``download`` or ``digits``."""
    dataset: str
    devices: options.Devices
    validation: int = 0

    def __call__(self) -> tuple[ImageData, Fabric]:
        """Load the images and make the Fabric, which is not launched yet."""
        from studies import data

        if self.place == "digits":
            images = data.digits()
        else:
            known, folder = data.published(self.dataset), Path(self.place)
            images = data.load_folder(data.download(known) if self.place == "download" else folder, known)
        return images.with_validation(self.validation) if self.validation else images, self.devices()


def mnist(
    out: Annotated[Path, Option(help="Folder of the run: rows, table and figures.")],
    data: Annotated[str | None, Option(help="Folder with the four idx files (also .gz), download, or digits.")] = None,
    dataset: Annotated[str, Option(help="The files: mnist, fashion-mnist, or own (no md5 to check).")] = "mnist",
    rows: Annotated[str | None, Option(help="A group of rows: all (the paper's table), fixed, sequential.")] = None,
    row: Annotated[list[str] | None, Option(help="One row, as penalty:100:1.01, fixed:100, ours.")] = None,
    epochs: Annotated[int | None, Option(min=1, help="Epochs of each row; 250 if not given.")] = None,
    seed: Annotated[list[int] | None, Option(min=0, help="May be given several times; 0 if not given.")] = None,
    theta: Annotated[float | None, Option(help="Bound on the reconstruction error; 0.01 if not given.")] = None,
    code: Annotated[int | None, Option(min=1, help="Length of the latent (code); 20 if not given.")] = None,
    recipe: options.RecipeFile = None,
    validation: Annotated[int, Option(min=0, help="Training samples held out in place of the test set.")] = 0,
    jobs: Annotated[int | None, Option(min=1, help="Rows trained in parallel; one for each core if not given.")] = None,
    threads: Annotated[int | None, Option(min=1, help="Threads of each job (its share of the cores).")] = None,
    resume: Annotated[bool, Option("--resume", help="Go on with the run in the folder, or add rows to it.")] = False,
    table_only: Annotated[bool, Option("--table-only", help="Train nothing: make table and figures anew.")] = False,
    tensorboard: Annotated[bool, Option("--tensorboard", help="Also write TensorBoard files of each row.")] = False,
    accelerator: options.Accelerator = "auto",
    devices: options.DevicesFlag = 1,
    nodes: options.Nodes = 1,
    strategy: options.Strategy = "auto",
    precision: options.Precision = "32-true",
    as_json: JsonFlag = False,
) -> None:
    """Train the rows of the paper's Table I, or others, and set the results beside the paper's."""
    begin(f"mnist: opening {out}")
    from studies.mnist.comparison import write_all
    from studies.mnist.settings import SETTINGS, StudySettings
    from studies.mnist.study import JobFailedError, run_jobs, run_row

    failed: JobFailedError | None = None
    if not table_only:
        todo = _jobs(rows, row, seed or [0])
        if data is None:
            raise ConfigurationError("give --data: a folder with the idx files, download, or digits")
        place = options.Devices(accelerator, devices, nodes, strategy, precision, leaves_unused=True)
        source = Source(data, dataset, place, validation)
        chosen = SETTINGS.given(recipe, theta=theta, code=code, epochs=epochs)
        images, fabric = source()

        def begin_run(first: bool) -> StudySettings:
            settings = StudySettings.of(images, **chosen)
            if first:
                SETTINGS.open(out, settings, resume=resume)
            return settings

        if place.several:
            settings = options.launch(fabric, begin_run)
            for job in todo:
                run_row(settings, images, job.row, job.seed, out, fabric=fabric, progress=None, tensorboard=tensorboard)
            fabric.barrier()
            if fabric.global_rank > 0:
                return  # the first process alone writes the table
        else:
            settings = begin_run(True)
            processes, threads = share_cores(len(todo), jobs, threads)
            with progress(f"{len(todo)} rows", len(todo) * settings.epochs, unit="epochs") as tell:
                # Another process loads the images itself; this one has them.
                load = source if processes > 1 else lambda: (images, fabric)
                how: dict[str, Any] = {"processes": processes, "threads": threads, "tensorboard": tensorboard}
                try:
                    run_jobs(todo, settings, out, load, watch=tell, **how)
                except JobFailedError as error:
                    failed = error  # the rows that did come to their end still get their table
    try:
        table = write_all(out)
    except DataError as error:
        raise failed or error from None
    if failed is not None:
        raise failed
    emit(asdict(table), table.text(), f"The table and the figures are in {out}", as_json=as_json)


def _jobs(group: str | None, single: list[str] | None, seeds: list[int]) -> list[Job]:
    from studies.mnist.rows import GROUPS, parse_row
    from studies.mnist.study import Job

    if group is not None and group not in GROUPS:
        raise ConfigurationError(f"expected --rows as one of {', '.join(GROUPS)}, got {group!r}; for one row: --row")
    names = [*(GROUPS[group] if group else ()), *(single or ())]
    if not names:
        raise ConfigurationError("no rows to run: give --rows all, or --row penalty:100:1.01")
    parsed = {row.name: row for row in map(parse_row, names)}
    return [Job(row, seed) for seed in dict.fromkeys(seeds) for row in parsed.values()]


def share_cores(rows: int, jobs: int | None, threads: int | None) -> tuple[int, int]:
    """How many rows run side by side, with how many threads each.

    Rows side by side come first: small matrices leave a second thread little to do.
    """
    from floormark.processes import cores

    jobs = min(rows, jobs or max(1, cores() // (threads or 1)))
    return jobs, threads or max(1, cores() // jobs)
