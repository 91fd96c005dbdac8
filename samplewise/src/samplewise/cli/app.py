"""The command ``samplewise`` and its subcommands; those of a few lines are here."""

from importlib import metadata
from typing import Annotated

import typer

from samplewise.cli import report
from samplewise.cli.outcome import JsonFlag, begin, emit

app = typer.Typer(
    name="samplewise",
    help="Train PyTorch models under requirements that must hold for every sample.",
    epilog="Example: samplewise report runs/one",
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich reads :100: as an emoji
)


@app.callback()
def common(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error, for bug reports.")] = False,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    """Options of every command; ``--debug`` is read where errors are reported."""
    if version:
        print(f"samplewise {metadata.version('samplewise')}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())


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
