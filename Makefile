# Each target does its own set-up: a virtual environment in .venv, made once and reused.
PYTHON ?= python3.11
BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test test-slow check format bench clean

demo: .venv/runtime
	$(BIN)/heedful demo

test: .venv/dev
	$(BIN)/pytest -m "not slow"

test-slow: .venv/dev
	$(BIN)/pytest -m slow

check: .venv/dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: .venv/dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: .venv/dev
	for script in benchmarks/*.py; do $(BIN)/python $$script || exit 1; done

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis

# torch first and pinned: packages that depend on it must find it installed.
.venv/runtime: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) torch
	$(PIP) --editable .
	touch $@

.venv/dev: .venv/runtime
	$(PIP) --editable '.[dev]'
	touch $@
