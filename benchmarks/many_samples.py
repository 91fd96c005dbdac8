"""What 100 million samples cost: multipliers in memory and on disk, bytes exchanged, and an audit in constant memory.

The samples are simulated: their numbers are real, what is measured of each follows from its number. Every number of
processes is run as so many processes on this machine, over gloo.
"""

import io
import multiprocessing
import os
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from common import begin, keep, options
from torch import Tensor, nn
from torch.utils.data import Dataset

import samplewise as sw
from samplewise.storage import distributed
from samplewise.storage.checkpoint import save_state

WORLDS = (1, 2, 4)
CONSTRAINTS = [sw.AtMost("error", 1.0)]
MB = 1e6


class Simulated(Dataset[Any]):
    """Samples whose values follow from their number, spread evenly over 0 to 1."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Tensor:
        return self.take(torch.tensor([index]))[0]

    def take(self, index: Tensor) -> Tensor:
        return (index * 2654435761 % 2**32).double().div(2**32).float()


def memory() -> float:
    """What this process holds now, in MB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / MB


def counted(action: Callable[[], object]) -> int:
    """The bytes that ``action`` hands over to other processes: those of every tensor that it has exchanged."""
    total, plain = 0, distributed._exchange_

    def exchange(tensor: Tensor, operation: Any) -> Tensor:
        nonlocal total
        total += tensor.nbytes if distributed.world_size() > 1 else 0
        return plain(tensor, operation)

    distributed._exchange_ = exchange
    try:
        action()
    finally:
        distributed._exchange_ = plain
    return total


def train(rank: int, world: int, store: str, samples: int, batch: int, steps: int, share: float, results: Any) -> None:
    """Some steps of either method on this process's part of random batches; what they cost."""
    torch.set_num_threads(1)
    if world > 1:
        torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    found: dict[str, Any] = {}
    own, generator = batch // world, torch.Generator().manual_seed(0)
    before = memory()
    augmented = sw.AugmentedLagrangian(CONSTRAINTS, samples=samples, schedule=sw.Constant(2.0))
    penalty = sw.SequentialPenalty(CONSTRAINTS, schedule=sw.Constant(2.0))

    def step(method: sw.Method) -> None:
        # Without repetition, and without an order of all samples.
        index = (torch.randint(samples, (1,), generator=generator) + torch.arange(batch) * 7919) % samples
        index = index[rank * own : (rank + 1) * own]
        error = 1 + torch.where(Simulated(samples).take(index) < share, 1.0, -1.0)
        method(torch.zeros(own), error=error, index=index)

    step(augmented)
    found["multiplier_bytes_a_step"] = counted(lambda: step(augmented))
    found["penalty_bytes_a_step"] = counted(lambda: step(penalty))
    found["penalty_bytes_a_round"] = counted(penalty.step)
    began = time.perf_counter()
    for _ in range(steps):
        step(augmented)
    found["milliseconds_a_step"] = 1e3 * (time.perf_counter() - began) / steps
    table: Any = augmented.get_submodule("stores.0")
    for start in range(table.held.start, table.held.stop, 2**22):  # as if all samples had been seen
        piece = torch.arange(start, min(start + 2**22, table.held.stop))
        table.values[piece[Simulated(samples).take(piece) < share] - table.held.start] = 1.0
    found["held_mb"] = sum(buffer.nbytes for buffer in augmented.buffers()) / MB
    found["resident_mb"] = memory() - before
    augmented.gather_()
    if rank == 0:
        with tempfile.TemporaryDirectory() as folder:
            save_state(Path(folder) / "method.safetensors", dict(augmented.state_dict()))
            found["checkpoint_mb"] = (Path(folder) / "method.safetensors").stat().st_size / MB
        results.put(found)
    if world > 1:
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


