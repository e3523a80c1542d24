# Everything a contributor needs. On a machine with Python 3.11 or newer, git and make, each target
# first sets up its own .venv. Where packages come from is pip's business: set PIP_INDEX_URL,
# PIP_FIND_LINKS or a pip.conf if this machine cannot reach the default index.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SEEDS ?= 500
# Most tests wait, for processes and for the disk: three at a time, whatever the machine has.
PYTEST := $(BIN)/pytest -n 3 --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help setup demo test check lint types format sim bench soak docs lock clean

help: ## Show this list.
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | \
	  while IFS='|' read -r target text; do printf '%-14s %s\n' "$$target" "$$text"; done

setup: $(VENV)/installed ## Set up .venv: the locked packages and swamp itself, editable.

# The build backend is locked and installed like everything else, so nothing is fetched unpinned.
$(VENV)/installed: pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "swamp needs Python 3.11 or newer, but '$(PYTHON)' is $$($(PYTHON) --version 2>&1);" \
	    "name another: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
	  { rm -rf $(VENV); echo "'$(PYTHON) -m venv' failed: is the venv module installed?" >&2; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  --no-deps --no-build-isolation --editable .
	@touch $@

demo: $(VENV)/installed ## A server, two workers and a fan-out workflow in a scratch repository.
	@$(BIN)/swamp demo

test: $(VENV)/installed ## All tests but the benchmarks.
	$(PYTEST) -m "not bench" tests

check: lint types test ## What must pass before a commit: lint, format, types, tests.

lint: $(VENV)/installed ## ruff: lint and format.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/installed ## mypy, strict.
	$(BIN)/mypy
	$(BIN)/mypy tests/bench

format: $(VENV)/installed ## Let ruff mend what it can.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

sim: $(VENV)/installed ## The simulation: make sim SEEDS=2000.
	SWAMP_SIM_SEEDS=$(SEEDS) $(PYTEST) tests/sim

bench: $(VENV)/installed ## Measure against this machine: make bench ONLY=W1,W3 QUICK=1 PAGE=1.
	@$(BIN)/python tests/bench $(if $(ONLY),--only $(ONLY)) $(if $(QUICK),--quick) \
	  $(if $(PAGE),--page)

soak: $(VENV)/installed ## Hours of a fleet's life, compressed: make soak STEPS=20000 ENROLLMENTS=4000.
	@$(BIN)/python tests/bench/soak.py $(if $(STEPS),--steps $(STEPS)) \
	  $(if $(ENROLLMENTS),--enrollments $(ENROLLMENTS))

docs: $(VENV)/installed ## Write docs/commands.md again from the command line's own help.
	$(BIN)/python docs/write_commands.py

lock: ## Write requirements.lock again: the newest versions that pyproject.toml allows.
	rm -rf $(VENV)-lock
	$(PYTHON) -m venv $(VENV)-lock
	$(VENV)-lock/bin/python -m pip install --quiet '.[dev]' 'hatchling>=1.26' editables
	{ echo "# Exact versions for contributors and CI; written by \`make lock\`."; \
	  $(VENV)-lock/bin/python -m pip freeze --exclude swamp; } > requirements.lock
	rm -rf $(VENV)-lock

clean: ## Remove .venv and everything that tools cached.
	rm -rf $(VENV) $(VENV)-lock .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist htmlcov
	rm -f .coverage .coverage.*
	find swamp controllers datastore tests -name __pycache__ -type d -prune -exec rm -rf {} +
