"""The tests on each Python that is there: `pipx run nox`, or `nox -s tests-3.12 -- samplewise/tests/test_audit.py`."""

import nox

nox.options.error_on_missing_interpreters = False  # CI has all of them


@nox.session(python=["3.11", "3.12", "3.13"])
def tests(session: nox.Session) -> None:
    """What `make test` runs after its linters, with the versions of constraints.txt."""
    session.install("-c", "constraints.txt", "-e", "./samplewise", "-e", "./floormark", "-e", "./studies[dev]")
    session.run(
        "pytest", "-rs", *(session.posargs or ("-n", "auto", "--dist", "worksteal")), env={"OMP_NUM_THREADS": "1"}
    )
