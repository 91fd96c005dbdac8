"""Table II of the paper (arXiv 2601.16812), transcribed: AUROC of its classifier, and what watermarks change."""

from typing import NamedTuple

from samplewise.watermark.recipe import Recipe

__all__ = ["TABLE_TWO", "PaperRow", "column_of", "mean"]


class PaperRow(NamedTuple):
    """One row of Table II."""

    base: float
    """AUROC on the original images."""
    hidden: float
    """Signed difference for images marked by HiDDeN with an image loss; below, under a PSNR floor in dB."""
    floor30: float
    floor40: float
    floor50: float


TABLE_TWO: dict[str, PaperRow] = {
    "Atelectasis": PaperRow(0.771, -0.077, -0.018, 0.000, 0.001),
    "Cardiomegaly": PaperRow(0.883, -0.064, -0.013, -0.001, 0.000),
    "Effusion": PaperRow(0.832, -0.054, -0.009, -0.001, -0.001),
    "Infiltration": PaperRow(0.710, -0.038, -0.001, 0.000, 0.000),
    "Mass": PaperRow(0.813, -0.114, -0.021, -0.001, 0.000),
    "Nodule": PaperRow(0.764, -0.091, -0.023, 0.001, 0.000),
    "Pneumonia": PaperRow(0.711, -0.054, -0.010, -0.001, 0.000),
    "Pneumothorax": PaperRow(0.881, -0.158, -0.015, -0.001, 0.000),
    "Consolidation": PaperRow(0.749, -0.080, -0.015, 0.000, 0.000),
    "Edema": PaperRow(0.850, -0.036, -0.004, 0.000, -0.001),
    "Emphysema": PaperRow(0.910, -0.200, -0.016, -0.002, 0.000),
    "Fibrosis": PaperRow(0.840, -0.090, -0.010, 0.001, 0.000),
    "Pleural_Thickening": PaperRow(0.781, -0.066, -0.009, -0.001, 0.000),
    "Hernia": PaperRow(0.858, -0.102, -0.021, 0.002, 0.001),
}


def column_of(recipe: Recipe) -> str | None:
    """The paper's column of a run's configuration; None if it has none, as for another network than HiDDeN."""
    if recipe.network != "hidden" or recipe.diagnosis is not None:
        return None
    return "hidden" if recipe.image_loss else {30.0: "floor30", 40.0: "floor40", 50.0: "floor50"}.get(recipe.floor)


def mean(column: str) -> float:
    """Mean of a column over all pathologies."""
    values = [float(getattr(row, column)) for row in TABLE_TWO.values()]
    return sum(values) / len(values)
