# Every target works first on a machine that has only Python (3.11 or 3.12) and make.

PYTHON ?= $(shell for p in python3.12 python3.11 python3; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
PORT ?= 8080
JOBS ?= 2

.PHONY: serve test test-all lint bench docs clean

serve: .venv/.kernels  ## answer on port 8080 with the bundled model
	$(BIN)/ninfer-serve --port $(PORT)

test: .venv/.development  ## the whole suite but the campaigns
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m "not campaign and not device"

test-all: test  ## the suite, then the campaigns with fresh, printed seeds, and what needs a GPU
	NINFER_TEST_PROFILE=campaign $(BIN)/python -m pytest -s --timeout 3600 -m campaign
	$(BIN)/python -m pytest -s -rs --timeout 3600 tests/device

lint: .venv/.development  ## formatting, types, import rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: .venv/.development  ## what can be measured so far, on this machine
	$(BIN)/python -m tools.bench.prepare

docs: .venv/.development  ## regenerate the tables under docs/ from spec/
	$(BIN)/python -m tools.docs

clean:
	rm -rf .venv build dist

.venv/.created:
	@test -n "$(PYTHON)" || { echo "make: no Python 3.11 or 3.12 found; name one with PYTHON=..." >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	@touch $@

.venv/.runtime: .venv/.created pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable . pyyaml
	@touch $@

# Kernels are compiled for this processor here, once, so that the server's first start is as quick as the next.
.venv/.kernels: .venv/.runtime $(shell find ninfer/fast -name '*.py')
	$(BIN)/python -m tools.compile_kernels
	@touch $@

.venv/.development: .venv/.created pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@ .venv/.runtime
