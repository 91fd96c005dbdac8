"""Work in other processes: real ones, some of which are killed."""

import multiprocessing
import os
import signal
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from floormark.errors import ProcessLostError
from floormark.processes import QUEUED, side_by_side


def kept(folder: Path) -> Path:
    np.eye(2) @ np.eye(2)  # whose library is loaded then
    return folder


def _blas_threads() -> int:
    return max(int(each["num_threads"]) for each in threadpool_info() if each["user_api"] == "blas")


def threads_and_item(folder: Path, item: int) -> tuple[int, int, int]:
    (folder / str(item)).touch()
    return os.getpid(), _blas_threads(), item


def die_at(folder: Path, item: int, last: int = 5) -> int:
    if item == last:
        os.kill(os.getpid(), signal.SIGKILL)
    return item


@pytest.mark.usefixtures("forked_workers")
def test_results_come_in_order_and_few_items_are_under_way(tmp_path: Path) -> None:
    with side_by_side(2, partial(kept, tmp_path), threads=1) as pool:
        results = pool.map(threads_and_item, range(40))
        first = next(results)
        assert len(list(tmp_path.iterdir())) <= 2 * QUEUED + 1  # no more was handed out
        found = [first, *results]
    assert [item for _, _, item in found] == list(range(40))
    assert {threads for _, threads, _ in found} == {1}
    assert os.getpid() not in {process for process, _, _ in found}


def test_an_interrupt_ends_no_process_that_is_still_starting(tmp_path: Path) -> None:
    with side_by_side(1, partial(kept, tmp_path)) as pool:
        result = pool.submit(threads_and_item, 7)
        for process in multiprocessing.active_children():
            assert process.pid is not None
            os.kill(process.pid, signal.SIGINT)
        assert result.result()[2] == 7


def test_a_process_that_is_killed_is_told_with_how_much_was_done(tmp_path: Path) -> None:
    with side_by_side(1, partial(kept, tmp_path)) as pool:
        results = pool.map(die_at, range(20))
        assert [next(results) for _ in range(5)] == [0, 1, 2, 3, 4]
        with pytest.raises(ProcessLostError, match=r"ended from outside.* when 5 of 20 were done: use fewer processes"):
            next(results)
