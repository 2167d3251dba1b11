#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What `make demo` and `.ci/run` call first: Slurm from Debian's packages (as root), and .venv with the project in it.
# Leaves nothing but installed packages and .venv; done before, it takes well under a second.
set -euo pipefail

packages=(
    slurmctld slurmd slurmdbd slurm-client slurm-wlm-basic-plugins slurm-wlm-mysql-plugin libslurm-dev
    mariadb-server mariadb-client munge libnss-wrapper gcc libc6-dev zsh fish mandoc systemd prometheus
    chromium chromium-driver fonts-dejavu-core exim4-daemon-light shellcheck pipx rpm busybox
)
readonly guard=/usr/sbin/policy-rc.d
checkout=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
readonly checkout
readonly venv=$checkout/.venv
readonly stamp=$venv/.bootstrapped
log=
guard_set=
guard_saved=
with_slurm=yes

usage() {
    printf 'usage: tests/cluster/bootstrap.sh [--no-slurm | --releases]\n\n'
    printf '  --no-slurm  make .venv only, install no Debian package\n'
    printf '  --releases  also what fetches the Slurm of later Debians\n'
}

say() { printf 'bootstrap: %s\n' "$*"; }

die() {
    printf 'bootstrap: error: %s\n' "$*" >&2
    exit 1
}

# step TEXT COMMAND...: run it into the log; one line with the seconds it took.
step() {
    local text=$1 began=${EPOCHREALTIME/./}
    shift
    log=${log:-$(mktemp /tmp/colloc-bootstrap-XXXXXX.log)}
    printf '\n### %s\n' "$*" >>"$log"
    "$@" >>"$log" 2>&1 </dev/null || {
        tail -n 30 "$log" >&2
        die "$text failed; its whole output is in $log"
    }
    local took=$((${EPOCHREALTIME/./} - began))
    printf 'bootstrap: %s: %d.%d s\n' "$text" $((took / 1000000)) $((took / 100000 % 10))
}

installed() {
    # shellcheck disable=SC2016  # dpkg-query's own syntax, not the shell's
    [[ $(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null) == installed ]]
}

# Packages must not start their services: Debian asks this program first, and 101 means no.
set_guard() {
    guard_set=yes
    if [[ -e $guard || -L $guard ]]; then
        guard_saved=$(mktemp -d /usr/sbin/.colloc-guard-XXXXXX)
        mv "$guard" "$guard_saved/policy-rc.d"
    fi
    printf '#!/bin/sh\nexit 101\n' >"$guard"
    chmod 755 "$guard"
}

restore_guard() {
    [[ $guard_set ]] || return 0
    guard_set=
    rm -f "$guard"
    if [[ $guard_saved ]]; then
        # Moved, not copied: mode, owner, times and a link stay what they were.
        [[ -e $guard_saved/policy-rc.d || -L $guard_saved/policy-rc.d ]] && mv "$guard_saved/policy-rc.d" "$guard"
        rmdir "$guard_saved"
    fi
}

trap restore_guard EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

install_packages() {
    local wanted=("$@")
    command -v apt-get >/dev/null || die "no apt-get here: install ${wanted[*]} by hand, or use --no-slurm"
    export DEBIAN_FRONTEND=noninteractive
    local apt=(apt-get -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=120 -o Acquire::Retries=3)
    step "apt-get update" "${apt[@]}" update
    set_guard
    step "apt-get install ${wanted[*]}" "${apt[@]}" install -y --no-install-recommends "${wanted[@]}"
    restore_guard
}

system_packages() {
    local missing=() package
    if [[ $with_slurm ]]; then
        for package in "${packages[@]}"; do installed "$package" || missing+=("$package"); done
    fi
    # The standard library's ensurepip is in a package of its own on Debian.
    if [[ ! -x $venv/bin/python ]] && ! python3 -c 'import ensurepip' 2>/dev/null; then missing+=(python3-venv); fi
    ((${#missing[@]})) || return 0
    if ((EUID)); then
        say "not root, so Debian's packages stay as they are (missing: ${missing[*]})"
    elif [[ $with_slurm ]] || command -v apt-get >/dev/null; then
        install_packages "${missing[@]}"
    fi
}

find_python() {
    local python
    for python in /usr/bin/python3 "$(command -v python3 || true)" "$(command -v python3.{13,12,11} | head -n 1 || true)"; do
        if [[ -x $python ]] && "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
            printf '%s\n' "$python"
            return
        fi
    done
    return 1
}

make_venv() {
    local python
    python=$(find_python) || die "needs Python 3.11 or later as python3"
    # Whole or not at all: a half-made venv of an interrupted run would be taken for a good one.
    if [[ -x $venv/bin/python ]] && "$venv/bin/python" -m pip --version >/dev/null 2>&1; then return; fi
    rm -rf "$venv"
    if "$python" -c 'import ensurepip' 2>/dev/null; then
        step "virtual environment" "$python" -m venv "$venv"
    elif "$python" -m pip --version >/dev/null 2>&1; then
        step "virtual environment" "$python" -m venv --without-pip "$venv"
        step "pip" "$python" -m pip --python "$venv/bin/python" install --quiet pip
    else
        die "$python has neither ensurepip nor pip: install Debian's python3-venv"
    fi
}

fill_venv() {
    local pip=("$venv/bin/python" -m pip --disable-pip-version-check --quiet)
    # --group came with pip 25.1; Debian 12 brings 23.0.
    if ! "${pip[@]}" install --help | grep -q -- --group; then
        step "pip with dependency groups" "${pip[@]}" install --upgrade 'pip>=25.1'
    fi
    # hatchling too, so that tests can build the wheel without fetching it each time.
    step "project and its tools" "${pip[@]}" install --editable "$checkout" --group "$checkout/pyproject.toml:dev" hatchling
}

# csub's front is copied by the installer, also of an editable install.
key() { cat "$checkout/pyproject.toml" "$checkout/slurm_colloc/front/csub" | sha256sum | cut -d ' ' -f 1; }

main() {
    while (($#)); do
        case $1 in
        --no-slurm) with_slurm= ;;
        --releases) packages+=(debootstrap debian-archive-keyring) ;;
        -h | --help)
            usage
            exit
            ;;
        *)
            usage >&2
            die "unknown argument '$1'"
            ;;
        esac
        shift
    done
    system_packages
    # The path too: an editable install of a checkout that was moved points nowhere.
    local now
    now="$(key) $checkout"
    if [[ -x $venv/bin/python && -f $stamp && $(<"$stamp") == "$now" ]]; then
        say "all there"
        return
    fi
    make_venv
    fill_venv
    printf '%s\n' "$now" >"$stamp"
    [[ -z $log ]] || rm -f "$log"
}

main "$@"
