"""The accelerator flags that training commands share, and the Lightning Fabric they stand for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from samplewise.errors import ConfigurationError

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["Accelerator", "Devices", "DevicesFlag", "Nodes", "Precision", "Strategy", "launch"]

T = TypeVar("T")
PANEL = "Devices"
Accelerator = Annotated[str, typer.Option(help="cpu, cuda, mps or auto.", rich_help_panel=PANEL)]
DevicesFlag = Annotated[int, typer.Option("--devices", min=1, help="Devices on each node.", rich_help_panel=PANEL)]
Nodes = Annotated[int, typer.Option(min=1, help="Machines that train together.", rich_help_panel=PANEL)]
Strategy = Annotated[str, typer.Option(help="auto, ddp or fsdp.", rich_help_panel=PANEL)]
Precision = Annotated[str, typer.Option(help="32-true, bf16-mixed or 16-mixed.", rich_help_panel=PANEL)]


@dataclass(frozen=True)
class Devices:
    """Where to train; calling it makes the Fabric, so that it can be handed to another process."""

    accelerator: str = "auto"
    devices: int = 1
    nodes: int = 1
    strategy: str = "auto"
    precision: str = "32-true"
    leaves_unused: bool = False
    """Whether parts of the model may get no gradient, such as a decoder that some rows do not train."""

    @property
    def several(self) -> bool:
        """Whether one model is trained by several processes."""
        return self.devices * self.nodes > 1

    def __call__(self) -> Fabric:
        """The Fabric that these flags stand for, not launched yet."""
        from lightning_fabric import Fabric

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

    It begins before it starts the others, so that what is wrong is said once, or, where torchrun or another machine
    started them, before it meets them.

    Args:
        fabric: not launched yet.
        begin: called in every process with whether it is the first.
    """
    if fabric.global_rank == 0:
        begun = begin(True)
        fabric.launch()
        fabric.barrier()
        return begun
    fabric.launch()
    fabric.barrier()
    return begin(False)
