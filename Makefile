# make gate    gate the shipped kernels and torch's attention on the CPU
# make test    the self-tests and the properties
# make lint    style, types, direction of imports
# make report  regenerate the committed reports
# Each makes .venv first where it is missing or out of date.

PYTHON ?= python3
JOBS ?= 2

BIN := .venv/bin
KERNELS ?= numpy_naive numpy_online fp32_stats torch_sdpa triton_flash
FAULTY ?= numpy_online+tail_block_dropped
BUDGET ?= pr

RUN := reports/run
GATE = $(BIN)/flashcheck gate $(KERNELS) --device cpu --budget $(BUDGET) \
	--report json=$(RUN)/gate.json --report md=$(RUN)/gate.md
GATE_FAULTY = $(BIN)/flashcheck gate $(FAULTY) --device cpu --budget smoke \
	--examples $(RUN)/faulty
REPORT = $(BIN)/flashcheck gate $(KERNELS) --device cpu --budget pr --seed 0 \
	--report json=reports/cpu/gate.json --report md=reports/cpu/gate.md

# One thread in each process: a BLAS that shares its cores is many times slower.
export OMP_NUM_THREADS := 1
export MKL_NUM_THREADS := 1
export OPENBLAS_NUM_THREADS := 1

.PHONY: gate test lint report clean
.DEFAULT_GOAL := gate

# The second command shows that the first could have failed. Exit code 1 is not enough, since
# a traceback has it too: the gate has to have saved what it found.
gate: .venv/stamp
	@rm -rf $(RUN) && mkdir -p $(RUN)
	$(GATE)
	@echo "A kernel that is broken on purpose has to fail:"
	$(GATE_FAULTY); status=$$?; \
	if test $$status -ne 1 || ! ls $(RUN)/faulty/*.json >/dev/null; then \
		echo "$(FAULTY): exit code $$status; expected 1 and a saved example" >&2; exit 1; \
	fi

test: .venv/stamp
	$(BIN)/pytest -n $(JOBS) --dist worksteal

lint: .venv/stamp
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

report: .venv/stamp
	@mkdir -p reports/cpu
	$(REPORT)

clean:
	rm -rf build dist .flashcheck .hypothesis $(RUN)
	rm -rf .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	find . -path ./.venv -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/stamp: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--constraint constraints.txt --editable ".[dev]"
	@touch $@
