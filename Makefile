# The same commands by hand and in CI. `make` alone lists them.

# The first Python here that is new enough; `make PYTHON=/path/to/python3` chooses another.
PYTHON ?= $(firstword $(foreach python,python3 python3.14 python3.13 python3.12 python3.11,$(shell \
	$(python) -c 'import sys; print(sys.executable if sys.version_info >= (3, 11) else "")' 2>/dev/null)))
BIN := .venv/bin
# What .venv has: what the demo needs, then the tools of tests and checks, then Spark's classes as tests want them.
DEMO := .venv/.demo
TOOLS := .venv/.tools
STAMP := .venv/.everything

# Options for the command behind the target, as in `make demo ARGS="--seconds 20"`.
ARGS ?=
# When make was called, for the demo to tell how long the first row took.
CALLED := $(shell date +%s)
# How many random crash sequences `make soak` runs.
SEEDS ?= 20

.PHONY: help setup demo quick test check docs bench soak format clean

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

setup: $(STAMP) ## prepare .venv with everything pinned in constraints.txt

demo: $(DEMO) ## run the whole road on embedded servers; ARGS="--seconds 20" ends it by itself
	@$(BIN)/tailrace demo --since $(CALLED) $(ARGS)

# A JVM takes longer to start than most of these tests: the Java that they find says so and ends. Most of their time is
# waiting, so there are more processes than cores.
quick: $(TOOLS) ## the tests that need no Spark and no broker: what to run between two edits
	@$(BIN)/python -m tailrace.testing.servers
	@JAVA_HOME=$(CURDIR)/tests/no_java $(BIN)/python -m pytest -m quick --numprocesses 4 --dist loadfile --durations 5 $(ARGS)

test: setup ## fetch the servers the tests need and run the tests
	@$(BIN)/python -m tailrace.testing.servers
	@$(BIN)/python -m pytest --numprocesses 2 --dist loadfile $(ARGS)

check: $(TOOLS) ## format, lint, types, layers, and that docs/reference and the dashboard are what the code says
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy --strict
	@$(BIN)/lint-imports
	@$(BIN)/python -m tools.reference --check
	@$(BIN)/python -m tools.dashboard --check

docs: $(TOOLS) ## write docs/reference and the dashboard anew, from the code
	@$(BIN)/python -m tools.reference
	@$(BIN)/python -m tools.dashboard

bench: setup ## measure; prints a table and JSON
	@$(BIN)/python -m tailrace.testing.servers
	@$(BIN)/python -m benchmarks $(ARGS)

soak: setup ## crash it for as long as you like: SEEDS=100
	@$(BIN)/python -m tailrace.testing.servers
	@TAILRACE_SOAK_SEEDS=$(SEEDS) $(BIN)/python -m pytest -m soak --timeout=0 $(ARGS)

format: $(TOOLS) ## rewrite the code as `make check` wants it
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

clean: ## remove .venv and everything the tools left
	@rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(DEMO): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "tailrace needs Python 3.11 or newer: install it, or say make PYTHON=/path/to/python3" >&2; exit 3; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "$(PYTHON) cannot make virtual environments: install its venv package (Debian and Ubuntu: apt install python3-venv)" >&2; exit 3; }
	@echo "tailrace: preparing .venv with $(PYTHON) (once; most of it is Spark)"
	@test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	@$(BIN)/python -m tools.install demo
	@touch $@

$(TOOLS): $(DEMO)
	@echo "tailrace: adding what tests and checks need"
	@$(BIN)/python -m tools.install demo test dev
	@touch $@

$(STAMP): $(TOOLS)
	@$(BIN)/python -m tailrace.spark.warm
	@touch $@
	@echo "tailrace: ready"
