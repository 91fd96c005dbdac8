import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from natural_images import natural_batch, natural_image, to_pixels, to_tensor
from samplewise.errors import DataError
from samplewise.measures import psnr
from studies.watermark.noise import parse_attack, parse_noise
from studies.watermark.operators import OPERATORS

RANGES = [
    "identity",
    "jpeg(30..95)",
    "webp(30..95)",
    "resize_back(0.5..1.5)",
    "crop_zero_fill(0.3..0.9)",
    "dropout(0.1..0.6)",
    "gaussian(0.05..0.3)",
    "blur(0.3..2)",
    "brightness(0.5..1.5)",
    "contrast(0.5..1.5)",
    "gamma(0.5..2)",
    "window(0.5..0.9)",
    "jitter(0.5..2)",
]
CHAIN = "gaussian(0.1) + jpeg(50..90) + crop_zero_fill(0.5..1)"


def disturbed(spec: str, images: Tensor, cover: Tensor | None = None, *, seed: int = 0) -> Tensor:
    torch.manual_seed(seed)
    found = parse_noise(spec)(images, torch.zeros_like(images) if cover is None else cover)
    assert isinstance(found, Tensor)
    return found


def test_every_operator_that_can_be_trained_for_is_tested_here() -> None:
    trained = {name for name, operator in OPERATORS.items() if operator.train}
    assert trained == {spec.partition("(")[0] for spec in RANGES}


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("spec", [*RANGES, CHAIN])
def test_keeps_size_and_range_and_the_seed_decides(spec: str, channels: int) -> None:
    images = natural_batch(3, channels, height=37, width=22)  # not multiples of a JPEG block
    before = images.clone()
    first, again, other = (disturbed(spec, images, seed=seed) for seed in (1, 1, 2))
    assert first.shape == images.shape
    assert first.min() >= 0
    assert first.max() <= 1
    assert torch.equal(first, again)
    assert torch.equal(images, before)
    assert torch.equal(first, other) == (spec == "identity")


@pytest.mark.parametrize("spec", sorted(set(RANGES) - {"identity", "resize_back(0.5..1.5)"}))
def test_every_image_of_a_batch_gets_its_own_draw(spec: str) -> None:
    images = natural_batch(1).expand(3, -1, -1, -1)
    first, second, third = disturbed(spec, images)
    assert not torch.equal(first, second)
    assert not torch.equal(second, third)


def test_a_batch_shares_the_scale_of_resize() -> None:
    first, second = disturbed("resize_back(0.5..1.5)", natural_batch(1).expand(2, -1, -1, -1))
    torch.testing.assert_close(first, second)


@pytest.mark.parametrize(
    ("spec", "least"),
    [
        ("blur(0)", 100),
        ("gaussian(0)", 100),
        ("resize_back(1)", 100),
        ("crop_zero_fill(1)", 100),
        ("dropout(0)", 100),
        ("brightness(1)", 100),
        ("contrast(1)", 100),
        ("gamma(1)", 100),
        ("window(1)", 100),
        ("jitter(0)", 100),
        ("jpeg(100)", 55),  # every coefficient is still rounded
    ],
)
def test_the_gentle_end_of_every_range_leaves_images_alone(spec: str, least: float) -> None:
    images = natural_batch(2)
    assert psnr(disturbed(spec, images), images).min() > least


@pytest.mark.parametrize(
    ("gentle", "harsh"),
    [
        ("jpeg(90)", "jpeg(30)"),
        ("resize_back(0.9)", "resize_back(0.4)"),
        ("crop_zero_fill(0.9)", "crop_zero_fill(0.4)"),
        ("dropout(0.1)", "dropout(0.5)"),
        ("gaussian(0.01)", "gaussian(0.1)"),
        ("blur(0.5)", "blur(2)"),
        ("brightness(1.1)", "brightness(0.5)"),
        ("contrast(0.9)", "contrast(1.5)"),
        ("gamma(0.9)", "gamma(0.5)"),
        ("window(0.9)", "window(0.5)"),
        ("jitter(0.1)", "jitter(3)"),
    ],
)
def test_more_strength_disturbs_more(gentle: str, harsh: str) -> None:
    images = natural_batch(2)
    assert (psnr(disturbed(gentle, images), images) > psnr(disturbed(harsh, images), images)).all()


@pytest.mark.parametrize("spec", ["jpeg(20)", "jpeg(75)", "jpeg(99)", "webp(50)"])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_file_in_training_is_the_real_file(spec: str, channels: int) -> None:
    image = natural_image(channels, height=90, width=75)
    real = parse_attack(spec)(image, np.random.default_rng(0))
    assert (to_pixels(disturbed(spec, to_tensor(image))) == real).all()


