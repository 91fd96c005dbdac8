"""The study: train every arm, evaluate it on unseen samples in one pass and with a search of the gain, and keep it."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor

from samplewise import storage
from samplewise.errors import CheckpointError
from samplewise.storage import read_json, write_json, write_text
from studies.compression.arms import KINDS, RECIPE, STEPS, TRAIN, AnyCodec, Arm, measure, measure_searched, train
from studies.compression.blocks import Blocks, Parts, load
from studies.compression.codec import LEVELS, PIXELS, Codec
from studies.records import markdown_table

ROWS, TABLE, CODECS, CODEC, SETTINGS = "rows.json", "table.md", "codecs", "codec.safetensors", "codec.json"
CONVOLUTIONAL = "convolutional.safetensors"
SHARES = 0.90, 0.95, 0.99, 0.999
AIM = 0.99
"""The share that arms are compared at."""
OURS, POWERS = "penalty", ("square", "cube", "fourth", "eighth")
RESAMPLES = 1000


@dataclass(frozen=True)
class Row:
    """Results of one run on one part, with or without the search."""

    arm: str
    seed: int
    part: str
    searched: bool
    bits: float
    """Of a block, on average."""
    share: float
    """Of the samples above the floor."""
    share_low: float
    share_high: float
    """The middle 95 % over draws of the sources: samples of one picture or patient are not independent."""
    worst_psnr: float
    blocks: int
    """Samples; with whole pictures as samples, pictures."""
    sources: int
    """Pictures or patients that they are from."""

    @property
    def interval(self) -> str:
        """In words; a bootstrap says nothing where no sample is below the floor."""
        if self.share == 1:
            return f"all, of {self.sources:,} sources"
        return f"{self.share_low:.1%} to {self.share_high:.1%}"

    @property
    def kind(self) -> str:
        return Arm.parse(self.arm).kind


@dataclass(frozen=True)
class Plan:
    """The data and settings of a study, and what it trains."""

    data: str
    floor: float
    steps: int = STEPS
    whole: bool = False
    recipe: str = RECIPE

    def load(self, seed: int) -> Parts:
        """The parts for a seed."""
        return load(self.data, seed, train=TRAIN, whole=self.whole)

    def tables(self, rows: "Sequence[Row]") -> str:
        """What is written beside the rows."""
        return tables(rows)

    def train(self, arm: Arm, parts: Parts, seed: int) -> AnyCodec:
        """A run."""
        return train(arm, parts, self.floor, seed=seed, steps=self.steps)


def evaluate(arm: Arm, codec: AnyCodec, samples: Blocks, part: str, seed: int, *, searched: bool = False) -> Row:
    """Results of a codec on one part, in one pass or with the search."""
    bits, error = measure_searched(codec, samples) if searched else measure(codec, samples, weight=arm.weight)
    above = (error <= 1).double()
    low, high = cluster_interval(above, samples.source)
    return Row(
        arm=str(arm),
        seed=seed,
        part=part,
        searched=searched,
        bits=float(bits.mean()),
        share=float(above.mean()),
        share_low=low,
        share_high=high,
        worst_psnr=codec.floor - 10 * math.log10(max(float(error.max()), 1e-12)),
        blocks=len(bits),
        sources=len(samples.source.unique()),
    )


def cluster_interval(values: Tensor, source: Tensor) -> tuple[float, float]:
    """The middle 95 % of the mean of ``values`` over bootstrap draws of whole sources."""
    _, inverse = source.unique(return_inverse=True)
    sums = torch.zeros(int(inverse.max()) + 1, dtype=torch.float64).index_add_(0, inverse, values.double())
    counts = torch.bincount(inverse).double()
    draws = np.random.default_rng(0).multinomial(len(sums), np.full(len(sums), 1 / len(sums)), RESAMPLES)
    drawn = torch.from_numpy(draws).double()
    low, high = torch.quantile(drawn @ sums / (drawn @ counts), torch.tensor([0.025, 0.975], dtype=torch.float64))
    return float(low), float(high)


def run_study(
    plan: Plan, arms: Sequence[Arm], seeds: Sequence[int], out: Path, note: Callable[[str], None]
) -> tuple[list[Row], list[dict[str, Any]]]:
    """Train the arms that are not in ``out`` yet, and keep each run's rows and codec: a second call resumes.

    Returns:
        All rows, and for each arm and seed what holds for unseen samples in one pass.
    """
    storage.ensure_writable(out)
    rows = _kept(out, plan)
    for seed in seeds:
        parts = conditioned = None
        for arm in arms:
            if any(row.arm == str(arm) and row.seed == seed for row in rows):
                continue
            parts = parts or plan.load(seed)
            note(f"seed {seed}: {arm}, {plan.steps:,} steps")
            codec = conditioned if arm.weight is not None else None  # one codec serves all its weights
            codec = codec or plan.train(arm, parts, seed)
            conditioned = codec if arm.weight is not None else conditioned
            for part, samples in (("tune", parts.tune), ("test", parts.test)):
                rows += [evaluate(arm, codec, samples, part, seed, searched=searched) for searched in (False, True)]
            keep_codec(codec, codec_folder(out, arm, seed))
            plain = {"plan": asdict(plan), "rows": [asdict(row) for row in rows]}
            write_json(out / ROWS, {**plain, "provenance": storage.provenance()})
    write_text(out / TABLE, plan.tables(rows))
    asked = {(str(arm), seed) for arm in arms for seed in seeds}
    return rows, [
        {name: getattr(row, name) for name in ("arm", "seed", "bits", "share", "worst_psnr", "blocks")}
        for row in rows
        if row.part == "test" and not row.searched and (row.arm, row.seed) in asked
    ]


def codec_folder(out: Path, arm: Arm, seed: int) -> Path:
    """The folder of a run's codec."""
    return out / CODECS / f"{arm.kind}-{arm.knob:.10g}-{seed}"


