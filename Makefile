# make serve    set up what is missing, then serve in the foreground (CONFIG=deploy/x.toml)
# make test     every test, those on a real Triton server included
# make lint     ruff and mypy
# make clean    remove the virtual environment and every cache; models are kept

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUNTIME := $(VENV)/.runtime-installed
TOOLS := $(VENV)/.tools-installed
PIP_INSTALL := $(BIN)/python -m pip install --constraint constraints.txt
PROJECTS := pyproject.toml client/canopy_client/pyproject.toml client/canopy_gateway/pyproject.toml constraints.txt

.PHONY: serve test lint clean

serve: $(RUNTIME)
	@$(BIN)/canopy serve $(if $(CONFIG),--config $(CONFIG))

test: $(TOOLS)
	$(BIN)/python -m pytest -n 2 --dist loadfile

lint: $(TOOLS)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(RUNTIME): $(PROJECTS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Canopy needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --upgrade "pip>=24.1"
	$(PIP_INSTALL) --editable client/canopy_client --editable .
	touch $@

$(TOOLS): $(RUNTIME)
	$(PIP_INSTALL) --editable client/canopy_client --editable client/canopy_gateway --editable ".[dev]"
	touch $@
