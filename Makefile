# SPDX-License-Identifier: Apache-2.0
# Thin: every line runs as well without make. ENV is the environment that bootstrap.sh builds.
ENV := .venv/bin
# Where a machine sets it, as images of containers do, each program that a test starts would compile all of ours anew.
unexport PYTHONDONTWRITEBYTECODE
# Unit tests wait as much as they work: for programs to end, for time to pass.
WORKERS := $(shell echo $$(($$(nproc) * 3 / 2)))

.PHONY: demo test test-matrix test-oldest test-python check ci all quick slow lint mutate fuzz proof bench soak docs pictures html sbom env env-only

env:           ## Slurm from Debian's packages (as root) and the Python environment
	@bash tests/cluster/bootstrap.sh

env-only:      ## the Python environment alone
	@bash tests/cluster/bootstrap.sh --no-slurm

demo: env      ## the whole story on a private real cluster
	@$(ENV)/python -m tests.cluster demo

test: env      ## the whole suite, the real cluster included
	bash tests/twice.sh -n $(WORKERS) -m "not soak" tests/unit tests/package
	bash tests/twice.sh -n 6 --dist loadfile --no-loadscope-reorder -m "not soak and not alone" tests/cluster
	bash tests/twice.sh -m "alone and not soak" tests/cluster

test-matrix:   ## the tests of the real cluster on every Slurm release that a lab can run, as root
	@bash tests/cluster/bootstrap.sh --releases
	@failed=; for release in 22.05 24.11 26.05; do \
	    echo "Slurm $$release:"; \
	    COLLOC_REQUIRE_CLUSTER=1 COLLOC_TEST_RELEASE=$$release $(ENV)/pytest -m "not soak" tests/cluster \
	        || failed="$$failed $$release"; \
	done; [ -z "$$failed" ] || { echo "failed:$$failed"; exit 1; }

test-oldest: env-only ## the unit tests with the oldest versions that pyproject.toml allows
	$(ENV)/pip install --quiet uv
	$(ENV)/uv venv --quiet --clear --python $(ENV)/python build/oldest
	$(ENV)/uv pip compile --quiet --python build/oldest/bin/python --resolution lowest-direct --extra all \
	    -o build/oldest.txt pyproject.toml
	$(ENV)/uv pip install --quiet --python build/oldest/bin/python --constraint build/oldest.txt \
	    --editable '.[all]' --group dev hatchling pip
	build/oldest/bin/pytest -n auto -m "not soak" tests/unit

PYTHON ?= python3.13
test-python: env-only ## the unit tests with another Python, PYTHON=python3.13
	$(ENV)/pip install --quiet uv
	$(ENV)/uv venv --quiet --clear --python $(PYTHON) build/$(notdir $(PYTHON))
	$(ENV)/uv pip install --quiet --python build/$(notdir $(PYTHON))/bin/python \
	    --editable '.[all]' --group dev hatchling pip
	build/$(notdir $(PYTHON))/bin/pytest -n auto -m "not soak" tests/unit

check: lint quick ## what must hold at every commit

ci: lint env   ## what must hold before others get it, in 12 minutes: lint, the quick unit tests, and tests/ci.txt
	COLLOC_TEST_TENTH=1 bash tests/twice.sh -n $(WORKERS) -m "ci and not soak" tests/unit
	bash tests/twice.sh -n 4 --dist loadfile --no-loadscope-reorder -m "ci and not soak" tests/cluster

all: lint test ## everything but the matrix and the soak, within 90 minutes: what .ci/run calls

quick: env-only ## the unit tests but the slow ones
	$(ENV)/pytest -n $(WORKERS) -m "not slow and not soak" tests/unit

slow: env      ## measure which unit tests are slow
	$(ENV)/pytest -n auto -m "not soak" --slow-list tests/unit

lint: env-only
	$(ENV)/ruff check .
	$(ENV)/ruff format --check .
	$(ENV)/mypy
	$(ENV)/lint-imports
	$(ENV)/python -m tests.house
	$(ENV)/codespell

soak: env      ## what takes long: thousands of generated submissions
	$(ENV)/pytest -m soak

mutate: env    ## what the tests of the accounting would not notice, in an hour or two
	$(ENV)/pip install --quiet 'mutmut>=3.8'
	$(ENV)/mutmut run
	$(ENV)/mutmut results
	$(ENV)/python -m tests.mutate_sql

fuzz: env      ## every parser of what a user controls, for a while
	$(ENV)/python -m tests.fuzz --seconds 540

proof: env     ## a published trace through a real Slurm on this machine's GPU, into FOLDER (tests/gpu/proof.py)
	$(ENV)/python -m tests.gpu.proof $(FOLDER) --packages $(PACKAGES)

bench: env     ## ratios side by side in one run
	$(ENV)/python -m tests.bench_store
	$(ENV)/python -m tests.bench
	$(ENV)/python -m tests.bench_start
	$(ENV)/python -m tests.bench_agent
	$(ENV)/python -m tests.bench_accounting
	$(ENV)/python -m tests.bench_report
	$(ENV)/python -m tests.bench_audit
	$(ENV)/python -m tests.bench_history
	$(ENV)/python -m tests.bench_policy
	$(ENV)/python -m tests.bench_plan

docs: env-only ## regenerate what is made of the code: reference, manual pages, completion; a test fails when they are stale
	$(ENV)/python -m tests.pages

pictures: env-only ## the pictures of the page in README and docs, of the demo (chromium); a test fails when they are stale
	$(ENV)/python -m tests.pictures

html: env-only ## the documentation as a site, in docs/_build/html; a warning is an error
	$(ENV)/sphinx-build -W --keep-going -q -b html docs docs/_build/html

sbom:          ## dist/*.cdx.json: what a package for administrators is made of
	packages/build sbom