def _kept(out: Path, plan: Plan) -> list[Row]:
    path = out / ROWS
    if not path.exists():
        return []
    stored = read_json(path, "the rows of a study")
    if stored.get("plan") != asdict(plan):
        raise CheckpointError(f"{out}: holds runs of {stored.get('plan')}, not {asdict(plan)}; choose another --out")
    return [storage.from_plain(Row, each) for each in stored["rows"]]


def keep_codec(codec: AnyCodec, folder: Path) -> None:
    """Write a codec where :func:`read_codec` finds it; a convolutional one, which has no files, elsewhere."""
    storage.ensure_writable(folder)
    blocks = isinstance(codec, Codec)
    settings = {"floor": codec.floor, "hidden": codec.hidden, "conditioned": blocks and codec.conditioned}
    weights = {name: value.float() for name, value in codec.state_dict().items()}
    storage.save_state(folder / (CODEC if blocks else CONVOLUTIONAL), weights)
    write_json(folder / SETTINGS, settings)


def read_codec(folder: Path) -> Codec:
    """A codec that was kept, ready for use."""
    settings = read_json(folder / SETTINGS, "the settings of a codec")
    codec = Codec(torch.zeros(2, PIXELS, dtype=torch.uint8), **settings)
    codec.load_state_dict(storage.load_state(folder / CODEC))
    return codec.ready()


def mixture(points: Sequence[tuple[float, float]], share: float) -> tuple[int, int, float] | None:
    """The two runs of an arm whose mixture reaches a share with the fewest bits, and the second's part; None if none.

    ``points`` are (share, bits). Coding some samples with one codec and the others with another reaches whatever lies
    on the line between two points; a run that reaches the share alone stands for both.
    """
    found = [(bits, i, i, 0.0) for i, (reached, bits) in enumerate(points) if reached >= share]
    for i, (low, low_bits) in enumerate(points):
        for j, (high, high_bits) in enumerate(points):
            if low < share < high:
                part = (share - low) / (high - low)
                found.append((low_bits + part * (high_bits - low_bits), i, j, part))
    return min(found)[1:] if found else None