@pytest.mark.parametrize("scale", [0.3, 0.5, 0.75, 1.25])
@pytest.mark.parametrize("channels", [1, 3])
def test_resize_does_what_pillow_does(scale: float, channels: int) -> None:
    image = natural_image(channels, height=90, width=75)
    real = parse_attack(f"resize_back({scale})")(image, np.random.default_rng(0))
    ours = to_pixels(disturbed(f"resize_back({scale})", to_tensor(image)))
    assert np.abs(ours.astype(int) - real).max() <= 2  # Pillow rounds twice on the way


@pytest.mark.parametrize("sigma", [0.5, 1.0, 2.5])
def test_blur_is_a_gaussian_and_near_to_pillows(sigma: float) -> None:
    image = natural_image()
    ours = disturbed(f"blur({sigma})", to_tensor(image))
    np.testing.assert_allclose(ours[0, 0].numpy(), gaussian_filter(image / 255.0, sigma, mode="nearest"), atol=1e-4)
    real = to_tensor(parse_attack(f"blur({sigma})")(image, np.random.default_rng(0)))
    assert psnr(ours, real) > psnr(real, to_tensor(image)) + 10


@pytest.mark.parametrize("spec", ["brightness(0.7)", "brightness(1.3)", "contrast(0.7)", "contrast(1.3)"])
@pytest.mark.parametrize("channels", [1, 3])
def test_brightness_and_contrast_are_pillows(spec: str, channels: int) -> None:
    image = natural_image(channels)
    real = parse_attack(spec)(image, np.random.default_rng(0))
    assert np.abs(to_pixels(disturbed(spec, to_tensor(image))).astype(int) - real).max() <= 1


def test_gaussian_has_the_standard_deviation_it_says() -> None:
    images = torch.full((4, 1, 64, 64), 0.5)
    assert (disturbed("gaussian(0.02)", images) - images).std().item() == pytest.approx(0.02, rel=0.05)
    spread = (disturbed("gaussian(0..0.1)", images) - images).flatten(1).std(1)
    assert spread.max() - spread.min() > 0.01


def test_dropout_puts_whole_pixels_of_the_cover_back() -> None:
    images, cover = torch.full((4, 3, 64, 64), 0.75), torch.full((4, 3, 64, 64), 0.25)
    found = disturbed("dropout(0.3)", images, cover)
    dropped = found == 0.25
    assert ((found == 0.75) | dropped).all()
    assert torch.equal(dropped, dropped[:, :1].expand(-1, 3, -1, -1))
    assert dropped.float().mean().item() == pytest.approx(0.3, abs=0.03)


def test_crop_keeps_a_rectangle_of_the_right_size_in_its_place_anywhere() -> None:
    images = torch.rand(200, 1, 20, 30) * 0.9 + 0.1  # never black
    found = disturbed("crop_zero_fill(0.7)", images)
    tops, lefts = Counter[int](), Counter[int]()
    for image, kept in zip(images[:, 0], found[:, 0], strict=True):
        rows, columns = kept.nonzero(as_tuple=True)
        top, left = int(rows.min()), int(columns.min())
        assert (int(rows.max()) - top + 1, int(columns.max()) - left + 1) == (14, 21)
        assert torch.equal(kept[top : top + 14, left : left + 21], image[top : top + 14, left : left + 21])
        assert len(rows) == 14 * 21
        tops[top] += 1
        lefts[left] += 1
    assert set(tops) == set(range(7))
    assert set(lefts) == set(range(10))


def test_alternatives_are_drawn_by_their_weights() -> None:
    noise = parse_noise("2*brightness(0.2), brightness(0.4), brightness(0.6)")
    torch.manual_seed(0)
    image = torch.ones(1, 1, 1, 1)
    drawn = Counter(round(noise(image, image).item(), 1) for _ in range(800))
    assert set(drawn) == {0.2, 0.4, 0.6}
    assert drawn[0.2] == pytest.approx(400, abs=60)
    assert drawn[0.4] == pytest.approx(200, abs=60)


def test_a_chain_is_its_steps_in_order_each_clamped() -> None:
    image = torch.full((1, 1, 4, 4), 0.5)
    assert disturbed("brightness(4) + brightness(0.5)", image).unique().tolist() == [0.5]  # white in between
    assert disturbed("brightness(0.5) + brightness(4)", image).unique().tolist() == [1.0]


