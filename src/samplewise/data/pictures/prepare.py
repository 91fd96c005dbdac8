"""Every picture of a folder decoded once into a store that training reads from."""

import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from samplewise.checkpoint import ensure_writable
from samplewise.data.pictures.chest import LISTS, find_above, read_list, some
from samplewise.data.pictures.chunks import Decoders
from samplewise.data.pictures.decode import need_pillow
from samplewise.data.pictures.listing import Listing, find
from samplewise.data.pictures.split import Rule, Split
from samplewise.data.pictures.store import IMAGES, INDEX, JOURNAL, SPLIT, Index, Store
from samplewise.data.pictures.unfinished import Unfinished
from samplewise.errors import CheckpointError, ConfigurationError, DataError, OutputError
from samplewise.provenance import versions

__all__ = ["MAX_BAD_SHARE", "Progress", "TooManyBadError", "Watch", "prepare"]

MAX_BAD_SHARE = 0.01
SAMPLE = 25
SAMPLE_SHARE = 0.05  # of the pictures at most: those of the sample are decoded twice


@dataclass(frozen=True)
class Progress:
    """How far the work is; the first one comes before it begins, from a measured sample."""

    done: int
    total: int
    skipped: int
    seconds_left: float
    """What the rest will take at the speed so far."""
    bytes_total: int
    """Length of the finished store."""


Watch = Callable[[Progress], None]
Divide = Callable[[Sequence[str], Sequence[str]], Split | None]


class TooManyBadError(DataError):
    """So many pictures cannot be used that none should be."""


def prepare(
    root: Path | str | Listing,
    out: Path | str,
    *,
    size: int = 224,
    seed: int = 0,
    split: Rule = "patients",
    workers: int | None = None,
    resume: bool = False,
    watch: Watch | None = None,
) -> Store:
    """Decode the pictures of a folder into a store in ``out``, and split them by patient.

    Memory stays flat and the work may be killed at any moment; with ``resume`` it goes on. Pictures that cannot be
    decoded are skipped and listed in the store, unless they are more than one in a hundred.

    Args:
        root: a folder, or what :func:`find` made of one.
        out: a new or empty folder, or one to go on with.
        size: height and width of every picture.
        seed: of the split.
        split: 70, 15 and 15 % of the ``patients``, or the ``official`` lists of ChestX-ray8 that lie by the pictures.
        workers: threads that decode, one for each core if not given.
        resume: go on with an unfinished store, or open a finished one, of the same pictures and size.
        watch: called before the work begins and then as it goes.

    Raises:
        DataError: there are no pictures, or too many that cannot be decoded.
        CheckpointError: ``out`` holds something else.
    """
    need_pillow()
    if size < 1 or (workers is not None and workers < 1):
        raise ConfigurationError(f"expected size and workers of 1 or more, got size {size} and workers {workers}")
    listing = root if isinstance(root, Listing) else find(root)
    out = Path(out)
    _refuse_bad(listing, {})
    divide = _splitter(listing, split, seed)
    if (out / INDEX).exists():
        return _finished(out, listing, size, divide, resume=resume)
    _open(out, listing, size, resume=resume)
    try:
        with Unfinished(out, fingerprint=listing.fingerprint(), size=size) as store:
            _decode_all(listing, store, workers or _cores(), watch)
            _finish(listing, store, divide)
    except TooManyBadError:
        for name in (IMAGES, JOURNAL):  # with the same files it would end here again
            (out / name).unlink()
        raise
    (out / JOURNAL).unlink()
    return Store.open(out)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _refuse_bad(listing: Listing, undecodable: Mapping[str, str]) -> None:
    """Stop as soon as too many pictures cannot be used: something is wrong with the data as a whole."""
    total = len(listing.pictures) + len(listing.unlisted)
    bad = {**_without_row(listing), **undecodable}
    if len(bad) > MAX_BAD_SHARE * total:
        listed = some(f"{name} ({why})" for name, why in bad.items())
        raise TooManyBadError(
            f"{listing.root}: at least {len(bad):,} of {total:,} pictures cannot be used, more than "
            f"{MAX_BAD_SHARE:.0%}: {listed}; mend or remove them"
        )


def _without_row(listing: Listing) -> dict[str, str]:
    return dict.fromkeys(listing.unlisted, f"no row in {listing.table.name}" if listing.table else "")


