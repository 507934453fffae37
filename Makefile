# One entry to everything. `make train` and `make test` install what they need into .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TRACKERS_STAMP := $(VENV)/.trackers-installed
JOBS ?= 2
CASES ?= 10000
SEED ?= 1
TOGETHER = $(if $(JOBS),-n $(JOBS) --dist worksteal)
DOCS_STAMP := $(VENV)/.docs-installed
GPU_TESTS = tests/test_devices.py tests/test_device_waits.py tests/determinism/test_device_reads.py tests/determinism/test_device_rows.py \
	tests/experiments/certify tests/collectives/process_groups/test_transport.py tests/collectives/process_groups/test_default_group.py \
	tests/collectives/process_groups/test_roll_call.py tests/system/test_leaving.py tests/train/callbacks/test_monitors.py \
	tests/train/callbacks/test_profiler.py tests/strategies/test_data_parallel.py tests/strategies/test_model_parallel.py
GPU_LIST = test_the_list_of_what_no_test_has_run_is_that_of_today
PUBLIC := build/public
PUBLIC_STAMP := $(PUBLIC)/.installed
EXAMPLES := build/examples
EXAMPLES_STAMP := $(EXAMPLES)/.installed
SITE = import sysconfig; print(sysconfig.get_path("purelib"))

.PHONY: help install train test test-slow faults live adversary same-bits gpu gpu-lines cluster public examples test-all coverage check docs figures bench format mutation wheel-check fresh clean

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 12