def richest(points: Sequence[tuple[float, float]], bits: float) -> tuple[int, int, float] | None:
    """The two runs of an arm whose mixture reaches the highest share with so many bits: :func:`mixture`, mirrored."""
    return mixture([(-taken, -share) for share, taken in points], -bits)


def mixed(points: Sequence[tuple[float, float]], how: tuple[int, int, float]) -> tuple[float, float]:
    """Share and bits of a mixture."""
    (low, low_bits), (high, high_bits), part = points[how[0]], points[how[1]], how[2]
    return low + part * (high - low), low_bits + part * (high_bits - low_bits)


def bits_at(points: Sequence[tuple[float, float]], share: float) -> float | None:
    """Fewest bits at which runs of an arm reach a share, a mixture of two included; None where none reaches it."""
    how = mixture(points, share)
    return None if how is None else mixed(points, how)[1]


def curve(
    rows: Iterable[Row], kind: str, seed: int, *, searched: bool, part: str = "test"
) -> list[tuple[float, float]]:
    """Share and bits of an arm's knobs with one seed."""
    return [(row.share, row.bits) for row in _of(rows, kind, seed, searched=searched, part=part)]


def _of(rows: Iterable[Row], kind: str, seed: int, *, searched: bool, part: str) -> list[Row]:
    wanted = (kind, seed, searched, part)
    return [row for row in rows if (row.kind, row.seed, row.searched, row.part) == wanted]


def tables(rows: Sequence[Row], unit: str = "block") -> str:
    """All that was found, in Markdown: first what the bound saves, with a search of the gain on both sides too.

    ``unit`` is what the bits are of.
    """
    text = []
    for searched in (True, False):
        title = f"with a search of the gain at encode time ({LEVELS} tries)" if searched else "in one pass"
        text += [f"## Bits a {unit} and share of unseen samples above the floor, {title}", ""]
        text += ["Runs and mixtures of two runs are chosen on the tuning part, for a share of its samples.", ""]
        text += [*_verdict(rows, searched, unit), markdown_table(_at_shares(rows, searched)), ""]
    text += ["## At equal bits, in one pass", "", *_at_equal_bits(rows)]
    text += ["## Every run, unseen samples", "", markdown_table(_every(rows)), ""]
    return "\n".join(text)


@dataclass(frozen=True)
class Chosen:
    """The run or mixture chosen on the tuning part, on unseen samples: means over the seeds that reach the aim."""

    share: float
    bits: float
    worst_psnr: float
    """The lowest of all seeds."""
    reached: int
    """Seeds in which a run or a mixture reaches the aim on the tuning part."""

    def missed(self, seeds: Sequence[int]) -> str:
        """The number of seeds it is the mean of, where not of all."""
        return "" if self.reached == len(seeds) else f", {self.reached} of {len(seeds)} seeds"


Choice = Callable[[Sequence[tuple[float, float]], float], tuple[int, int, float] | None]


def chosen(
    rows: Sequence[Row], kind: str, aims: Mapping[int, float], *, searched: bool, by: Choice = mixture
) -> Chosen | None:
    """Choose an arm's run or mixture on the tuning part for the aim of each seed; None if no seed reaches its aim."""
    found, worst = [], []
    for seed, aim in aims.items():
        tune, test = (curve(rows, kind, seed, searched=searched, part=part) for part in ("tune", "test"))
        if (how := by(tune, aim)) is not None:
            found.append(mixed(test, how))
            psnrs = _of(rows, kind, seed, searched=searched, part="test")
            worst += [psnrs[run].worst_psnr for run in how[:2]]
    if not found:
        return None
    shares, bits = zip(*found, strict=True)
    return Chosen(fmean(shares), fmean(bits), min(worst), len(found))


