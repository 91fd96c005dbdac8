import base64
import json
import re
from pathlib import Path

import pytest

from studies.compression.arms import Arm
from studies.compression.study import Row
from studies.demo import FIXED, OURS, run_demo, words


def row(arm: Arm, bits: float, share: float) -> Row:
    return Row(str(arm), 0, "test", False, bits, share, share, share, 29.0, 1000, 18)


def test_the_demo_shows_what_was_found_in_a_page_of_its_own(tmp_path: Path) -> None:
    told = list[str]()
    result, text = run_demo(tmp_path / "demo", steps=30, blocks=600, note=told.append)
    assert len(told) == len(result["rows"]) == 1 + len(FIXED)
    assert json.loads((tmp_path / "demo" / "demo.json").read_text())["said"] == result["said"]
    page = (tmp_path / "demo" / "report.html").read_text()
    pictures = re.findall(r'src="data:image/png;base64,([^"]+)"', page)
    assert len(pictures) == 3
    assert all(base64.b64decode(each).startswith(b"\x89PNG") for each in pictures)
    assert not re.search(r'(src|href)="(?!data:)', page), "nothing is loaded from elsewhere"
    assert all(line in text for line in result["said"])


@pytest.mark.parametrize(
    ("share", "bits", "said"),
    [(0.99, 100.0, "50% fewer"), (0.99, 250.0, "no more than ours"), (0.9999, 100.0, "None of the 5")],
)
def test_the_words_say_what_came_out(share: float, bits: float, said: str) -> None:
    fixed = {arm: row(arm, 200.0, 0.99) for arm in FIXED}
    text = words({OURS: row(OURS, bits, share), **fixed}, FIXED[0])
    assert said in " ".join(text)
