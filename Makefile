# Two commands set everything up: `make demo` and `make test`.

PYTHON ?= python3.11
VENV   := .venv
BIN    := $(VENV)/bin

.PHONY: help demo install test quick lint format clean

help:
	@echo "make demo     install, then remove clouds from a simulated scene"
	@echo "make test     install with the developers' tools, then run the whole test suite"
	@echo "make quick    the tests that take seconds"
	@echo "make install  the set-up alone"
	@echo "make lint     ruff, mypy"
	@echo "make format   let ruff tidy the code"

demo: $(VENV)/.installed
	$(BIN)/undercast demo

install: $(VENV)/.installed

# One process a core, each with one thread (tests/conftest.py). The engines load four runtimes with
# threads of their own into one process, so they have it to themselves.
test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n auto --dist worksteal --ignore tests/test_engines.py
	$(BIN)/python -m pytest tests/test_engines.py

quick: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not slow"

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) dist build

# The stamps are newer than pyproject.toml when nothing has to be installed again.
$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install -q -e ".[plots]"
	@touch $@

$(VENV)/.installed-dev: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install -q -e ".[dev]"
	@touch $@ $(VENV)/.installed

# Debian keeps the venv module in a package of its own.
$(VENV)/bin/python:
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "undercast: error: $(PYTHON) cannot make a virtual environment; on Debian and Ubuntu:" >&2; \
	  echo "  sudo apt-get install python3.11-venv    and run make again" >&2; exit 2; }