def _kinds(rows: Iterable[Row]) -> list[str]:
    return list(dict.fromkeys(row.kind for row in rows))


def _seeds(rows: Iterable[Row], kind: str) -> list[int]:
    return sorted({row.seed for row in rows if row.kind == kind})


def _at_shares(rows: Sequence[Row], searched: bool) -> list[list[str]]:
    """Bits of a block, and share of unseen samples, of what the tuning part chooses for a share."""
    table = [["Arm", *(f"For {share:.1%}" for share in SHARES)]]
    for kind in _kinds(rows):
        seeds = _seeds(rows, kind)
        cells = []
        for share in SHARES:
            found = chosen(rows, kind, dict.fromkeys(seeds, share), searched=searched)
            cells.append(f"{found.bits:#.4g} at {found.share:.2%}{found.missed(seeds)}" if found else "not reached")
        table.append([KINDS[kind].title, *cells])
    return table


def _verdict(rows: Sequence[Row], searched: bool, unit: str) -> list[str]:
    """The bits that the bound saves against the weight on the error, and against the best power of it."""
    aims = {kind: dict.fromkeys(_seeds(rows, kind), AIM) for kind in _kinds(rows)}
    found = {kind: chosen(rows, kind, aims[kind], searched=searched) for kind in aims}
    taken = {kind: each.bits for kind, each in found.items() if each is not None and each.reached == len(aims[kind])}
    powers = {kind: taken[kind] for kind in POWERS if kind in taken}
    if OURS not in taken or not ({"fixed"} | powers.keys()) & taken.keys():
        return []
    rivals = [("a fixed weight on the error", taken["fixed"])] if "fixed" in taken else []
    if powers:
        best = min(powers, key=powers.__getitem__)
        rivals.append((f"a {KINDS[best].title}, the best of the powers,", powers[best]))
    ours = taken[OURS]
    saved = "; ".join(f"{name} takes {bits:#.4g}: {_compared(ours, bits)}" for name, bits in rivals)
    return [f"**For {AIM:.0%}: a bound takes {ours:#.4g} bits a {unit}; {saved}.**", ""]


def _compared(ours: float, other: float) -> str:
    saved = round(100 * (1 - ours / other))
    return f"the bound {abs(saved)}% {'fewer' if saved > 0 else 'more'}" if saved else "the bound as many"


def _at_equal_bits(rows: Sequence[Row]) -> list[str]:
    """Shares of unseen samples with as many bits as the bound takes for the aim on the tuning part."""
    seeds = _seeds(rows, OURS)
    aims = {seed: bits_at(curve(rows, OURS, seed, searched=False, part="tune"), AIM) for seed in seeds}
    budgets = {seed: bits for seed, bits in aims.items() if bits is not None}
    if not budgets:
        return [f"The bound does not reach {AIM:.0%} of the tuning part.", ""]
    table = [["Arm", "Bits", "Above the floor", "Worst, dB"]]
    for kind in _kinds(rows):
        found = chosen(rows, kind, budgets, searched=False, by=richest)
        cells = ["-"] * 3
        if found:
            cells = [f"{found.bits:#.4g}", f"{found.share:.2%}{found.missed(seeds)}", f"{found.worst_psnr:.1f}"]
        table.append([KINDS[kind].title, *cells])
    return [markdown_table(table), ""]


def _every(rows: Sequence[Row]) -> list[list[str]]:
    table = [["Arm", "Seed", "Search", "Bits", "Above the floor", "95 % interval", "Worst, dB"]]
    for row in rows:
        if row.part == "test":
            found = [f"{row.bits:#.4g}", f"{row.share:.2%}", row.interval, f"{row.worst_psnr:.1f}"]
            table.append([row.arm, str(row.seed), "yes" if row.searched else "no", *found])
    return table
