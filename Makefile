# One command runs the main job, one the tests; both set up their own environment in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STUDY := experiments/digits_vit_demo

.PHONY: demo test check clean

# Made anew when the dependencies change.
$(VENV)/.installed: setup.cfg pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test]'
	touch $@

## demo: tune NAdamW, compare eight attention rows on digits_vit, print the table, draw the plots
demo: $(VENV)/.installed
	$(BIN)/python -m workloads prepare digits_vit
	$(BIN)/python -m sweeps run --config=digits_vit_demo
	$(BIN)/python -m analysis table $(STUDY)
	$(BIN)/python -m analysis plots $(STUDY)

## test: lint, type check, all tests
test: $(VENV)/.installed check
	$(BIN)/python -m pytest -n 2

check: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) experiments
