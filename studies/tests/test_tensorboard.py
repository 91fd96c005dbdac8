from pathlib import Path

from lightning_fabric import Fabric
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from studies.options import to_tensorboard


def test_one_fabric_serves_several_runs_each_with_its_own_files(tmp_path: Path) -> None:
    fabric = Fabric(accelerator="cpu", devices=1)
    for name, value in (("one", 1.0), ("two", 2.0)):
        with to_tensorboard(fabric, tmp_path / name):
            fabric.log("loss", value, step=1)
        assert fabric.loggers == []
        reader = EventAccumulator(str(tmp_path / name / "tensorboard"))
        reader.Reload()
        assert [event.value for event in reader.Scalars("loss")] == [value]


def test_nothing_is_written_where_nobody_asked(tmp_path: Path) -> None:
    fabric = Fabric(accelerator="cpu", devices=1)
    with to_tensorboard(fabric, None):
        assert fabric.loggers == []
    assert not list(tmp_path.iterdir())
