"""The accelerator flags that training commands share, and the Lightning Fabric they stand for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from samplewise.errors import ConfigurationError

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["Accelerator", "Devices", "DevicesFlag", "Nodes", "Precision", "Strategy"]

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

    @property
    def several(self) -> bool:
        """Whether one model is trained by several processes."""
        return self.devices * self.nodes > 1

    def __call__(self) -> Fabric:
        """The Fabric that these flags stand for, not launched yet."""
        from lightning_fabric import Fabric

        strategy = self.strategy
        if strategy == "ddp":
            # A row that does not train the decoder leaves parameters without a gradient.
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
