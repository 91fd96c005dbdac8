# On a fresh machine with Python 3.11, `make demo` and `make test` each do everything: environment, install, run.
PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/pip install -qq --disable-pip-version-check -c constraints.txt -e

.PHONY: demo test test-slow lint format docs bench clean

demo: .venv/installed-demo
	$(BIN)/samplewise demo --out demo

# Reports are looked at in a real browser if there is one (apt-get install chromium); what was skipped is said at the end.
test: lint
	$(BIN)/pytest -rs

test-slow: .venv/installed-dev
	$(BIN)/pytest -m slow

lint: .venv/installed-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: .venv/installed-dev
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# Warnings are errors; open site/index.html afterwards.
docs: .venv/installed-docs
	$(BIN)/mkdocs build --strict

# Ratios between interleaved runs; give the machine nothing else to do meanwhile.
bench: .venv/installed-bench
	$(BIN)/python benchmarks/step.py
	$(BIN)/python benchmarks/epoch.py
	$(BIN)/python benchmarks/jobs_or_threads.py
	$(BIN)/python benchmarks/hidden_step.py
	$(BIN)/python benchmarks/certify_cost.py
	$(BIN)/python benchmarks/stopping_rule.py --seeds 2
	$(BIN)/python benchmarks/theorem2_bound.py
	$(BIN)/python benchmarks/minimize_vs_scipy.py

.venv/installed-%: pyproject.toml constraints.txt
	test -d .venv || $(PYTHON) -m venv .venv
	$(INSTALL) ".[$*]"
	touch $@

clean:
	rm -rf .venv demo site build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
