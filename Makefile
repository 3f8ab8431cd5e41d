# Every target sets up its own virtual environment in .venv on first use.
PYTHON ?= python3.11
BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

# The build of PyTorch: cpu, cuda, or default (what pip finds). On Linux, pip finds the one with gigabytes of CUDA
# libraries, so machines without an NVIDIA driver get the CPU build.
GPU_DRIVER := $(wildcard /proc/driver/nvidia /dev/nvidiactl /dev/nvmap /dev/dxg)
TORCH ?= $(if $(filter Linux,$(shell uname -s)),$(if $(GPU_DRIVER),cuda,cpu),default)
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu

ifeq ($(TORCH),cpu)
# A CPU build among pip's own files (find-links) comes first; its dependencies come with the next command.
INSTALL_TORCH = $(PIP) --no-index --no-deps torch 2> /dev/null || $(PIP) --no-deps --index-url $(TORCH_CPU_INDEX) torch
else ifneq ($(filter cuda default,$(TORCH)),)
INSTALL_TORCH = $(PIP) torch
else
$(error TORCH=$(TORCH): use cpu, cuda or default)
endif

.PHONY: demo test test-all test-slow fuzz check check-page format bench figures clean

demo: .venv/runtime
	$(BIN)/heedful demo

test: .venv/dev
	OMP_NUM_THREADS=1 $(BIN)/pytest -m "not slow and not long" -n auto --dist worksteal

# The long tests: fault injection, distributed training, model variants and the lesson in a browser. CI runs test and test-all.
test-all: .venv/dev
	OMP_NUM_THREADS=1 $(BIN)/pytest -m "long and not slow" -n auto --dist worksteal

test-slow: .venv/dev
	$(BIN)/pytest -m slow

# Corrupt files for every reader, 20 seconds each: about half an hour.
fuzz: .venv/dev
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzzing.campaign 20

check: .venv/dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# Type-check the page's modules; TypeScript is used for nothing else.
check-page:
	@if command -v npx > /dev/null; then npx --yes -p typescript tsc -p src/heedful/web; \
	else echo "check-page: skipped, npx (Node.js) is not installed"; fi

format: .venv/dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: .venv/dev
	for script in benchmarks/*.py; do $(BIN)/python $$script || exit 1; done

# The figures of the docs, from the two demo models.
SENTENCE := The animal didn't cross the street because it was too tired.
FIGURE_OPTIONS := --format png --quiet
figures: .venv/dev
	$(BIN)/heedful demo
	$(BIN)/heedful demo --guided-attention
	$(BIN)/heedful explain positions --figure docs/figures/positions.png
	$(BIN)/heedful explain thinking-machines --figure docs/figures/softmax.png
	$(BIN)/heedful explain mask --figure docs/figures/mask.png
	$(BIN)/heedful explain schedule --figure docs/figures/schedule.png
	$(BIN)/heedful inspect demo/model "$(SENTENCE)" -o demo/figures $(FIGURE_OPTIONS)
	$(BIN)/heedful inspect demo/guided-model "$(SENTENCE)" -o demo/guided $(FIGURE_OPTIONS) --layer 2 --head 1 --word it --kind encoder
	cp demo/figures/cross-layer-2.png docs/figures/cross-heads.png
	$(BIN)/heedful inspect demo/model "$(subst tired,wide,$(SENTENCE))" -o demo/wide $(FIGURE_OPTIONS) --kind cross --layer 2
	cp demo/wide/cross-layer-2.png docs/figures/cross-heads-wide.png
	cp demo/figures/gradient.png docs/figures/gradient.png
	cp demo/figures/training.png docs/figures/training.png
	cp demo/guided/encoder-layer-2-head-1-word-8.png docs/figures/guided-it.png
	$(BIN)/python docs/figures/page_pictures.py demo/model docs/figures

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis

# torch first: it is pinned, and packages that depend on it must find it installed.
.venv/runtime: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(INSTALL_TORCH)
	$(PIP) --editable '.[figures,serve,train]'
	touch $@

.venv/dev: .venv/runtime
	$(PIP) --editable '.[dev]'
	touch $@
