# Everything runs in .venv, installed through constraints.txt (the versions that this was developed and tested with).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
MODEL := .models/SmolLM2-135M-Instruct.Q4_1.gguf
NATIVE := CMakeLists.txt $(wildcard kernels/native/*)

.PHONY: install model demo test lint types test-full test-floors clean

install: $(STAMP)

# Without build isolation, so that the build backend is a pinned one too. Afterwards source edits need no new install;
# a change of the C++ or of the dependencies does, and make sees to it.
$(STAMP): pyproject.toml constraints.txt $(NATIVE)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt scikit-build-core cmake ninja
	$(BIN)/python -m pip install --quiet -c constraints.txt --no-build-isolation -e '.[dev]'
	touch $@

model: $(MODEL)

$(MODEL): | $(STAMP)
	$(BIN)/python scripts/fetch_demo_model.py

demo: install model
	$(BIN)/flexinfer run $(MODEL) --strategy auto --chat --prompt "Write two sentences about the sea." --max-new-tokens 64

lint: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

# mypy follows no import hooks, so it is shown the package as a wheel lays it out
types: install
	rm -rf build/typing && mkdir -p build/typing/flexinfer
	ln -s $(CURDIR)/flexinfer/* $(CURDIR)/estimator $(CURDIR)/kernels build/typing/flexinfer/
	cd build/typing && $(CURDIR)/$(BIN)/mypy --config-file $(CURDIR)/pyproject.toml \
	    -p flexinfer

test: install model lint types
	$(BIN)/pytest

# Hours rather than minutes: fresh and many draws for every property, sanitizers, an install without a compiler, and the
# oldest versions that pyproject.toml allows.
test-full: install model lint types
	FLEXINFER_FUZZ=1 $(BIN)/pytest -m "slow or not slow"
	$(MAKE) test-floors

# Downloads several GB into an environment of its own
test-floors: model
	$(PYTHON) -m venv build/floors
	build/floors/bin/python -m pip install --quiet -c tests/floors.txt scikit-build-core cmake ninja
	build/floors/bin/python -m pip install --quiet -c tests/floors.txt --no-build-isolation '.[test]'
	build/floors/bin/pytest

clean:
	rm -rf build $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
