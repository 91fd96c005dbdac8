"""A node that is killed again and again while images pass through it, and what arrived in the end."""

import random
import time
import urllib.error
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from dicom_peers import SECONDS, Archive, Node, Orthanc, free_port, images, sources, storescu, uids, wait_for

SENDERS = 2
PAUSE = 0.1  # seconds before a peer tries again


def survive(
    folder: Path,
    senders: Sequence[Callable[[], None]],
    arguments: Sequence[str | Path],
    port: int,
    count: int,
    kills: int,
) -> list[int]:
    """Kill the node while ``senders`` send ``count`` images; how many were marked by then, for each kill in the middle.

    Args:
        folder: of the node.
        senders: each sends its part and ends when all of it was answered with success.
        arguments: of the node.
        port: of the node.
        count: of images.
        kills: how often the node is killed.
    """
    draw = random.Random(0)
    marked, middle = 0, []
    with ThreadPoolExecutor(len(senders)) as pool:
        sending = [pool.submit(send) for send in senders]

        def settled() -> bool:
            return all(each.done() for each in sending)

        for _ in range(kills):
            with Node(folder, *arguments, "--workers", "2", port=port) as node:
                enough = draw.randint(0, round(1.2 * count / kills))  # at any time, and not too soon done
                wait_for(lambda: settled() or len(node.events("marked")) >= enough, 10 * SECONDS)  # noqa: B023
                time.sleep(0.3 * draw.random())  # of the time that one image takes
                if not settled():
                    middle.append(marked + len(node.events("marked")))
                node.kill()
                marked += len(node.events("marked"))
                assert not [told for told in node.events("refused") if told["status"] != "A700"]
        with Node(folder, *arguments, "--workers", "2", port=port) as node:
            for each in sending:
                each.result()
            wait_for(lambda: not list((node.queue / "outgoing").glob("*.dcm")))
            assert node.end() == 0
    assert not any(
        path.is_file() for part in ("receiving", "outgoing", "failed") for path in (node.queue / part).iterdir()
    )
    return middle


def storescu_until_done(folder: Path, port: int) -> None:
    """Send a folder with dcmtk's own record of what was answered with success, until that is all of it."""
    while left := [*folder.glob("*.dcm"), *folder.glob("*.bad")]:
        for path in left:
            path.rename(path.with_suffix("" if path.suffix == ".bad" else ".dcm"))
        storescu(port, "+sd", "+sp", "*.dcm", "+rn", folder)
        time.sleep(PAUSE)


def orthanc_until_done(orthanc: Orthanc, instances: list[str]) -> None:
    """Have Orthanc send images until each was answered with success."""
    left = list(instances)
    while left:
        try:
            orthanc.rest("/modalities/node/store", left[-1])
            left.pop()
        except urllib.error.HTTPError:
            time.sleep(PAUSE)


def through_dcmtk(folder: Path, count: int, kills: int, *arguments: str | Path) -> dict[str, Any]:
    """From ``storescu`` to ``storescp``."""
    port = free_port()
    parts = [folder / f"part{number}" for number in range(SENDERS)]
    files = images(folder / "in", count)
    sent = uids(files)
    for number, path in enumerate(files):
        part = parts[number % SENDERS]
        part.mkdir(exist_ok=True)
        path.rename(part / path.name)
    senders = [partial(storescu_until_done, part, port) for part in parts]
    with Archive(folder / "archive") as archive:
        middle = survive(folder / "node", senders, ["--forward", archive.target, *arguments], port, count, kills)
        arrived = sources(archive.received)
        return counts(sent, arrived, middle) | {"stores_at_the_target": archive.requests}


def through_orthanc(folder: Path, count: int, kills: int) -> dict[str, Any]:
    """From Orthanc to Orthanc."""
    port = free_port()
    modalities = {"node": {"AET": "FLOORMARK", "Host": "127.0.0.1", "Port": port}}
    files = images(folder / "in", count)
    with Orthanc(folder / "sender", modalities=modalities) as sender, Orthanc(folder / "archive") as archive:
        each = [sender.rest("/instances", path.read_bytes())["ID"] for path in files]
        senders = [partial(orthanc_until_done, sender, each[number::SENDERS]) for number in range(SENDERS)]
        middle = survive(folder / "node", senders, ["--forward", archive.target], port, count, kills)
        return counts(uids(files), sources(archive.fetch(folder / "fetched")), middle)


def counts(sent: Any, arrived: Any, middle: list[int]) -> dict[str, Any]:
    """What was sent beside the instances that arrived, which name their originals."""
    return {
        "images": len(sent),
        "kills_in_the_middle": len(middle),
        "marked_at_the_last_kill": middle[-1],
        "instances": sum(arrived.values()),
        "lost": len(sent - arrived),
        "twice": sum(number - 1 for number in arrived.values()),
        "foreign": len(set(arrived) - set(sent)),
    }
