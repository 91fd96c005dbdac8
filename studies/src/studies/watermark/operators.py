"""Images as files hold them, and what happens to them: each operator with its limits, a real tool, a form for training.

A new operator takes its functions, an entry in :data:`OPERATORS` and a line in its docstring, all in this module.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageEnhance, ImageFilter, ImageOps
from scipy import ndimage
from torch import Tensor
from torch.nn import functional

from samplewise.errors import ConfigurationError

Pixels: TypeAlias = NDArray[np.uint8]
"""One stored image, ``(H, W)`` or ``(H, W, 3)``, or a batch of them."""
Attack: TypeAlias = Callable[[Pixels, float, np.random.Generator, Pixels | None], Pixels]
"""A real tool: from an image, the strength, the random generator and the cover, if there is one, to an image."""
Differentiable = Callable[[Tensor, Tensor, "Step"], Tensor]
"""From images ``(B, C, H, W)`` in [0, 1], their covers and the step to images, which may leave [0, 1]."""
FileKind = Literal["grey", "rgb"]
LEVELS = 255  # steps between black and white
BILINEAR, BICUBIC = Image.Resampling.BILINEAR, Image.Resampling.BICUBIC
PERSPECTIVE = Image.Transform.PERSPECTIVE
NARROWEST_BLUR = 1e-3  # pixels: kornia's kernel cannot tell a narrower Gaussian from no blur
BLUR_RADIUS = 4.0  # standard deviations
TECHNICIAN_LABEL = "PORTABLE  AP"
JITTER = np.array([1.0, 1.0, math.radians(0.25), 0.004])
"""The most that a jitter of one pixel does: pixels across and down, radians, and what is added to the scale."""
SCREEN_PART, SCREEN_ZOOM, SCREEN_BORDER = 0.8, (0.5, 0.9), 0.05
"""A screenshot's part of the image area, its scales, and the width of the viewer around it by the shorter side."""


BENT_OVER = 64.0  # pixels: standard deviation of the Gaussian that smooths the shifts of bending


def as_pixels(images: Tensor, kind: FileKind) -> Pixels:
    """Images ``(B, C, H, W)`` as a file holds them: clamped and rounded to 8 bits; grey is the channels' mean."""
    if kind == "grey":
        images = images.mean(1, keepdim=True)
    levels = (images.clamp(0.0, 1.0) * LEVELS).round().to(torch.uint8)
    pixels: Pixels = levels.permute(0, 2, 3, 1).cpu().numpy()
    return pixels[..., 0] if kind == "grey" else np.ascontiguousarray(pixels)


def as_images(pixels: Pixels, *, channels: int, device: torch.device | None = None) -> Tensor:
    """Pixels read from files as a network takes them: in [0, 1], ``(B, C, H, W)``, grey ones repeated."""
    images = torch.from_numpy(pixels).to(device)
    images = images.unsqueeze(1) if pixels.ndim == 3 else images.permute(0, 3, 1, 2)
    return images.float().div_(LEVELS).expand(-1, channels, -1, -1)


class Limits(NamedTuple):
    """The range of an operator's strength."""

    lowest: float
    highest: float
    whole: bool = False
    """Only whole numbers."""

    def __str__(self) -> str:
        return f"{'a whole number' if self.whole else 'a number'} from {self.lowest:g} to {self.highest:g}"

    def hold(self, value: float) -> bool:
        """Whether ``value`` lies within."""
        return self.lowest <= value <= self.highest and not (self.whole and value % 1)


def shortest(value: float) -> str:
    """The shortest text that reads back as ``value``, 50 rather than 50.0."""
    return str(int(value)) if value == int(value) else repr(value)


@dataclass(frozen=True)
class Operator:
    """One distortion of an image, as an attack and, for some, as a layer of training."""

    limits: Limits | None
    """Of the strength; None for an operator without one."""
    attack: Attack
    train: Differentiable | None = None
    """None if it cannot be trained for."""
    geometric: bool = False
    """Whether size, orientation or place change, by more than a network can bear without registration."""


