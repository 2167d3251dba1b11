# SPDX-License-Identifier: Apache-2.0
# Thin: every line runs as well without make. ENV is the environment that bootstrap.sh builds.
ENV := .venv/bin

.PHONY: demo test test-matrix check lint mutate fuzz bench soak docs env env-only

env:           ## Slurm from Debian's packages (as root) and the Python environment
	@bash tests/cluster/bootstrap.sh

env-only:      ## the Python environment alone
	@bash tests/cluster/bootstrap.sh --no-slurm

demo: env      ## the whole story on a private real cluster
	@$(ENV)/python -m tests.cluster demo

test: env      ## the whole suite, the real cluster included
	$(ENV)/pytest -n auto -m "not soak" tests/unit tests/package
	$(ENV)/pytest -n 4 --dist loadfile -m "not soak and not alone" tests/cluster
	$(ENV)/pytest -m "alone and not soak" tests/cluster

test-matrix:   ## the tests of the real cluster on every Slurm release that a lab can run, as root
	@bash tests/cluster/bootstrap.sh --releases
	@failed=; for release in 22.05 24.11 26.05; do \
	    echo "Slurm $$release:"; \
	    COLLOC_REQUIRE_CLUSTER=1 COLLOC_TEST_RELEASE=$$release $(ENV)/pytest -m "cluster and not soak" tests/cluster \
	        || failed="$$failed $$release"; \
	done; [ -z "$$failed" ] || { echo "failed:$$failed"; exit 1; }

check: lint test ## what must hold at every commit

lint: env
	$(ENV)/ruff check .
	$(ENV)/ruff format --check .
	$(ENV)/mypy
	$(ENV)/lint-imports

soak: env      ## what takes long: thousands of generated submissions
	$(ENV)/pytest -m soak

mutate: env    ## what the tests of the accounting would not notice, in an hour or two
	$(ENV)/pip install --quiet 'mutmut>=3.8'
	$(ENV)/mutmut run
	$(ENV)/mutmut results
	$(ENV)/python -m tests.mutate_sql

fuzz: env      ## every parser of what a user controls, for a while
	$(ENV)/python -m tests.fuzz --seconds 540 --processes 16

bench: env     ## ratios side by side in one run
	$(ENV)/python -m tests.bench_store
	$(ENV)/python -m tests.bench
	$(ENV)/python -m tests.bench_agent
	$(ENV)/python -m tests.bench_accounting
	$(ENV)/python -m tests.bench_report
	$(ENV)/python -m tests.bench_audit
	$(ENV)/python -m tests.bench_history
	$(ENV)/python -m tests.bench_policy

docs: env-only ## regenerate the reference pages and completion scripts; CI fails when they are stale
	$(ENV)/colloc site reference > docs/reference/site.toml.md
	$(ENV)/colloc site doctor --list > docs/reference/doctor.md
	$(ENV)/python -c 'from slurm_colloc.audit.rules import RULES; \
	    from slurm_colloc.report.rules_page import rules_page; print(rules_page(RULES.values()), end="")' \
	    > docs/reference/audit-rules.md
	$(ENV)/colloc report --json-schema > docs/reference/report.schema.json
	$(ENV)/python -m slurm_colloc.cli.csub_complete bash > docs/completion/csub.bash
	$(ENV)/python -m slurm_colloc.cli.csub_complete zsh > docs/completion/_csub
	$(ENV)/python -m slurm_colloc.cli.csub_complete fish > docs/completion/csub.fish
