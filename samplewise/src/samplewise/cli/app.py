"""The command ``samplewise`` and its subcommands; those of a few lines are here."""

from samplewise.cli import report
from samplewise.cli.outcome import JsonFlag, begin, command_app, emit

app = command_app(
    "samplewise",
    "Train PyTorch models under requirements that must hold for every sample.",
    "samplewise report runs/one",
)

app.command(
    epilog="\b\nExample: samplewise report runs/one --out report.html\n"
    "Compare: samplewise report runs/one runs/two --out compared.html"
)(report.report)


@app.command(epilog="Example: samplewise env --json")
def env(as_json: JsonFlag = False) -> None:
    """Print versions and hardware, for bug reports."""
    begin("env: asking PyTorch for its versions and devices")
    import torch

    from samplewise.storage.origins import commit, provenance

    found = provenance()
    accelerators = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    accelerators += ["mps"] if torch.backends.mps.is_available() else []
    facts = {name: found[name] for name in ("versions", "machine", "threads")}
    machine = found["machine"]
    text = [
        *(f"{name}: {version}" for name, version in found["versions"].items()),
        f"commit: {commit() or 'unknown (not a checkout)'}",
        f"machine: {machine['system']} {machine['processor']}, {machine['cores']} cores, {found['threads']} threads",
        f"accelerators: {', '.join(accelerators) or 'none'}",
    ]
    emit({**facts, "commit": commit(), "accelerators": accelerators}, "\n".join(text), as_json=as_json)
