"""Options that commands share: where to train, and where to write."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from samplewise.errors import ConfigurationError, MissingPackageError, install

if TYPE_CHECKING:
    from lightning_fabric import Fabric

T = TypeVar("T")
PANEL = "Devices"
Accelerator = Annotated[str, typer.Option(help="cpu, cuda, mps or auto.", rich_help_panel=PANEL)]
DevicesFlag = Annotated[int, typer.Option("--devices", min=1, help="Devices on each node.", rich_help_panel=PANEL)]
Nodes = Annotated[int, typer.Option(min=1, help="Machines that train together.", rich_help_panel=PANEL)]
Strategy = Annotated[str, typer.Option(help="auto or ddp.", rich_help_panel=PANEL)]
Precision = Annotated[str, typer.Option(help="32-true, bf16-mixed or 16-mixed.", rich_help_panel=PANEL)]
Threads = Annotated[int | None, typer.Option(min=1, help="Threads; as many as cores if not given.")]
Seed = Annotated[int | None, typer.Option(min=0, help="Seed of everything random, splits included; 0 if not given.")]
Pictures = Annotated[Path, typer.Option(help="Folder of images, or a store made by studies chest prepare.")]
ResumeFlag = Annotated[bool, typer.Option("--resume", help="Go on with the run in the folder.")]
RecipeFile = Annotated[
    Path | None,
    typer.Option(
        "--recipe", metavar="FILE.toml", help="Settings, such as the recipe.toml of a run; options override it."
    ),
]


def command_group(name: str, help: str, epilog: str) -> typer.Typer:
    """Commands below a word, which alone shows their help."""
    app = typer.Typer(name=name, help=help, epilog=epilog, invoke_without_command=True, rich_markup_mode=None)

    @app.callback()
    def common(context: typer.Context) -> None:
        if context.invoked_subcommand is None:
            print(context.get_help())

    return app


@dataclass(frozen=True)
class Devices:
    """Where to train; calling it makes the Fabric, so that it can be handed to another process."""

    accelerator: str = "auto"
    devices: int = 1
    nodes: int = 1
    strategy: str = "auto"
    precision: str = "32-true"
    threads: int | None = None
    """Of this process; PyTorch's choice if None."""
    leaves_unused: bool = False
    """Whether parts of the model may get no gradient, such as a decoder that some rows do not train."""

    @property
    def several(self) -> bool:
        """Whether one model is trained by several processes."""
        return self.devices * self.nodes > 1

    def __call__(self) -> Fabric:
        """The Fabric that these flags stand for, not launched yet."""
        import torch
        from lightning_fabric import Fabric

        if self.threads is not None:
            torch.set_num_threads(self.threads)
        strategy = self.strategy
        if strategy == "ddp" or (strategy == "auto" and self.several and self.leaves_unused):
            strategy = "ddp_find_unused_parameters_true"
        try:
            return Fabric(
                accelerator=self.accelerator,
                devices=self.devices,
                num_nodes=self.nodes,
                strategy=strategy,
                precision=self.precision,  # type: ignore[arg-type]  # Fabric itself refuses what it does not know
            )
        except (ValueError, TypeError, RuntimeError, ImportError) as error:
            raise ConfigurationError(f"these device flags do not work here: {error}") from error


def launch(fabric: Fabric, begin: Callable[[bool], T]) -> T:
    """Launch the processes of ``fabric``; the first has begun the run before any other opens what it made.

    It begins before it starts the others, so that an error is printed once; or, if torchrun or another machine started
    them, before it meets them. ``begin`` is told whether its process is the first.
    """
    first = fabric.global_rank == 0
    if first:
        begun = begin(True)
    fabric.launch()
    fabric.barrier()
    return begun if first else begin(False)


@contextmanager
def to_tensorboard(fabric: Fabric, folder: Path | None) -> Iterator[None]:
    """Have what ``fabric`` logs inside also written to ``tensorboard`` in the run's folder; nothing if it is None."""
    if folder is None:
        yield
        return
    from lightning_fabric.loggers.tensorboard import TensorBoardLogger

    try:
        logger = TensorBoardLogger(root_dir=folder, name="tensorboard", version="")
    except ModuleNotFoundError as error:
        raise MissingPackageError(f"TensorBoard's files need tensorboard; {install('tensorboard')}") from error
    fabric.loggers.append(logger)
    try:
        yield
    finally:
        fabric.loggers.remove(logger)
        logger.finalize("ended")


def open_output(out: Path, names: Collection[str]) -> Path:
    """Make ``out`` ready: a new or empty folder, or one of an earlier evaluation, which holds nothing but ``names``."""
    from samplewise.storage import ensure_writable

    if out.is_dir():
        foreign = sorted(path.name for path in out.iterdir() if path.name not in names and path.name[0] != ".")
        if foreign:
            raise ConfigurationError(f"{out}: holds {foreign[0]}, which is not of an evaluation; choose another folder")
    elif out.exists():
        raise ConfigurationError(f"{out}: is a file; choose a folder")
    return ensure_writable(out)
