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
            (Chain((Step("crop", 0.7, 1), Step("blur", 0, 1)), 2), Chain((Step("identity"),))),
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
    ("spec", "message"),
    [
        ("", "'': expected an operator and its strength, as in jpeg(75), got ''."),
        ("jpg(50)", "expected an operator, got 'jpg(50)'. Did you mean 'jpeg'? The grammar: [WEIGHT*]STEP"),
        ("identity, JPEG(50)", "expected an operator, got 'JPEG(50)'. Did you mean 'jpeg'?"),
        ("identity, ", "expected an operator and its strength, as in jpeg(75), got ''."),
        ("identity,,blur(1)", "expected an operator and its strength, as in jpeg(75), got ''."),
        ("jpeg", "expected a whole number from 1 to 100 as the strength of jpeg, got 'jpeg'."),
        ("jpeg()", "expected an operator and its strength, as in jpeg(75), got 'jpeg()'."),
        ("jpeg(75.5)", "expected a whole number from 1 to 100 as the strength of jpeg, got 'jpeg(75.5)'."),
        ("jpeg(0..50)", "expected a whole number from 1 to 100 as the strength of jpeg, got 'jpeg(0..50)'."),
        ("jpeg(50", "as in jpeg(75), got 'jpeg(50'."),
        ("jpeg(50..)", "as in jpeg(75), got 'jpeg(50..)'."),
        ("crop_zero_fill(1.5)", "expected a number from 0.05 to 1 as the strength of crop, got 'crop_zero_fill(1.5)'."),
        ("blur(-1)", "expected a number from 0 to 16 as the strength of blur, got 'blur(-1)'."),
        ("blur(1e999)", "got 'blur(1e999)'."),
        ("jpeg(1e999)", "got 'jpeg(1e999)'."),
        ("blur(2..1)", "expected a range that begins with its lower end, got 'blur(2..1)'."),
        ("identity(1)", "expected no strength for identity, got 'identity(1)'."),
        ("jpeg(50) blur(1)", "as in jpeg(75), got 'jpeg(50) blur(1)'."),
        ("blur(1) +", "expected an operator and its strength, as in jpeg(75), got ''."),
        ("blur(1) + 2*identity", "a weight only before the first step of a chain, got 'blur(1) + 2*identity'."),
        ("0*blur(1)", "expected a number from 0.001 to 1000 as a weight, got '0*blur(1)'."),
        ("2 blur(1)", "as in jpeg(75), got '2 blur(1)'."),
        ("blur(1); identity", "as in jpeg(75), got 'blur(1); identity'."),
        ("blur(1.)", "as in jpeg(75), got 'blur(1.)'."),
        (
            "identity, median(3)",
            "expected an operator that can be trained for, got 'median(3)'. median is for attacks only.",
        ),
    ],
)
def test_says_which_step_is_wrong_what_was_expected_and_the_grammar(spec: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        parse_chains(spec)
    text = str(raised.value)
    assert message in text
    assert "NAME one of jpeg, webp, resize, crop, dropout, gaussian, blur, brightness, contrast" in text
    assert "\n" not in text


@given(st.text(alphabet="jpegbluridnty0123456789.,+*()-e ", max_size=30))
def test_any_text_is_either_read_or_refused_in_words(spec: str) -> None:
    try:
        found = parse_chains(spec)
    except ConfigurationError:
        return
    assert parse_chains(str(Noise(found))) == found
    assert all(math.isfinite(step.high) for chain in found for step in chain.steps)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            "jpeg(50..95)",
            "one strength and no weight for an attack, got 'jpeg(50..95)'. The grammar: STEP[+STEP...][, ",
        ),
        ("2*jpeg(50)", "expected one strength and no weight for an attack, got '2*jpeg(50)'."),
    ],
)
def test_an_attack_has_neither_ranges_nor_weights(spec: str, message: str) -> None:
    assert parse_chains("jpeg(50) + crop_zero_fill(0.5), identity", attack=True)
    with pytest.raises(ConfigurationError) as raised:
        parse_chains(spec, attack=True)
    assert message in str(raised.value)
