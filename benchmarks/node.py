"""What the DICOM node keeps of its promises: none lost and none twice, its speed, its memory, the syntaxes it takes.

    python benchmarks/node.py kills
    python benchmarks/node.py speed
    python benchmarks/node.py memory --images 10000
    python benchmarks/node.py syntaxes --data pydicom_data/data_store/data

With real peers, each a process: dcmtk's ``storescu`` and ``storescp``, and Orthanc. Results go to ``results/node``.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from common import ROOT, begin, keep, options, table
from pydicom import uid
from pydicom.data import get_testdata_files
from pydicom.filereader import read_file_meta_info
from pynetdicom import AE, _config

from floormark import Watermarker
from floormark.files.marking import FileMarker
from floormark.options import EmbedOptions
from floormark.payload import Payload
from floormark.threads import limit_threads

sys.path[:0] = [str(ROOT / "floormark" / "tests"), str(ROOT / "tests")]
from dicom_files import make  # noqa: E402
from dicom_peers import SECONDS, TEXT, Archive, Node, images, storescu, wait_for  # noqa: E402
from natural_images import natural_image  # noqa: E402
from node_kills import through_dcmtk, through_orthanc  # noqa: E402

PACKAGES = ("floormark", "pynetdicom", "dicomweb-client")
SIDES = (256, 1024)
STUDY = ("StudyInstanceUID", "SeriesInstanceUID")
SAMPLES = 40  # of the memory
BATCH = 50  # images in an association, for the memory


def kills(chosen: argparse.Namespace, place: Path) -> tuple[dict[str, Any], list[str]]:
    """SIGKILL in the middle, again and again."""
    runs = [
        ("storescu to storescp", through_dcmtk, chosen.images or 1000, 50),
        ("Orthanc to Orthanc", through_orthanc, chosen.orthanc_images, chosen.orthanc_kills),
    ]
    found = {}
    for name, run, count, times in runs:
        began = time.perf_counter()
        found[name] = run(place / name.replace(" ", "-"), count, times)
        found[name]["seconds"] = round(time.perf_counter() - began)
    head = [
        "Peers",
        "Images",
        "Kills in the middle",
        "Instances at the target",
        "Lost",
        "Twice",
        "C-STOREs at the target",
    ]
    rows = [
        (name, *(run[key] for key in ("images", "kills_in_the_middle", "instances", "lost", "twice")),
         run.get("stores_at_the_target", "not counted"))
        for name, run in found.items()
    ]  # fmt: skip
    told = (
        "The node is killed by SIGKILL while images pass through it, and started again. Peers send again what got no "
        "answer of success. Instances at the target are told by their SOP Instance UID, and counted by the original "
        "that they name. A C-STORE more than instances is one that the target had got already: the same instance."
    )
    return found, ["# The node, killed", "", told, "", *table(head, rows)]


def speed(chosen: argparse.Namespace, place: Path) -> tuple[dict[str, Any], list[str]]:
    """Images a second, from the first C-STORE to the last at the target."""
    os.environ["TCP_NODELAY"] = "1"  # else dcmtk's programs mostly wait for each other's packets
    found: dict[str, Any] = {"load_before": os.getloadavg()[0]}
    rows = []
    for side in SIDES:
        count = (chosen.images or 200) // (1 if side == SIDES[0] else 5)
        files = images(place / f"{side}", count, side)
        halves = [place / f"{side}-{half}" for half in range(2)]
        for number, path in enumerate(files):
            halves[number % 2].mkdir(exist_ok=True)
            os.link(path, halves[number % 2] / path.name)
        rates = {"marking alone, one process": count / marking(files, place / f"marked{side}")}
        with Archive(place / f"alone{side}") as archive:
            rates["storescu to storescp alone"] = count / send([place / f"{side}"], archive.port, called="ARCHIVE")
        for associations, folders in ((1, [place / f"{side}"]), (2, halves)):
            with (
                Archive(place / f"archive{side}-{associations}") as archive,
                Node(place / f"node{side}-{associations}", "--forward", archive.target, "--workers", "2") as node,
            ):
                storescu(node.port, files[0])  # both processes are warm
                node.wait("sent", 1)
                began = time.perf_counter()
                send(folders, node.port, called="FLOORMARK")
                node.wait("sent", count + 1)
                rates[f"through the node, associations: {associations}"] = count / (time.perf_counter() - began)
        found[f"{side} x {side}"] = {"images": count, "images_a_second": rates}
        rows += [(f"{side} x {side}", count, name, f"{rate:.1f}") for name, rate in rates.items()]
    found["load_after"] = os.getloadavg()[0]
    told = (
        f"8-bit images, {os.cpu_count()} cores, two processes that mark, everything on one machine, "
        "dcmtk with TCP_NODELAY=1. Other work ran "
        f"beside it: load average {found['load_before']:.1f} before and {found['load_after']:.1f} after."
    )
    return found, ["# Images a second", "", told, "", *table(["Size", "Images", "Way", "Images a second"], rows)]


def marking(files: list[Path], folder: Path) -> float:
    """Mark files as the node's processes do, without any of the node; the seconds."""
    marker = FileMarker(Watermarker.load(), Payload.from_text(TEXT), EmbedOptions(psnr=40.0))
    limit_threads(1)
    marker.mark_file(files[0], folder / "warm.dcm")
    began = time.perf_counter()
    for path in files:
        marker.mark_file(path, folder / path.name)
    return time.perf_counter() - began


