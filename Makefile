# `make run` and `make test` set everything up by themselves; `make help` lists what there is.
# Plain enough for GNU make 3.81, which is what macOS has.

PYTHON ?= python3
UI_PORT ?= 5001
UPGRADE ?=
# of the machine that a kit is for
PYTHON_VERSION ?= 3.12
MACHINE ?= x86_64

BIN := .venv/bin
# what `. .venv/bin/activate` would do, for one command
ACTIVATED = PATH="$(CURDIR)/$(BIN):$$PATH"
URI = "$${MLFLOW_TRACKING_URI:-sqlite:///mlflow.db}"
TRACKED = $(ACTIVATED) MLFLOW_TRACKING_URI=$(URI)

IMAGES := data/generated
CAMPAIGN := make-run
PROJECT = $(TRACKED) mlflow run .
SMALL := -P arch=resnet18 -P batch_size=4 -P data=$(IMAGES) -P workers=2 \
	-P max_seconds=4 -P campaign=$(CAMPAIGN)

COMPILE = $(BIN)/uv pip compile --quiet --universal --python-version 3.10 \
	--no-annotate --custom-compile-command "make lock" $(UPGRADE)

# bytecode: what pytest makes of the tests is made once and not by each of its processes each time
TESTS = $(ACTIVATED) env -u MLFLOW_TRACKING_URI -u PYTHONDONTWRITEBYTECODE python -m pytest
# threads of several processes at once would wait for each other
ONE_THREAD := OMP_NUM_THREADS=1
# a file's tests share its servers; tests/conftest.py puts files of slow tests first
AT_ONCE := --numprocesses auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help run ui test test-fast test-slow mutants findings lint format setup setup-dev kit lock clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' Makefile

run: setup ## set up, measure resnet18 in fp32 and amp on real JPEGs, write a report
	@echo "Five steps, a minute and a half on two cores"
	@echo "1 of 5: images to train on"
	@$(TRACKED) mlproject dataset generate --out $(IMAGES) --classes 10 --images-per-class 20
	@echo "2 of 5: this machine's roofs, once"
	@$(TRACKED) mlproject ceilings --if-missing
	@echo "3 of 5: resnet18 in fp32"
	@$(PROJECT) $(SMALL) -P precision=fp32
	@echo "4 of 5: resnet18 in amp"
	@$(PROJECT) $(SMALL) -P precision=amp
	@echo "5 of 5: the report"
	@# 1: written, but a run's numbers are impossible, which it says; a busy machine can do that
	@$(TRACKED) mlproject report --campaign $(CAMPAIGN) || [ $$? -eq 1 ]
	@echo
	@echo "Tracked runs: \`make ui\`. The next one yourself:"
	@echo "  . $(BIN)/activate && mlflow run . -P arch=vgg16 -P precision=amp"

ui: setup ## open the tracked runs in MLflow's web pages
	@case $(URI) in \
	http*) echo "The runs are on the server that MLFLOW_TRACKING_URI names" ;; \
	*) echo "MLflow: http://127.0.0.1:$(UI_PORT)/#/experiments/0/runs?workflowType=machine_learning"; \
	   echo "(your own experiments: choose \"Model training\" there; Ctrl-C ends it)"; \
	   $(TRACKED) MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false mlflow server \
	     --backend-store-uri $(URI) --port $(UI_PORT) --workers 1 ;; \
	esac

test: setup-dev ## set up, then run the tests (all but those of test-slow)
	@$(ONE_THREAD) $(TESTS) $(AT_ONCE) -m "not long and not cluster"

test-fast: setup-dev ## set up, then run the tests that take seconds
	@$(ONE_THREAD) $(TESTS) $(AT_ONCE) -m "not slow and not long and not cluster"

test-slow: setup-dev ## set up, then run the long tests, then those of Ray clusters one by one
	@$(TESTS) $(AT_ONCE) -m "long and not cluster"
	@$(TESTS) -m cluster tests/contrib

mutants: setup-dev ## how many faults, put into eleven modules, the tests notice (by hand, half an hour)
	@$(BIN)/uv pip install --quiet --constraint requirements-dev.txt mutmut==3.8.1
	@$(ACTIVATED) OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 mutmut run
	@$(BIN)/mutmut results --all true | awk '/__mutmut_/ { sub(/\.x[^ ]*:/, ""); count[$$1 " " $$2]++ } \
		END { for (what in count) print what, count[what] }' | sort

findings: ## what libraries do that nobody would guess, shown by scripts (by hand, needs a network)
	@changed=""; for script in findings/*.sh; do \
		echo "$$script"; "$$script" || changed="$$changed $$script"; \
	done; [ -z "$$changed" ] || { echo "no longer so:$$changed" >&2; exit 1; }

lint: setup-dev ## style, types and import rules
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: setup-dev ## let ruff rewrite what it can
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

setup: ## the environment .venv, which `mlflow run` uses too
	@$(PYTHON) -m bootstrap

setup-dev:
	@$(PYTHON) -m bootstrap --dev

kit: setup ## one file for a machine without a network (PYTHON_VERSION=3.12 MACHINE=aarch64)
	@$(BIN)/python -m contrib.kit --python-version $(PYTHON_VERSION) --machine $(MACHINE)

lock: setup ## write requirements*.txt from pyproject.toml (UPGRADE=--upgrade for newer versions)
	@$(COMPILE) --group setup --output-file requirements.txt pyproject.toml
	@$(COMPILE) --extra dev --group setup --constraint requirements.txt \
		--output-file requirements-dev.txt pyproject.toml
	@$(COMPILE) --output-file deploy/server/requirements.txt \
		deploy/server/requirements.in

clean: ## remove .venv and what tools left; keeps data, records, reports and tracked runs
	@if [ -e .venv/.mlproject-setup.lock ]; then rm -rf .venv; fi
	@rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -not -path "./.venv/*" -prune -exec rm -rf {} +
