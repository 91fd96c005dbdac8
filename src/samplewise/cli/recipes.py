"""``--recipe FILE.toml``: the settings of a training run in a file, and the whole of them left in the run's folder."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = ["RECIPE", "RecipeFile", "given_settings", "keep_recipe"]

RECIPE = "recipe.toml"
RecipeFile = Annotated[
    Path | None,
    typer.Option("--recipe", help="TOML file of settings; options given beside it come first. A run leaves one."),
]


def given_settings(recipe: Path | None, kind: type[Any], apart: Collection[str], **options: Any) -> dict[str, Any]:
    """What differs from the defaults of ``kind``: what the file sets, then the options that were given.

    Args:
        recipe: the file, if there is one.
        kind: the dataclass of the settings.
        apart: its fields that follow from the data, and that no file may set.
        options: by field; None for those that were not given.
    """
    from samplewise.data.recipe_file import toml_values

    stored = {} if recipe is None else toml_values(recipe, kind, apart=apart)
    return {**stored, **{name: value for name, value in options.items() if value is not None}}


def keep_recipe(folder: Path, settings: Any, apart: Collection[str]) -> None:
    """Write the settings where ``--recipe`` can take them from for another run."""
    from samplewise.data.recipe_file import toml_of
    from samplewise.disk import write_text

    write_text(folder / RECIPE, toml_of(settings, apart=apart))
