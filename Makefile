# `make demo`, `make check` and `make test` do all their set-up themselves: they need Python 3.11 or newer and make, nothing else.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo wheel docs experiments reproduce check test lint types imports check-format quick unit deployed format benchmarks clean

demo: .venv/.demo
	$(BIN)/kinfed demo --out demo --force

# The package as one file for machines without this repository, and its checksum; equal sources give equal bytes.
DIST := dist

wheel: .venv/.dev
	@rm -rf build/lib build/bdist.* $(DIST)/kinfed-*.whl   # what is left of an earlier build would be packed too
	@mkdir -p build && SOURCE_DATE_EPOCH=315532800 $(BIN)/python -m build --wheel --no-isolation --outdir $(DIST) . \
		> build/wheel.log 2>&1 || { cat build/wheel.log; exit 1; }
	@cd $(DIST) && $$(command -v sha256sum || echo shasum -a 256) kinfed-*.whl > SHA256SUMS
	@echo $(DIST)/kinfed-*.whl && cat $(DIST)/SHA256SUMS

# The documentation site, built without network, every warning an error; open build/docs/index.html.
docs: .venv/.docs
	$(BIN)/sphinx-build -W --keep-going -q -b html docs build/docs

# The paper's experiments: `make experiments` installs what they need, `make reproduce` runs them all, for some three hours on
# two cores. FEMNIST is run where its data are given: make reproduce FEMNIST=path/to/femnist.npz, and
# the real federations likewise: DATA=path/to/folder. QUICK=--quick makes it short.
experiments: .venv/.experiments

reproduce: .venv/.experiments
	for name in concept-shift covariate-shift early-stop feature-count identical-agents never-wrong calibrated-networks leaderboard interval-coverage; do \
		$(BIN)/kinfed reproduce $$name $(QUICK) --out results/$$name || exit 1; \
	done
	if [ -n "$(FEMNIST)" ]; then for name in femnist calibrated-femnist; do \
		$(BIN)/kinfed reproduce $$name --data "$(FEMNIST)" $(QUICK) --out results/$$name || exit 1; \
	done; fi
	if [ -n "$(DATA)" ]; then $(BIN)/kinfed reproduce real-federations --data "$(DATA)" $(QUICK) --out results/real-federations; fi

# Before every commit: under two minutes on two cores.
check: .venv/.dev
	$(MAKE) --no-print-directory --jobs=2 lint check-format imports types quick

# Before every merge: everything.
test: lint check-format types imports unit

lint: .venv/.dev
	$(BIN)/ruff check src tests benchmarks docs examples

check-format: .venv/.dev
	$(BIN)/ruff format --check src tests benchmarks docs examples

types: .venv/.dev
	$(BIN)/mypy

imports: .venv/.dev
	$(BIN)/lint-imports --no-logo

# A worker on every core, so threads of matrix products would fight; tests that share a deployment stay together.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadgroup

quick: .venv/.dev
	$(PYTEST) -q -m "not server and not browser and not torch and not slow"

unit: .venv/.dev .venv/.browser
	$(PYTEST) -m "not deployed"

# Before a release: sites lost in deployed runs, one deployment at a time, for some twenty minutes of a quiet machine.
deployed: .venv/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m deployed --durations 0

format: .venv/.dev
	$(BIN)/ruff check --fix src tests benchmarks docs examples
	$(BIN)/ruff format src tests benchmarks docs examples

benchmarks: .venv/.dev
	$(PIP) --editable '.[benchmarks]'
	$(BIN)/python -m benchmarks

clean:
	rm -rf .venv build dist demo results docs/generated docs/gallery

.venv/.made:
	$(PYTHON) -m venv .venv
	touch $@

.venv/.demo: .venv/.made pyproject.toml constraints.txt
	$(PIP) --editable '.[examples]'
	touch $@

.venv/.docs: .venv/.made pyproject.toml constraints.txt
	$(PIP) --editable '.[docs]'
	touch $@

.venv/.experiments: .venv/.made pyproject.toml constraints.txt
	$(PIP) torch==2.13.0
	$(PIP) --editable '.[examples,experiments,femnist]'
	touch $@

.venv/.dev: .venv/.made pyproject.toml constraints.txt
	$(PIP) torch==2.13.0
	$(PIP) --editable '.[examples,dev]'
	touch $@

# The report is tested in a browser: Debian's chromium, installed where we may; without one those tests are skipped.
.venv/.browser: .venv/.made
	command -v chromium > /dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null && apt-get update -qq \
		&& apt-get install -qq -y --no-install-recommends chromium > /dev/null; } || true
	if command -v chromium > /dev/null; then touch $@; else echo "there is no chromium: tests of the report in a browser are skipped"; fi
