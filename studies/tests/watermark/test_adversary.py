import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import samplewise as sw
from forked import two_processes
from samplewise.measures import psnr
from samplewise.samples import mix, source_of
from samplewise.storage import load_state, save_state
from samplewise.training.batching import epoch_order
from studies.watermark.networks.hidden import Discriminator, Hidden
from studies.watermark.pipeline import Adversary, MarkedBatch

BITS, SAMPLES, BATCH = 4, 10, 4  # the last step of an epoch has two samples
FLOOR, TAU, WEIGHT = 30.0, 0.1, 0.5  # a weight at which the discriminator matters
LR = 1e-3


def make_model() -> Hidden:
    torch.manual_seed(0)
    return Hidden(BITS, size=6, width=3).double()


def make_discriminator(seed: int = 1, width: int = 3) -> Discriminator:
    torch.manual_seed(seed)
    return Discriminator(width=width).double()


def make_data() -> TensorDataset:
    generator = torch.Generator().manual_seed(2)
    return TensorDataset(torch.rand(SAMPLES, 1, 6, 6, generator=generator, dtype=torch.float64), torch.arange(SAMPLES))


def embed(model: nn.Module, batch: Any) -> MarkedBatch:
    """Random messages in training; in audits those of the samples' numbers."""
    assert isinstance(model, Hidden)
    images, number = batch
    images = images.expand(-1, model.channels, -1, -1)
    drawn = torch.randint(2, (len(images), BITS))
    messages = drawn if model.training else (number[:, None] >> torch.arange(BITS)) & 1
    marked = model.embed(images, messages)
    return MarkedBatch(images, messages.to(images.dtype), marked, model.extract(marked))


