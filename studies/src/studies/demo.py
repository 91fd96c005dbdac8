"""The demo: fewest bits with a PSNR floor under every block, one constrained run beside five fixed weights."""

import base64
import html
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from samplewise.storage import ensure_writable, provenance, write_json, write_text
from studies.compression.arms import Arm, train
from studies.compression.blocks import PICTURES, Parts, load
from studies.compression.codec import Codec
from studies.compression.figures import DecodedPicture, decode_picture, draw_beside, draw_front, draw_prices, prices
from studies.compression.study import Row, bits_at, evaluate
from studies.records import markdown_table

FLOOR, STEPS, TRAIN = 30.0, 700, 65_536
OURS = Arm("penalty", 1200.0)
FIXED = tuple(Arm("fixed", weight) for weight in (60.0, 100.0, 150.0, 200.0, 300.0))
RESULT, REPORT = "demo.json", "report.html"
HEADINGS = ("Run", "Bits a block", "Unseen blocks at 30 dB", "95% interval", "Worst block")
FIGURES = ("picture", "front", "prices")


def run_demo(
    out: Path | str = "demo",
    *,
    seed: int = 0,
    steps: int = STEPS,
    blocks: int = TRAIN,
    note: Callable[[str], None] = lambda text: None,
) -> tuple[dict[str, Any], str]:
    """Train on so many blocks, evaluate on unseen ones, and write the table, the figures and a page.

    Returns:
        The numbers as plain values, and what they say.
    """
    began = time.perf_counter()
    out = ensure_writable(Path(out))
    parts = load(PICTURES, seed, train=blocks)
    codecs, rows = {}, {}
    for number, arm in enumerate((OURS, *FIXED), start=1):
        note(f"run {number} of {1 + len(FIXED)}: {arm}, {steps:,} steps")
        codecs[arm] = train(arm, parts, FLOOR, seed=seed, steps=steps)
        rows[arm] = evaluate(arm, codecs[arm], parts.test, "test", seed)
    rival = _rival(rows)
    said = words(rows, rival)
    table = markdown_table([HEADINGS, *map(_cells, rows.values())])
    figures = out / "figures"
    shutil.rmtree(figures, ignore_errors=True)
    figures.mkdir()
    _draw(parts, codecs, rows, rival, figures)
    seconds = round(time.perf_counter() - began, 1)
    result = {
        "rows": [asdict(row) for row in rows.values()],
        "rival": str(rival),
        "said": said,
        "seconds": seconds,
        "provenance": provenance(seed=seed),
    }
    write_json(out / RESULT, result)
    write_text(out / "table.md", f"{table}\n")
    write_text(out / REPORT, page(said, list(rows.values()), figures))
    return result, f"{table}\n\n" + "\n".join(said) + f"\n{out / REPORT} shows it; {seconds:.0f} s"


def _rival(rows: dict[Arm, Row]) -> Arm:
    """The fixed weight to show beside ours: that with the nearest number of bits."""
    return min(FIXED, key=lambda arm: abs(rows[arm].bits - rows[OURS].bits))


def words(rows: dict[Arm, Row], rival: Arm) -> list[str]:
    """The result in words: what was asked, what holds on unseen blocks, and what a fixed weight would need."""
    ours, other = rows[OURS], rows[rival]
    needed = bits_at([(rows[arm].share, rows[arm].bits) for arm in FIXED], ours.share)
    if needed is None:
        reach = f"None of the {len(FIXED)} fixed weights reaches {ours.share:.1%}."
    elif needed > ours.bits:
        fewer = f"{1 - ours.bits / needed:.0%} fewer"
        reach = f"A mixture of two fixed weights takes {needed:.0f} bits for {ours.share:.1%}: ours takes {fewer}."
    else:
        reach = f"A mixture of two fixed weights takes {needed:.0f} bits for {ours.share:.1%}, no more than ours."
    return [
        f"Asked: a PSNR of at least {FLOOR:g} dB in every block of 16 x 16 pixels, with as few bits as possible.",
        f"One constrained run: {ours.share:.1%} of {ours.blocks:,} unseen blocks keep the floor, with {ours.bits:.0f} "
        f"bits a block; the worst has {ours.worst_psnr:.1f} dB.",
        f"The fixed weight with the nearest number of bits ({rival.knob:g}, {other.bits:.0f} bits): {other.share:.1%}, "
        f"the worst has {other.worst_psnr:.1f} dB.",
        f"{reach} Ours took 1 run, at a tau chosen before on the tuning part; the search over fixed weights "
        f"{len(FIXED)}.",
    ]


