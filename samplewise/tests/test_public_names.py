"""What other programs may import, and what importing it costs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import samplewise as sw

# A name that is taken away or renamed breaks programs: that needs a line in the changelog. New names go in here.
NAMES = """
AtLeast AtMost Audit AugmentedLagrangian Between Callback Certificate Constant Constraint Equal Evaluation
FeasibilityDriven FixedPenalty Geometric GradientRule Huber LagrangianRounds Linear Logarithmic Method MinimizeResult
MinimizeStatus Monitor Penalty PenaltyRounds Problem Promise Promised Quadratic Round SamplewiseError Schedule
SequentialPenalty Solution Status Unconstrained Validation ViolationStats audit certify errors find_infeasibility fit
inverse_tau measures minimize
"""

# Seconds to import or needed by few: they wait until something asks for them.
LATER = [
    "lightning",
    "lightning_fabric",
    "matplotlib",
    "scipy.stats",
    "sklearn",
    "torchmetrics",
    "rich",
    "transformers",
    "typer",
]


def test_public_names_are_those_that_were_agreed() -> None:
    assert sorted(sw.__all__) == sorted(NAMES.split())


def test_every_public_name_exists_and_is_documented() -> None:
    for name in sw.__all__:
        assert getattr(sw, name).__doc__, name


def test_the_version_is_that_of_the_package() -> None:
    from importlib.metadata import version

    assert sw.__version__ == version("samplewise")


def test_public_names_are_found_where_the_package_says() -> None:
    assert {*sw.HOME, "errors", "measures"} == set(sw.__all__)
    assert {name for name in dir(sw) if not name.startswith("__")} == set(sw.__all__)
    with pytest.raises(AttributeError, match="no attribute 'atmost'"):
        sw.atmost  # noqa: B018


HIDING = """
import samplewise.audits.audit, samplewise.training, samplewise.minimization.loop
import samplewise as sw
from samplewise import AtMost, audit, problem
assert callable(sw.audit) and callable(sw.fit) and callable(sw.minimize) and sw.audit is audit
assert problem.__name__ == "samplewise.problem"
"""


def test_no_module_hides_the_function_of_its_name() -> None:
    ran = subprocess.run([sys.executable, "-c", HIDING], capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr


def test_the_help_of_a_command_waits_for_nothing_heavy() -> None:
    script = "import sys; from samplewise.cli import main; main(['report', '--help']); print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=True)
    assert not {"torch", "numpy", "rich.progress", *LATER[:-1]} & set(ran.stdout.splitlines()[-1].split())


FIRST_FIT = """
import sys, torch
import samplewise as sw
from small import make_data, make_method, make_model, make_problem

model = make_model()
optimizer = torch.optim.Adam(model.parameters())
method = make_method("sequential")
sw.fit(make_problem(), model, make_data(), method=method, optimizer=optimizer, epochs=1, batch_size=50, progress=False)
print(*sys.modules)
import torchmetrics
torchmetrics.MeanMetric()  # the whole of it, for who asks for it
"""


def test_a_run_waits_for_nothing_that_it_does_not_use() -> None:
    here = Path(__file__).parent
    ran = subprocess.run([sys.executable, "-c", FIRST_FIT], capture_output=True, text=True, timeout=300, cwd=here)
    assert ran.returncode == 0, ran.stderr
    heavy = {"matplotlib", "pytorch_lightning", "scipy", "sklearn", "tensorboard", "torchmetrics", "transformers"}
    assert not heavy & set(ran.stdout.split())


PROBE = f"""
import json, logging, random, sys, time, warnings
import numpy, torch, torch.distributed, torch.utils.data

def look():
    return (
        torch.get_num_threads(), torch.get_default_dtype(), torch.get_rng_state().tolist(), random.getstate(),
        len(warnings.filters), len(logging.root.handlers),
    )

torch.manual_seed(1)
before, start = look(), time.process_time()
import samplewise
seconds = time.process_time() - start
print(json.dumps([[m for m in {LATER} if m in sys.modules], look() == before, seconds]))
"""


def test_import_is_quick_brings_in_nothing_heavy_and_has_no_side_effects() -> None:
    ran = subprocess.run([sys.executable, "-W", "error", "-c", PROBE], capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    heavy, unchanged, seconds = json.loads(ran.stdout)
    assert heavy == []
    assert unchanged
    assert seconds < 1.0