def evaluate(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
    assert isinstance(model, Hidden)
    made = batch if isinstance(batch, MarkedBatch) else embed(model, batch)
    objective = model.message_loss(made.logits, made.messages)
    if made.adversarial is not None:
        objective = objective + WEIGHT * made.adversarial
    return objective, {"psnr": psnr(made.marked, made.covers)}


def run(
    adversary: Adversary, *, model: Hidden | None = None, epochs: int = 2, checkpoint: Path | None = None
) -> Hidden:
    problem = sw.Problem(evaluate, [sw.AtLeast("psnr", FLOOR)])
    model = model or make_model()
    sw.fit(
        problem,
        model,
        make_data(),
        method=sw.SequentialPenalty(problem.constraints, schedule=sw.Constant(TAU)),
        optimizer=torch.optim.Adam(model.parameters(), lr=LR),
        epochs=epochs,
        batch_size=BATCH,
        seed=7,
        auxiliary=adversary,
        checkpoint=checkpoint,
        checkpoint_steps=2,
        progress=False,
    )
    return model


def by_hand(model: Hidden, discriminator: Discriminator, *, epochs: int) -> None:
    """The published order, in plain PyTorch."""
    main = torch.optim.Adam(model.parameters(), lr=LR)
    other = torch.optim.Adam(discriminator.parameters(), lr=LR)
    cross_entropy = nn.BCEWithLogitsLoss()
    data = make_data()
    for epoch in range(epochs):
        order = epoch_order(replace(source_of(data), shuffle=True), seed=7, epoch=epoch)
        for position, index in enumerate(torch.split(order, BATCH)):
            torch.manual_seed(mix(7, "step", epoch, position, 0))
            images = data.tensors[0][index].repeat(1, 3, 1, 1)
            messages = torch.randint(2, (len(images), BITS)).double()
            cover, encoded = torch.ones(len(images)).double(), torch.zeros(len(images)).double()
            other.zero_grad()
            cross_entropy(discriminator(images), cover).backward()
            marked = model.encoder(images, messages)
            cross_entropy(discriminator(marked.detach()), encoded).backward()
            other.step()
            main.zero_grad()
            quality = -10 * torch.log10((marked - images).square().mean((1, 2, 3)))
            loss = (
                functional.mse_loss(model.decoder(marked), messages)
                + WEIGHT * cross_entropy(discriminator(marked), cover)
                + TAU * torch.relu(FLOOR - quality).mean()
            )
            loss.backward()
            main.step()


def test_the_discriminator_has_the_published_layers() -> None:
    discriminator = Discriminator()
    shapes = [tuple(value.shape) for value in discriminator.parameters() if value.ndim > 1]
    assert shapes == [(64, 3, 3, 3), (64, 64, 3, 3), (64, 64, 3, 3), (1, 64)]
    images = torch.rand(2, 3, 8, 8)
    pooled = functional.adaptive_avg_pool2d(discriminator.features(images), 1).flatten(1)
    torch.testing.assert_close(discriminator(images), discriminator.linear(pooled)[:, 0])


def test_fit_with_it_does_what_the_loop_written_by_hand_does() -> None:
    expected, expected_discriminator = make_model(), make_discriminator()
    by_hand(expected, expected_discriminator, epochs=2)
    adversary = Adversary(embed, discriminator=make_discriminator(), lr=LR)
    model = run(adversary)
    torch.testing.assert_close(model.state_dict(), expected.state_dict(), rtol=1e-6, atol=1e-7)
    found = adversary.discriminator.state_dict()
    torch.testing.assert_close(found, expected_discriminator.state_dict(), rtol=1e-6, atol=1e-7)


def interrupting(steps: int) -> Callable[[nn.Module, Any], MarkedBatch]:
    """An embedding that ends the run after some steps, as a user's Ctrl-C does."""
    left = iter(range(steps))

    def stop(model: nn.Module, batch: Any) -> MarkedBatch:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return embed(model, batch)

    return stop


@pytest.mark.parametrize("steps", [3, 5])  # after an epoch's last step, and within the next one
def test_a_run_that_was_stopped_ends_with_the_same_bits(tmp_path: Path, steps: int) -> None:
    whole = Adversary(embed, discriminator=make_discriminator(), lr=LR)
    expected = run(whole)
    with pytest.raises(KeyboardInterrupt):
        run(Adversary(interrupting(steps), discriminator=make_discriminator(), lr=LR), checkpoint=tmp_path)
    # Another discriminator than the one it began with: what counts is in the checkpoint.
    resumed = Adversary(embed, discriminator=make_discriminator(seed=9), lr=LR)
    model = run(resumed, checkpoint=tmp_path)
    for found, wanted in (
        (model.state_dict(), expected.state_dict()),
        (resumed.state_dict(), load_state_of(whole, tmp_path)),
    ):
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def load_state_of(adversary: Adversary, folder: Path) -> dict[str, Any]:
    """The state as it comes back from a file."""
    save_state(folder / "state", adversary.state_dict())
    return load_state(folder / "state")


def test_the_encoder_runs_once_in_a_step() -> None:
    model, calls = make_model(), []
    model.encoder.register_forward_hook(lambda *_: calls.append(model.training))
    run(Adversary(embed, discriminator=make_discriminator()), model=model, epochs=2)
    assert calls.count(True) == 6


def test_the_encoder_learns_from_the_score_and_the_discriminator_does_not() -> None:
    model, data = make_model(), make_data()
    adversary = Adversary(embed, discriminator=make_discriminator(), lr=LR)
    made = adversary.step(model, data[:BATCH])
    learned = {name: value.grad.clone() for name, value in adversary.discriminator.named_parameters()}  # type: ignore[union-attr]

    updated = copy.deepcopy(adversary.discriminator)
    logits = updated(made.marked.detach())
    assert made.adversarial is not None
    torch.testing.assert_close(made.adversarial, -logits.sigmoid().log())

    made.adversarial.mean().backward()
    assert all(value.grad is not None for value in model.encoder.parameters())
    assert all(value.grad is None for value in model.decoder.parameters())
    for name, value in adversary.discriminator.named_parameters():
        assert value.requires_grad
        assert value.grad is not None
        assert torch.equal(value.grad, learned[name])


def test_it_can_be_trained_again_after_a_failed_score() -> None:
    adversary = Adversary(embed, discriminator=make_discriminator())
    with pytest.raises(RuntimeError):
        adversary._score(torch.rand(1, 5, 6, 6, dtype=torch.float64))
    assert all(value.requires_grad for value in adversary.discriminator.parameters())


def part(rank: int) -> tuple[Tensor, Tensor]:
    images, number = make_data().tensors
    return images[rank * BATCH :][:BATCH], number[rank * BATCH :][:BATCH]


def work() -> dict[str, Any]:
    rank, model = dist.get_rank(), make_model()
    adversary = Adversary(embed, discriminator=make_discriminator(seed=rank + 1), lr=LR)
    for step in range(2):
        torch.manual_seed(step)
        adversary.step(model, part(rank))
    return dict(adversary.discriminator.named_parameters())


def test_processes_share_one_discriminator() -> None:
    first, second = two_processes(work)
    torch.testing.assert_close(first, second, rtol=0, atol=0)

    model, discriminator = make_model(), make_discriminator(seed=1)
    optimizer = torch.optim.Adam(discriminator.parameters(), lr=LR)
    for step in range(2):
        optimizer.zero_grad()
        for rank in range(2):
            torch.manual_seed(step)
            made = embed(model, part(rank))
            loss = functional.softplus(-discriminator(made.covers)) + functional.softplus(
                discriminator(made.marked.detach())
            )
            (loss.mean() / 2).backward()
        optimizer.step()
    torch.testing.assert_close(first, dict(discriminator.named_parameters()), rtol=1e-6, atol=1e-8)
