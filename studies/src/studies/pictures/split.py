"""Train, validation and test parts that no patient is shared between."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Self, get_args

from samplewise.errors import CheckpointError, DataError
from samplewise.samples import mix
from samplewise.storage import decoding, from_plain, read_json, write_json
from studies.pictures.listing import some

Part = Literal["train", "validation", "test"]
Rule = Literal["patients", "official"]
Names = tuple[str, ...]
PARTS: tuple[Part, ...] = get_args(Part)
FORMAT = "samplewise-split-1"
HELD_OUT_FRACTION = 0.15
"""Fraction of the patients for validation, and for test."""


@dataclass(frozen=True)
class Split:
    """The names of the pictures in each part, sorted."""

    train: Names
    validation: Names
    test: Names
    rule: Rule
    """How it was made: patients drawn by the seed, or the official test list."""
    seed: int

    @property
    def origin(self) -> dict[str, Any]:
        """Rule and seed, for results: a split of the same pictures with the same origin is the same."""
        return {"rule": self.rule, "seed": self.seed}

    @classmethod
    def by_patient(cls, names: Sequence[str], patients: Sequence[str], *, seed: int = 0) -> Self:
        """Draw 15 % of the patients for validation and for test each; the rest is for training.

        The result depends on the set of patients and the seed, not on the order of the files. Each part has at least
        one patient, so three are needed. ``patients`` says whose each of the pictures ``names`` is.
        """
        drawn = _shuffled(patients, seed)
        if len(drawn) < 3:
            raise DataError(f"expected pictures of at least 3 patients to split, got {len(drawn)}")
        tested = _count(HELD_OUT_FRACTION, len(drawn), 2)
        validated = _count(HELD_OUT_FRACTION, len(drawn), 1 + tested)
        parts = _divide(names, patients, validation=drawn[tested : tested + validated], test=drawn[:tested])
        return cls(*parts, "patients", seed)

    @classmethod
    def official(
        cls,
        names: Sequence[str],
        patients: Sequence[str],
        *,
        train_val: Collection[str],
        test: Collection[str],
        seed: int = 0,
    ) -> Self:
        """Take the test part from the official list, and draw patients of the other list for validation.

        The lists have names without suffixes, and may hold more than the pictures ``names``.
        """
        known = {Path(name).stem: patient for name, patient in zip(names, patients, strict=True)}
        if nowhere := sorted(known.keys() - {*train_val, *test}):
            raise DataError(f"{len(nowhere):,} pictures are on neither of the official lists: {some(nowhere)}")
        tested = {known[stem] for stem in test if stem in known}
        others = {known[stem] for stem in train_val if stem in known}
        if shared := sorted(tested & others):
            raise DataError(f"{len(shared):,} patients are on both official lists: {some(shared)}; take the lists anew")
        if len(others) < 2 or not tested:
            raise DataError(
                f"expected pictures from both official lists, got {len(others)} patients for training and validation "
                f"and {len(tested)} for test; use the split by patients"
            )
        validated = _shuffled(others, seed)[: _count(HELD_OUT_FRACTION / (1 - HELD_OUT_FRACTION), len(others), 1)]
        return cls(*_divide(names, patients, validation=validated, test=tested), "official", seed)

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


def _divide(
    names: Sequence[str], patients: Sequence[str], *, validation: Collection[str], test: Collection[str]
) -> tuple[Names, Names, Names]:
    """The names for training, validation and test, by the patients of the last two."""
    sides = (set(patients).difference(validation, test), set(validation), set(test))
    owned = sorted(zip(names, patients, strict=True))
    train, validated, tested = (tuple(name for name, patient in owned if patient in side) for side in sides)
    return train, validated, tested


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


def _shuffled(patients: Collection[str], seed: int) -> list[str]:
    """Every patient once, ordered by a hash of each: patients who are added later change little."""
    return sorted(set(patients), key=lambda patient: (mix("split", seed, patient), patient))


def _count(share: float, patients: int, kept: int) -> int:
    """The number of patients for a share: at least one, with at least ``kept`` left."""
    return max(1, min(round(share * patients), patients - kept))
