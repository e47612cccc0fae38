# The two commands for a newcomer are `make demo` and `make test`. See README.md.
PYTHON ?= python3
export TORCH ?= # another release of PyTorch: `make test TORCH=2.14.1`, in an environment of its own
export VENV ?= .venv$(addprefix -torch,$(TORCH))
BIN := $(VENV)/bin
PYTEST_ARGS ?= -n 2
CXX_FILES = $(shell find csrc tests examples bench -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh')

.PHONY: build test demo wheel lint format clean

build: ## the environment in .venv, with customconv built in place
	@$(PYTHON) tools/bootstrap.py

test: build ## all tests; those that need a GPU are skipped without one
	$(BIN)/python -m pytest $(PYTEST_ARGS)

demo: build ## a photograph filtered, a network trained, times compared
	$(BIN)/python -m customconv demo

wheel: build ## one wheel for this Python and others, and for the releases of PyTorch in TORCHES
	$(BIN)/python tools/make_wheel.py wheel --torch $(TORCHES) --python $(PYTHONS)

lint: build ## every check that needs no test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run -Werror $(CXX_FILES)

format: build ## rewrites the sources in the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CXX_FILES)

clean: ## what a build leaves; environments stay
	rm -rf build dist wheelhouse python/*.egg-info python/customconv/_bind*.so python/customconv/lib \
		python/customconv/_build.json
	find python tests tools -name __pycache__ -prune -exec rm -rf {} +
