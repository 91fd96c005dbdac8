"""The readings of ``watermark_attacks`` summed up, as numbers and as a page."""

import statistics
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from typing import Any

import published
from attack_kinds import KINDS
from common import table
from scipy.stats import binom
from workfile import Record

FALSE = 1e-6
"""The share of false positives at which true ones are counted."""
GROUPS = {
    "values": "What changes values",
    "X-rays' own": "What clinics do",
    "geometry": "What moves the image, not undone",
    "together": "Several together",
    "edits": "What people do to pictures",
}


def summary(found: Iterable[Record], ours: str) -> dict[str, Any]:
    """Counts by tool and floor: of marking, and of reading after each attack."""
    arms: defaultdict[str, dict[tuple[str, str], Record]] = defaultdict(dict)
    for each in found:  # marked twice, an image counts once
        arm = f"{ours}, {each['floor']:g} dB" if each["tool"] == ours else each["tool"]
        arms[arm][each["kind"], each["image"]] = each
    return {"tools": {arm: _arm(list(by_kind.values())) for arm, by_kind in sorted(arms.items())}}


def _arm(found: list[Record]) -> dict[str, Any]:
    marked = [each for each in found if each["kind"] == "marking"]
    quality = [each["psnr"] for each in marked if "psnr" in each]
    patches = [each["patch_psnr"] for each in marked if each.get("patch_psnr") is not None]
    return {
        "marked": len(quality),
        "refused": sum(each.get("refused", False) for each in marked),
        "psnr": {"lowest": min(quality), "mean": statistics.fmean(quality)} if quality else None,
        "lowest_patch_psnr": min(patches, default=None),
        "seconds_to_mark": statistics.fmean(each["seconds"] for each in marked) if marked else None,
        "attacks": {name: _reading(some) for name in KINDS if (some := [e for e in found if e["kind"] == name])},
    }


def _reading(found: list[Record]) -> dict[str, Any]:
    """Ours is sure by the chance it states, a peer that says nothing of the kind by how many bits are right."""
    told = [each for each in found if "right_bits" in each]
    sure = [each["exact"] and each["chance"] <= FALSE for each in found if "chance" in each]
    sure += [each["right_bits"] >= _enough(each["bits"]) for each in told]
    return {
        "images": len(found),
        "exact": sum(each["exact"] for each in found),
        "wrong": sum(each["wrong"] for each in found),
        "true_positives": sum(sure),
        "right_bits": statistics.fmean(each["right_bits"] / each["bits"] for each in told) if told else None,
        "seconds": statistics.fmean(each["seconds"] for each in found),
    }


@cache
def _enough(bits: int) -> int:
    """So many bits of a known message are right by chance in one of a million images."""
    return int(binom.isf(FALSE, bits, 0.5)) + 1


def page(found: dict[str, Any]) -> list[str]:
    tools = found["tools"]
    ours = {name: arm for name, arm in tools.items() if arm["attacks"] and "dB" in name}
    peers = {name: arm for name, arm in tools.items() if name not in ours}
    wrong, read = (sum(e[key] for arm in ours.values() for e in arm["attacks"].values()) for key in ("wrong", "images"))
    sizes = " to ".join(dict.fromkeys(f"{found[size][1]} x {found[size][0]}" for size in ("smallest", "largest")))
    photos = found["photos"]
    what = "colour pictures that come with scikit-image and scikit-learn," if photos else "X-rays"
    lines = [
        f"# What a message survives{' in colour pictures' if photos else ''}",
        "",
        f"{found['images']} {what} of {sizes} pixels, {found['bytes']} bytes in each, never the same; "
        f"the network {found['model']}. Exact messages of the images that were marked, and the mean processor seconds "
        "of a reading, at each floor. Nothing is undone before reading, and the reader is told nothing. "
        f"Wrong messages: **{wrong} in {read:,} readings**. In brackets, where they are fewer: messages that are exact "
        "and that the tool holds for chance in at most one of a million images.",
        "",
        *table(["", *ours], _quality(ours)),
        "",
    ]
    for group, title in GROUPS.items():
        names = [name for name, kind in KINDS.items() if kind.group == group]
        if rows := _rows(names, ours, _cells):
            lines += [f"## {title}", "", *table(["Attack", *_heads(ours)], rows), ""]
    if peers:
        lines += [
            "## Other tools",
            "",
            "The same images, as many as the table says, and the same attacks; they are told the length of the "
            "message, of which rivaGan holds 4 bytes. None keeps a floor, so look at the PSNR first. Exact messages, "
            "then percent of right bits (50 is chance), then images in which so many bits of the known message are "
            "right as chance gives in one of a million. Every message that is not exact is "
            "returned with no word of doubt, unless the tool fails.",
            "",
            *table(["", *peers], _quality(peers)),
            "",
            *table(["Attack", *peers], _rows(list(KINDS), peers, lambda each: [_peer(each)])),
            "",
        ]
    return [*lines, *published.page()]


def _quality(arms: dict[str, Any]) -> list[list[str]]:
    each = list(arms.values())
    rows = [
        ["marked", *(f"{arm['marked']}" for arm in each)],
        ["refused", *(f"{arm['refused']}" for arm in each)],
        ["PSNR, lowest", *(f"{arm['psnr']['lowest']:.2f}" if arm["psnr"] else "-" for arm in each)],
        ["PSNR, mean", *(f"{arm['psnr']['mean']:.2f}" if arm["psnr"] else "-" for arm in each)],
        ["seconds to mark", *(f"{arm['seconds_to_mark']:.2f}" if arm["psnr"] else "-" for arm in each)],
    ]
    if any(arm["lowest_patch_psnr"] is not None for arm in each):
        kept = (arm["lowest_patch_psnr"] for arm in each)
        rows.append(["floor that every patch keeps", *("-" if floor is None else f"{floor:.2f}" for floor in kept)])
    return rows


def _heads(arms: dict[str, Any]) -> list[str]:
    return [head for arm in arms for head in (arm.partition(", ")[2], "s")]


def _rows(names: list[str], arms: dict[str, Any], cells: Any) -> list[list[str]]:
    """One for each attack that some arm has met."""
    rows = []
    for name in names:
        met = [arm["attacks"].get(name) for arm in arms.values()]
        if any(met):
            rows.append([name, *(cell for each in met for cell in cells(each))])
    return rows


def _cells(each: dict[str, Any] | None) -> list[str]:
    if each is None:
        return ["-", "-"]
    text = f"{each['exact']} of {each['images']}"
    if each["true_positives"] < each["exact"]:
        text += f" ({each['true_positives']})"
    if each["wrong"]:
        text += f", **{each['wrong']} wrong**"
    return [text, f"{each['seconds']:.2f}"]


def _peer(each: dict[str, Any] | None) -> str:
    if each is None:
        return "-"
    return f"{each['exact']} of {each['images']}; {100 * each['right_bits']:.0f} %; {each['true_positives']}"
