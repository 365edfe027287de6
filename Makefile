# Two commands matter: `make demo` and `make test`. All targets set everything up in .venv by themselves.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help setup demo serve test test-all check format bench docs site clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-10s %s\n", $$1, $$2}'

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e '.[dev]'
	@touch $@

setup: $(STAMP)  ## create .venv and install evergrow with its development tools

demo: $(STAMP)  ## learn handwritten digits two at a time, forget one, spot an unknown one
	$(BIN)/evergrow demo

serve: $(STAMP)  ## the page and the HTTP service, on a demo model made on the spot
	@folder=$$(mktemp -d) && $(BIN)/evergrow demo --pictures $$folder/digits && mkdir $$folder/models && \
	$(BIN)/evergrow fit $$folder/digits/first -m $$folder/models/digits.evg && \
	$(BIN)/evergrow serve $$folder/models --open; rm -rf $$folder

check: $(STAMP)  ## ruff, mypy --strict, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Processes side by side, each with one thread: the problems are small, and threaded BLAS stalls when another process
# holds a core. Tests of one file stay together, because they share what is costly to make.
WORKERS ?= 2
PYTEST := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile

test: check  ## the checks and all tests but the slow ones
	$(PYTEST) -m 'not slow'

test-all: check  ## the checks and every test
	$(PYTEST)

format: $(STAMP)  ## rewrite the sources in the house format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)  ## speed and memory as ratios against a baseline in the same run
	$(BIN)/python -m benchmarks.run

docs: $(STAMP)  ## the documentation as a site in build/site; no warning passes
	@$(MAKE) --no-print-directory site

# Apart from the setup, so that the tests build the site with the packages that they run with. The figures of the gallery take
# longer than the pages, and are drawn only when records or their drawing change.
REPORT := build/report/index.html
$(REPORT): $(shell find experiments/records -name '*.json') $(wildcard src/evergrow/report/*.*)
	$(BIN)/evergrow report experiments/records -o $(@D)

site: $(REPORT)
	$(BIN)/properdocs build --strict --quiet
	@echo "build/site/index.html"

clean:  ## remove what the other targets made
	rm -rf $(VENV) .mypy_cache .ruff_cache .import_linter_cache dist build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
