# Everything sets itself up in .venv: a fresh machine needs Python 3.11 and make.
PYTHON ?= python3.11
BIN := .venv/bin
export RAY_USAGE_STATS_ENABLED = 0

.PHONY: demo test format clean

.venv/.ready: setup.cfg pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip -c constraints.txt
	$(BIN)/python -m pip install --quiet -c constraints.txt torch==2.13.0 -e '.[test]'
	touch $@

demo: .venv/.ready ## the benchmark on synthetic data of all seven modalities, from raw files to the table
	$(BIN)/benchmd demo

test: .venv/.ready ## style, types, tests (those of the HTML report want Chromium, or skip)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

format: .venv/.ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache demo