@dataclass(frozen=True)
class Step:
    """One operator whose strength lies between ``low`` and ``high``; identity has none."""

    name: str
    low: float = 0.0
    high: float = 0.0

    def __str__(self) -> str:
        if OPERATORS[self.name].limits is None:
            return self.name
        low, high = shortest(self.low), shortest(self.high)
        return f"{self.name}({low if low == high else f'{low}..{high}'})"

    def draw(self, count: int) -> Tensor:
        """Strengths within the range, ``(count,)`` float64, drawn on the CPU so that every device sees the same."""
        if self.low == self.high:
            return torch.full((count,), self.low, dtype=torch.float64)
        return self.low + (self.high - self.low) * torch.rand(count, dtype=torch.float64)

    def each(self, images: Tensor) -> Tensor:
        """A strength for each image, ``(B, 1, 1, 1)``, where the images are."""
        return self.draw(len(images)).to(images).view(-1, 1, 1, 1)


def _by_pillow(change: Callable[[Image.Image, float], Image.Image]) -> Attack:
    """An attack from what Pillow does to one of its images."""
    return lambda image, strength, *_: np.asarray(change(Image.fromarray(image), strength))


def _enhanced(kind: Callable[[Image.Image], Any]) -> Attack:
    return _by_pillow(lambda picture, factor: kind(picture).enhance(factor))


def _by_curve(curve: Callable[[NDArray[np.float64], float], NDArray[np.float64]]) -> Attack:
    """An attack from a curve that takes grey values in [0, 1] to others, which are clipped and rounded."""

    def attack(image: Pixels, strength: float, *_: object) -> Pixels:
        levels = np.rint(255.0 * curve(np.arange(256) / 255.0, strength).clip(0.0, 1.0))
        return levels.astype(np.uint8)[image]

    return attack


def _stored_as(format: str) -> Attack:
    """A file of that format, written with a quality and read."""

    def through_a_file(picture: Image.Image, quality: float) -> Image.Image:
        file = io.BytesIO()
        picture.save(file, format, quality=int(quality))
        return Image.open(file).convert(picture.mode)

    return _by_pillow(through_a_file)


def _compressed(format: str) -> Operator:
    """A file format with loss. In training it is differentiated as the identity (a straight-through estimator).

    A smooth imitation of a file lets through a trace of what the file loses, and a network learns to read that.
    """
    tool = _stored_as(format)

    def train(images: Tensor, cover: Tensor, step: Step) -> Tensor:
        strengths = step.draw(len(images)).round().tolist()
        rng = np.random.default_rng(0)  # not used: a file is not random
        pixels = as_pixels(images.detach(), "grey" if images.shape[1] == 1 else "rgb")
        files = [tool(each, strength, rng, None) for each, strength in zip(pixels, strengths, strict=True)]
        found = as_images(np.stack(files), channels=images.shape[1], device=images.device).to(images)
        return images + (found - images).detach()

    return Operator(Limits(1, 100, whole=True), tool, train)


def _resize_back(images: Tensor, cover: Tensor, step: Step) -> Tensor:
    """One scale for the batch. By torch and not by kornia: its antialiased bilinear filter is Pillow's."""
    height, width = images.shape[2:]
    scale = float(step.draw(1))
    small = max(1, round(height * scale)), max(1, round(width * scale))
    for size in (small, (height, width)):
        images = functional.interpolate(images, size, mode="bilinear", antialias=True)
    return images


def _resize_back_pixels(picture: Image.Image, scale: float) -> Image.Image:
    width, height = picture.size
    scaled = picture.resize((max(1, round(width * scale)), max(1, round(height * scale))), BILINEAR)
    return scaled.resize((width, height), BILINEAR)


def _crop_zero_fill(images: Tensor, cover: Tensor, step: Step) -> Tensor:
    """Size and place for each image."""
    shares = step.draw(len(images))
    rows, columns = (_kept(side, shares).to(images.device) for side in images.shape[2:])
    return images * (rows[:, None, :, None] & columns[:, None, None, :])


def _kept(side: int, shares: Tensor) -> Tensor:
    """Masks ``(B, side)`` of runs at random places, each as long as ``shares`` ``(B,)`` of the side."""
    lengths = (shares * side).round().clamp_min(1)
    starts = (torch.rand(len(shares), dtype=torch.float64) * (side - lengths + 1)).floor()
    places = torch.arange(side)
    return (places >= starts[:, None]) & (places < (starts + lengths)[:, None])


def _window_of(image: Pixels, share: float, rng: np.random.Generator) -> tuple[slice, slice]:
    """A rectangle with that share of both sides, anywhere in the image."""
    height, width = (max(1, round(side * share)) for side in image.shape[:2])
    top, left = rng.integers(image.shape[0] - height + 1), rng.integers(image.shape[1] - width + 1)
    return np.s_[top : top + height, left : left + width]


