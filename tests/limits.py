"""What a hostile file may cost: each is handed to a process of its own, whose time and memory are measured."""

import json
import subprocess
import sys
from dataclasses import dataclass

MOST_BYTES, MOST_SECONDS = 1 << 30, 10


@dataclass(frozen=True)
class Cost:
    """How a process ended and what it took."""

    code: int
    bytes: int
    """The most memory that it held."""
    seconds: float
    """Of processor time."""
    errors: str

    def check(self) -> None:
        """Fail if it took more than any file may."""
        assert self.bytes <= MOST_BYTES, f"{self.bytes / 1e6:.0f} MB"
        assert self.seconds <= MOST_SECONDS, f"{self.seconds:.1f} s"


# A process counts what its parent held when it was started, so a small one stands between the tests and it.
BETWEEN = """
import json, resource, subprocess, sys
code = subprocess.run([sys.executable, *sys.argv[1:]], stdout=subprocess.DEVNULL).returncode
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([code, used.ru_maxrss * 1024, used.ru_utime + used.ru_stime]))
"""


def cost(*arguments: str) -> Cost:
    """Run Python with these arguments."""
    ran = subprocess.run([sys.executable, "-c", BETWEEN, *arguments], capture_output=True, text=True, check=True)
    code, most, seconds = json.loads(ran.stdout)
    return Cost(code, most, seconds, ran.stderr)
