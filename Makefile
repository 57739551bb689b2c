# Needs only python3 (3.11 or newer), pip and make; everything else is installed in a virtual
# environment. `make help` lists the commands.

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin
# Separate environment: the rivals' dependencies must not affect the tests.
BENCH := .venv-bench
INSTALL := .venv-install-$(notdir $(PYTHON))
CONNECTOR := blackbox/analysis/spark/connector

REPORT ?= blackbox-report.html
NO_SPARK := Spark could not be installed: the demo skips the analysis and the report

# Tests start hundreds of processes, which all use the cached bytecode.
export PYTHONDONTWRITEBYTECODE :=

# Recreate environments of another Python version than requested.
ifneq ($(origin PYTHON),file)
VERSION_OF = $(shell $(1) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
ASKED := $(call VERSION_OF,$(PYTHON))
STALE := $(if $(filter-out test-install help,$(or $(MAKECMDGOALS),help)),$(foreach each,$(wildcard $(VENV) $(BENCH)),$(if $(ASKED:$(call VERSION_OF,$(each)/bin/python)=),$(each))))
$(if $(STALE),$(shell rm -rf $(STALE)))
endif

.DEFAULT_GOAL := help
.PHONY: help demo servers layout pictures files site test test-install test-long dist torture simulate soak bench bench-check profile report clean

help:  ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "  PYTHON=python3.12 chooses the interpreter, 3.11 or newer"

demo: $(VENV)/.ready-demo  ## a day live, recorded, replayed and analysed [SOURCE=itch50:day.gz OPTION=date=2019-12-30 COUNT=1000000 OUT=dir REPORT=page.html]
	@$(RUN)/blackbox demo $$($(RUN)/python -c 'import pyspark' 2>/dev/null && echo "--report $(REPORT)" || echo "$(NO_SPARK)" >&2) $(if $(SOURCE),"$(SOURCE)") $(if $(OPTION),--option "$(OPTION)") $(if $(COUNT),--count "$(COUNT)") $(if $(OUT),--out "$(OUT)")

test: $(VENV)/.ready-test  ## check style and types, run the tests
	$(RUN)/ruff check
	$(RUN)/ruff format --check
	@# mypy runs while tests wait for processes. Collecting once first compiles all tests for every worker.
	$(RUN)/mypy & types=$$!; $(RUN)/python -m pytest -qq --collect-only -m "not long" >/dev/null; \
	$(RUN)/python -m pytest -q -n 5 -m "not long"; tests=$$?; wait $$types && exit $$tests

dist: $(VENV)/.ready-dist  ## build and check sdist and wheel in dist/, with the jar of the Spark connector
	rm -rf dist
	trap "rm -f $(CONNECTOR)/*.jar" EXIT; \
	$(RUN)/python -c "from blackbox.analysis.spark.jar import SOURCES, connector_jar; connector_jar(cache=SOURCES)" && \
	$(RUN)/python -P -m build  # -P: `make site` writes to build/
	$(RUN)/twine check --strict dist/*

test-install:  ## install from the clone, or a wheel, into a new environment and take the first steps there [PYTHON=python3.13 FROM=dist/*.whl EXTRA=spark]
	rm -rf $(INSTALL)
	$(PYTHON) -m venv $(INSTALL)
	$(INSTALL)/bin/python -m pip install --no-compile --quiet --disable-pip-version-check "$(if $(FROM),$(wildcard $(FROM)),.)$(if $(EXTRA),[$(EXTRA)])"
	cd / && "$(CURDIR)/$(INSTALL)/bin/python" "$(CURDIR)/tests/installed.py"
	rm -rf $(INSTALL)

test-long: $(VENV)/.ready-test  ## run the slow tests that `make test` leaves out: clusters, browsers, variants, more examples
	$(RUN)/python -m pytest -q -m long
	BLACKBOX_ALL_EXAMPLES=1 $(RUN)/python -m pytest -q -m "not long"

servers:  ## unpack the distribution's RabbitMQ, Chromium, sshd, tcpdump and Prometheus into .servers (apt, 200 MB), for some tests
	@tests/bridge/fetch_servers.sh .servers

layout: $(VENV)/.ready-test  ## generate files from blackbox/block/form/layout.py: Java, C, Node, docs, golden files
	@$(RUN)/python -m tests.write_layout

pictures: $(VENV)/.ready-test  ## write docs/pictures: a real browser and a terminal show a feed with two faults
	@$(RUN)/python -m tests.write_pictures

files: $(VENV)/.ready-test  ## write blackbox/README.md, the list of files
	@$(RUN)/python -m tests.write_file_list

site: $(VENV)/.ready-test  ## write the site of the docs, readable without a server, into build/site
	@$(RUN)/python -m tests.write_site

torture: $(VENV)/.ready-test  ## attack it: kills, hostile peers, damaged files; report failures [SECONDS=60 SEED=n ONLY=name]
	$(RUN)/python -m tests.torture --seconds $(or $(SECONDS),60) $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only $(ONLY))

simulate: $(VENV)/.ready-test  ## run recovery in virtual time with faults; print violations of the model [SECONDS=60 SEED=n: only that schedule]
	$(RUN)/python -m tests.simulation $(if $(SEED),--seed $(SEED)) $(if $(SECONDS),--seconds $(SECONDS))

soak: $(VENV)/.ready-test  ## watch a healthy installation at 100,000 messages/s; any alarm is an error [SECONDS=20]
	BLACKBOX_SOAK_S=$(or $(SECONDS),20) $(RUN)/python -m pytest -q -s -m long -o faulthandler_timeout=0 tests/monitor/test_soak.py

# The whole run and each ONLY have their own file, replaced when the run ends, even early.
nothing :=
space := $(nothing) $(nothing)
FILE ?= .benchmarks/$(if $(ONLY),only-$(subst /,_,$(subst $(space),_,$(strip $(ONLY)))),latest).json
bench: $(BENCH)/.ready-bench  ## compare every figure with its rivals, in 45 minutes, into .benchmarks/ [ONLY=name]
	@mkdir -p .benchmarks
	@rm -f .benchmarks/running.json .benchmarks/partial.json
	@trap : INT; $(BENCH)/bin/python -m pytest bench -q -s -o python_files="bench_*.py" -o timeout=300 -o tmp_path_retention_count=0 -W ignore::pytest_benchmark.logger.PytestBenchmarkWarning --benchmark-quiet --benchmark-json=.benchmarks/running.json $(if $(ONLY),-k "$(ONLY)"); \
	    status=$$?; [ $$status != 5 ] || echo "ONLY='$(ONLY)' matches no benchmark; use (part of) a name, or names joined by or: $$(cd bench && echo bench_*.py)" >&2; \
	    cd .benchmarks; for kept in running.json partial.json; do \
	        if [ -s $$kept ]; then mv $$kept "$(notdir $(FILE))"; echo "saved $$kept as $(FILE)"; break; fi; \
	    done; rm -f partial.json; exit $$status

report: $(BENCH)/.ready-bench  ## write docs/performance.md and all tables from the last whole run [FILE=run.json: a page next to it]
	@$(BENCH)/bin/python -m bench.report.page "$(FILE)" $(if $(filter %/latest.json,$(FILE)),docs/performance.md,"$(FILE:.json=.md)")

bench-check: $(VENV)/.ready-check  ## compare each step of the hot path with bench/baseline.json [WRITE=1]
	$(RUN)/python -m bench.check $(if $(WRITE),--write)

profile: $(BENCH)/.ready-bench  ## write docs/performance/profile.md: a flame graph and the time of each step of the hot path
	$(BENCH)/bin/python -m bench.hot_path.profile docs/performance/profile.md

clean:  ## remove the virtual environments, servers and all caches
	rm -rf $(VENV) $(BENCH) .venv-install-* .servers .mypy_cache .pytest_cache .ruff_cache .hypothesis .benchmarks build dist
	find blackbox feeds tests bench -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.ready-demo: EXTRA := [monitor]
# 500 MB to download; without it the demo skips its last part.
$(VENV)/.ready-demo: WISH := [spark]
$(VENV)/.ready-test: EXTRA := [dev]
$(BENCH)/.ready-bench: EXTRA := [bench]
# Installed one by one: an unavailable rival is skipped and listed in the report.
$(BENCH)/.ready-bench: WISHES := rivals
$(VENV)/.ready-check: EXTRA :=
$(VENV)/.ready-dist: EXTRA := [release,spark]

# One stamp per set of packages, remade when pyproject.toml changes.
.SECONDEXPANSION:
$(VENV)/.ready-demo $(VENV)/.ready-test $(VENV)/.ready-check $(VENV)/.ready-dist $(BENCH)/.ready-bench: pyproject.toml | $$(@D)/bin/python
	$(@D)/bin/python -m pip install --no-compile --quiet --disable-pip-version-check --editable ".$(EXTRA)"
	$(if $(WISH),$(@D)/bin/python -m pip install --no-compile --quiet --disable-pip-version-check --editable ".$(WISH)" || echo "$(WISH) could not be installed: skipping what needs it")
	$(if $(WISHES),$(@D)/bin/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["$(WISHES)"], sep="\n")' | while read -r wish; do \
	    $(@D)/bin/python -m pip install --no-compile --quiet --disable-pip-version-check "$$wish" </dev/null || echo "$$wish could not be installed: skipping what needs it"; \
	done)
	@touch $@

# Some systems ship Python without ensurepip; then the system's pip installs pip into the environment.
$(VENV)/bin/python $(BENCH)/bin/python:
	@command -v "$(PYTHON)" >/dev/null || { echo "$(PYTHON) was not found: set PYTHON=... to Python 3.11 or newer" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit("%s is Python %d.%d: set PYTHON=... to 3.11 or newer" % ((sys.executable,) + tuple(sys.version_info[:2])) if sys.version_info < (3, 11) else 0)'
	@$(PYTHON) -m venv $(@D:/bin=) >/dev/null 2>&1 || { \
	    $(PYTHON) -m venv --clear --without-pip $(@D:/bin=) && \
	    $(PYTHON) -m pip --python $@ install --quiet --disable-pip-version-check pip; \
	} || { rm -rf $(@D:/bin=); exit 1; }
