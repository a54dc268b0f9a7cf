# The commands of the project. `make help` lists them.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup setup-dev serve check lint types format test test-fast test-long constraints clean

# The first Python that is new enough, unless one is named: make setup PYTHON=python3.12
ifeq ($(origin PYTHON),undefined)
PYTHON := $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$$p"; break; }; done)
ANY_PYTHON := --any-python
endif

BIN := .venv/bin
NEW_ENOUGH := $(if $(PYTHON),$(shell "$(PYTHON)" -c 'import sys; print("yes" if sys.version_info >= (3, 11) else "")' 2>&1))
NO_PYTHON = $(if $(PYTHON),$(PYTHON) is no Python 3.11 or newer,no Python 3.11 or newer found): install one and name it, make $@ PYTHON=/path/to/python3
RUN = $(if $(filter yes,$(NEW_ENOUGH)),"$(PYTHON)",$(error $(NO_PYTHON)))
SETUP = $(RUN) .ci/setup_venv.py $(ANY_PYTHON)
FAST := -m "not e2e and not slow and not long"

help: ## list the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1|/' | column -t -s '|'

setup: ## make .venv with the project and the default model (TORCH_INDEX=URL: take torch from there)
	@$(SETUP)

setup-dev: ## the same, with what lint, types and tests need
	@$(SETUP) --dev

serve: setup ## serve the default model on 127.0.0.1:30000 (MODEL=path-or-hub-id PORT=... ARGS="...")
	@exec $(BIN)/twinloop serve $(if $(MODEL),--model "$(MODEL)") $(if $(PORT),--port "$(PORT)") $(ARGS)

lint: setup-dev ## ruff
	@$(BIN)/ruff check .

types: setup-dev ## mypy, strict
	@$(BIN)/mypy

format: setup-dev ## rewrite the code in the common layout
	@$(BIN)/ruff check --select I --fix --quiet . && $(BIN)/ruff format .

check: lint types ## before a commit: lint, types, house rules and the fast tests
	@$(BIN)/pytest -q $(FAST)

test-fast: setup-dev ## unit tests only, under 3 minutes
	@$(BIN)/pytest -q $(FAST)

test: ## everything: set-up, lint, types, unit and end-to-end tests, an installed wheel; prints minutes against the budget
	@$(RUN) tests/budget.py $(ANY_PYTHON)

test-long: setup-dev ## what is over the budget of `make test`
	@$(BIN)/pytest -m long --timeout=3600

constraints: setup-dev ## write constraints.txt anew from .venv
	@{ sed -n '/^#/p' constraints.txt; $(BIN)/pip freeze --all --exclude-editable | grep -v '^pip==' | sed 's/+[a-z0-9.]*$$//' | sort -f; } > .venv/constraints.txt
	@mv .venv/constraints.txt constraints.txt

clean: ## remove .venv and what tools left behind
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