def _crop_zero_fill_pixels(image: Pixels, share: float, rng: np.random.Generator, cover: Pixels | None) -> Pixels:
    window, kept = _window_of(image, share, rng), np.zeros_like(image)
    kept[window] = image[window]
    return kept


def _dropout(images: Tensor, cover: Tensor, step: Step) -> Tensor:
    """A pixel goes with all its channels; a probability for each image."""
    chances = torch.rand(len(images), 1, *images.shape[2:], device=images.device)
    return torch.where(chances < step.each(images), cover, images)


def _dropout_pixels(image: Pixels, chance: float, rng: np.random.Generator, cover: Pixels | None) -> Pixels:
    if cover is None or cover.shape != image.shape:
        raise ConfigurationError(
            "dropout puts pixels of the cover back: give the cover and change no size before, or leave this attack out"
        )
    dropped = rng.random(image.shape[:2]) < chance
    attacked = image.copy()
    attacked[dropped] = cover[dropped]
    return attacked


def _gaussian_pixels(image: Pixels, sigma: float, rng: np.random.Generator, cover: Pixels | None) -> Pixels:
    noisy = image + 255.0 * sigma * rng.standard_normal(image.shape)
    return np.asarray(np.rint(noisy.clip(0.0, 255.0)), dtype=np.uint8)


def _blur(images: Tensor, cover: Tensor, step: Step) -> Tensor:
    """By kornia, the border extended, with a standard deviation for each image."""
    from kornia.filters import gaussian_blur2d  # takes seconds

    sigmas = step.draw(len(images)).clamp_min(NARROWEST_BLUR).to(images)[:, None].expand(-1, 2)
    size = 2 * math.ceil(BLUR_RADIUS * step.high) + 1
    blurred: Tensor = gaussian_blur2d(images, size, sigmas, border_type="replicate")
    return blurred


def _contrast(images: Tensor, cover: Tensor, step: Step) -> Tensor:
    from kornia.enhance import adjust_contrast_with_mean_subtraction

    adjusted: Tensor = adjust_contrast_with_mean_subtraction(images, step.draw(len(images)))
    return adjusted


def _gamma(images: Tensor, cover: Tensor, step: Step) -> Tensor:
    """A power for each image; linear up to the first level, where the slope of small powers would have no bound."""
    power, first = step.each(images), 1.0 / LEVELS
    return torch.where(images < first, images * first ** (power - 1.0), images.clamp_min(first) ** power)


def _jitter(images: Tensor, cover: Tensor, step: Step) -> Tensor:
    """The error of a registration: a small shift, angle and scale for each image, drawn on the CPU as strengths are."""
    drawn = (2.0 * torch.rand(len(images), 4, dtype=torch.float64) - 1.0) * step.draw(len(images))[:, None]
    return shifted(images, *(drawn * torch.from_numpy(JITTER)).unbind(1))


def shifted(images: Tensor, across: Tensor, down: Tensor, angle: Tensor, growth: Tensor) -> Tensor:
    """Shift, rotate and scale each image by its own ``(B,)`` amounts; bilinear, the edge goes on beyond the edge."""
    height, width = images.shape[2:]
    cosine, sine = (1.0 + growth) * angle.cos(), (1.0 + growth) * angle.sin()
    # Torch's grids go from -1 to 1 along either side, whatever its length.
    first = torch.stack([cosine, -sine * height / width, 2.0 * across / width], dim=1)
    second = torch.stack([sine * width / height, cosine, 2.0 * down / height], dim=1)
    matrices = torch.stack([first, second], dim=1).to(images)
    grid = functional.affine_grid(matrices, list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)


def _jitter_pixels(image: Pixels, pixels: float, rng: np.random.Generator, cover: Pixels | None) -> Pixels:
    return shifted_pixels(image, *(rng.uniform(-1.0, 1.0, 4) * pixels * JITTER))


def shifted_pixels(image: Pixels, across: float, down: float, angle: float, growth: float) -> Pixels:
    """As :func:`shifted`, by SciPy."""
    cosine, sine = (1.0 + growth) * math.cos(angle), (1.0 + growth) * math.sin(angle)
    matrix = np.array([[cosine, sine], [-sine, cosine]])
    middle = (np.array(image.shape[:2]) - 1.0) / 2.0
    offset = middle + np.array([down, across]) - matrix @ middle
    how: Any = {"order": 1, "mode": "nearest", "output": np.float64}
    return _by_channel(image, lambda channel: ndimage.affine_transform(channel, matrix, offset, **how))


