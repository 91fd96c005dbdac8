"""What a run was asked to do."""

from dataclasses import asdict, dataclass
from typing import Any

from samplewise.errors import ConfigurationError
from samplewise.stopping import GradientRule

__all__ = ["Settings"]

COUNTS = ("epochs", "batch_size", "epochs_per_round", "accumulate", "evaluate_batch_size", "keep")


@dataclass(frozen=True)
class Settings:
    """The plain arguments of a run, checked; see :func:`samplewise.fit` for the meaning of each."""

    epochs: int
    batch_size: int
    seed: int
    shuffle: bool
    epochs_per_round: int
    round_rule: GradientRule | None
    warmup_epochs: int
    scheduler_interval: str
    accumulate: int
    evaluate_every: int
    """0: after the last epoch only."""
    evaluate_batch_size: int
    select_on: str
    target: float
    stop_at_target: bool
    checkpoint_steps: int | None
    keep: int

    def __post_init__(self) -> None:
        for name in COUNTS:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigurationError(f"expected {name} as a whole number >= 1, got {value!r}")
        if self.warmup_epochs < 0 or self.evaluate_every < 0:
            raise ConfigurationError("expected warmup_epochs and evaluate_every >= 0")
        if not 0 < self.target <= 1:
            raise ConfigurationError(f"expected a target share in (0, 1], got {self.target}")
        if self.scheduler_interval not in ("epoch", "step"):
            raise ConfigurationError(f"expected scheduler_interval 'epoch' or 'step', got {self.scheduler_interval!r}")
        if self.round_rule is not None and self.epochs_per_round != 1:
            raise ConfigurationError("give epochs_per_round or round_rule, not both: each says when a round ends")

    @property
    def last_epoch(self) -> int:
        """Number of epochs in all."""
        return self.warmup_epochs + self.epochs

    def identity(self) -> dict[str, Any]:
        """What makes a run this run: not its length, since a finished one may be continued, nor its checkpoints."""
        left_out = ("epochs", "checkpoint_steps", "keep")
        return {key: value for key, value in asdict(self).items() if key not in left_out}
