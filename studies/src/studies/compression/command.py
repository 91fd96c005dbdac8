"""``studies compression``: the study, and files with a floor under every block."""

from pathlib import Path
from typing import Annotated

import typer

from samplewise.cli import JsonFlag, begin, emit, note
from samplewise.errors import ConfigurationError

EPILOG = "Example: studies compression --floor 30 --arm fixed:120 --arm penalty:300 --out runs/compression"
ARMS = ("fixed:100", "square:60", "penalty:300")


def compression(
    data: Annotated[
        str, typer.Option(help="Folder of images or of MNIST's files; or pictures: those of scikit-image.")
    ] = "pictures",
    floor: Annotated[
        float | None, typer.Option(min=10.0, max=60.0, help="PSNR that every block must keep, in dB; 30 if not given.")
    ] = None,
    arm: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND:NUMBER", help="Arm to train, such as penalty:300; KIND:all for the five of the study."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="The first seed.")] = 0,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds, from --seed on.")] = 1,
    steps: Annotated[int, typer.Option(min=30, help="Steps of training.")] = 2000,
    whole: Annotated[bool, typer.Option("--whole", help="The floor is for each picture, not for each block.")] = False,
    convolutional: Annotated[
        bool,
        typer.Option("--convolutional", help="A convolutional codec; the floor is for each tile of 64 x 64 pixels."),
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder of the runs; finished ones are not trained again.")] = Path(
        "compression"
    ),
    compress: Annotated[
        tuple[Path, Path] | None,
        typer.Option(metavar="IMAGE FILE", help="Compress an image with the codec of --arm in --out."),
    ] = None,
    decompress: Annotated[
        tuple[Path, Path] | None,
        typer.Option(metavar="FILE IMAGE", help="Decompress a file to an image."),
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads of PyTorch; the networks are small.")] = 1,
    as_json: JsonFlag = False,
) -> None:
    """Fewest bits such that every block keeps a PSNR floor: fixed weights, penalties, multipliers, on unseen blocks."""
    begin("compression: loading PyTorch")
    import torch

    from studies.compression.arms import Arm
    from studies.compression.figures import draw_study
    from studies.compression.study import Plan, run_study, tables

    torch.set_num_threads(threads)
    if compress and decompress:
        raise ConfigurationError("expected --compress or --decompress, got both: call twice")
    if compress or decompress:
        from studies.compression.bitstream import compress_file, decompress_file

        if compress:
            if floor is not None or (arm and len(arm) > 1):
                raise ConfigurationError("--compress takes one --arm, and the floor that its codec was trained for")
            certificate = compress_file(out, arm[0] if arm else None, seed, *compress)
            emit(certificate.to_dict(), certificate.message, as_json=as_json)
        elif decompress:
            text = decompress_file(out, *decompress)
            emit({"image": str(decompress[1])}, text, as_json=as_json)
        return
    arms = [each for text in arm or ARMS for each in Arm.parse_all(text)]
    asked, numbers = 30.0 if floor is None else floor, range(seed, seed + seeds)
    if convolutional:
        from studies.compression.tiles import TilePlan, run_tiles

        if whole:
            raise ConfigurationError("expected --whole or --convolutional, whose samples are tiles, got both")
        text, summary = run_tiles(TilePlan(data, asked, steps), arms, numbers, out, note)
    else:
        rows, summary = run_study(Plan(data, asked, steps, whole), arms, numbers, out, note)
        draw_study(rows, out)
        text = tables(rows)
    emit(summary, text, as_json=as_json)
