"""``samplewise env``: versions and hardware, for bug reports."""

from types import ModuleType
from typing import Annotated

import typer

from samplewise.cli.outcome import begin, emit_json

__all__ = ["env"]


def env(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Print versions and hardware, for bug reports."""
    begin("env: asking PyTorch for its versions and devices")
    import torch

    from samplewise.provenance import commit, provenance

    found = provenance()
    facts = {
        "versions": found["versions"],
        "commit": commit(),
        "machine": found["machine"],
        "threads": found["threads"],
        "accelerators": _accelerators(torch),
    }
    if as_json:
        emit_json(facts)
        return
    for name, version in found["versions"].items():
        print(f"{name}: {version}")
    print(f"commit: {facts['commit'] or 'unknown (not a checkout)'}")
    machine = found["machine"]
    print(f"machine: {machine['system']} {machine['processor']}, {machine['cores']} cores, {found['threads']} threads")
    print(f"accelerators: {', '.join(_accelerators(torch)) or 'none'}")


def _accelerators(torch: ModuleType) -> list[str]:
    found = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return [*found, "mps"] if torch.backends.mps.is_available() else found