def _by_channel(image: Pixels, change: Callable[[Pixels], NDArray[np.float64]]) -> Pixels:
    """Change each channel of an image by itself; what comes out is clipped and rounded."""
    channels = np.stack([change(each) for each in np.atleast_3d(image).transpose(2, 0, 1)], axis=-1)
    changed: Pixels = np.rint(channels.clip(0, 255)).astype(np.uint8)
    return changed.reshape(image.shape)


def _median(image: Pixels, size: float, *_: object) -> Pixels:
    return np.asarray(ndimage.median_filter(image, (int(size), int(size), 1)[: image.ndim], mode="nearest"))


def _text(image: Pixels, strength: float, rng: np.random.Generator, cover: Pixels | None) -> Pixels:
    """In white, anywhere, as high as a fifteenth of the image."""
    picture = Image.fromarray(image)
    place = rng.random() * image.shape[1] / 2, rng.random() * image.shape[0] * 0.9
    white = 255 if image.ndim == 2 else (255, 255, 255)
    ImageDraw.Draw(picture).text(place, TECHNICIAN_LABEL, fill=white, font_size=max(1, image.shape[0] // 15))
    return np.asarray(picture)


_resize = _by_pillow(lambda image, factor: image.resize([max(1, round(side * factor)) for side in image.size], BICUBIC))


def _crop(image: Pixels, share: float, rng: np.random.Generator, cover: Pixels | None = None) -> Pixels:
    return image[_window_of(image, math.sqrt(share), rng)]


def _trim(image: Pixels, pixels: float, *_: object) -> Pixels:
    return image[min(int(pixels), image.shape[0] - 1) :, min(int(pixels), image.shape[1] - 1) :]


def _border(image: Pixels, share: float, rng: np.random.Generator, cover: Pixels | None = None) -> Pixels:
    width = round(share * min(image.shape[:2]))
    around = ((width, width), (width, width), (0, 0))[: image.ndim]
    return np.pad(image, around, constant_values=rng.integers(256, dtype=np.uint8))


def _screenshot(image: Pixels, quality: float, rng: np.random.Generator, cover: Pixels | None) -> Pixels:
    """A part of the image at the viewer's zoom with some of the viewer around it, kept as JPEG."""
    shown = _resize(_crop(image, SCREEN_PART, rng), rng.uniform(*SCREEN_ZOOM), rng, None)
    return _stored_as("JPEG")(_border(shown, SCREEN_BORDER, rng), quality, rng, None)


def _moved_by(image: Pixels, shifts: NDArray[np.float64]) -> Pixels:
    """The image resampled ``shifts (2, H, W)`` further on, rows and columns; cubic, black beyond the edges."""
    at = np.indices(image.shape[:2]) + shifts
    return _by_channel(image, lambda channel: ndimage.map_coordinates(channel, at, order=3, output=np.float64))


def _shear(image: Pixels, amount: float, *_: object) -> Pixels:
    rows = np.arange(image.shape[0], dtype=np.float64)[:, None] - image.shape[0] / 2
    across = np.broadcast_to(amount * rows, image.shape[:2])
    return _moved_by(image, np.stack([np.zeros_like(across), across]))


def _perspective(image: Pixels, share: float, rng: np.random.Generator, cover: Pixels | None) -> Pixels:
    """As by a camera held askew: each corner lies up to that share of both sides further inside."""
    picture = Image.fromarray(image)
    width, height = picture.size
    inside = rng.uniform(0.5, 1.0, (4, 2)) * share * (width, height)
    corners = np.array([(0, 0), (0, height), (width, height), (width, 0)], np.float64)
    corners += inside * [(1, 1), (1, -1), (-1, -1), (-1, 1)]
    # Where the corners of the result lie in the image: eight equations for the eight numbers of a projective map.
    rows, right = [], []
    for (x, y), (u, v) in zip([(0, 0), (0, height), (width, height), (width, 0)], corners.tolist(), strict=True):
        rows += [[x, y, 1, 0, 0, 0, -u * x, -u * y], [0, 0, 0, x, y, 1, -v * x, -v * y]]
        right += [u, v]
    return np.asarray(picture.transform((width, height), PERSPECTIVE, np.linalg.solve(rows, right).tolist(), BICUBIC))


def _bend(image: Pixels, pixels: float, rng: np.random.Generator, cover: Pixels | None) -> Pixels:
    """Each pixel shifted by up to that, smoothly over :data:`BENT_OVER` pixels."""
    shifts = rng.standard_normal((2, *image.shape[:2]))
    smooth = np.stack([ndimage.gaussian_filter(each, BENT_OVER) for each in shifts])
    return _moved_by(image, pixels * smooth / np.abs(smooth).max())


def _page(image: Pixels, share: float, rng: np.random.Generator, cover: Pixels | None) -> Pixels:
    """A page of text whose shorter side is the image's, with the image on it at that share of its size."""
    height, width = image.shape[:2]
    page = Image.new("L" if image.ndim == 2 else "RGB", (width, round(1.3 * height)), "white")
    draw, line = ImageDraw.Draw(page), max(8, height // 45)
    words = [TECHNICIAN_LABEL, "the", "of", "finding", "left", "no", "comparison", "and", "normal"]
    for top in range(line, page.height - line, round(1.5 * line)):
        text = " ".join(rng.choice(words, 40).tolist())
        draw.text((line, top), text, fill="black", font_size=line)
    small = Image.fromarray(_resize(image, share, rng, None))
    left, top = (int(rng.integers(low - high + 1)) for low, high in zip(page.size, small.size, strict=True))
    page.paste(small, (left, top))
    return np.asarray(page)


def _stripes(image: Pixels, share: float, rng: np.random.Generator, cover: Pixels | None) -> Pixels:
    """Rows of one grey in bands that cover that share of the image."""
    period = max(4, image.shape[0] // 16)
    covered = (np.arange(image.shape[0]) + rng.integers(period)) % period < share * period
    striped = image.copy()
    striped[covered] = rng.integers(256, dtype=np.uint8)
    return striped


def _box(image: Pixels, share: float, rng: np.random.Generator, cover: Pixels | None) -> Pixels:
    """A white box over that share of the area."""
    boxed = image.copy()
    boxed[_window_of(image, math.sqrt(share), rng)] = 255
    return boxed


def _bilateral(image: Pixels, sigma: float, *_: object) -> Pixels:
    """By OpenCV: means over 9 x 9 pixels of those whose values differ little."""
    import cv2  # which rivals bring along

    return np.asarray(cv2.bilateralFilter(np.ascontiguousarray(image), 9, sigma, 10), np.uint8)


def _jpeg2000(image: Pixels, ratio: float, *_: object) -> Pixels:
    with io.BytesIO() as file:
        Image.fromarray(image).save(file, "JPEG2000", quality_layers=[ratio], irreversible=True)
        return np.asarray(Image.open(file))


OPERATORS: dict[str, Operator] = {
    "identity": Operator(None, lambda image, *_: image, lambda images, *_: images),
    "jpeg": _compressed("JPEG"),
    "webp": _compressed("WEBP"),
    "resize_back": Operator(Limits(0.05, 4), _by_pillow(_resize_back_pixels), _resize_back),
    "crop_zero_fill": Operator(Limits(0.05, 1), _crop_zero_fill_pixels, _crop_zero_fill),
    "dropout": Operator(Limits(0, 1), _dropout_pixels, _dropout),
    "gaussian": Operator(
        Limits(0, 1), _gaussian_pixels, lambda images, _, step: images + step.each(images) * torch.randn_like(images)
    ),
    "blur": Operator(
        Limits(0, 16), _by_pillow(lambda picture, sigma: picture.filter(ImageFilter.GaussianBlur(sigma))), _blur
    ),
    "brightness": Operator(
        Limits(0, 4), _enhanced(ImageEnhance.Brightness), lambda images, _, step: images * step.each(images)
    ),
    "contrast": Operator(Limits(0, 4), _enhanced(ImageEnhance.Contrast), _contrast),
    "gamma": Operator(Limits(0.1, 10), _by_curve(lambda grey, power: grey**power), _gamma),
    "window": Operator(
        Limits(0.05, 1),
        _by_curve(lambda grey, share: (grey - 0.5) / share + 0.5),
        lambda images, _, step: (images - 0.5) / step.each(images) + 0.5,
    ),
    "jitter": Operator(Limits(0, 16), _jitter_pixels, _jitter),
    # None of the following has a differentiable form that would be of use.
    "posterize": Operator(
        Limits(1, 8, whole=True), _by_curve(lambda grey, bits: np.rint(grey * (2**bits - 1)) / (2**bits - 1))
    ),
    "median": Operator(Limits(1, 15, whole=True), _median),
    "equalise": Operator(None, _by_pillow(lambda picture, _: ImageOps.equalize(picture))),
    "invert": Operator(None, _by_curve(lambda grey, _: 1.0 - grey)),
    "text": Operator(None, _text),
    "box": Operator(Limits(0, 1), _box),
    "stripes": Operator(Limits(0, 1), _stripes),
    "bilateral": Operator(Limits(1, 255), _bilateral),
    "jpeg2000": Operator(Limits(1, 1000), _jpeg2000),
    "resize": Operator(Limits(0.05, 4), _resize, geometric=True),
    "crop": Operator(Limits(0.01, 1), _crop, geometric=True),
    "trim": Operator(Limits(0, 1024, whole=True), _trim, geometric=True),
    "rotate": Operator(
        Limits(-180, 180), _by_pillow(lambda image, degrees: image.rotate(degrees, BICUBIC)), geometric=True
    ),
    "flip": Operator(None, lambda image, *_: image[:, ::-1], geometric=True),
    "rotate90": Operator(
        Limits(0, 3, whole=True), lambda image, turns, *_: np.rot90(image, int(turns)), geometric=True
    ),
    "border": Operator(Limits(0, 1), _border, geometric=True),
    "screenshot": Operator(Limits(1, 100, whole=True), _screenshot, geometric=True),
    "stretch": Operator(
        Limits(0.5, 2),
        _by_pillow(lambda image, factor: image.resize((max(1, round(image.width * factor)), image.height), BICUBIC)),
        geometric=True,
    ),
    "shear": Operator(Limits(-1, 1), _shear, geometric=True),
    "perspective": Operator(Limits(0, 0.2), _perspective, geometric=True),
    "bend": Operator(Limits(0, 64), _bend, geometric=True),
    "page": Operator(Limits(0.05, 1), _page, geometric=True),
}
"""Every operator by name.

======================  ============================================================================
identity                nothing
jpeg(quality)           JPEG compression, 1 to 100, standard tables, 4:2:0
webp(quality)           WebP compression with loss, 1 to 100
resize_back(scale)      resized and back, antialiased bilinear
crop_zero_fill(share)   a rectangle of that share of both sides stays in its place, the rest is black
dropout(chance)         each pixel is replaced with the cover's with that probability
gaussian(sigma)         normal noise with that standard deviation, where white is 1
blur(sigma)             Gaussian blur, sigma in pixels
brightness(factor)      values times the factor
contrast(factor)        distance to the mean grey times the factor
gamma(power)            values, where white is 1, to that power
window(share)           the middle share of the grey range stretched to all of it
jitter(pixels)          shifted by up to that, with a quarter of a degree and 0.4 % of scale for each pixel
for attacks only:
posterize(bits)         rounded to that many bits
median(size)            the median of squares of so many pixels a side
equalise                as many pixels of each grey as of any other
invert                  black becomes white
text                    a label burned into the image
box(share)              a white box over that share of the area
stripes(share)          bands of rows of one grey over that share of the area
bilateral(sigma)        bilateral filter of that deviation in grey levels, 10 pixels wide
jpeg2000(ratio)         JPEG 2000 compression to that part of the size
geometric, for attacks only:
resize(factor)          resized, bicubic
crop(share)             a rectangle of that share of the area, anywhere in the image, is all that is left
trim(pixels)            so many rows above and columns to the left are gone
rotate(degrees)         counter-clockwise around the middle, the canvas kept, black corners
flip                    mirrored
rotate90(turns)         by so many times 90 degrees
border(share)           a border of one grey, as wide as that share of the shorter side
screenshot(quality)     a part, resized, with a border, as JPEG
stretch(factor)         resized in width alone
shear(amount)           rows shifted by that part of their distance from the middle row
perspective(share)      each corner moved inside by half of that share of the sides to all of it
bend(pixels)            shifted by up to that, smoothly over 64 pixels
page(share)             at that share of its size on a page of text
======================  ============================================================================
"""
