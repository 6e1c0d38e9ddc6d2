# Everything sets itself up in .venv, with all extras: a fresh machine needs Python 3.11 and make.
PYTHON ?= python3.11
BIN := .venv/bin
export RAY_USAGE_STATS_ENABLED = 0

.PHONY: demo demo-all docs test test-all style format clean

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
	$(BIN)/mypy

test: style ## style, types, and the tests that take no long processes
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not slow"

test-all: style ## style, types, all tests (those of the HTML report need Chromium, or skip)
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

format: .venv/.ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache demo
