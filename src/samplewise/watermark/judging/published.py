"""What the paper reports for its four networks, read from its published figure of bit errors."""

from samplewise.watermark.recipe import Recipe

__all__ = ["MEDIANS", "WHAT", "published_median"]

WHAT = "the paper's median (floats, 200 bits, 224 x 224)"
MEDIANS = {None: 0.23, 30.0: 0.275, 40.0: 0.29, 50.0: 0.33}
"""Median bit error on the test images by floor; None is HiDDeN with an image loss in its place."""


def published_median(recipe: Recipe) -> float | None:
    """The paper's number at the floor of ``recipe``, whatever the network, if it has one."""
    return MEDIANS.get(None if recipe.image_loss else recipe.floor)
