"""Several hosts, as network namespaces that torchrun starts: hosts that are lost, slow, or cut off."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from run_hosts import EPOCHS, main

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).with_name("run_hosts.py")
PAUSE = 0.05
SECONDS = 400


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


class Hosts:
    """Network namespaces on one bridge, and what runs in them; their names begin with ``name``."""

    def __init__(self, name: str, count: int) -> None:
        self.name, self.count = name, count
        self.running: list[subprocess.Popen[bytes]] = []
        ip("netns", "add", f"{name}s")
        ip("-n", f"{name}s", "link", "add", "bridge", "type", "bridge")
        ip("-n", f"{name}s", "link", "set", "bridge", "up")
        for i in range(count):
            host = f"{name}{i}"
            ip("netns", "add", host)
            ip("link", "add", "wire", "netns", host, "type", "veth", "peer", "name", f"port{i}", "netns", f"{name}s")
            ip("-n", f"{name}s", "link", "set", f"port{i}", "master", "bridge", "up")
            ip("-n", host, "addr", "add", f"10.77.0.{i + 1}/24", "dev", "wire")
            for device in ("wire", "lo"):
                ip("-n", host, "link", "set", device, "up")

    def wire(self, i: int, state: str) -> None:
        """Cut host i off from the others, ``down``, or join it again, ``up``."""
        ip("-n", f"{self.name}s", "link", "set", f"port{i}", state)

    def torchrun(self, i: int, folder: Path, *, nodes: str, restarts: int = 0, pause: float = PAUSE) -> None:
        """Start torchrun on host i; what it says goes to ``folder``."""
        call = ["ip", "netns", "exec", f"{self.name}{i}", sys.executable, "-m", "torch.distributed.run"]
        call += [f"--nnodes={nodes}", "--nproc-per-node=1", f"--max-restarts={restarts}", "--rdzv-id=test"]
        call += ["--rdzv-backend=c10d", "--rdzv-endpoint=10.77.0.1:29400", f"--local-addr=10.77.0.{i + 1}"]
        # Which host has the store is found by a host's name, which these have not.
        call += [f"--rdzv-conf=last_call_timeout=5,is_host={int(i == 0)}", str(SCRIPT), str(folder), str(pause)]
        paths = [str(SCRIPT.parents[1]), *sys.path]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "wire"}
        # Else torchrun tells a host that comes back nothing of where to meet: it did so once, in the first round.
        environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        environment["PYTHONPATH"] = os.pathsep.join(paths)
        with (folder / f"said{len(self.running)}").open("wb") as said:
            started = subprocess.Popen(call, stdout=said, stderr=subprocess.STDOUT, env=environment)
        self.running.append(started)

    def lose(self, i: int) -> None:
        """End everything that runs on host i, at once."""
        found = subprocess.run(["ip", "netns", "pids", f"{self.name}{i}"], check=True, capture_output=True, text=True)
        for process in found.stdout.split():
            os.kill(int(process), signal.SIGKILL)

    def remove(self) -> None:
        for i in range(self.count):
            self.lose(i)
        for process in self.running:
            process.wait()
        for i in range(self.count):
            ip("netns", "del", f"{self.name}{i}")
        ip("netns", "del", f"{self.name}s")


@pytest.fixture
def hosts() -> Iterator[Any]:
    made: list[Hosts] = []

    def make(count: int) -> Hosts:
        try:
            made.append(Hosts(f"sw{os.getpid()}-", count))
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"network namespaces cannot be made here: {error}")
        return made[0]

    yield make
    for each in made:
        each.remove()


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one process on one machine ends with."""
    folder = tmp_path_factory.mktemp("alone")
    main(folder, 0.0)
    found: dict[str, Any] = json.loads((folder / "found.json").read_text())
    return found


def wait_for(happens: Any, hosts: Hosts, folder: Path) -> None:
    deadline = time.monotonic() + SECONDS
    while not happens():
        said = "\n".join(path.read_text()[-3000:] for path in sorted(folder.glob("said*")))
        assert time.monotonic() < deadline, said
        assert any(each.poll() is None for each in hosts.running) or happens(), said
        time.sleep(0.05)


def checkpoints(folder: Path) -> list[Path]:
    return sorted((folder / "run" / "checkpoints").glob("*.safetensors"))


def assert_ends_as(alone: dict[str, Any], folder: Path) -> None:
    """The same result, and no file that a fault left half done."""
    found = json.loads((folder / "found.json").read_text())
    for ours, theirs in zip(found["weights"], alone["weights"], strict=True):
        torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), rtol=1e-3, atol=1e-4)
    assert found["satisfied"] == pytest.approx(alone["satisfied"], abs=0.01)
    assert found["epochs"] == list(range(1, EPOCHS + 1))
    assert not list((folder / "run").rglob(".partial*"))


def starts(folder: Path) -> list[str]:
    return (folder / "starts").read_text().split()


def begun(hosts: Any, folder: Path, *, nodes: str) -> Hosts:
    """Two hosts that have trained up to their second checkpoint."""
    made: Hosts = hosts(2)
    for i in range(2):
        made.torchrun(i, folder, nodes=nodes, restarts=3)
    wait_for(lambda: len(checkpoints(folder)) == 2, made, folder)
    return made


@pytest.mark.parametrize("count", [2, 4])
def test_hosts_end_where_one_machine_does(hosts: Any, alone: dict[str, Any], tmp_path: Path, count: int) -> None:
    made = hosts(count)
    for i in range(count):
        made.torchrun(i, tmp_path, nodes=str(count), pause=0.0)
    wait_for((tmp_path / "found.json").exists, made, tmp_path)
    assert_ends_as(alone, tmp_path)


def test_when_a_host_is_lost_the_others_go_on_by_themselves(hosts: Any, alone: dict[str, Any], tmp_path: Path) -> None:
    made = begun(hosts, tmp_path, nodes="1:2")
    made.lose(1)
    wait_for((tmp_path / "found.json").exists, made, tmp_path)
    assert starts(tmp_path)[-1] == "0/1"
    assert_ends_as(alone, tmp_path)


def test_a_host_that_comes_back_goes_on_with_the_others(hosts: Any, alone: dict[str, Any], tmp_path: Path) -> None:
    made = begun(hosts, tmp_path, nodes="2")
    made.lose(1)
    time.sleep(3.0)
    made.torchrun(1, tmp_path, nodes="2", restarts=3)
    wait_for((tmp_path / "found.json").exists, made, tmp_path)
    assert sorted(starts(tmp_path)[-2:]) == ["0/2", "1/2"]
    assert_ends_as(alone, tmp_path)


def test_a_slow_host_costs_time_only(hosts: Any, alone: dict[str, Any], tmp_path: Path) -> None:
    made = hosts(2)
    made.torchrun(0, tmp_path, nodes="2", pause=0.0)
    made.torchrun(1, tmp_path, nodes="2", pause=0.3)
    wait_for((tmp_path / "found.json").exists, made, tmp_path)
    assert len(starts(tmp_path)) == 2, "nobody was started again"
    assert_ends_as(alone, tmp_path)


def test_a_partition_of_half_a_minute_costs_time_only(hosts: Any, alone: dict[str, Any], tmp_path: Path) -> None:
    made = begun(hosts, tmp_path, nodes="2")
    made.wire(1, "down")
    time.sleep(30.0)
    made.wire(1, "up")
    wait_for((tmp_path / "found.json").exists, made, tmp_path)
    assert_ends_as(alone, tmp_path)
