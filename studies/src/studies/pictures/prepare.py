"""Every picture of a folder decoded once into a store that training reads from."""

import os
import shutil
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import BinaryIO, get_args

import numpy as np
from numpy.typing import NDArray

from floormark.processes import cores
from samplewise.errors import CheckpointError, ConfigurationError, DataError, OutputError
from samplewise.storage import PARTIAL, clear_partial, ensure_writable, lock, versions
from studies.pictures.decode import decode
from studies.pictures.listing import OFFICIAL_LISTS, Listing, PictureFile, find, find_above, read_list, some
from studies.pictures.split import Rule, Split, merged_patients
from studies.pictures.store import IMAGES, INDEX, SPLIT, Store, content_of

MAX_BAD_FRACTION = 0.01
BLOCK_BYTES = 16 << 20  # of pictures that are decoded before they are written

OnProgress = Callable[[int, int], None]
"""Called with the pictures that are done with and all of them."""
LEFTOVERS = (IMAGES, SPLIT, f"{PARTIAL}*")
"""Files that a killed process can leave."""
Divide = Callable[[Sequence[str], Sequence[str], Sequence[str]], Split | None]


def prepare(
    root: Path | str | Listing,
    out: Path | str,
    *,
    size: int = 224,
    seed: int = 0,
    split: str = "patients",
    workers: int | None = None,
    resume: bool = False,
    watch: OnProgress | None = None,
) -> Store:
    """Decode the pictures of a folder into a store in ``out``, and split them by patient.

    Memory stays flat. The work may be killed at any moment: what it leaves is no store, and the next call begins anew
    in its place. Pictures that cannot be decoded are skipped and listed, unless they are more than one in a hundred.

    Args:
        root: a folder, or what :func:`find` made of one.
        out: a new or empty folder, or one that such work was killed in.
        size: height and width of every picture.
        seed: of the split.
        split: 70, 15 and 15 % of the ``patients``, or the ``official`` lists of ChestX-ray8 that lie by the pictures.
        workers: threads that decode, one for each core if not given.
        resume: open a finished store of the same pictures, size and split if it is there.
        watch: called as the work goes.
    """
    if size < 1 or (workers is not None and workers < 1):
        raise ConfigurationError(f"expected size and workers of 1 or more, got size {size} and workers {workers}")
    listing = root if isinstance(root, Listing) else find(root)
    out = Path(out)
    bad = dict.fromkeys(listing.unlisted, f"no row in {listing.table.name}" if listing.table else "")
    _refuse_bad(listing, bad)
    divide = partial(_divide, listing, split, seed)
    # Tried before the work, so that it does not fail for want of a file after it.
    divide(*([getattr(picture, name) for picture in listing.pictures] for name in ("name", "patient", "name")))
    if (out / INDEX).exists():
        return _finished(out, listing, size, divide, resume=resume)
    if out.exists() and not is_unfinished(out) and (not out.is_dir() or any(out.iterdir())):
        raise CheckpointError(f"{out}: exists and is not a store of pictures; choose an empty or a new folder")
    ensure_writable(out)
    needed, free = len(listing.pictures) * size**2, shutil.disk_usage(out).free
    if free < needed:
        raise OutputError(
            f"the folder {out} has {free / 1e9:.1f} GB free, but the pictures will need {needed / 1e9:.1f} GB: free "
            "some space or choose another folder"
        )
    fingerprint = listing.fingerprint()  # before: a file that is edited meanwhile is told from what it was
    with _unfinished(out) as images:
        contents, converted = _decode_all(listing, images, size, workers or cores(), watch, bad)
        kept = [picture for picture in listing.pictures if picture.name not in bad]
        names, patients = tuple(picture.name for picture in kept), tuple(picture.patient for picture in kept)
        if (parts := divide(names, patients, contents)) is not None:
            parts.write(out / SPLIT)
        store = Store(
            out,
            size=size,
            fingerprint=fingerprint,
            names=names,
            patients=patients,
            contents=tuple(contents),
            findings=tuple(picture.findings for picture in kept) if listing.table else None,
            bad=bad,
            converted=converted,
            versions={**versions(), "pillow": metadata.version("pillow")},
        )
    store.write_index()  # last: with it the store is complete
    return Store.open(out)


def is_unfinished(out: Path) -> bool:
    """Whether ``out`` holds what a killed process left of a store, and nothing else."""
    ours = {path for pattern in LEFTOVERS for path in out.glob(pattern)}
    return not (out / INDEX).exists() and bool(ours) and set(out.iterdir()) == ours