def test_ranges_cover_their_whole_length() -> None:
    factors = disturbed("brightness(0.25..0.75)", torch.ones(2000, 1, 1, 1)).flatten()
    assert factors.quantile(torch.tensor([0.0, 0.5, 1.0])).tolist() == pytest.approx([0.25, 0.5, 0.75], abs=0.02)


@pytest.mark.parametrize("spec", [spec for spec in RANGES if not spec.startswith(("jpeg", "webp"))])
def test_gradients_are_exact(spec: str) -> None:
    images = (natural_batch(2, height=9, width=8).double() * 0.4 + 0.3).requires_grad_()  # off the clamp's corners
    cover = natural_batch(2, height=9, width=8).double()
    assert torch.autograd.gradcheck(lambda x: disturbed(spec, x, cover), (images,))


@pytest.mark.parametrize("spec", [*RANGES, CHAIN])
@pytest.mark.parametrize("channels", [1, 3])
def test_gradients_stay_finite_on_flat_black_and_white(spec: str, channels: int) -> None:
    flat = torch.tensor([0.0, 1.0]).view(2, 1, 1, 1).expand(2, channels, 32, 32).clone().requires_grad_()
    found = disturbed(spec, flat)
    (gradient,) = torch.autograd.grad(found.square().sum(), flat)
    assert found.isfinite().all()
    assert gradient.isfinite().all()


@pytest.mark.parametrize("spec", ["jpeg(20)", "blur(1)", "resize_back(0.5)"])
def test_what_is_learned_through_the_noise_survives_the_real_attack(spec: str) -> None:
    cover = natural_batch(1, height=64, width=64) * 0.6 + 0.2
    torch.manual_seed(0)
    readers, bits, start = torch.randn(64, 1, 64, 64), torch.randint(2, (64,)), torch.randn_like(cover)

    def read(image: Tensor) -> Tensor:
        """The logits of 64 bits: the correlation of the mark with a random pattern for each."""
        return ((image - cover) * readers).sum((1, 2, 3))

    def marked(mark: Tensor) -> Tensor:
        return cover + 0.02 * mark / mark.square().mean().sqrt()  # 34 dB

    def errors_after_attack(noise: str) -> float:
        """Share of bits lost when a mark, shaped through ``noise``, meets the real attack."""
        mark = start.clone().requires_grad_()
        optimizer = torch.optim.Adam([mark], lr=0.1)
        for step in range(30):
            logits = read(disturbed(noise, marked(mark), cover, seed=step))
            loss = binary_cross_entropy_with_logits(logits, bits.float())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        attacked = to_tensor(parse_attack(spec)(to_pixels(marked(mark)), np.random.default_rng(0)))
        return ((read(attacked) > 0) != bits).float().mean().item()

    prepared, unprepared = errors_after_attack(spec), errors_after_attack("identity")
    assert prepared <= 0.05
    assert unprepared >= prepared + 0.1


def test_jpeg_gives_a_slope_to_descend() -> None:
    """Compressed images move towards others when the images do: the gradient points the right way."""
    target, images = natural_batch(2, 3), torch.full((2, 3, 48, 40), 0.5, requires_grad=True)
    optimizer = torch.optim.Adam([images], lr=0.02)
    losses = []
    for step in range(40):
        loss = (disturbed("jpeg(50..95)", images, seed=step) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.2 * losses[0]


def test_describes_itself() -> None:
    noise = parse_noise("2* jpeg(50 .. 95),crop_zero_fill(.7..1.0)+identity")
    assert str(noise) == "2*jpeg(50..95), crop_zero_fill(0.7..1) + identity"
    assert str(parse_noise(str(noise))) == str(noise)
    assert repr(noise) == f"Noise({noise})"


@pytest.mark.parametrize(
    ("images", "cover"),
    [((1, 2, 8, 8), (1, 2, 8, 8)), ((1, 8, 8), (1, 8, 8)), ((2, 1, 8, 8), (1, 1, 8, 8))],
)
def test_refuses_what_are_not_images_and_their_covers(images: tuple[int, ...], cover: tuple[int, ...]) -> None:
    with pytest.raises(DataError, match=r"covers of one shape"):
        parse_noise("identity")(torch.zeros(images), torch.zeros(cover))


def test_reading_a_spec_imports_nothing_heavy() -> None:
    code = (
        "import sys; from studies.watermark.noise import parse_noise, parse_attack;"
        "parse_noise('jpeg(50), blur(1)'); print([name for name in ('kornia', 'matplotlib') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
