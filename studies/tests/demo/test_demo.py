import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from scipy.stats import beta

from samplewise import Audit
from samplewise.errors import CheckpointError
from studies.demo.runs import AIM, SHARE, SIZES, THETA, Compared, Trained, compare, split
from studies.demo.tables import in_words, over_seeds, run_demo
from studies.mnist.digit_network import study_problem

RIGHT = 280  # of the digits of each part, where a test does not say otherwise


@pytest.fixture(scope="module")
def found() -> Compared:
    return compare(0, epochs=1, weights=(10.0, 100.0), note=lambda text: None)


def with_counts(run: Trained, **counts: tuple[int, int]) -> Trained:
    """The run with so many digits of a part right and so many within the bound."""
    audits = {}
    for part, size in SIZES.items():
        right, within = counts.get(part, (RIGHT, size))
        order = torch.arange(size)
        errors = torch.where(order < within, 0.5 * THETA, 2.0 * THETA)
        measures = {"reconstruction": errors, "accuracy": (order < right).float()}
        audits[part] = Audit(torch.zeros(size), measures, study_problem(THETA).constraints)
    return replace(run, audits=audits)


def test_the_parts_are_all_digits_and_share_none() -> None:
    parts = split(3)
    assert {name: len(part) for name, part in parts.items()} == SIZES
    images = torch.cat([part.tensors[0] for part in parts.values()])
    assert len(images) == 1797 == len(images.unique(dim=0))
    assert not torch.equal(parts["unseen"].tensors[0], split(4)["unseen"].tensors[0])


def test_all_rows_begin_alike_and_nothing_chooses_on_what_proves(found: Compared) -> None:
    runs = (found.promise, *found.search)
    assert [run.weight for run in runs] == [None, 10.0, 100.0]
    warm = [[row["tune_on/objective"] for row in run.solution.history.rows[:5]] for run in runs]
    assert warm[0] == warm[1] == warm[2], "before the constraint counts they are the same run"
    for run in runs:
        columns = {name.partition("/")[0] for row in run.solution.history.rows for name in row}
        assert not {"prove_on", "unseen"} & columns
        assert run.solution.selected.split == "tune_on"


def test_the_proof_is_the_exact_bound_and_that_of_the_promise_itself(found: Compared) -> None:
    for run in (found.promise, *found.search):
        audit = run.audits["prove_on"]
        kept = audit.samples - audit.violated
        exact = beta.ppf(0.05, kept, audit.violated + 1) if kept else 0.0
        assert run.at_least == pytest.approx(exact)
    assert found.promise.solution.promise is not None
    assert found.promise.at_least == pytest.approx(found.promise.solution.promise.share_at_least)


def test_the_search_ships_the_most_accurate_weight_that_reaches_the_aim(found: Compared) -> None:
    enough = 1 + int(AIM * SIZES["tune_on"])
    one, two = found.search
    pairs = {
        ((280, enough), (290, enough)): two,
        ((280, enough), (290, enough - 10)): one,
        ((280, enough), (279, 300)): one,  # more than the aim is worth nothing
        ((280, enough - 9), (290, enough - 10)): one,  # none reaches it
    }
    for (first, second), wanted in pairs.items():
        search = (with_counts(one, tune_on=first), with_counts(two, tune_on=second))
        assert replace(found, search=search).shipped.weight == wanted.weight


@pytest.mark.parametrize(
    ("ours", "said"),
    [
        ((285, 290), "has 5 more classified rightly than the search and 5 fewer within the bound."),
        ((275, 297), "has 5 fewer classified rightly than the search and 2 more within the bound."),
        ((280, 295), "has as many classified rightly as the search and as many within the bound."),
    ],
)
def test_the_words_follow_the_numbers(found: Compared, ours: tuple[int, int], said: str) -> None:
    search = tuple(with_counts(run, unseen=(280, 295)) for run in found.search)
    made = replace(found, promise=with_counts(found.promise, unseen=ours), search=search)
    text = in_words(made)
    assert said in text
    assert "One run with a promise of 90%: kept, at least 99.0% is proved" in text  # 0.05 ** (1 / 300)
    lost = replace(made, promise=with_counts(found.promise, unseen=ours, prove_on=(280, 270)))
    assert "not kept" in in_words(lost)


def test_several_seeds_are_counted_whoever_is_ahead(found: Compared) -> None:
    search = tuple(with_counts(run, unseen=(280, 290)) for run in found.search)
    seeds = [
        replace(found, promise=with_counts(found.promise, unseen=unseen), search=search)
        for unseen in ((283, 290), (277, 290), (277, 260))
    ]
    text = over_seeds(seeds)
    assert "in accuracy -0.3 points on average (ahead 1 times, behind 2)" in text
    assert "in share within the bound -3.4 points on average (ahead 0 times, behind 1)" in text
    assert "90% was proved 3 times by the one run and 3 times by the search; in 1 of these 6 cases" in text
    assert 260 / SIZES["unseen"] < SHARE


def test_a_short_demo_writes_everything_and_can_be_run_again(tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    notes: list[str] = []
    table, text = run_demo(tmp_path / "demo", seeds=2, epochs=1, weights=(10.0, 100.0), note=notes.append)
    assert len(notes) == 6
    assert torch.get_num_threads() == threads
    assert json.loads(json.dumps(table))["seconds"] > 0
    assert [len(each["rows"]) for each in table["seeds"]] == [3, 3]
    for line in ("Promise", "Fixed weight 10 ", "Fixed weight 100", "Unseen digits, 2 seeds"):
        assert line in text
    files = {path.name for path in (tmp_path / "demo").rglob("*") if path.is_file()}
    assert {"table.md", "table.json", "demo.json", "front.png", "epochs.png"} <= files
    page = tmp_path / "demo" / "report.html"
    assert text.endswith(f"open {page} in a browser.")
    (shipped,) = (row["label"] for row in table["seeds"][0]["rows"][1:] if row["shipped"])
    assert f"{shipped}, shipped" in page.read_text(encoding="utf-8")
    assert "## Over 2 seeds" in (tmp_path / "demo" / "table.md").read_text(encoding="utf-8")
    run_demo(tmp_path / "demo", epochs=1, weights=(10.0,))
    assert "## Over" not in (tmp_path / "demo" / "table.md").read_text(encoding="utf-8")


def test_a_folder_that_is_no_demo_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(CheckpointError, match="is not an earlier demo"):
        run_demo(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