def _splitter(listing: Listing, rule: Rule, seed: int) -> Divide:
    """What will split the pictures, tried before the work, so that it does not fail for want of a file after it."""
    if rule == "patients":
        # Of one or two patients there is no split, and to judge a network none is needed.
        return lambda names, patients: Split.by_patient(names, patients, seed=seed) if len(set(patients)) > 2 else None
    paths = [find_above(listing.root, name) for name in LISTS]
    missing = [name for name, path in zip(LISTS, paths, strict=True) if path is None]
    if missing:
        raise DataError(f"{listing.root}: {' and '.join(missing)} not found there or in the two folders above")
    train_val, test = (read_list(path) for path in paths if path is not None)

    def official(names: Sequence[str], patients: Sequence[str]) -> Split:
        return Split.official(names, patients, train_val=train_val, test=test, seed=seed)

    official([p.name for p in listing.pictures], [p.patient for p in listing.pictures])
    return official


def _finished(out: Path, listing: Listing, size: int, divide: Divide, *, resume: bool) -> Store:
    """The store that is there already, if it is the one that was asked for."""
    store = Store.open(out)
    if store.size != size or store.index.fingerprint != listing.fingerprint():
        which = f"of size {store.size}, not {size}" if store.size != size else "of other pictures"
        raise CheckpointError(f"{out}: holds a store {which}; choose another folder")
    if not resume:
        raise CheckpointError(f"{out}: holds this store already; add --resume to use it, or choose another folder")
    if (wanted := divide(store.names, store.patients)) is not None and store.split != wanted:
        raise CheckpointError(
            f"{out}: its split is by {store.split.rule} with seed {store.split.seed}, not by {wanted.rule} with seed "
            f"{wanted.seed}; choose another folder"
        )
    (out / JOURNAL).unlink(missing_ok=True)  # left by a kill right after the last step
    return store


def _open(out: Path, listing: Listing, size: int, *, resume: bool) -> None:
    """Make ``out`` ready for an unfinished store, or see that it holds one."""
    if (out / JOURNAL).exists():
        if not resume:
            raise CheckpointError(f"{out}: holds an unfinished store; add --resume to go on, or choose another folder")
    elif out.exists() and (not out.is_dir() or set(out.iterdir()) - set(_torn(out))):
        raise CheckpointError(f"{out}: exists and is not a store of pictures; choose an empty or a new folder")
    else:
        ensure_writable(out)
        Unfinished.begin(out, fingerprint=listing.fingerprint(), size=size)


def _torn(out: Path) -> list[Path]:
    """What a kill in the middle of a write left behind."""
    patterns = (".probe.*", *(f".{name}.*.tmp" for name in (JOURNAL, SPLIT, INDEX)))
    return [path for pattern in patterns for path in out.glob(pattern)]


def _decode_all(listing: Listing, store: Unfinished, workers: int, watch: Watch | None) -> None:
    total, area = len(listing.pictures), store.size**2
    todo = listing.pictures[store.read :]
    needed, free = len(todo) * area, shutil.disk_usage(store.folder).free
    if free < needed:
        raise OutputError(
            f"the folder {store.folder} has {free / 1e9:.1f} GB free, but the pictures will need "
            f"{needed / 1e9:.1f} GB: free some space or choose another folder"
        )

    def tell(seconds_left: float) -> None:
        if watch is not None:
            skipped = len(store.bad) + len(listing.unlisted)
            watch(Progress(store.read, total, skipped, seconds_left, (total - len(store.bad)) * area))

    with Decoders.start(workers, store.size) as decoders:
        if watch is not None:
            sample = min(SAMPLE, max(1, int(SAMPLE_SHARE * len(todo))))
            tell(decoders.seconds_each(todo, sample) * len(todo))
        began, before = time.monotonic(), store.read
        for chunk in decoders.decode(todo):
            store.append(chunk)
            _refuse_bad(listing, store.bad)
            tell((time.monotonic() - began) / (store.read - before) * (total - store.read))
    store.commit()


def _finish(listing: Listing, store: Unfinished, divide: Divide) -> None:
    """Write split and index; the index comes last, since with it the store is complete."""
    for path in _torn(store.folder):
        path.unlink()
    kept = [picture for picture in listing.pictures if picture.name not in store.bad]
    names, patients = tuple(picture.name for picture in kept), tuple(picture.patient for picture in kept)
    if (split := divide(names, patients)) is not None:
        split.write(store.folder / SPLIT)
    Index(
        size=store.size,
        fingerprint=listing.fingerprint(),
        names=names,
        patients=patients,
        findings=tuple(picture.findings for picture in kept) if listing.table else None,
        bad={**_without_row(listing), **store.bad},
        converted=store.converted,
        versions={**versions(), "pillow": metadata.version("pillow")},
    ).write(store.folder)
