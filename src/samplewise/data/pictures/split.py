"""Train, validation and test parts that no patient is shared between."""

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Self, cast, get_args

from samplewise.data.pictures.chest import some
from samplewise.data.records import decoding, read_json
from samplewise.disk import write_json
from samplewise.errors import CheckpointError, ConfigurationError, DataError
from samplewise.samples import mix

__all__ = ["PARTS", "Part", "Rule", "Split", "parse_rule"]

Part = Literal["train", "validation", "test"]
Rule = Literal["patients", "official"]
PARTS: tuple[Part, ...] = get_args(Part)
FORMAT = "samplewise-split-1"


@dataclass(frozen=True)
class Split:
    """The names of the pictures in each part, sorted.

    Args:
        train: names of the training part.
        validation: names of the part that settings are chosen on.
        test: names of the part that is looked at last.
        rule: how it was made: ``patients`` drawn by the seed, or the ``official`` test list.
        seed: that patients were drawn by.
    """

    train: tuple[str, ...]
    validation: tuple[str, ...]
    test: tuple[str, ...]
    rule: Rule
    seed: int

    @property
    def origin(self) -> dict[str, Any]:
        """How it was made, for results: a split of the same pictures with the same origin is the same."""
        return {"rule": self.rule, "seed": self.seed}

    @classmethod
    def by_patient(
        cls,
        names: Sequence[str],
        patients: Sequence[str],
        *,
        validation: float = 0.15,
        test: float = 0.15,
        seed: int = 0,
    ) -> Self:
        """Draw whole patients for validation and test; the rest is for training.

        The result depends on the set of patients and the seed, not on the order of the files. Each part has at least
        one patient, so three are needed.

        Args:
            names: of all pictures.
            patients: whose each of them is.
            validation: share of the patients.
            test: share of the patients.
            seed: of the draw.
        """
        if not (0 < validation < 1 and 0 < test < 1 and validation + test < 1):
            raise ConfigurationError(
                f"expected shares above 0 that leave some for training, got {validation} (validation) and {test} (test)"
            )
        drawn = _shuffled(patients, seed)
        if len(drawn) < 3:
            raise DataError(f"expected pictures of at least 3 patients to split, got {len(drawn)}")
        tested = _count(test, len(drawn), 2)
        validated = _count(validation, len(drawn), 1 + tested)
        return cls._of(names, patients, drawn[tested : tested + validated], drawn[:tested], "patients", seed)

    @classmethod
    def official(
        cls,
        names: Sequence[str],
        patients: Sequence[str],
        *,
        train_val: Collection[str],
        test: Collection[str],
        validation: float = 0.15 / 0.85,
        seed: int = 0,
    ) -> Self:
        """Take the test part from the official list, and draw patients of the other list for validation.

        Args:
            names: of all pictures; the lists may hold more.
            patients: whose each of them is.
            train_val: names of the first list, without suffixes.
            test: names of the second list, without suffixes.
            validation: share of the patients that are not for test.
            seed: of the draw.
        """
        known = {Path(name).stem: patient for name, patient in zip(names, patients, strict=True)}
        nowhere = sorted(known.keys() - {*train_val, *test})
        if nowhere:
            raise DataError(f"{len(nowhere):,} pictures are on neither of the official lists: {some(nowhere)}")
        tested = {known[stem] for stem in test if stem in known}
        others = [known[stem] for stem in train_val if stem in known]
        if shared := sorted(tested.intersection(others)):
            raise DataError(f"{len(shared):,} patients are on both official lists: {some(shared)}; take the lists anew")
        drawn = _shuffled(others, seed)
        if len(drawn) < 2 or not tested:
            raise DataError(
                f"expected pictures from both official lists, got {len(drawn)} patients for training and validation "
                f"and {len(tested)} for test; use the split by patients"
            )
        return cls._of(names, patients, drawn[: _count(validation, len(drawn), 1)], tested, "official", seed)

    @classmethod
    def _of(
        cls,
        names: Sequence[str],
        patients: Sequence[str],
        validation: Collection[str],
        test: Collection[str],
        rule: Rule,
        seed: int,
    ) -> Self:
        side: dict[str, Part] = {**dict.fromkeys(validation, PARTS[1]), **dict.fromkeys(test, PARTS[2])}
        parts: dict[Part, list[str]] = {part: [] for part in PARTS}
        for name, patient in zip(names, patients, strict=True):
            parts[side.get(patient, "train")].append(name)
        train, validated, tested = (tuple(sorted(parts[part])) for part in PARTS)
        return cls(train, validated, tested, rule, seed)

    def part(self, part: Part) -> tuple[str, ...]:
        """The names in one part."""
        names: tuple[str, ...] = getattr(self, part)
        return names

    def write(self, path: Path | str) -> None:
        """Write the parts as JSON, whole or not at all."""
        write_json(Path(path), {"format": FORMAT, **asdict(self)})

    @classmethod
    def read(cls, path: Path | str, names: Sequence[str], patients: Sequence[str]) -> Self:
        """Read what :meth:`write` wrote, and check it against the pictures it is for.

        Args:
            path: the file.
            names: of all pictures.
            patients: whose each of them is.

        Raises:
            CheckpointError: not such a file, or not of these pictures, or a patient is on two sides.
        """
        path = Path(path)
        stored = read_json(path, "a split", format=FORMAT)
        with decoding(path, "a split"):
            train, validation, test = (tuple(stored.pop(part)) for part in PARTS)
            split = cls(train, validation, test, **stored)
        split._check(f"{path}", dict(zip(names, patients, strict=True)))
        return split

    def _check(self, where: str, patients: dict[str, str]) -> None:
        listed = [name for part in PARTS for name in self.part(part)]
        if unknown := sorted(set(listed) - patients.keys()):
            raise CheckpointError(f"{where}: {len(unknown):,} names are not among the pictures: {some(unknown)}")
        if missing := sorted(patients.keys() - set(listed)):
            raise CheckpointError(f"{where}: {len(missing):,} pictures are in no part: {some(missing)}")
        side: dict[str, Part] = {}
        for part in PARTS:
            for name in self.part(part):
                other = side.setdefault(patients[name], part)
                if other != part:
                    raise CheckpointError(f"{where}: patient {patients[name]} is in {other} and, by {name}, in {part}")
        if len(listed) != len(patients):
            raise CheckpointError(f"{where}: {len(listed) - len(patients):,} names are there twice")


def parse_rule(text: str) -> Rule:
    """The rule of that name, or an error that lists them."""
    for rule in get_args(Rule):
        if text == rule:
            return cast(Rule, rule)
    raise ConfigurationError(f"expected a split by one of {', '.join(get_args(Rule))}, got {text!r}")


def _shuffled(patients: Collection[str], seed: int) -> list[str]:
    """Every patient once, in an order that is each patient's own: those who join later change little."""
    return sorted(set(patients), key=lambda patient: (mix("split", seed, patient), patient))


def _count(share: float, patients: int, kept: int) -> int:
    """That share of the patients, at least one, with at least ``kept`` left."""
    return max(1, min(round(share * patients), patients - kept))
