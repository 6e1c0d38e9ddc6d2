# Everything sets itself up in .venv, with all extras: a fresh machine needs Python 3.11 and make.
PYTHON ?= python3.11
BIN := .venv/bin
export RAY_USAGE_STATS_ENABLED = 0
# Compiling all modules anew takes longer than collecting the tests.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo demo-all docs test test-all test-nightly style types format clean

.venv/.ready: setup.py setup.cfg pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	@echo "installing into .venv; what pip says is in .venv/pip.log"
	@{ $(BIN)/python -m pip install --upgrade pip -c constraints.txt && \
	  $(BIN)/python -m pip install -c constraints.txt torch==2.13.0 -e '.[test]'; } \
	  > .venv/pip.log 2>&1 || { cat .venv/pip.log; exit 1; }
	touch $@

demo: .venv/.ready ## the benchmark on synthetic ECGs, from raw files to the report
	$(BIN)/benchmd demo

demo-all: .venv/.ready ## the same on all seven modalities
	$(BIN)/benchmd demo --all

docs: .venv/.ready ## the documentation as a site, to open without a server: build/site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --config-file docs/site/mkdocs.yml

style: .venv/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# Checked again only when a source has changed; mypy's cache keeps that quick.
.venv/.types: .venv/.ready $(shell find benchmd_ray speed studies -name '*.py')
	$(BIN)/mypy
	touch $@

types: .venv/.types

PYTEST := $(BIN)/python -m pytest -n 2 --dist loadgroup --no-loadscope-reorder

test: style types ## style, types and quick tests: after every change
	$(PYTEST) -m "not slow"

test-all: style types ## style, types and all tests but the nightly ones: before a push
	$(PYTEST) -m "not nightly"

test-nightly: style types ## what takes long: simulated clusters, studies, fuzzing, browsers (skipped without Chromium)
	$(PYTEST) -m nightly

format: .venv/.ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache demo
