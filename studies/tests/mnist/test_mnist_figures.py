import shutil
import struct
from pathlib import Path
from xml.etree import ElementTree

import pytest
from small_study import small_data, small_run, small_settings, with_numbers

from samplewise.errors import DataError
from studies.mnist.comparison import write_all
from studies.mnist.figures import best, write_figures
from studies.mnist.results import Result
from studies.mnist.rows import RowLabels

FIGURES = ("epochs", "errors", "trade_off")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[Result]:
    rows = ("classification", "fixed:10", "penalty:100:1.01", "penalty:5:1.1,lr=cosine")
    return small_run(tmp_path_factory.mktemp("run"), *rows, name="mnist")


def test_one_row_is_enough_gives_the_same_files_each_time_and_leaves_matplotlib_as_it_was(
    tmp_path: Path, found: list[Result]
) -> None:
    import matplotlib as mpl

    before = dict(mpl.rcParams)
    only = [result for result in found if result.row.kind == "classification"]
    for name in "ab":
        write_figures(tmp_path / name, small_settings(small_data("mnist")), only)
        assert dict(mpl.rcParams) == before
    first, second = (sorted((tmp_path / name).iterdir()) for name in "ab")
    assert {path.stem for path in first} == {"epochs", "trade_off"}
    assert [path.name for path in first] == [path.name for path in second]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_the_best_row_satisfies_most_at_little_loss_of_accuracy(found: list[Result]) -> None:
    fixed = next(result for result in found if result.row.kind == "fixed")
    pairs = ((0.99, 0.2), (0.97, 0.7), (0.95, 0.9))
    rows = [with_numbers(fixed, {"train": {"accuracy": a, "satisfied": s}}) for a, s in pairs]
    naming = RowLabels([fixed.row])
    assert best(rows, naming, "fixed") is rows[1]
    assert best(rows[2:], naming, "fixed") is rows[2]
    assert best(rows, naming, "sequential") is None


def test_output_is_made_from_the_files_alone_and_every_figure_is_written_twice(found: list[Result]) -> None:
    out = found[0].folder.parents[2]
    table = write_all(out)
    assert table.text() == (out / "table.md").read_text(encoding="utf-8").rstrip("\n")
    paths = sorted((out / "figures").iterdir())
    assert sorted(path.name for path in paths) == sorted(
        f"{name}.{kind}" for name in FIGURES for kind in ("png", "svg")
    )
    for path in paths:
        if path.suffix == ".png":
            width, height = struct.unpack(">II", path.read_bytes()[16:24])
            assert width == 1400  # 7 inches at 200 dots
            assert 400 < height < 2000
        else:
            assert ElementTree.parse(path).getroot().tag.endswith("svg")


def test_a_single_epoch_has_no_curve(tmp_path: Path, found: list[Result]) -> None:
    write_figures(tmp_path, small_settings(small_data("mnist"), epochs=1), found)
    assert {path.stem for path in tmp_path.iterdir()} == {"errors", "trade_off"}


def test_a_run_without_a_complete_row_says_so(tmp_path: Path) -> None:
    small_run(tmp_path)
    with pytest.raises(DataError, match="no row is complete yet"):
        write_all(tmp_path)


COMMITTED = Path(__file__).parents[3] / "results" / "mnist"


@pytest.mark.parametrize("which", [".", "quadratic", "relu", "search"])
def test_the_committed_tables_are_made_from_the_committed_rows(tmp_path: Path, which: str) -> None:
    shutil.copytree(COMMITTED / which, tmp_path, dirs_exist_ok=True)
    (tmp_path / "table.md").unlink()
    write_all(tmp_path)
    assert (tmp_path / "table.md").read_bytes() == (COMMITTED / which / "table.md").read_bytes()


def test_no_history_is_committed_twice() -> None:
    histories = [path.read_bytes() for path in COMMITTED.rglob("history*")]
    assert len(set(histories)) == len(histories) > 20
