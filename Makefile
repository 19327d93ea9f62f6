# The commands of the house. `make` alone lists them.

# Every hint names this program in a form that works in any shell; PYTHON=... chooses another one.
PYTHON ?= $(shell for name in python3 python3.13 python3.12 python3.11 python3.14; do \
	"$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$$name"; break; }; done)
VENV := .venv
SEEDS ?= 300
WEEKS ?= 30
RUN := $(VENV)/bin/python -m

export PYTHONPATH := $(CURDIR)

.PHONY: help up test test-again lint bench ledger crash week wheel locks dev
.DEFAULT_GOAL := help

help:
	@echo 'make up      from a fresh clone to the first reply (the same as ./up)'
	@echo 'make test    the whole suite; tests that need Docker run where an engine answers'
	@echo 'make lint    ruff, mypy --strict, the import contracts'
	@echo 'make ledger  which requirements have a passing test; fails when one of this stage has none'
	@echo 'make crash   300 seeds of random kills'
	@echo 'make week    30 simulated weeks, each with accounts of every message'
	@echo 'make bench   the speed table, also as build/bench.json'
	@echo 'make wheel   build/dist/*.whl'
	@echo 'make locks   resolves the dependencies anew'

up:
	@./up

# Installs again exactly when the lock has changed.
dev:
	@test -n '$(PYTHON)' || { echo 'No Python >= 3.11 was found. Install one, or name it: make PYTHON=/path/to/python3'; exit 1; }
	@wanted=$$('$(PYTHON)' -c 'import hashlib; print(hashlib.sha256(open("requirements-dev.lock", "rb").read()).hexdigest())'); \
	if [ "$$(cat $(VENV)/.dev-lock 2>/dev/null)" != "$$wanted" ]; then \
		echo 'Installing what the tests need into $(VENV) ...'; \
		[ -x $(VENV)/bin/python ] || '$(PYTHON)' -m venv $(VENV); \
		$(RUN) pip install --quiet --require-hashes --requirement requirements-dev.lock && echo "$$wanted" > $(VENV)/.dev-lock; \
	fi

test: dev
	$(RUN) pytest -n auto --dist loadgroup

# What failed in the last run, one after another and each alone on the machine.
test-again: dev
	$(RUN) pytest --last-failed --last-failed-no-failures none -p no:randomly

lint: dev
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

ledger: dev
	@$(RUN) tests.plugins.ledger

crash: dev
	$(RUN) pytest -n auto --dist loadgroup -m storm --seeds $(SEEDS)

week: dev
	$(RUN) pytest -n auto --dist loadgroup tests/life/test_week.py --weeks $(WEEKS) -rP

bench: dev
	$(RUN) benchmarks

wheel: dev
	$(VENV)/bin/hatchling build --target wheel --directory build/dist

# No registry's address may enter a lock: whoever installs uses their own.
UV_COMPILE := $(RUN) uv pip compile --quiet --generate-hashes --universal --python-version 3.11 \
	--no-emit-index-url --no-header --no-annotate

locks: dev
	$(UV_COMPILE) pyproject.toml --extra build --output-file requirements.lock
	$(UV_COMPILE) pyproject.toml --extra build --group dev --output-file requirements-dev.lock
	$(UV_COMPILE) requirements-runner.in --output-file requirements-runner.lock
