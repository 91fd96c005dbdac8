"""The settings of a run of the study, and its folder."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from samplewise.errors import ConfigurationError
from studies.data import ImageData
from studies.mnist.digit_network import DigitNetwork, Latent
from studies.mnist.rows import Row
from studies.records import SettingsFile, check_least


@dataclass(frozen=True)
class StudySettings:
    """All that the rows of one table have in common; the defaults are the paper's."""

    data: str
    fingerprint: str
    """Hash of the data, so that a run goes on only with what it began with."""
    pixels: int = 784
    height: int = 0
    """Of an image; 0 for a square one."""
    classes: int = 10
    held_out: str = "test"
    """Name of the second split: ``test``, or ``validation`` while settings are chosen."""
    shared: int = 0
    """Images of the second split that are in the first too; then no bound for unseen ones follows from it."""
    theta: float = 0.01
    latent: Latent = "linear"
    hidden: int = 256
    code: int = 20
    epochs: int = 250
    warm_epochs: int = 5
    batch_size: int = 128

    def __post_init__(self) -> None:
        if not self.theta > 0:
            raise ConfigurationError(f"expected theta > 0, got {self.theta}: no reconstruction has a smaller error")
        check_least(self, hidden=1, code=1, epochs=1, batch_size=1, warm_epochs=0)

    @classmethod
    def of(cls, data: ImageData, **chosen: Any) -> Self:
        """The settings for ``data``, with what differs from the paper."""
        return cls(
            data=data.name,
            fingerprint=data.fingerprint(),
            pixels=data.pixels,
            height=0 if data.shape[0] == data.shape[1] else data.shape[0],
            classes=data.classes,
            held_out=data.held_out,
            shared=data.shared,
            **chosen,
        )

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of an image."""
        height = self.height or math.isqrt(self.pixels)
        return height, self.pixels // height

    @property
    def comparable(self) -> bool:
        """Whether the paper reports on the same data, network, bound and training; it leaves open the code's units."""
        return self == StudySettings("mnist", self.fingerprint, height=self.height, latent=self.latent)

    def network(self) -> DigitNetwork:
        """A network of these sizes, freshly initialised."""
        return DigitNetwork(
            pixels=self.pixels, classes=self.classes, hidden=self.hidden, code=self.code, latent=self.latent
        )


OF_THE_DATA = ("data", "fingerprint", "pixels", "height", "classes", "held_out", "shared")
SETTINGS = SettingsFile("run.json", "samplewise-mnist-1", StudySettings, "this study", OF_THE_DATA)


def row_folder(out: Path, row: Row, seed: int) -> Path:
    """Where the run of one row with one seed lives."""
    return out / "rows" / row.folder / f"seed-{seed}"
