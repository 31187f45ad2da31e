# `make` alone lists the targets. VENV, PYTHON and PINS choose another environment, for example:
#   make test VENV=.venv-3.13 PYTHON=python3.13 PINS=constraints-newest.txt

.DEFAULT_GOAL := help
SHELL := /bin/sh

VENV ?= .venv
PYTHON ?=
# A file laid over constraints.txt. Use another VENV with it: installed packages stay as they are.
PINS ?=
ARGS ?=
# pytest workers; "auto" is one per core, 0 runs everything in one process.
JOBS ?= auto

# An extra brings those below it along.
INCLUDES_dev := test demo bench
INCLUDES_test := demo bench
INCLUDES_bench := demo

export PYTHON
BIN := $(VENV)/bin
PIN_FILES := constraints.txt $(PINS)
INPUTS := pyproject.toml $(PIN_FILES) tools/install.sh tools/merge_pins.py

.PHONY: help setup demo test check format messages bench soak pins clean

help: ## List the targets
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo '  Variables: ARGS="..." is handed to the command; VENV=$(VENV) PYTHON=... PINS=... JOBS=$(JOBS)'

# Installs again only when what it depends on is newer than the last install that succeeded.
$(VENV)/.installed-%: $(INPUTS)
	@tools/install.sh "$(VENV)" "$*" $(PIN_FILES)
	@touch "$@" $(patsubst %,$(VENV)/.installed-%,$(INCLUDES_$*))

setup: $(VENV)/.installed-dev $(VENV)/.installed-bench ## Create the environment with everything in it

demo: $(VENV)/.installed-demo ## Run the demo shop (ARGS=--once runs the race and ends)
	@$(BIN)/python -m demo_site.run $(ARGS)

# Development mode, but for its allocator that looks for faults of C: it costs a sixth of the time.
# A worker steals only when it has nothing to do, so that few servers are started by two of them.
test: $(VENV)/.installed-test ## Run the tests on servers that they start themselves (ARGS="-k name")
	@PYTHONDEVMODE=1 PYTHONMALLOC=pymalloc $(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(ARGS)

soak: $(VENV)/.installed-test ## Run the long tests (ARGS="-k name")
	@PYTHONDEVMODE=1 $(BIN)/python -m pytest -m soak -n 0 $(ARGS)

check: $(VENV)/.installed-dev ## Format, lint, types, layers, migrations, translations, docs examples
	@$(BIN)/python -m tools.check $(ARGS)

format: $(VENV)/.installed-dev ## Format the code and apply the safe fixes
	@$(BIN)/python -m ruff check --fix-only --quiet .
	@$(BIN)/python -m ruff format .

messages: $(VENV)/.installed-dev ## Bring translations in step with the source and compile them
	@$(BIN)/python -m tools.translations update

bench: $(VENV)/.installed-bench ## Measure lockapp beside its peers (ARGS="--quick", "--only pair", "--write")
	@$(BIN)/python -m tests.bench $(ARGS)

pins: ## Renew constraints.txt from the ranges in pyproject.toml
	@tools/renew_pins.sh

clean: ## Remove the environment and every cache
	rm -rf "$(VENV)" build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find lockapp demo_site tests tools -name __pycache__ -type d -prune -exec rm -rf {} +
