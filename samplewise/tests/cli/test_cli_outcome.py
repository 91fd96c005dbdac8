import errno
import json

import pytest
import typer

from samplewise import errors
from samplewise.cli.outcome import emit_json, note, run


def app_that_raises(error: BaseException) -> typer.Typer:
    app = typer.Typer()

    @app.command()
    def job() -> None:
        raise error

    return app


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (errors.ConfigurationError("growth\nis wrong"), 2, "growth is wrong"),
        (errors.DataError("torn"), 2, "torn"),
        (errors.CheckpointError("foreign"), 2, "foreign"),
        (errors.NotFiniteError("the objective is not finite"), 1, "the objective is not finite"),
        (errors.OutputError("cannot write"), 1, "cannot write"),
        (OSError(errno.ENOSPC, "No space left on device", "x.bin"), 1, "x.bin: the disk is full"),
        (PermissionError(errno.EACCES, "Permission denied", "y.bin"), 1, "y.bin: Permission denied"),
        (MemoryError(), 1, "not enough memory"),
        (ImportError("no", name="tensorboard.compat"), 1, "is not installed; pip install 'tensorboard>=2.16'"),
        (ImportError("no", name="elsewhere"), 1, "elsewhere is not installed"),
        (TypeError("a mistake of ours"), 1, "unexpected TypeError: a mistake of ours. Please report it"),
    ],
)
def test_an_error_is_one_line_and_a_code(
    capsys: pytest.CaptureFixture[str], error: Exception, code: int, message: str
) -> None:
    assert run(app_that_raises(error), [], extras={"tensorboard": "tensorboard"}) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("samplewise: error: ")
    assert shown.err.count("\n") == 1
    assert message in shown.err


@pytest.mark.parametrize("ended", [KeyboardInterrupt(), typer.Abort()])
def test_an_interrupt_is_130_and_one_line(capsys: pytest.CaptureFixture[str], ended: BaseException) -> None:
    assert run(app_that_raises(ended), []) == 130
    shown = capsys.readouterr()
    assert shown.err == "samplewise: interrupted; a run that writes to a folder goes on with --resume\n"


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    app = app_that_raises(TypeError("a mistake"))
    app.callback()(lambda debug=False: None)
    assert run(app, ["--debug", "job"]) == 1
    assert "Traceback" in capsys.readouterr().err


HOSTILE = "x\x1b[2J\x9b31m\u202egnp.exe\x7f"


def test_nothing_that_is_shown_moves_colours_or_turns_round_the_rest(capsys: pytest.CaptureFixture[str]) -> None:
    app = typer.Typer()

    @app.command()
    def job(fail: bool = False) -> None:
        print(f"found\n{HOSTILE}")
        emit_json({HOSTILE: HOSTILE, "τ": "é"})
        note(HOSTILE)
        if fail:
            raise errors.DataError(f"{HOSTILE}: torn")

    assert run(app, ["--fail"]) == 2
    shown = capsys.readouterr()
    harmless = "x\\x1b[2J\\x9b31m\\u202egnp.exe\\x7f"
    assert all(char.isprintable() or char == "\n" for char in shown.out + shown.err)
    assert shown.err == f"{harmless}\nsamplewise: error: {harmless}: torn\n"
    first, name, rest = shown.out.split("\n", 2)
    assert (first, name) == ("found", harmless)
    assert json.loads(rest) == {HOSTILE: HOSTILE, "τ": "é"}
    assert "τ" in rest


def test_json_is_strict(capsys: pytest.CaptureFixture[str]) -> None:
    emit_json({"τ": float("nan"), "list": [1.5, float("inf")]})
    shown = capsys.readouterr().out
    assert json.loads(shown) == {"τ": None, "list": [1.5, None]}
    assert "NaN" not in shown


def test_a_command_that_ends_well_is_zero(capsys: pytest.CaptureFixture[str]) -> None:
    app = typer.Typer()
    app.command()(lambda: print("done"))
    assert run(app, []) == 0
    assert capsys.readouterr().out == "done\n"
