from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given
from report_runs import made_up, split

from samplewise.audits.audit import violation_rate_upper
from samplewise.report.words import comparison, facts, flat, share, verdict


@given(violated=st.integers(1, 10**6), more=st.integers(1, 10**6))
def test_a_share_is_never_rounded_to_none_or_all(violated: int, more: int) -> None:
    text = share(1 - violated / (violated + more))
    assert 0.0 < float(text.rstrip("%")) < 100.0


def test_the_verdict_says_what_was_asked_and_what_holds_with_the_exact_bound() -> None:
    at_least = share(1 - violation_rate_upper(20, 200, 0.95))
    assert verdict(made_up()) == (
        "Asked: error <= 0.5. Does not hold on the 200 unseen samples of test: 90.0% meet the bound. At 95% confidence "
        f"at least {at_least} of all such samples do."
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"requirements": ()}, "Nothing was required"),
        ({"splits": ()}, "Not known yet"),
        ({"splits": (split("train", 0.5),)}, "Not known for unseen samples"),
        ({"splits": (split("train", 0.5), split("test", 1.0))}, "Holds on the 200 unseen samples of test: all meet"),
        ({"promised_share": "95%"}, "Asked: error <= 0.5, for 95% of unseen samples."),
        (
            {"splits": (replace(split("test", 0.5), n_comparisons=50),)},
            "do (corrected: best of 50 epochs on these data).",
        ),
        ({"requirements": made_up().requirements * 2}, "meet both bounds"),
        ({"requirements": made_up().requirements * 3}, "meet all 3 bounds"),
    ],
)
def test_the_verdict_says_what_is_not_known(change: dict[str, object], said: str) -> None:
    assert said in verdict(replace(made_up(), **change))  # type: ignore[arg-type]


def test_a_comparison_names_the_best_on_each_data_set() -> None:
    said = comparison([made_up("first", satisfied=0.7), made_up("second", satisfied=0.8)])
    assert "on train by first (100% of 200 samples)" in said
    assert "on test by second (80.0% of 200 samples)" in said


def test_settings_are_flattened() -> None:
    nested = {"a": 1, "b": {"c": None, "d": [1, 2]}}
    assert list(flat(nested)) == [("a", "1"), ("b.c", "none"), ("b.d", "1, 2")]


def test_findings_are_named_and_rounded_for_people() -> None:
    found = dict(facts({"mean_violation": 0.123456789, "E-LICQ": {"holds": True, "rank": 3}, "relative": None}))
    assert found == {"mean violation": "0.12346", "E-LICQ: holds": "yes", "E-LICQ: rank": "3", "relative": "–"}  # noqa: RUF001


def test_runs_that_were_asked_different_things_are_not_compared() -> None:
    asked = made_up()
    tighter = replace(asked, requirements=(replace(asked.requirements[0], formula="error <= 0.1"),))
    assert comparison([asked, asked]).startswith("The bounds are met most often")
    assert comparison([asked, tighter]).startswith("The runs were asked different things")
