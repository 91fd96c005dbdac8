import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from samplewise import (
    AtMost,
    AugmentedLagrangian,
    FixedPenalty,
    Geometric,
    Linear,
    Quadratic,
    SequentialPenalty,
    Unconstrained,
)
from samplewise.errors import ConfigurationError
from studies.mnist.rows import GROUPS, OURS, Options, RowLabels, make_method, parse_row
from studies.mnist.table_one import TABLE_ONE

BOUND = (AtMost("reconstruction", 0.01),)


def test_all_is_the_papers_table_of_eleven_rows() -> None:
    assert GROUPS["all"] == tuple(TABLE_ONE)
    assert len(GROUPS["all"]) == 11
    assert {parse_row(name).name for name in GROUPS["all"]} == set(TABLE_ONE)
    assert len(GROUPS["fixed"]) == 3
    assert len(GROUPS["sequential"]) == 7


def test_a_row_of_the_paper_is_trained_as_in_the_paper() -> None:
    row = parse_row("penalty:100:1.01")
    assert row.options == Options(lr="constant", rate=1e-3, decay=1e-3, margin=0.0, cap=1e4, average=0.0)
    method = make_method(row, BOUND, samples=10)
    assert isinstance(method, SequentialPenalty)
    assert method.penalty == Linear()
    assert method.coefficients.schedules == (Geometric(100.0, growth=1.01, maximum=1e4),)


def test_each_kind_is_its_method() -> None:
    assert isinstance(make_method(parse_row("classification"), BOUND, samples=1), Unconstrained)
    fixed = make_method(parse_row("fixed:10"), BOUND, samples=1)
    assert isinstance(fixed, FixedPenalty)
    assert fixed.tau == 10.0
    quadratic = make_method(parse_row("quadratic:10:1.1"), BOUND, samples=1)
    assert isinstance(quadratic, SequentialPenalty)
    assert quadratic.penalty == Quadratic()
    lagrangian = make_method(parse_row("auglag:1000:1:50"), BOUND, samples=7)
    assert isinstance(lagrangian, AugmentedLagrangian)
    assert (lagrangian.samples, lagrangian.multiplier_step, lagrangian.tau) == (7, 50.0, 1000.0)


def test_the_shortest_form_is_the_name() -> None:
    row = parse_row("penalty:1e2:1.010,decay=0.001,lr=cosine,margin=1e-3")
    assert row.name == row.text == "penalty:100:1.01,lr=cosine,margin=0.001"
    assert row.folder == "penalty-100-1.01_lr=cosine_margin=0.001"


@given(
    tau0=st.floats(1e-3, 1e3),
    growth=st.floats(1.0, 10.0),
    decay=st.floats(0, 1),
    lr=st.sampled_from(["constant", "cosine"]),
)
def test_the_text_of_a_row_reads_back_as_the_row(tau0: float, growth: float, decay: float, lr: str) -> None:
    row = parse_row(f"penalty:{tau0:.12g}:{growth:.12g},decay={decay:.12g},lr={lr}")
    assert parse_row(row.text) == row


def test_ours_stands_for_a_recipe_and_can_be_varied() -> None:
    row = parse_row("ours")
    assert row.name == row.folder == "ours"
    assert row.text == parse_row(OURS).text
    varied = parse_row("ours,decay=0.5")
    assert varied.options.decay == 0.5
    assert varied.name == varied.text != "ours"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("penalti:100:1.01", "'penalty'"),
        ("penalty:100", "TAU0:GAMMA"),
        ("classification:3", "classification takes no number"),
        ("fixed:much", "'much'"),
        ("fixed:1.2.3", "LAMBDA"),
        ("fixed:1e999", "'1e999'"),
        ("fixed:0", "expected weight > 0"),
        ("penalty:100:0.9", "expected growth >= 1"),
        ("penalty:100:1.01,lr=fast", "'fast'"),
        ("penalty:100:1.01,deca=1", "'decay'"),
        ("penalty:100:1.01,rate=0", "expected rate > 0"),
        ("penalty:100:1.01,average=1", "expected average < 1"),
        ("classification,average=0.9", "average"),
        ("penalty:100:1.01,margin=-1", "'-1'"),
        ("penalty:100:1.01,target=2", "'target=2'"),
        ("huber:1:1:0", "there is no method 'huber'"),
        ("", "there is no method ''"),
    ],
)
def test_what_cannot_be_read_shows_the_grammar(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_row(text)
    assert message in str(caught.value)
    assert "penalty:TAU0:GAMMA" in str(caught.value)


def test_names_leave_out_what_all_rows_share() -> None:
    rows = [parse_row(text) for text in ("fixed:10,lr=cosine", "penalty:5:1.1,lr=cosine,margin=0.01", "ours")]
    naming = RowLabels(rows)
    assert naming.shared == ("lr=cosine",)
    assert naming.label(rows[0]) == "Fixed (λ = 10)"
    assert naming.short(rows[1]) == "5, 1.1, margin=0.01"
    assert naming.label(rows[2]) == f"Ours ({rows[2].text})"
    assert [naming.kind(row) for row in rows] == ["fixed", "ours", "ours"]
    assert RowLabels(rows[:1]).label(rows[0]) == "Fixed (λ = 10), lr=cosine"
    assert RowLabels([parse_row("penalty:5:1.1")]).kind(parse_row("penalty:5:1.1")) == "sequential"


def test_a_margin_tightens_the_bound_in_training_only() -> None:
    from studies.mnist.digit_network import study_problem

    constraint = study_problem(0.01, margin=0.002).constraints[0]
    error = torch.tensor([0.009])
    assert float(constraint.g(error)) > 0
    assert float(constraint.excess(error)) < 0
