# make gate    gate the shipped kernels and torch's attention on the CPU
# make test    the self-tests and the properties
# make lint    style, types, direction of imports
# make report  regenerate the committed reports
# make soundness  search false alarms (144,000 checks)
# make power   break kernels on purpose: does the gate catch it? (hours)
# Each makes .venv first where it is missing or out of date.

PYTHON ?= python3
JOBS ?= 2

BIN := .venv/bin
KERNELS ?= numpy_naive numpy_online fp32_stats triton_flash triton_decode torch_sdpa
FAULTY ?= numpy_online+acc_not_rescaled
BUDGET ?= pr

EXTREMAL := $(addprefix extremal[,$(addsuffix ],sequential_ascending sequential_descending exp_high exp_low exp_mixed prescaled sqrt_prescaled block_of_one normalize_first rounded_sum exp2 exp2_fma exp2_product lazy_rescale splits flush_exp argument_off rescale_off wide_p))
FLASH4 := $(addprefix fp32_stats[,$(addsuffix ],exp2_poly3 exp2_poly5 lazy_rescale))

RUN := reports/run
GATE = $(BIN)/flashcheck gate $(KERNELS) --device cpu --budget $(BUDGET) \
	--report json=$(RUN)/gate.json --report md=$(RUN)/gate.md
GATE_FAULTY = $(BIN)/flashcheck gate $(FAULTY) --device cpu --budget smoke \
	--examples $(RUN)/faulty --quiet

# One thread in each process: a BLAS that shares its cores is many times slower.
export OMP_NUM_THREADS := 1
export MKL_NUM_THREADS := 1
export OPENBLAS_NUM_THREADS := 1

.PHONY: gate test lint report soundness power clean
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
	$(BIN)/flashcheck gate $(KERNELS) "torch_sdpa[math]" "torch_sdpa[flash]" fp32_backward \
		--device cpu --seed 0 --report dir=reports/cpu
	$(BIN)/flashcheck claims --report md=reports/claims.md

# No false alarm: kernels at the very edge of the contract, and torch's own, over several seeds.
SEEDS ?= 0 1 2
SOUND ?= 2000
soundness: .venv/stamp
	@for seed in $(SEEDS); do \
		$(BIN)/flashcheck gate $(EXTREMAL) $(FLASH4) "torch_sdpa[math]" "torch_sdpa[flash]" \
			--dtype float64,float32,float16,bfloat16 --budget $(SOUND) --seed $$seed || exit 1; \
	done

# Every fault in every kernel; Triton runs in its interpreter, where a search takes many times longer.
power: .venv/stamp
	$(BIN)/flashcheck power --seeds 20,triton_flash=3,triton_decode=3,triton_backward=3,triton_float8=3 --jobs $(JOBS) --report md=reports/power.md

clean:
	rm -rf build dist .flashcheck .hypothesis $(RUN)
	rm -rf .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	find . -path ./.venv -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/stamp: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--constraint constraints.txt --editable ".[dev]"
	@touch $@
