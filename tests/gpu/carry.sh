#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Gathers in a folder what the programs of tests/gpu need on a machine without a network: tests/gpu/carry.sh FOLDER
# There: cd FOLDER && python3 -m pip install --no-index --no-deps packages/*.whl
#        python3 -m tests.gpu.proof RESULTS --packages packages
# Slurm is Debian 12's, so that is where to call it; SLURM_ROOT names a system with a newer one, which is carried
# instead (tests/gpu/relocate.py). GPU_PYTHON is the GPU machine's Python, 3.12.
set -euo pipefail
folder=$(realpath -m "$1")
cd "$(dirname "$0")/../.."
mkdir -p "$folder/packages"
for name in slurm_colloc templates site-configs pyproject.toml; do
    rm -rf "${folder:?}/$name"
    cp -r "$name" "$folder/"
done
rm -rf "$folder/tests"
mkdir "$folder/tests"
cp -r tests/__init__.py tests/gpu "$folder/tests/"
find "$folder" -name __pycache__ -prune -exec rm -rf {} +
if [ -n "${SLURM_ROOT:-}" ]; then
    rm -f "$folder/packages/"*.deb
    .venv/bin/python -m tests.gpu.relocate "$SLURM_ROOT" "$folder/packages/slurm.txz"
fi
cd "$folder/packages"
[ -n "$(ls -- *.deb slurm.txz 2>/dev/null)" ] || apt-get -qq download slurmctld slurmd slurm-client slurm-wlm-basic-plugins libslurm38 \
    libmunge2 libhwloc15 liblua5.3-0 libjson-c5 libyaml-0-2 libhttp-parser2.9 libreadline8 libtinfo6 libdbus-1-3
python=${OLDPWD}/.venv/bin/python
for package in duckdb ClusterShell; do
    version=$("$python" -c 'import importlib.metadata, sys; print(importlib.metadata.version(sys.argv[1]))' "$package")
    [ -n "$(find . -iname "$package-$version-*.whl")" ] || "$python" -m pip -q download --no-deps --only-binary=:all: \
        --python-version "${GPU_PYTHON:-3.12}" --implementation cp --platform manylinux_2_28_x86_64 \
        --platform manylinux_2_27_x86_64 --platform manylinux_2_17_x86_64 --platform any "$package==$version"
done
du -sh "$folder"
