PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: build
build:
	flock .venv $(BIN)/pip install -q --no-build-isolation --no-deps -e .
