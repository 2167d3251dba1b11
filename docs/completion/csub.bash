# SPDX-License-Identifier: Apache-2.0
_csub_completion() {
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
            --account | --acctg-freq | --array | --autocomplete | --batch | --bb | --bbf | --begin | --chdir | --cluster | --cluster-constraint | --clusters | --colloc | --comment | --constraint | --container | --container-id | --container-type | --context | --core-spec | --cores-per-socket | --cpu-freq | --cpus-per-gpu | --cpus-per-task | --deadline | --delay-boot | --dependency | --distribution | --error | --exclude | --export | --export-file | --extra | --extra-node-info | --format | --gid | --gpu-bind | --gpu-footprint | --gpu-freq | --gpus | --gpus-per-node | --gpus-per-socket | --gpus-per-task | --gres | --gres-flags | --hint | --input | --job-name | --kill-on-invalid-dep | --licenses | --mail-type | --mail-user | --max-slowdown | --mcs-label | --mem | --mem-bind | --mem-per-cpu | --mem-per-gpu | --mem-update | --mincpus | --network | --nodefile | --nodelist | --nodes | --ntasks | --ntasks-per-core | --ntasks-per-gpu | --ntasks-per-node | --ntasks-per-socket | --ntasks-per-tres | --open-mode | --output | --pack-jobs | --pack-retries | --pack-tasks | --partition | --power | --prefer | --priority | --profile | --qos | --reservation | --resources | --runtime | --segment | --signal | --sockets-per-node | --switches | --tasks-per-node | --thread-spec | --threads-per-core | --time | --time-min | --tmp | --tres-bind | --tres-per-task | --uid | --wait-all-nodes | --wckey | --wrap) value=$word ;;
            --*) ;;
            -?*) [[ ! $word =~ ^-[hHkOsQvVW]*[AabDMCScdmexBGiJLFwNnopqt]$ ]] || value=$word ;;
            *) return 0 ;;
        esac
    done
    case ${value:-$last} in
        --colloc) COMPREPLY=($(compgen -W 'auto off' -- "$last")) ;;
        --colloc=*)
            # Where bash does not break the line at "=" the whole word is replaced.
            [[ ${COMP_WORDS[COMP_CWORD]} == *=?* ]] && word=--colloc= || word=''
            COMPREPLY=($(compgen -P "$word" -W 'auto off' -- "${last#*=}"))
            ;;
        --format) COMPREPLY=($(compgen -W 'script json' -- "$last")) ;;
        --format=*)
            # Where bash does not break the line at "=" the whole word is replaced.
            [[ ${COMP_WORDS[COMP_CWORD]} == *=?* ]] && word=--format= || word=''
            COMPREPLY=($(compgen -P "$word" -W 'script json' -- "${last#*=}"))
            ;;
        -*) [[ $value ]] || COMPREPLY=($(compgen -W '-A --account --acctg-freq -a --array --autocomplete --batch --bb --bbf -b --begin -D --chdir --cluster --cluster-constraint -M --clusters --colloc --comment --consolidate-segments -C --constraint --container --container-id --container-type --context --contiguous -S --core-spec --cores-per-socket --cpu-freq --cpus-per-gpu -c --cpus-per-task --deadline --delay-boot -d --dependency -m --distribution --dry-run -e --error -x --exclude --exclusive --explain --export --export-file --external --extra -B --extra-node-info --format --get-user-env --gid --gpu-bind --gpu-footprint --gpu-freq -G --gpus --gpus-per-node --gpus-per-socket --gpus-per-task --gres --gres-flags -h --help --hint -H --hold --ignore-pbs -i --input -J --job-name --kill-on-invalid-dep -L --licenses --mail-type --mail-user --max-slowdown --mcs-label --mem --mem-bind --mem-per-cpu --mem-per-gpu --mem-update --mincpus --network --nice -k --no-kill --no-requeue -F --nodefile -w --nodelist -N --nodes -n --ntasks --ntasks-per-core --ntasks-per-gpu --ntasks-per-node --ntasks-per-socket --ntasks-per-tres --oom-kill-step --open-mode -o --output -O --overcommit -s --oversubscribe --pack --pack-jobs --pack-retries --pack-tasks --pack-together --parsable -p --partition --power --prefer --priority --profile --propagate -q --qos -Q --quiet --reboot --requeue --reservation --resources --resv-ports --runtime --segment --signal --sockets-per-node --spread-job --spread-segments --stepmgr --switches --tasks-per-node --test-only --thread-spec --threads-per-core -t --time --time-min --tmp --tres-bind --tres-per-task --uid --usage --use-min-nodes -v --verbose -V --version -W --wait --wait-all-nodes --wckey --wrap' -- "$last")) ;;
    esac
}

complete -o default -F _csub_completion csub