install: $(STAMP)  ## create .venv and install unisono with everything for development

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "unisono needs Python 3.11 or later; $(PYTHON) is older. Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
		{ echo "$(PYTHON) cannot make a virtual environment. On Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	@echo "Installing torch, unisono and what its tests need into $(VENV): 1.5 GB, some minutes, once."
	@$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt torch
	@$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[recipes,dev]'
	@touch $@

train: $(STAMP)  ## train the digits recipe on all cores
	$(BIN)/unisono train digits

test: $(STAMP)  ## the default tests, two at a time: minutes; JOBS= runs them one by one
	$(BIN)/python -m pytest -m 'not slow and not cluster and not public' $(TOGETHER)

$(TRACKERS_STAMP): $(STAMP)
	$(BIN)/python -m pip install --disable-pip-version-check -q -c constraints.txt -e '.[mlflow,wandb]'
	@touch $@

test-slow: $(TRACKERS_STAMP)  ## the slow tests alone
	$(BIN)/python -m pytest -m 'slow and not cluster and not public' $(TOGETHER)

faults: $(STAMP)  ## the fault matrix; what was seen goes to build/faults.jsonl
	$(BIN)/python -m pytest tests/faults

live: $(STAMP)  ## 1,000 SIGKILLs that the others live through: half an hour; continues after an interruption (build/bench/live)
	$(BIN)/python benchmarks/live_kills.py $(if $(KILLS),--kills $(KILLS))

adversary: $(STAMP)  ## ten thousand drawn cases of combinations, kills, damages and options; an hour; continues after an interruption
	cd tests && ../$(BIN)/python -m adversary --cases $(CASES) --seed $(SEED) --log ../build/adversary-$(SEED).jsonl

same-bits: $(STAMP)  ## named jobs of BASE=COMMIT and of this tree: the same bits? ONLY=NAME,... and KEEP=DIR are options
	@test -n "$(BASE)" || { echo "Which commit? make same-bits BASE=COMMIT"; exit 2; }
	cd tests && ../$(BIN)/python -m same_bits --base $(BASE) $(if $(ONLY),--jobs $(ONLY)) $(if $(KEEP),--keep $(abspath $(KEEP)))

gpu: $(STAMP)  ## what holds on this GPU, with controls, in build/certificate: half an hour
	$(BIN)/unisono certify --device cuda --out build/certificate

gpu-lines: $(STAMP)  ## which statements only a GPU reaches, and which of them no test has run, into docs/design/gpu-lines.md
	@rm -rf build/gpu-lines && mkdir -p build/gpu-lines
	COVERAGE_FILE=build/gpu-lines/data $(BIN)/python -m coverage run -m pytest -q -m "" $(GPU_TESTS) --deselect tests/test_devices.py::$(GPU_LIST)
	COVERAGE_FILE=build/gpu-lines/data $(BIN)/python -m coverage combine -q
	$(BIN)/python tests/device_lines.py build/gpu-lines/data

cluster: $(STAMP)  ## engines and several hosts, really started; wants root, and installs Debian packages
	$(BIN)/python -m pytest -m cluster tests/cluster

# an environment of its own that sees .venv behind it: torch is not installed twice, and .venv stays as it is
define BESIDE
	$(BIN)/python -m venv --clear --without-pip $(1)
	@echo "import site; site.addsitedir('$$($(BIN)/python -c '$(SITE)')')" > "$$($(1)/bin/python -c '$(SITE)')/behind.pth"
	$(1)/bin/python -m pip install --disable-pip-version-check -q -c constraints.txt -c tests/public/constraints.txt $(2)
	@touch $@
endef

$(PUBLIC_STAMP): $(STAMP) tests/public/constraints.txt
	$(call BESIDE,$(PUBLIC),accelerate datasets lightning-fabric pytorch-ignite pytorch-lightning torchmetrics transformers)

public: $(PUBLIC_STAMP)  ## programs of other projects, pinned, under our launcher and backend, beside torchrun
	$(PUBLIC)/bin/python -m pytest -m public $(if $(JOBS),-n $(JOBS) --dist loadfile) tests/public

$(EXAMPLES_STAMP): $(STAMP) tests/public/constraints.txt
	$(call BESIDE,$(EXAMPLES),accelerate ipykernel lightning-fabric nbclient peft transformers)

examples: $(EXAMPLES_STAMP)  ## the examples that are jobs, on 1, 2, 3 workers and after a kill; cost beside a plain loop; ONLY="NAME ..."
	$(EXAMPLES)/bin/python benchmarks/play_examples.py $(ONLY)

test-all: test test-slow  ## every test

coverage: $(STAMP)  ## lines of src that the default tests reach, in all their processes; fails below 90 %
	@mkdir -p build/coverage
	$(BIN)/python -m coverage erase
	@# left out: a launcher that ends with 143 after SIGTERM; coverage's own handler of SIGTERM ends it by the signal
	$(BIN)/python -m coverage run -m pytest -m 'not slow and not cluster and not public' $(TOGETHER) \
		--deselect 'tests/launchers/test_lifetime.py::test_polite_signals[15-143]'
	$(BIN)/python -m coverage combine -q
	$(BIN)/python -m coverage report

check: $(STAMP)  ## style, types, the law of imports, spelling, plain English, and whether figures are those of the records
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python benchmarks/figures.py --check
	$(BIN)/codespell
	$(BIN)/python docs/check_text.py

$(DOCS_STAMP): $(STAMP)
	$(BIN)/python -m pip install --disable-pip-version-check -q -c constraints.txt -e '.[docs]'
	@touch $@

docs: $(DOCS_STAMP)  ## the site, in build/docs; every warning is an error
	$(BIN)/python -m sphinx -W --keep-going -q -E -b html docs build/docs

figures:  ## write docs/figures.md, and the numbers that pages quote, of the records in benchmarks/results
	$(or $(wildcard $(BIN)/python),$(PYTHON)) benchmarks/figures.py

bench: $(STAMP)  ## every benchmark, then docs/figures.md: 3 hours; continues after an interruption. QUICK=1: half an hour. ONLY=NAME,... AGAIN=1 LIST=1
	$(BIN)/python benchmarks $(if $(QUICK),--quick) $(if $(AGAIN),--again) $(if $(LIST),--list) $(if $(ONLY),--only $(ONLY))

format: $(STAMP)  ## write the code in house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

mutation: $(STAMP)  ## change the pure files one thing at a time: do their tests notice?
	$(BIN)/python -m pip install --disable-pip-version-check -q -c constraints.txt -e '.[recipes,dev,mutation]'
	$(BIN)/python -m mutmut run
	$(BIN)/python -m mutmut results

wheel-check: $(STAMP)  ## build sdist and wheel, install the wheel alone, train with it
	.ci/wheel

fresh:  ## the README's commands in a new clone with an empty HOME: time and disk
	.ci/fresh

clean:  ## remove the environment and all caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache mutants
