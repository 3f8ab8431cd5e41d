# Each target does its own set-up: a virtual environment in .venv, made once and reused.
PYTHON ?= python3.11
BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test test-long test-slow fuzz check check-page format bench figures clean

demo: .venv/runtime
	$(BIN)/heedful demo

test: .venv/dev
	OMP_NUM_THREADS=1 $(BIN)/pytest -m "not slow and not long" -n auto --dist worksteal

# What takes many seconds each: faults put into real processes, every variant in a browser. CI runs both.
test-long: .venv/dev
	OMP_NUM_THREADS=1 $(BIN)/pytest -m "long and not slow" -n auto --dist worksteal

test-slow: .venv/dev
	$(BIN)/pytest -m slow

# Damaged files for every reader, for 20 seconds each: about half an hour.
fuzz: .venv/dev
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzzing.campaign 20

check: .venv/dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# The types of the page's modules; TypeScript is fetched for it and used for nothing else.
check-page:
	@if command -v npx > /dev/null; then npx --yes -p typescript tsc -p src/heedful/page; \
	else echo "check-page: skipped, there is no npx (Node.js) on this machine"; fi

format: .venv/dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: .venv/dev
	for script in benchmarks/*.py; do $(BIN)/python $$script || exit 1; done

# The pictures of the documents, from the two demo models.
SENTENCE := The animal didn't cross the street because it was too tired.
LOOK := --format png --quiet
figures: .venv/dev
	$(BIN)/heedful demo
	$(BIN)/heedful demo --taught-head
	$(BIN)/heedful explain positions --figure docs/figures/positions.png
	$(BIN)/heedful explain thinking-machines --figure docs/figures/softmax.png
	$(BIN)/heedful explain mask --figure docs/figures/mask.png
	$(BIN)/heedful explain schedule --figure docs/figures/schedule.png
	$(BIN)/heedful inspect demo/model "$(SENTENCE)" -o demo/pictures $(LOOK)
	$(BIN)/heedful inspect demo/taught-model "$(SENTENCE)" -o demo/taught $(LOOK) --layer 2 --head 1 --word it --kind encoder
	cp demo/pictures/cross-layer-2.png docs/figures/cross-heads.png
	$(BIN)/heedful inspect demo/model "$(subst tired,wide,$(SENTENCE))" -o demo/wide $(LOOK) --kind cross --layer 2
	cp demo/wide/cross-layer-2.png docs/figures/cross-heads-wide.png
	cp demo/pictures/gradient.png docs/figures/gradient.png
	cp demo/pictures/training.png docs/figures/training.png
	cp demo/taught/encoder-layer-2-head-1-word-8.png docs/figures/taught-it.png
	$(BIN)/python docs/figures/page_pictures.py demo/model docs/figures

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis

# torch first and pinned: packages that depend on it must find it installed.
.venv/runtime: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) torch
	$(PIP) --editable '.[all]'
	touch $@

.venv/dev: .venv/runtime
	$(PIP) --editable '.[dev]'
	touch $@
