# SPDX-License-Identifier: Apache-2.0
"""csub's completion for bash: a script that knows the options of every release, and starts nothing."""

from slurm_colloc.slurm.option_tables import SBATCH_OPTIONS, Option
from slurm_colloc.submit.own_options import OWN_OPTIONS

VALUES = {"colloc": ("auto", "off"), "format": ("script", "json")}
_LICENSE = "# SPDX-License-Identifier: Apache-2.0\n"
# What stands before the script decides: what an option takes as its value is no script.
_BASH = r"""_csub_completion() {
    local IFS=$' \n' word following glue='' value='' i
    local -a words=()
    # Bash makes words of their own of "=" and ":"; a ":" before an option is the one between components.
    for ((i = 1; i <= COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]} following=none
        ((i == COMP_CWORD)) || following=${COMP_WORDS[i + 1]}
        if [[ $word =~ ^[=:]+$ && ${words[*]} && ! ($word == : && ($following == '' || $following == -*)) ]]; then
            words[-1]+=$word glue=1
        elif [[ $glue ]]; then
            words[-1]+=$word glue=''
        else
            words+=("$word")
        fi
    done
    local last=${words[-1]}
    unset 'words[-1]'
    for word in "${words[@]}"; do
        if [[ $value ]]; then
            value=''
            continue
        fi
        case $word in
            : | --*=*) ;;
            @REQUIRED@) value=$word ;;
            --*) ;;
            -?*) [[ ! $word =~ ^-[@FLAGS@]*[@TAKING@]$ ]] || value=$word ;;
            *) return 0 ;;
        esac
    done
    case ${value:-$last} in
        @VALUES@
        -*) [[ $value ]] || COMPREPLY=($(compgen -W '@EVERY@' -- "$last")) ;;
    esac
}

complete -o default -F _csub_completion csub
"""
_BASH_VALUES = r"""--@NAME@) COMPREPLY=($(compgen -W '@WORDS@' -- "$last")) ;;
        --@NAME@=*)
            # Where bash does not break the line at "=" the whole word is replaced.
            [[ ${COMP_WORDS[COMP_CWORD]} == *=?* ]] && word=--@NAME@= || word=''
            COMPREPLY=($(compgen -P "$word" -W '@WORDS@' -- "${last#*=}"))
            ;;"""


def _options() -> list[Option]:
    """Return csub's options and those of every release of sbatch, by name."""
    every = {option.name: option for table in SBATCH_OPTIONS.values() for option in table}
    every |= {option.name: option for option in OWN_OPTIONS}
    return [every[name] for name in sorted(every)]


def _filled(text: str) -> str:
    options = _options()
    required = [f"--{one.name}" for one in options if one.argument == "required"]
    words = [word for one in options for word in ([f"-{one.short}"] if one.short else []) + [f"--{one.name}"]]
    parts = {
        "REQUIRED": " | ".join(required),
        "FLAGS": "".join(one.short for one in options if one.argument != "required"),
        "TAKING": "".join(one.short for one in options if one.argument == "required"),
        "EVERY": " ".join(words),
        "VALUES": "\n        ".join(
            _BASH_VALUES.replace("@NAME@", name).replace("@WORDS@", " ".join(known)) for name, known in VALUES.items()
        ),
    }
    for name, part in parts.items():
        text = text.replace(f"@{name}@", part)
    return text


def script() -> str:
    """Return the completion script, fit for the place where bash looks for it by itself."""
    return _LICENSE + _filled(_BASH)