def send(folders: list[Path], port: int, *, called: str) -> float:
    """Send folders, each by a storescu of its own; the seconds."""
    began = time.perf_counter()
    with ThreadPoolExecutor(len(folders)) as pool:
        for ended in pool.map(lambda folder: storescu(port, "+sd", "-nh", folder, called=called), folders):
            if ended.returncode:
                raise SystemExit(f"storescu ended with {ended.returncode}: {ended.stderr[-300:]}")
    return time.perf_counter() - began


def memory(chosen: argparse.Namespace, place: Path) -> tuple[dict[str, Any], list[str]]:
    """Resident memory of the node and its processes while images pass."""
    senders, total = 2, chosen.images or 10_000
    pictures = [natural_image(height=128, width=128, seed=seed) for seed in range(100)]
    folders = [place / f"in{number}" for number in range(-(-total // BATCH))]
    for number in range(total):  # each another
        folders[number // BATCH].mkdir(exist_ok=True)
        shifted = np.roll(pictures[number % 100], number // 100, axis=1)
        make(folders[number // BATCH] / f"{number}.dcm", shifted, PatientID="4711", **dict.fromkeys(STUDY, "1.2"))
    samples: list[dict[str, float]] = []

    def send_each(mine: list[Path], port: int) -> None:
        for folder in mine:
            send([folder], port, called="FLOORMARK")

    with (
        Archive(place / "archive", "--ignore") as archive,
        Node(place / "node", "--forward", archive.target, "--workers", "2") as node,
        ThreadPoolExecutor(senders) as pool,
    ):
        sending = [pool.submit(send_each, folders[number::senders], node.port) for number in range(senders)]
        process = psutil.Process(node.process.pid)
        began = time.perf_counter()
        while not all(each.done() for each in sending):
            passed = node.log.read_bytes().count(b'"event": "sent"')
            if passed >= total * (len(samples) + 1) / SAMPLES:
                workers = sum(each.memory_info().rss for each in process.children(recursive=True))
                own = process.memory_info().rss
                samples.append({"images": passed, "node_mb": own / 1e6, "workers_mb": workers / 1e6,
                                "open_files": process.num_fds(), "threads": process.num_threads()})  # fmt: skip
            time.sleep(0.5)
        for each in sending:
            each.result()
        marked = len(node.events("marked"))
        wait_for(lambda: len(node.events("sent")) >= marked, 10 * SECONDS)
        seconds = time.perf_counter() - began
    found = {"images": total, "marked": marked, "seconds": round(seconds), "samples": samples}
    some = samples[:: max(1, len(samples) // 8)] + samples[-1:]
    rows = [
        (f"{one['images']:,}", f"{one['node_mb']:.0f}", f"{one['workers_mb']:.0f}", one["open_files"], one["threads"])
        for one in some
    ]
    told = (
        f"{total:,} images of 128 x 128, each another, by {senders} storescu at once, {BATCH} in an association, in "
        f"{seconds:.0f} s; {marked:,} were marked."
    )
    head = ["Sent", "The node, MB", "Two processes that mark, MB", "Open files", "Threads"]
    return found, ["# Memory", "", told, "", *table(head, rows)]


ENCODERS = (
    "dcmconv +ti",
    "dcmconv +te",
    "dcmconv +td",
    "dcmcrle",
    "dcmcjpeg +e1",
    "dcmcjpeg +el",
    "dcmcjpeg +eb",
    "dcmcjpls",
)
"""Programs of dcmtk that write an image in other syntaxes."""


def syntaxes(chosen: argparse.Namespace, place: Path) -> tuple[dict[str, Any], list[str]]:
    """What becomes of pydicom's test files, and of one image in other encodings, by transfer syntax."""
    names = {path.name: path for path in ([] if chosen.data is None else sorted(chosen.data.rglob("*.dcm")))}
    names |= {Path(name).name: Path(name) for name in get_testdata_files("*.dcm")}
    (plain,) = images(place / "made", 1, 256)
    made = [place / "made" / f"made{number}.dcm" for number in range(len(ENCODERS))]
    for path, program in zip(made, ENCODERS, strict=True):
        subprocess.run([*program.split(), str(plain), str(path)], check=True)
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    reasons: defaultdict[str, Counter[str]] = defaultdict(Counter)
    _config.STORE_SEND_CHUNKED_DATASET = True  # as they are
    with Archive(place / "archive") as archive, Node(place / "node", "--forward", archive.target) as node:
        for path in [*sorted(names.values()), *made]:
            kind = "made" if path in made else "files"
            try:
                meta = read_file_meta_info(path)
                contents = meta.MediaStorageSOPClassUID, meta.TransferSyntaxUID
                syntax = uid.UID(contents[1]).name
            except Exception:  # test data that is broken on purpose
                continue
            counts[syntax][kind] += 1
            sender = AE("BENCHMARK")
            sender.dimse_timeout = SECONDS  # many frames take a while
            sender.add_requested_context(*contents)
            association = sender.associate("127.0.0.1", node.port, ae_title="FLOORMARK")
            if not association.is_established:
                reasons[syntax]["class or syntax not accepted"] += 1
                continue
            answer = association.send_c_store(path)
            association.release()
            if "Status" not in answer:
                reasons[syntax]["no answer"] += 1
                continue
            counts[syntax][f"{kind} received"] += 1
            if answer.Status == 0:
                counts[syntax][f"{kind} marked"] += 1
            else:
                reasons[syntax][kind_of(node.events("refused")[-1]["reason"])] += 1
        wait_for(lambda: len(node.events("sent", "failed")) >= len(node.events("marked")))
        not_taken = [told["reason"] for told in node.events("failed")]
    found = {name: {**counts[name], "refused": dict(reasons[name])} for name in sorted(counts)}
    keys = ("files", "files received", "files marked", "made", "made marked")
    rows = [
        (name, *(counts[name][key] for key in keys),
         "; ".join(f"{why} ({number})" for why, number in reasons[name].most_common()))
        for name in sorted(counts)
    ]  # fmt: skip
    head = ["Transfer syntax", "Files", "Received", "Marked", "Made to order", "Marked", "Not marked, since"]
    told = (
        "The DICOM files of pydicom and of pydicom-data, broken ones among them, sent to the node as they are; and one "
        f"image of 256 x 256, made to order by {', '.join(sorted({each.split()[0] for each in ENCODERS}))}."
    )
    return {"syntaxes": found, "not_taken_by_storescp": not_taken}, [
        "# Transfer syntaxes",
        "",
        told,
        "",
        *table(head, rows),
    ]


def kind_of(reason: str) -> str:
    """A reason without what it says of one file."""
    kinds = {
        "pixel data": "no pixel data",
        "palette": "a palette, which is marked as RGB alone",
        "at least": "too small",
        "too small": "too small",
        "big endian": "big endian",
        "bits,": "its bits",
        "bits stored": "its bits",
        "bits a pixel": "values beyond its bits",
        "MONOCHROME": "its colours",
        "decoded": "cannot be decoded",
        "torn": "torn",
        "another image": "marked, it would be taken for another image",
        "no floor from": "too small, flat or noisy for any floor",
        "highest floor": "the floor is too high for it",
        "got none": "an attribute is missing",
    }
    return next((told for token, told in kinds.items() if token in reason), reason[:60])


def main() -> None:
    parts = {each.__name__: each for each in (kills, speed, memory, syntaxes)}
    parser = options(__doc__, images=None, orthanc_images=1000, orthanc_kills=50)
    parser.set_defaults(out=ROOT / "results" / "node")
    parser.add_argument("part", choices=parts)
    parser.add_argument("--data", type=Path, help="more DICOM files, for syntaxes")
    chosen = begin(parser)
    with tempfile.TemporaryDirectory() as folder:
        found, page = parts[chosen.part](chosen, Path(folder))
    first = subprocess.run(["storescu", "--version"], capture_output=True, text=True, check=False).stdout.split("\n")[0]
    keep(f"{chosen.part}.py", chosen, {**found, "dcmtk": first.strip("$ ")}, page, PACKAGES)


if __name__ == "__main__":
    main()
