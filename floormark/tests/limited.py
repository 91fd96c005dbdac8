"""Commands, each in a process of its own with a limit on memory and processor time: a line of JSON for each.

Started as a program, with command lines as lines of JSON on standard input. It imports all that commands need once,
and is forked for each of them.
"""

import contextlib
import io
import json
import os
import resource
import sys
from pathlib import Path

MEMORY = 1_000_000_000
SECONDS = 10


def run(command: list[str]) -> None:
    """The command in this process, which ends with it."""
    own = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (own + MEMORY, own + MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    from floormark.cli import main

    told = io.StringIO()
    with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
        code = main(command)
    print(told.getvalue().strip().splitlines()[-1] if told.getvalue().strip() else "", flush=True)
    os._exit(code)


def main_loop() -> None:
    """Fork for each command."""
    import pydicom.pixels  # noqa: F401
    from PIL import Image

    import floormark.cli.app
    import floormark.files.folder
    import floormark.verify
    from floormark.threads import limit_threads

    Image.init()
    limit_threads(1)
    with contextlib.redirect_stderr(io.StringIO()):
        floormark.cli.main(["extract", "nothing"])  # what is loaded at first use is so in all forks
    for line in sys.stdin:
        command = json.loads(line)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.dup2(writer, 1)
            run(command)
        os.close(writer)
        with os.fdopen(reader) as file:
            told = file.read().strip()
        _, status, used = os.wait4(child, 0)
        seconds, memory = used.ru_utime + used.ru_stime, used.ru_maxrss * 1024
        print(
            json.dumps({"code": os.waitstatus_to_exitcode(status), "told": told, "s": seconds, "bytes": memory}),
            flush=True,
        )


if __name__ == "__main__":
    main_loop()
