import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samplewise.errors import ConfigurationError
from studies.watermark.noise import Chain, Noise, parse_chains
from studies.watermark.operators import OPERATORS, Limits, Step


def strengths(limits: Limits) -> st.SearchStrategy[float]:
    if limits.whole:
        return st.integers(int(limits.lowest), int(limits.highest)).map(float)
    return st.floats(limits.lowest, limits.highest)


@st.composite
def steps(draw: st.DrawFn) -> Step:
    name = draw(st.sampled_from(sorted(name for name, operator in OPERATORS.items() if operator.train)))
    limits = OPERATORS[name].limits
    if limits is None:
        return Step(name)
    low, high = sorted(draw(st.tuples(strengths(limits), strengths(limits))))
    return Step(name, low, draw(st.sampled_from([low, high])))


chains = st.builds(Chain, st.lists(steps(), min_size=1, max_size=3).map(tuple), st.just(1.0) | st.floats(0.001, 1000))


@given(st.lists(chains, min_size=1, max_size=4).map(tuple))
def test_every_noise_can_be_written_and_read_back(written: tuple[Chain, ...]) -> None:
    spec = str(Noise(written))
    assert parse_chains(spec) == written
    assert parse_chains(spec.replace(" ", "")) == written


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("jpeg(50..95)", (Chain((Step("jpeg", 50, 95),)),)),
        (" jpeg ( 75 ) ", (Chain((Step("jpeg", 75, 75),)),)),
        (
            "2*crop_zero_fill(0.7..1)+blur(0..1), identity",
            (Chain((Step("crop_zero_fill", 0.7, 1), Step("blur", 0, 1)), 2), Chain((Step("identity"),))),
        ),
        ("blur(1e+0) + blur(1e-1)", (Chain((Step("blur", 1, 1), Step("blur", 0.1, 0.1))),)),
        ("gaussian(0...5)", (Chain((Step("gaussian", 0, 0.5),)),)),
        ("gaussian(1e-3..2E-2)", (Chain((Step("gaussian", 0.001, 0.02),)),)),
        (".5 * dropout(.3)", (Chain((Step("dropout", 0.3, 0.3),), 0.5),)),
    ],
)
def test_reads_what_is_meant(spec: str, expected: tuple[Chain, ...]) -> None:
    assert parse_chains(spec) == expected


@pytest.mark.parametrize(
    ("spec", "step", "expected"),
    [
        ("", "''", "operator"),
        ("jpg(50)", "'jpg(50)'", "'jpeg'?"),
        ("identity, JPEG(50)", "'JPEG(50)'", "'jpeg'?"),
        ("identity, ", "''", "operator"),
        ("identity,,blur(1)", "''", "operator"),
        ("jpeg", "'jpeg'", "1 to 100"),
        ("jpeg()", "'jpeg()'", "operator"),
        ("jpeg(75.5)", "'jpeg(75.5)'", "whole number"),
        ("jpeg(0..50)", "'jpeg(0..50)'", "1 to 100"),
        ("jpeg(50", "'jpeg(50'", "operator"),
        ("jpeg(50..)", "'jpeg(50..)'", "operator"),
        ("crop_zero_fill(1.5)", "'crop_zero_fill(1.5)'", "0.05 to 1"),
        ("blur(-1)", "'blur(-1)'", "0 to 16"),
        ("blur(1e999)", "'blur(1e999)'", "0 to 16"),
        ("jpeg(1e999)", "'jpeg(1e999)'", "1 to 100"),
        ("blur(2..1)", "'blur(2..1)'", "lower end"),
        ("identity(1)", "'identity(1)'", "no strength"),
        ("jpeg(50) blur(1)", "'jpeg(50) blur(1)'", "operator"),
        ("blur(1) +", "''", "operator"),
        ("blur(1) + 2*identity", "'blur(1) + 2*identity'", "weight"),
        ("0*blur(1)", "'0*blur(1)'", "weight"),
        ("2 blur(1)", "'2 blur(1)'", "operator"),
        ("blur(1); identity", "'blur(1); identity'", "operator"),
        ("blur(1.)", "'blur(1.)'", "operator"),
        ("identity, median(3)", "'median(3)'", "attacks only"),
    ],
)
def test_says_which_step_is_wrong_what_was_expected_and_the_grammar(spec: str, step: str, expected: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        parse_chains(spec)
    text = str(raised.value)
    assert f"got {step}" in text
    assert expected in text
    assert all(name in text for name, operator in OPERATORS.items() if operator.train)
    assert "\n" not in text


@given(st.text(alphabet="jpegbluridnty0123456789.,+*()-e ", max_size=30))
def test_any_text_is_either_read_or_refused_in_words(spec: str) -> None:
    try:
        found = parse_chains(spec)
    except ConfigurationError:
        return
    assert parse_chains(str(Noise(found))) == found
    assert all(math.isfinite(step.high) for chain in found for step in chain.steps)


@pytest.mark.parametrize("spec", ["jpeg(50..95)", "2*jpeg(50)"])
def test_an_attack_has_neither_ranges_nor_weights(spec: str) -> None:
    assert parse_chains("jpeg(50) + crop_zero_fill(0.5), identity", attack=True)
    with pytest.raises(ConfigurationError, match="no weight"):
        parse_chains(spec, attack=True)
