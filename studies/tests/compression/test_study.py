import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from samplewise.errors import CheckpointError, ConfigurationError
from studies.compression.arms import KINDS, Arm, measure, train
from studies.compression.blocks import PICTURES, Blocks, Parts, load
from studies.compression.study import Plan, bits_at, cluster_interval, read_codec, run_study

STEPS = 30


@pytest.fixture(scope="module")
def parts() -> Parts:
    found = load(PICTURES, 0, train=600)
    tune, test = (Blocks(each.pixels[:200], each.source[:200]) for each in (found.tune, found.test))
    return Parts(found.train, tune, test, found.shown)


@pytest.mark.parametrize("kind", KINDS)
def test_every_arm_learns(kind: str, parts: Parts) -> None:
    arm = Arm(kind, KINDS[kind].tried[0])
    begun = train(Arm("conditioned" if arm.weight else "fixed", 1.0), parts, 30.0, seed=0, steps=1)
    trained = train(arm, parts, 30.0, seed=0, steps=STEPS)
    assert torch.equal(begun.mean, trained.mean), "all begin alike"
    before, after = (measure(codec, parts.test, weight=arm.weight and 1.0) for codec in (begun, trained))
    assert float((after.bits + 40 * after.error).mean()) < float((before.bits + 40 * before.error).mean())


def test_a_larger_tau_buys_a_smaller_error_for_more_bits(parts: Parts) -> None:
    blocks = parts.test.pixels[:, 0]
    few, many = (train(Arm("constant", tau), parts, 30.0, seed=0, steps=STEPS)(blocks) for tau in (1.0, 3000.0))
    assert float(few.bits.detach().mean()) < float(many.bits.detach().mean())
    assert float(few.error.detach().mean()) > float(many.error.detach().mean())


@pytest.mark.parametrize(
    "text", ["penalty", "penalty:", "penalty:x", "penalty:-1", "penalty:nan", "promise:1", "penalti:3"]
)
def test_what_is_no_arm_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match=text.partition(":")[0]):
        Arm.parse(text)


def test_all_of_a_kind_are_those_of_the_study() -> None:
    assert [arm.knob for arm in Arm.parse_all("fixed:all")] == list(KINDS["fixed"].tried)
    assert len({len(kind.tried) for kind in KINDS.values()}) == 1, "as many tries for each"


points = st.lists(st.tuples(st.floats(0, 1), st.floats(1, 1000)), min_size=1, max_size=6)


@given(points, st.floats(0, 1))
def test_bits_at_a_share_lie_on_the_hull(found: list[tuple[float, float]], share: float) -> None:
    bits = bits_at(found, share)
    reach = [each for each in found if each[0] >= share]
    if not reach:
        assert bits is None
        return
    assert bits is not None
    assert min(bits for _, bits in found) - 1e-9 <= bits <= min(bits for _, bits in reach) + 1e-9
    more = bits_at([*found, (1.0, 0.0)], share)
    assert more is not None
    assert more <= bits


def test_a_mixture_of_two_runs_is_a_straight_line() -> None:
    assert bits_at([(0.9, 50.0), (1.0, 70.0)], 0.95) == pytest.approx(60.0)


def test_intervals_count_sources_and_not_blocks() -> None:
    values = (torch.rand(2000, generator=torch.Generator().manual_seed(0)) < 0.9).double()
    low, high = cluster_interval(values, torch.arange(2000))
    assert high - low == pytest.approx(2 * 1.96 * (0.09 / 2000) ** 0.5, rel=0.15)
    copied = cluster_interval(values.repeat(10), torch.arange(2000).repeat(10))
    assert copied == pytest.approx((low, high), abs=1e-3)


def test_a_study_goes_on_where_it_was_and_refuses_another_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parts: Parts
) -> None:
    monkeypatch.setattr(Plan, "load", lambda self, seed: parts)
    plan, told = Plan(PICTURES, 30.0, STEPS), list[str]()
    arms = [Arm("fixed", 100.0), Arm("penalty", 300.0)]
    rows, first = run_study(plan, arms[:1], [0], tmp_path / "run", told.append)
    rows, second = run_study(plan, arms, [0], tmp_path / "run", told.append)
    assert [text.partition(": ")[2].partition(",")[0] for text in told] == ["fixed:100", "penalty:300"]
    assert [each["arm"] for each in second] == ["fixed:100", "penalty:300"]
    assert first == second[:1]
    assert set(second[0]) == {"arm", "seed", "bits", "share", "worst_psnr", "blocks"}
    assert {(row.part, row.searched) for row in rows} == {
        (part, yes) for part in ("tune", "test") for yes in (True, False)
    }
    searched = [row for row in rows if row.searched and row.part == "test"]
    assert all(row.share >= each["share"] for row, each in zip(searched, second, strict=True))
    stored = json.loads((tmp_path / "run" / "rows.json").read_text())
    assert stored["provenance"]["versions"]["torch"]
    codec = read_codec(tmp_path / "run" / "codecs" / "penalty-300-0")
    bits = codec(parts.test.pixels[:, 0]).bits.detach().mean()
    assert float(bits) == pytest.approx(second[1]["bits"])
    with pytest.raises(CheckpointError, match="--out"):
        run_study(Plan(PICTURES, 31.0, STEPS), arms, [0], tmp_path / "run", told.append)
