"""Train, validation and test parts that no patient is shared between."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Self, get_args

from samplewise.errors import CheckpointError, DataError
from samplewise.samples import mix
from samplewise.storage import decoding, from_plain, read_json, write_json
from studies.pictures.listing import some

Part = Literal["train", "validation", "test"]
Rule = Literal["patients"]
Names = tuple[str, ...]
PARTS: tuple[Part, ...] = get_args(Part)
FORMAT = "samplewise-split-1"
HELD_OUT_FRACTION = 0.15
"""Of the patients, for validation and for test each."""


@dataclass(frozen=True)
class Split:
    """The names of the pictures in each part, sorted."""

    train: Names
    validation: Names
    test: Names
    rule: Rule
    """How it was made: patients drawn by the seed."""
    seed: int

    @property
    def origin(self) -> dict[str, Any]:
        """How it was made, for results: a split of the same pictures with the same origin is the same."""
        return {"rule": self.rule, "seed": self.seed}

    @classmethod
    def by_patient(cls, names: Sequence[str], patients: Sequence[str], *, seed: int = 0) -> Self:
        """Draw 15 % of the patients for validation and for test each; the rest is for training.

        The result depends on the set of patients and the seed, not on the order of the files. Each part has at least
        one patient, so three are needed. ``patients`` says whose each of the pictures ``names`` is.
        """
        # Each patient has a place of its own in the order: those who join later change little.
        drawn = sorted(set(patients), key=lambda patient: (mix("split", seed, patient), patient))
        if len(drawn) < 3:
            raise DataError(f"expected pictures of at least 3 patients to split, got {len(drawn)}")
        tested = max(1, min(round(HELD_OUT_FRACTION * len(drawn)), len(drawn) - 2))
        held_out = tested + max(1, min(round(HELD_OUT_FRACTION * len(drawn)), len(drawn) - 1 - tested))
        sides = (set(drawn[held_out:]), set(drawn[tested:held_out]), set(drawn[:tested]))
        owned = sorted(zip(names, patients, strict=True))
        train, validation, test = (tuple(name for name, patient in owned if patient in side) for side in sides)
        return cls(train, validation, test, "patients", seed)

    def part(self, part: str) -> tuple[str, ...]:
        """The names in one part."""
        names: tuple[str, ...] = getattr(self, part)
        return names

    def write(self, path: Path | str) -> None:
        """Write the parts as JSON, whole or not at all."""
        write_json(Path(path), {"format": FORMAT, **asdict(self)})

    @classmethod
    def read(cls, path: Path | str, names: Sequence[str], patients: Sequence[str]) -> Self:
        """Read what :meth:`write` wrote, and check that it is of these pictures, with no patient on two sides."""
        path = Path(path)
        stored = read_json(path, "a split", format=FORMAT)
        with decoding(path, "a split"):
            split = from_plain(cls, stored)
            placed = Counter(split.train + split.validation + split.test)
        owner = dict(zip(names, patients, strict=True))
        if wrong := sorted(name for name in {*placed, *owner} if placed[name] != 1 or name not in owner):
            raise CheckpointError(
                f"{path}: expected every picture in one part; {len(wrong):,} are missing, not among the pictures or "
                f"there twice: {some(wrong)}"
            )
        side: dict[str, Part] = {}
        for part in PARTS:
            for name in split.part(part):
                if (other := side.setdefault(owner[name], part)) != part:
                    raise CheckpointError(f"{path}: patient {owner[name]} is in {other} and, by {name}, in {part}")
        return split


def merged_patients(patients: Sequence[str], contents: Sequence[str]) -> list[str]:
    """The patient under whom each picture is split: one for all who share a picture, pixel by pixel.

    A copy under another name would otherwise be trained on and tested with.
    """
    first: dict[str, str] = {}

    def of(patient: str) -> str:
        while (other := first.get(patient, patient)) != patient:
            patient = other
        return patient

    owner: dict[str, str] = {}
    for patient, content in zip(patients, contents, strict=True):
        one, other = sorted((of(patient), of(owner.setdefault(content, patient))))
        first[other] = one
    return [of(patient) for patient in patients]