def _name(arm: Arm) -> str:
    return "bound on every block" if arm == OURS else f"fixed weight {arm.knob:g}"


def _cells(row: Row) -> list[str]:
    return [_name(Arm.parse(row.arm)), f"{row.bits:.1f}", f"{row.share:.1%}", row.interval, f"{row.worst_psnr:.1f} dB"]


def _draw(parts: Parts, codecs: dict[Arm, Codec], rows: dict[Arm, Row], rival: Arm, folder: Path) -> None:
    shown = {arm: decode_picture(codecs[arm], parts.shown) for arm in (rival, OURS)}
    draw_beside({_caption(arm, each): each for arm, each in shown.items()}, folder, "picture")
    fixed = [(rows[arm].share, rows[arm].bits) for arm in FIXED]
    draw_front({"fixed": fixed, "penalty": [(rows[OURS].share, rows[OURS].bits)]}, folder, "front")
    multipliers = {}
    blocks = parts.test.pixels[:, 0]
    for arm in (rival, OURS):
        multipliers[_name(arm)] = prices(codecs[arm], blocks, codecs[arm](blocks).symbols.level.detach())[1]
    draw_prices(parts.shown, shown[OURS], multipliers, folder, "prices")


def _caption(arm: Arm, shown: DecodedPicture) -> str:
    below = f"{int(shown.below.sum())} of {shown.below.size} below the floor"
    return f"{_name(arm)}: {float(shown.bits.mean()):.0f} bits a block,\n{below}"


TEXTS = {
    "picture": "A picture that was not trained on. Blocks below 30 dB are outlined in red.",
    "front": "Bits against the share of unseen blocks that keep the floor. Lower and further right is better.",
    "prices": "What one step of the gain more would cost in each block: in bits for a decibel, and in bits for a unit "
    "of error, which is the multiplier of the block's bound. A fixed weight wants the same for all blocks.",
}
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Fewest bits with a floor under every block</title>
<style>
:root {{ color-scheme: light dark; --ink: #1c2024; --paper: #ffffff; --faint: #5b6570; --line: #d8dde3; }}
@media (prefers-color-scheme: dark) {{
  :root {{ --ink: #e8eaed; --paper: #16191d; --faint: #9aa4af; --line: #343a41; }}
}}
body {{ font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 0 auto;
  max-width: 60rem; padding: 1.5rem; }}
h1 {{ font-size: 1.5rem; line-height: 1.25; }}
figure {{ margin: 2rem 0; }}
figure img {{ width: 100%; background: #fff; border-radius: 6px; }}
figcaption, footer {{ color: var(--faint); font-size: 0.9rem; }}
div {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; }}
th, td {{ text-align: left; padding: 0.3rem 1rem 0.3rem 0; border-bottom: 1px solid var(--line); white-space: nowrap; }}
tr:first-child td {{ font-weight: 600; }}
</style></head><body>
<h1>Fewest bits with a floor under every block</h1>
{words}
{figures}
<div><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>
<footer><p>{footer}</p></footer>
</body></html>
"""


def page(said: list[str], rows: list[Row], folder: Path) -> str:
    """The page, with everything in it."""
    figures = "\n".join(
        f'<figure><img alt="{html.escape(TEXTS[name])}" src="data:image/png;base64,{_base64(folder / f"{name}.png")}">'
        f"<figcaption>{html.escape(TEXTS[name])}</figcaption></figure>"
        for name in FIGURES
    )
    body = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in _cells(row))}</tr>" for row in rows)
    return PAGE.format(
        words="".join(f"<p>{html.escape(text)}</p>" for text in said),
        figures=figures,
        head="".join(f"<th>{head}</th>" for head in HEADINGS),
        body=body,
        footer="Pictures that come with scikit-image, in strips: some trained on, others unseen. Intervals: bootstrap "
        "over pictures. studies compression runs the whole study, with searches of the gain and other methods.",
    )


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
