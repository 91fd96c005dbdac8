import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from samplewise.errors import CheckpointError, ConfigurationError
from studies.compression.arms import KINDS, Arm, measure, train
from studies.compression.blocks import PICTURES, Blocks, Parts, load
from studies.compression.study import (
    Chosen,
    Plan,
    Row,
    bits_at,
    chosen,
    cluster_interval,
    mixed,
    read_codec,
    richest,
    run_study,
    tables,
)

STEPS = 30


@pytest.fixture(scope="module")
def parts() -> Parts:
    found = load(PICTURES, 0, train=600)
    tune, test = (Blocks(each.pixels[:200], each.source[:200]) for each in (found.tune, found.test))
    return Parts(found.train, tune, test, found.shown)


@pytest.mark.parametrize("kind", sorted({*KINDS} - {"promise"}))
def test_every_arm_learns(kind: str, parts: Parts) -> None:
    arm = Arm(kind, KINDS[kind].tried[0])
    begun = train(Arm("conditioned" if arm.weight else "fixed", 1.0), parts, 30.0, seed=0, steps=1)
    trained = train(arm, parts, 30.0, seed=0, steps=STEPS)
    assert torch.equal(begun.mean, trained.mean), "all begin alike"
    before, after = (measure(codec, parts.test, weight=arm.weight and 1.0) for codec in (begun, trained))
    assert float((after.bits + 40 * after.error).mean()) < float((before.bits + 40 * before.error).mean())


def test_a_promise_buys_the_share_that_was_asked_for(parts: Parts) -> None:
    begun = train(Arm("fixed", 1.0), parts, 30.0, seed=0, steps=1)
    kept = train(Arm("promise", 0.9), parts, 30.0, seed=0, steps=8 * STEPS)
    before, after = (float((measure(codec, parts.test).error <= 1).double().mean()) for codec in (begun, kept))
    assert after >= max(0.9, before)


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


@given(points, st.floats(1, 1000))
def test_the_highest_share_for_some_bits_is_the_hull_seen_from_the_other_side(
    found: list[tuple[float, float]], bits: float
) -> None:
    how = richest(found, bits)
    if how is None:
        assert min(taken for _, taken in found) > bits
        return
    share, taken = mixed(found, how)
    assert taken <= bits + 1e-9
    needed = bits_at(found, share - 1e-9)
    assert needed is not None
    assert needed <= bits * (1 + 1e-9)


def rows_of(kind: str, seed: int, *found: tuple[float, float]) -> list[Row]:
    return [
        Row(f"{kind}:{knob}", seed, part, searched, bits, share, share, share, 28.0 + knob, 100, 10)
        for knob, (share, bits) in enumerate(found, start=1)
        for part in ("tune", "test")
        for searched in (True, False)
    ]


def test_a_table_begins_with_what_a_bound_saves() -> None:
    rows = [
        *rows_of("penalty", 0, (0.98, 50.0), (1.0, 60.0)),
        *rows_of("penalty", 1, (0.99, 65.0)),
        *rows_of("fixed", 0, (0.9, 50.0), (0.99, 90.0)),
        *rows_of("fixed", 1, (0.99, 70.0)),
        *rows_of("fourth", 0, (1.0, 75.0)),
        *rows_of("fourth", 1, (0.5, 75.0)),
    ]
    found = chosen(rows, "penalty", {0: 0.99, 1: 0.99}, searched=False)
    assert found == Chosen(share=0.99, bits=60.0, worst_psnr=29.0, reached=2)
    table = tables(rows)
    first = next(line for line in table.splitlines() if line.startswith("**"))
    assert "60.00" in first
    assert "80.00: the bound 25% fewer" in first
    assert "75.00" not in first, "in one seed it does not reach the share"
    assert "1 of 2 seeds" in table
    equal = table.partition("## At equal bits")[2]
    assert (
        "91.1" in equal
    )  # 55 bits between (50, 90 %) and (90, 99 %); nothing with 65 bits or fewer for the second seed


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