def audit(samples: int, batch: int, share: float, results: Any) -> None:
    """An audit that keeps no values, and the most memory that it took above what was held before."""
    torch.set_num_threads(1)

    def evaluate(model: nn.Module, values: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return values, {"error": values}

    problem = sw.Problem(evaluate, [sw.AtMost("error", 1.0 - share)])
    sw.audit(problem, nn.Identity(), Simulated(1000), keep_values=False, batch_size=batch)  # what is imported late
    before = memory()
    began = time.perf_counter()
    found = sw.audit(problem, nn.Identity(), Simulated(samples), keep_values=False, batch_size=batch)
    seconds = time.perf_counter() - began
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MB
    results.put(
        {"samples": samples, "violated": found.violated, "seconds": seconds, "more_mb": max(0.0, most - before)}
    )


def in_processes(world: int, work: Callable[..., None], *arguments: Any) -> dict[str, Any]:
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    started = [context.Process(target=work, args=(*rank, *arguments, results)) for rank in _ranks(world, work)]
    for process in started:
        process.start()
    found: dict[str, Any] = results.get()
    for process in started:
        process.join()
    return found


def _ranks(world: int, work: Callable[..., None]) -> list[tuple[Any, ...]]:
    if work is audit:
        return [()]
    handle, store = tempfile.mkstemp()
    os.close(handle)
    Path(store).unlink()
    return [(rank, world, store) for rank in range(world)]


def main() -> None:
    chosen = begin(options(__doc__, samples=10**8, batch=4096, steps=20, thousandths=10))
    share = chosen.thousandths / 1000
    rows: list[dict[str, Any]] = []
    for world in WORLDS:
        found = in_processes(world, train, chosen.samples, chosen.batch, chosen.steps, share)
        # On paper: every process held, and every checkpoint had, 4 bytes a sample; numbers and values were exchanged.
        was = {"held_mb": 4 * (chosen.samples + 1) / MB, "checkpoint_mb": 4 * (chosen.samples + 1) / MB}
        was["multiplier_bytes_a_step"] = 12 * (chosen.batch // world) if world > 1 else 0
        rows.append({"processes": world, "before": was, "after": found})
    audits = [in_processes(1, audit, samples, 2**16, share) for samples in (chosen.samples // 100, chosen.samples)]
    page = io.StringIO()
    print(f"# {chosen.samples:,} samples\n", file=page)
    print(f"One constraint, {share:.1%} of the multipliers not zero, {chosen.batch:,} samples in a step.\n", file=page)
    print(
        "| processes | a process holds, before (on paper) | now | checkpoint, before (on paper) | now |",
        file=page,
    )
    print("|---|---|---|---|---|", file=page)
    for row in rows:
        cells = [f"{row[when][what]:.0f} MB" for what in ("held_mb", "checkpoint_mb") for when in ("before", "after")]
        print(f"| {row['processes']} | {' | '.join(cells)} |", file=page)
    print("\nBytes that a process hands over:\n", file=page)
    print(
        "| processes | multipliers, a step, before (on paper) | now | a penalty, a step | a round |",
        file=page,
    )
    print("|---|---|---|---|---|", file=page)
    for row in rows:
        after = row["after"]
        cells = [row["before"]["multiplier_bytes_a_step"], after["multiplier_bytes_a_step"]]
        cells += [after["penalty_bytes_a_step"], after["penalty_bytes_a_round"]]
        print(f"| {row['processes']} | {' | '.join(f'{cell:,}' for cell in cells)} |", file=page)
    print("\nAn audit that keeps no values, one process:\n", file=page)
    print("| samples | violated, counted exactly | seconds | more memory than before |", file=page)
    print("|---|---|---|---|", file=page)
    for each in audits:
        cells = [f"{each['samples']:,}", f"{each['violated']:,}", f"{each['seconds']:.1f}", f"{each['more_mb']:.0f} MB"]
        print(f"| {' | '.join(cells)} |", file=page)
    keep(__file__, chosen, {"multipliers": rows, "audits": audits}, page.getvalue().rstrip().splitlines())


if __name__ == "__main__":
    main()
