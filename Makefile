# make test and make demo work on a fresh clone: they need python3 (3.11 or later), make and a C++20 compiler. The CUDA
# library is built where there are a GPU and nvcc, for that GPU; with MDOPS_CUDA=ON in the environment always.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

# Where the environment lets Python write no bytecode, each process of the tests would compile PyTorch's sources anew.
BYTECODE := PYTHONDONTWRITEBYTECODE= PYTHONPYCACHEPREFIX=$(CURDIR)/$(VENV)/bytecode

CPP := $(shell find source -name '*.cpp' -o -name '*.h' -o -name '*.cu')
BUILT_FROM := $(shell find source -type f) CMakeLists.txt

# Stamp files tell what is done. One environment serves one make at a time.
SETUP := $(VENV)/.mdops-setup
BUILD := $(VENV)/.mdops-build
LOCK := flock $(VENV)

.PHONY: help setup build test lint format demo docs wheel matrix clean

help:
	@echo "make setup    .venv with everything pinned in constraints.txt, but the package"
	@echo "make build    compile the ops, and install the package"
	@echo "make test     the test suite; ARGS are pytest's: make test ARGS='tests/ops -k gradients'"
	@echo "make lint     ruff, clang-format and mypy"
	@echo "make format   format Python and C++"
	@echo "make demo     data, training, test and dynamics of an alloy, into demo/report.html"
	@echo "make docs     the documentation as a site, into build/site/"
	@echo "make wheel    one wheel with the CPU and the CUDA library, into dist/; needs nvcc"
	@echo "make matrix   compile every combination of the build's flags, into benchmarks/results/build_matrix.txt"
	@echo "make clean    remove what was built; .venv stays"

setup: $(SETUP)
build: $(BUILD)

# All that the package and its developers need: `dev` names other extras as `mdops[...]`. The package itself is built later.
REQUIRED := import re, tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
	extras = project["optional-dependencies"]; own, *dev = extras["dev"]; \
	print(*project["dependencies"], *dev, *(x for e in re.findall(r"\w+", own)[1:] for x in extras[e]), sep="\n")

$(SETUP): constraints.txt pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -c '$(REQUIRED)' >$(VENV)/required.txt
	$(LOCK) $(PIP) install --no-compile -c constraints.txt -r $(VENV)/required.txt
	touch $@

$(BUILD): $(SETUP) $(BUILT_FROM)
	$(LOCK) $(PIP) install --no-build-isolation --no-deps -e .
	touch $@

# Tests go to the worker that is free first, long ones before others; `make test ARGS="-n 0 ..."` runs them in one process.
test: $(BUILD)
	$(BYTECODE) $(BIN)/python -m pytest -n auto --dist worksteal $(ARGS)

lint: $(SETUP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run -Werror $(CPP)
	$(BIN)/mypy

format: $(SETUP)
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CPP)

demo: $(BUILD)
	$(BIN)/python examples/demo.py --out demo

docs: $(BUILD)
	$(BIN)/python scripts/build_docs.py build/site

# PyTorch's libraries stay outside: the one that is installed is used. auditwheel finds the oldest Linux that the rest serves.
wheel: $(SETUP)
	rm -rf build/wheel
	$(LOCK) $(PIP) wheel --no-build-isolation --no-deps -C cmake.define.MDOPS_CUDA=ON \
		-C cmake.define.CMAKE_CUDA_FLAGS=--compress-mode=size -w build/wheel .
	PATH="$(CURDIR)/$(BIN):$$PATH" auditwheel repair --exclude 'libtorch*.so' -w dist build/wheel/mdops-*.whl

matrix: $(BUILD)
	PATH="$(CURDIR)/$(BIN):$$PATH" nice $(BIN)/python scripts/build_matrix.py --out benchmarks/results/build_matrix.txt $(ARGS)

clean:
	rm -rf build demo dist .mypy_cache .pytest_cache .ruff_cache $(BUILD)