@contextmanager
def _unfinished(out: Path) -> Iterator[BinaryIO]:
    """The file that pixels go to, held by one process; after an error nothing stays."""
    path = out / IMAGES
    held = lock(path, f"{out}: another process is preparing this store; wait for it or end it")
    with os.fdopen(held, "wb") as images:  # closing it lifts the lock
        clear_partial(out)
        (out / SPLIT).unlink(missing_ok=True)
        images.truncate(0)
        try:
            yield images
            images.flush()
            os.fsync(images.fileno())
        except BaseException:
            (out / SPLIT).unlink(missing_ok=True)
            with suppress(PermissionError):  # Windows keeps open files
                path.unlink()
            raise


def _refuse_bad(listing: Listing, bad: Mapping[str, str]) -> None:
    """Stop as soon as too many pictures cannot be used: something is wrong with the data as a whole."""
    total = len(listing.pictures) + len(listing.unlisted)
    if len(bad) > MAX_BAD_FRACTION * total:
        listed = some(f"{name} ({why})" for name, why in bad.items())
        raise DataError(
            f"{listing.root}: at least {len(bad):,} of {total:,} pictures cannot be used, more than "
            f"{MAX_BAD_FRACTION:.0%}: {listed}; mend or remove them"
        )


def _divide(
    listing: Listing, rule: str, seed: int, names: Sequence[str], patients: Sequence[str], contents: Sequence[str]
) -> Split | None:
    """The split of pictures of the listing, None with fewer than three patients: an evaluation needs none."""
    if rule == "patients":
        patients = merged_patients(patients, contents)
        return Split.by_patient(names, patients, seed=seed) if len(set(patients)) > 2 else None
    if rule not in get_args(Rule):
        raise ConfigurationError(f"expected a split by one of {', '.join(get_args(Rule))}, got {rule!r}")
    paths = [find_above(listing.root, name) for name in OFFICIAL_LISTS]
    missing = [name for name, path in zip(OFFICIAL_LISTS, paths, strict=True) if path is None]
    if missing:
        raise DataError(f"{listing.root}: {' and '.join(missing)} not found there or in the two folders above")
    train_val, test = (read_list(path) for path in paths if path is not None)
    return Split.official(names, patients, train_val=train_val, test=test, seed=seed)


def _finished(out: Path, listing: Listing, size: int, divide: Divide, *, resume: bool) -> Store:
    """The store that is there already, if it is the one that was asked for."""
    store = Store.open(out)
    if store.size != size or store.fingerprint != listing.fingerprint():
        which = f"of size {store.size}, not {size}" if store.size != size else "of other pictures"
        raise CheckpointError(f"{out}: holds a store {which}; choose another folder")
    if not resume:
        raise CheckpointError(f"{out}: holds this store already; add --resume to use it, or choose another folder")
    if (wanted := divide(store.names, store.patients, store.contents)) is not None and store.split != wanted:
        raise CheckpointError(
            f"{out}: its split is by {store.split.rule} with seed {store.split.seed}, not by {wanted.rule} with seed "
            f"{wanted.seed}; choose another folder"
        )
    return store


def _decode_all(
    listing: Listing, images: BinaryIO, size: int, workers: int, watch: OnProgress | None, bad: dict[str, str]
) -> tuple[list[str], Counter[str]]:
    """Write all pictures, in order, and add why some cannot be to ``bad``.

    Returns the content of each that is written, and how many were of other kinds than 8-bit grey. Pillow works outside
    Python's lock, so threads do what processes would.
    """

    def attempt(picture: PictureFile) -> tuple[NDArray[np.uint8] | None, str]:
        try:
            return decode(picture.path, size)
        except DataError as error:
            return None, str(error)

    contents, converted = list[str](), Counter[str]()
    block = max(4 * workers, BLOCK_BYTES // size**2)
    watch = watch or (lambda done, total: None)
    watch(0, len(listing.pictures))
    # Each thread that reads a file changes how warnings are shown, and none puts back what it found.
    with warnings.catch_warnings(), ThreadPoolExecutor(workers, thread_name_prefix="decode") as pool:
        for first in range(0, len(listing.pictures), block):
            pictures = listing.pictures[first : first + block]
            for picture, (pixels, found) in zip(pictures, pool.map(attempt, pictures), strict=True):
                if pixels is None:
                    bad[picture.name] = found
                    _refuse_bad(listing, bad)
                else:
                    images.write(np.ascontiguousarray(pixels).data)
                    contents.append(content_of(pixels))
                    converted.update([found] if found != "L" else [])
            watch(first + len(pictures), len(listing.pictures))
    return contents, converted
