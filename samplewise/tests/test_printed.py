"""Results that print: the verdict first, ten lines of 100 characters at most, and a table in notebooks."""

import io
import math
import re
import sys
import xml.etree.ElementTree as ET
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import samplewise as sw
from samplewise.printed import Printed, Printout
from small import make_data, make_method, make_model, make_problem


def fitted(**options: Any) -> sw.Solution:
    model = make_model(dropout=0.0)
    given = {"method": make_method("sequential"), "epochs": 4, "batch_size": 50, **options}
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    return sw.fit(make_problem(), model, make_data(), optimizer=optimizer, **given)


def audit_of(constraints: int, samples: int = 12, **options: Any) -> sw.Audit:
    bounds = tuple(sw.AtMost(f"a_measure_of_a_very_long_name_{i}", 5.5, share=0.6) for i in range(constraints))
    columns = {each.measure: 1e6 * torch.arange(float(samples)) for each in bounds}
    return sw.Audit(torch.zeros(samples), columns, bounds, **options)


def check(result: Any, *words: str) -> None:
    """That it prints in short, begins with the verdict, and is sound HTML of the same words."""
    lines = str(result).splitlines()
    assert 0 < len(lines) <= 10
    assert all(len(line) <= 100 for line in lines), lines
    assert lines[0].startswith(words[0])
    page = result._repr_html_()
    assert result._repr_mimebundle_() == {"text/plain": str(result), "text/html": page}
    text = "".join(ET.fromstring(f"<div>{page}</div>").itertext())
    for word in words:
        assert word in str(result)
        assert word in text


@pytest.fixture(scope="module")
def solution() -> sw.Solution:
    return fitted(promise=sw.Promise(0.02, make_data(60, seed=2), make_data(80, seed=3)), progress=False)


def test_a_run_prints_its_status_and_what_holds(solution: sw.Solution) -> None:
    check(solution, "Kept", "tune_on", "%", "epoch")
    assert solution.promise is not None
    check(solution.promise, "Kept", "reconstruction", "%")
    check(solution.promise.monitor(), "No alarm")
    check(fitted(progress=False), "Unfinished", "used in training")


def test_a_method_and_its_rounds_print(solution: sw.Solution) -> None:
    check(solution.method, "In training: SequentialPenalty", "reconstruction", "tau")
    check(solution.method.summary(), "No sample yet")
    method = sw.SequentialPenalty([sw.AtMost("x", 0.5)], schedule=sw.Constant("auto"))
    check(method, "Not trained yet", "auto")
    method(torch.ones(4, requires_grad=True), x=torch.ones(4, requires_grad=True))
    check(method.step(), "Not met: x", "4 of 4", "0%")
    check(sw.Unconstrained([]), "Not trained yet: Unconstrained")
    stuck = sw.SequentialPenalty([sw.AtMost("x", 0.5)], schedule=sw.Geometric(1.0, growth=2.0, maximum=1.0))
    stuck(torch.ones(4, requires_grad=True), x=torch.ones(4, requires_grad=True))
    with pytest.warns(UserWarning, match="maximum"):
        stuck.step()
    check(stuck, "Not met at the largest tau: x")


def test_a_certificate_prints(solution: sw.Solution) -> None:
    found = sw.certify(make_problem(), solution.model, make_data(), curvature=True)
    check(found, found.verdict, "stationarity", "E-LICQ", "%")


@pytest.mark.parametrize("constraints", [0, 1, 2, 7, 40])
@pytest.mark.parametrize("n_comparisons", [1, 1e6, math.inf])
def test_an_audit_prints_however_many_constraints_it_has(constraints: int, n_comparisons: float) -> None:
    found = audit_of(constraints, n_comparisons=n_comparisons)
    check(found, "Not met" if constraints else "No constraint")


def test_an_audit_without_values_prints() -> None:
    columns = {"x": torch.full((3,), math.nan)}
    check(sw.Audit(torch.zeros(3), columns, (sw.AtMost("x", 1.0),)), "Met", "no sample has a value")


class Anything(Printed):
    def __init__(self, *content: Any) -> None:
        self.content = content

    def printout(self) -> Printout:
        return Printout(*self.content)


texts = st.text(max_size=200)


@given(texts.filter(lambda text: bool(text.strip())), st.lists(st.tuples(texts, texts), max_size=30), st.lists(texts))
def test_whatever_is_printed_has_its_room(verdict: str, rows: list[tuple[str, str]], notes: list[str]) -> None:
    printed = Anything(verdict, rows, notes)
    lines = str(printed).split("\n")
    assert len(lines) <= 10
    assert all(len(line) <= 100 for line in lines)
    assert ET.fromstring(f"<div>{printed._repr_html_()}</div>") is not None


def test_names_are_no_markup() -> None:
    page = Anything("<b>", [("<script>", "&")], ["<i>"])._repr_html_()
    assert "<script>" not in page
    assert "<i>" not in page


# While a run goes on.


def test_off_a_terminal_a_run_says_nothing_unless_asked(capsys: pytest.CaptureFixture[str]) -> None:
    fitted()
    assert capsys.readouterr() == ("", "")


def test_off_a_terminal_a_line_for_each_audit_and_a_summary(capsys: pytest.CaptureFixture[str]) -> None:
    solution = fitted(progress=True, audit_on={"own": make_data(60, seed=2)}, validation=sw.Validation(every=2))
    out, shown = capsys.readouterr()
    assert out == ""
    assert [line[:12] for line in shown.splitlines()[:2]] == ["epoch 2 of 4", "epoch 4 of 4"]
    assert shown.endswith(f"{solution}\n")
    assert len(shown.splitlines()) == 2 + len(str(solution).splitlines())


def test_the_bar_has_room_in_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    import rich.console

    shown = io.StringIO()

    def console(**_: Any) -> Console:
        return Console(file=shown, width=80, force_terminal=True, color_system=None, force_jupyter=False)

    monkeypatch.setattr(rich.console, "Console", console)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    fitted(epochs=3)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.getvalue()).replace("\r", "\n")
    lines = [line for line in plain.split("\n") if "epochs" in line]
    assert lines
    assert "3/3" in lines[-1]
    assert "objective" in lines[-1]
    assert lines[-1].rstrip().endswith("%")
    assert max(map(len, plain.split("\n"))) <= 80


def test_a_notebook_shows_one_line_that_is_written_anew(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rich's bar needs ipywidgets there, and shows nothing without."""
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    fitted(epochs=3)
    first, *lines = capsys.readouterr().err.split("\r")
    assert first == ""
    assert [line[:12] for line in lines] == [f"epoch {epoch} of 3" for epoch in (1, 2, 3)]
    assert all(line.rstrip().endswith("%") and len(line.rstrip("\n")) == 79 for line in lines)
