# make demo   the recommender on MovieLens-100K       make test   lint, import arrows, unit tests
# Both build .venv when it is missing or older than the project's dependencies.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Without an NVIDIA GPU, the CPU builds that the constraints name.
CONSTRAINTS := $(if $(shell command -v nvidia-smi 2>/dev/null),,-c constraints-cpu.txt)
WORKERS ?= 2

.PHONY: demo test lint unit mutation clean

demo: $(VENV)/.installed $(VENV)/.data
	$(BIN)/blockattn demo $(DEMO)

test: lint unit

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# The library's kernels run in Triton's interpreter, which a process has for all kernels or for none: the simulator's do not.
unit: $(VENV)/.installed
	$(BIN)/python -m pytest -n $(WORKERS) --ignore=tests/tlxsim $(PYTEST)
	TRITON_INTERPRET=0 $(BIN)/python -m pytest -n $(WORKERS) tests/tlxsim $(PYTEST)

mutation: $(VENV)/.installed
	$(BIN)/python tests/mutation/run.py
	TRITON_INTERPRET=0 $(BIN)/python tests/tlxsim/mutation/run.py

$(VENV)/.installed: pyproject.toml constraints-cpu.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet $(CONSTRAINTS) -e '.[dev]'
	touch $@

# The interactions ship inside this wheel; it is read as data, so none of its dependencies are wanted.
$(VENV)/.data: $(VENV)/.installed
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps recbole==1.2.1
	touch $@

clean:
	rm -rf $(VENV)
