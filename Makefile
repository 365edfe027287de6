# Two commands matter: `make demo` and `make test`. All targets set everything up in .venv by themselves.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# Two sets in one environment: what the first page of the README runs, and with it what developers need.
DEMO   := $(VENV)/.demo
STAMP  := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help setup demo serve test test-shared test-all test-oldest check format bench docs site dist clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-11s %s\n", $$1, $$2}'

$(DEMO): EXTRAS := bundled,onnx,serve
$(STAMP): EXTRAS := dev
$(DEMO) $(STAMP): pyproject.toml
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	@echo "installing evergrow[$(EXTRAS)] into $(VENV): some minutes and gigabytes, nearly all of them PyTorch"
	$(BIN)/python -m pip install --quiet -e '.[$(EXTRAS)]'
	@touch $(DEMO) $@

setup: $(STAMP)  ## create .venv and install evergrow with every extra and its development tools

demo: $(DEMO)  ## learn handwritten digits two at a time, forget one, spot an unknown one
	$(BIN)/python examples/digits.py

PORT   ?= 8080
MODELS ?= models
serve: $(DEMO) | $(MODELS)  ## the page and the HTTP service on PORT (8080); models are kept in MODELS (models/)
	$(BIN)/evergrow serve $(MODELS) --port $(PORT) --open

$(MODELS): | $(DEMO)
	@folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && trap 'exit 130' INT TERM && \
	$(BIN)/evergrow demo --pictures $$folder/shapes && $(BIN)/evergrow fit $$folder/shapes/first -m $$folder/shapes.evg && \
	mkdir -p $@ && mv $$folder/shapes.evg $@

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

test-shared: $(STAMP)  ## of these tests only those that want real data, which EVERGROW_SHARED names the folder of
	$(PYTEST) -m 'shared and not slow'

test-all: check  ## the checks and every test
	$(PYTEST)

# uv is what resolves every requirement of ours to its lowest allowed version (pip cannot), so that the bounds in pyproject.toml
# are what is tested (of those with a wheel for this Python); requirements of requirements, and our tools, stay the newest.
# Another Python, or fewer tests:
# make test-oldest PYTHON=python3.10 OLDEST=.venv-oldest-3.10 TESTS=tests/heads
OLDEST ?= .venv-oldest
TESTS  ?=
$(OLDEST)/.installed: pyproject.toml
	$(PYTHON) -m venv --clear $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet --upgrade pip uv
	$(OLDEST)/bin/uv pip compile --quiet --no-header --python $(OLDEST)/bin/python --resolution lowest-direct --only-binary :all: \
	  --extra all pyproject.toml --output-file $(OLDEST)/lowest.txt
	$(OLDEST)/bin/uv pip install --quiet --python $(OLDEST)/bin/python --constraints $(OLDEST)/lowest.txt --editable '.[dev]'
	@touch $@

test-oldest: $(OLDEST)/.installed  ## the tests but the slow ones, with the oldest versions of all that pyproject.toml allows
	$(PYTEST:$(BIN)/%=$(OLDEST)/bin/%) -m 'not slow' $(TESTS)

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
$(REPORT): $(shell find experiments/records -name '*.json') $(wildcard src/evergrow/lab/report/*.*)
	$(BIN)/evergrow lab report experiments/records -o $(@D)

site: $(REPORT)
	$(BIN)/properdocs build --strict --quiet
	@echo "build/site/index.html"

# Built in an environment of their own, the wheel from the sdist: what is missing there would be missing everywhere.
dist: $(STAMP)  ## wheel and sdist in dist/, their contents and sizes checked
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(BIN)/twine check --strict dist/*
	$(BIN)/check-wheel-contents dist/*.whl
	$(BIN)/python .ci/check_dist.py dist

clean:  ## remove what the other targets made
	rm -rf $(VENV) $(OLDEST) .mypy_cache .ruff_cache .import_linter_cache dist build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
