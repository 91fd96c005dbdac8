"""What a run was asked to do."""

from dataclasses import asdict, dataclass
from typing import Any

from samplewise.errors import ConfigurationError
from samplewise.stopping import GradientRule

__all__ = ["Settings"]

# Arguments that are whole numbers, and the least each may be; some may be None.
OPTIONAL = ("patience", "checkpoint_steps")
COUNTS = {
    "epochs": 1,
    "batch_size": 1,
    "epochs_per_round": 1,
    "warmup_epochs": 0,
    "accumulate": 1,
    "audit_every": 0,
    "audit_batch_size": 1,
    "patience": 1,
    "checkpoint_steps": 1,
    "keep": 1,
}


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
    clip_norm: float | None
    accumulate: int
    audit_every: int
    """0: after the last epoch only."""
    audit_batch_size: int
    select_on: str
    target: float
    stop_at_target: bool
    patience: int | None
    checkpoint_steps: int | None
    keep: int

    def __post_init__(self) -> None:
        for name, least in COUNTS.items():
            value = getattr(self, name)
            if name in OPTIONAL and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigurationError(f"expected {name} as a whole number >= {least}, got {value!r}")
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise ConfigurationError(f"expected clip_norm > 0, got {self.clip_norm}")
        if self.stop_at_target and not self.audit_every:
            raise ConfigurationError("stop_at_target=True needs audit_on={...}: only an audit can meet the target")
        if self.patience is not None and not self.audit_every:
            raise ConfigurationError("patience needs audit_on={...}: only an audit can find a better model")
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
        left_out = ("epochs", "patience", "checkpoint_steps", "keep")
        return {key: value for key, value in asdict(self).items() if key not in left_out}
