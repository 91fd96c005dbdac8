import pytest
import torch

from samplewise.errors import ConfigurationError
from studies.mnist.digit_network import DigitNetwork, evaluate, study_problem


def test_the_network_has_the_papers_layers() -> None:
    shapes = [tuple(value.shape) for value in DigitNetwork().parameters() if value.ndim == 2]
    assert shapes == [(256, 784), (20, 256), (10, 20), (256, 20), (784, 256)]


def test_the_code_is_linear_or_cut_at_zero() -> None:
    images = torch.rand(50, 16)
    codes = {
        latent: DigitNetwork(pixels=16, classes=3, hidden=8, code=5, latent=latent).encoder(images).detach()
        for latent in ("linear", "relu")
    }
    assert float(codes["relu"].min()) == 0.0
    assert float(codes["linear"].min()) < 0.0
    with pytest.raises(ConfigurationError, match="'tanh'"):
        DigitNetwork(latent="tanh")  # type: ignore[arg-type]


def test_each_sample_is_measured_by_itself() -> None:
    model = DigitNetwork(pixels=16, classes=3, hidden=8, code=5)
    images, labels = torch.rand(4, 16), torch.tensor([0, 1, 2, 0])
    with torch.no_grad():
        objective, measures = evaluate(model, (images, labels))
        scores, drawn = model(images)
    for j in range(4):
        assert objective[j] == pytest.approx(-float(scores[j].log_softmax(0)[labels[j]]), rel=1e-5)
        assert measures["reconstruction"][j] == pytest.approx(float(((drawn[j] - images[j]) ** 2).sum() / 16), rel=1e-5)
        assert measures["accuracy"][j] == float(scores[j].argmax() == labels[j])
    assert 0 < float(drawn.min()) <= float(drawn.max()) < 1


def test_accuracy_is_not_computed_while_training() -> None:
    model = DigitNetwork(pixels=16, classes=3, hidden=8, code=5)
    _, measures = evaluate(model, (torch.rand(4, 16), torch.tensor([0, 1, 2, 0])))
    assert set(measures) == {"reconstruction"}


def test_classification_alone_leaves_the_decoder_without_a_gradient() -> None:
    model = DigitNetwork(pixels=16, classes=3, hidden=8, code=5)
    found = study_problem(0.01).evaluate(model, (torch.rand(4, 16), torch.tensor([0, 1, 2, 0])))
    found.objective.mean().backward()
    assert all(value.grad is None for value in model.decoder.parameters())
    assert all(value.grad is not None for value in model.encoder.parameters())
