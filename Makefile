# `make demo` and `make test` need nothing but Python 3.11 or newer; each makes .venv when it is missing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint clean

demo: $(VENV)/installed
	$(BIN)/archsearch search search_spaces/demo.yaml --workers 2

# one thread for each of the two workers: PyTorch processes that each take all cores slow each other down many times
test: $(VENV)/installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --cov --cov-report=term

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# torch first and by its exact version: where a CPU build is offered, that is the one taken
$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip
	$(BIN)/python -m pip install -q -c constraints.txt "$$(grep '^torch==' constraints.txt)"
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info
