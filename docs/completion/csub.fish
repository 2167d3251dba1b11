# SPDX-License-Identifier: Apache-2.0
function __csub_before_script
    set -l words (commandline -opc)
    set -l value 0
    for word in $words[2..]
        if test $value = 1
            set value 0
            continue
        end
        switch $word
            case : '--*=*'
            case --account --acctg-freq --array --autocomplete --batch --bb --bbf --begin --chdir --cluster --cluster-constraint --clusters --colloc --comment --constraint --container --container-id --container-type --context --core-spec --cores-per-socket --cpu-freq --cpus-per-gpu --cpus-per-task --deadline --delay-boot --dependency --distribution --error --exclude --export --export-file --extra --extra-node-info --format --gid --gpu-bind --gpu-footprint --gpu-freq --gpus --gpus-per-node --gpus-per-socket --gpus-per-task --gres --gres-flags --hint --input --job-name --kill-on-invalid-dep --licenses --mail-type --mail-user --max-slowdown --mcs-label --mem --mem-bind --mem-per-cpu --mem-per-gpu --mem-update --mincpus --network --nodefile --nodelist --nodes --ntasks --ntasks-per-core --ntasks-per-gpu --ntasks-per-node --ntasks-per-socket --ntasks-per-tres --open-mode --output --pack-jobs --pack-retries --pack-tasks --partition --power --prefer --priority --profile --qos --reservation --resources --segment --signal --sockets-per-node --switches --tasks-per-node --thread-spec --threads-per-core --time --time-min --tmp --tres-bind --tres-per-task --uid --wait-all-nodes --wckey --wrap
                set value 1
            case '--*'
            case '-?*'
                string match -qr '^-[hHkOsQvVW]*[AabDMCScdmexBGiJLFwNnopqt]$' -- $word && set value 1
            case '*'
                return 1
        end
    end
end
complete -c csub -n __csub_before_script -l account -s A -r
complete -c csub -n __csub_before_script -l acctg-freq -r
complete -c csub -n __csub_before_script -l array -s a -r
complete -c csub -n __csub_before_script -l autocomplete -r
complete -c csub -n __csub_before_script -l batch -r
complete -c csub -n __csub_before_script -l bb -r
complete -c csub -n __csub_before_script -l bbf -r
complete -c csub -n __csub_before_script -l begin -s b -r
complete -c csub -n __csub_before_script -l canary
complete -c csub -n __csub_before_script -l chdir -s D -r
complete -c csub -n __csub_before_script -l cluster -r
complete -c csub -n __csub_before_script -l cluster-constraint -r
complete -c csub -n __csub_before_script -l clusters -s M -r
complete -c csub -n __csub_before_script -l colloc -x -a 'auto off'
complete -c csub -n __csub_before_script -l comment -r
complete -c csub -n __csub_before_script -l consolidate-segments
complete -c csub -n __csub_before_script -l constraint -s C -r
complete -c csub -n __csub_before_script -l container -r
complete -c csub -n __csub_before_script -l container-id -r
complete -c csub -n __csub_before_script -l container-type -r
complete -c csub -n __csub_before_script -l context -r
complete -c csub -n __csub_before_script -l contiguous
complete -c csub -n __csub_before_script -l core-spec -s S -r
complete -c csub -n __csub_before_script -l cores-per-socket -r
complete -c csub -n __csub_before_script -l cpu-freq -r
complete -c csub -n __csub_before_script -l cpus-per-gpu -r
complete -c csub -n __csub_before_script -l cpus-per-task -s c -r
complete -c csub -n __csub_before_script -l deadline -r
complete -c csub -n __csub_before_script -l delay-boot -r
complete -c csub -n __csub_before_script -l dependency -s d -r
complete -c csub -n __csub_before_script -l distribution -s m -r
complete -c csub -n __csub_before_script -l dry-run
complete -c csub -n __csub_before_script -l error -s e -r
complete -c csub -n __csub_before_script -l exclude -s x -r
complete -c csub -n __csub_before_script -l exclusive
complete -c csub -n __csub_before_script -l explain
complete -c csub -n __csub_before_script -l export -r
complete -c csub -n __csub_before_script -l export-file -r
complete -c csub -n __csub_before_script -l external
complete -c csub -n __csub_before_script -l extra -r
complete -c csub -n __csub_before_script -l extra-node-info -s B -r
complete -c csub -n __csub_before_script -l format -x -a 'script json'
complete -c csub -n __csub_before_script -l get-user-env
complete -c csub -n __csub_before_script -l gid -r
complete -c csub -n __csub_before_script -l gpu-bind -r
complete -c csub -n __csub_before_script -l gpu-footprint -r
complete -c csub -n __csub_before_script -l gpu-freq -r
complete -c csub -n __csub_before_script -l gpus -s G -r
complete -c csub -n __csub_before_script -l gpus-per-node -r
complete -c csub -n __csub_before_script -l gpus-per-socket -r
complete -c csub -n __csub_before_script -l gpus-per-task -r
complete -c csub -n __csub_before_script -l gres -r
complete -c csub -n __csub_before_script -l gres-flags -r
complete -c csub -n __csub_before_script -l help -s h
complete -c csub -n __csub_before_script -l hint -r
complete -c csub -n __csub_before_script -l hold -s H
complete -c csub -n __csub_before_script -l ignore-pbs
complete -c csub -n __csub_before_script -l input -s i -r
complete -c csub -n __csub_before_script -l job-name -s J -r
complete -c csub -n __csub_before_script -l kill-on-invalid-dep -r
complete -c csub -n __csub_before_script -l licenses -s L -r
complete -c csub -n __csub_before_script -l mail-type -r
complete -c csub -n __csub_before_script -l mail-user -r
complete -c csub -n __csub_before_script -l max-slowdown -r
complete -c csub -n __csub_before_script -l mcs-label -r
complete -c csub -n __csub_before_script -l mem -r
complete -c csub -n __csub_before_script -l mem-bind -r
complete -c csub -n __csub_before_script -l mem-per-cpu -r
complete -c csub -n __csub_before_script -l mem-per-gpu -r
complete -c csub -n __csub_before_script -l mem-update -r
complete -c csub -n __csub_before_script -l mincpus -r
complete -c csub -n __csub_before_script -l network -r
complete -c csub -n __csub_before_script -l nice
complete -c csub -n __csub_before_script -l no-kill -s k
complete -c csub -n __csub_before_script -l no-requeue
complete -c csub -n __csub_before_script -l nodefile -s F -r
complete -c csub -n __csub_before_script -l nodelist -s w -r
complete -c csub -n __csub_before_script -l nodes -s N -r
complete -c csub -n __csub_before_script -l ntasks -s n -r
complete -c csub -n __csub_before_script -l ntasks-per-core -r
complete -c csub -n __csub_before_script -l ntasks-per-gpu -r
complete -c csub -n __csub_before_script -l ntasks-per-node -r
complete -c csub -n __csub_before_script -l ntasks-per-socket -r
complete -c csub -n __csub_before_script -l ntasks-per-tres -r
complete -c csub -n __csub_before_script -l oom-kill-step
complete -c csub -n __csub_before_script -l open-mode -r
complete -c csub -n __csub_before_script -l output -s o -r
complete -c csub -n __csub_before_script -l overcommit -s O
complete -c csub -n __csub_before_script -l oversubscribe -s s
complete -c csub -n __csub_before_script -l pack
complete -c csub -n __csub_before_script -l pack-jobs -r
complete -c csub -n __csub_before_script -l pack-retries -r
complete -c csub -n __csub_before_script -l pack-tasks -r
complete -c csub -n __csub_before_script -l parsable
complete -c csub -n __csub_before_script -l partition -s p -r
complete -c csub -n __csub_before_script -l power -r
complete -c csub -n __csub_before_script -l prefer -r
complete -c csub -n __csub_before_script -l priority -r
complete -c csub -n __csub_before_script -l probe
complete -c csub -n __csub_before_script -l profile -r
complete -c csub -n __csub_before_script -l propagate
complete -c csub -n __csub_before_script -l qos -s q -r
complete -c csub -n __csub_before_script -l quiet -s Q
complete -c csub -n __csub_before_script -l reboot
complete -c csub -n __csub_before_script -l requeue
complete -c csub -n __csub_before_script -l reservation -r
complete -c csub -n __csub_before_script -l resources -r
complete -c csub -n __csub_before_script -l resv-ports
complete -c csub -n __csub_before_script -l segment -r
complete -c csub -n __csub_before_script -l signal -r
complete -c csub -n __csub_before_script -l sockets-per-node -r
complete -c csub -n __csub_before_script -l spread-job
complete -c csub -n __csub_before_script -l spread-segments
complete -c csub -n __csub_before_script -l stepmgr
complete -c csub -n __csub_before_script -l switches -r
complete -c csub -n __csub_before_script -l tasks-per-node -r
complete -c csub -n __csub_before_script -l test-only
complete -c csub -n __csub_before_script -l thread-spec -r
complete -c csub -n __csub_before_script -l threads-per-core -r
complete -c csub -n __csub_before_script -l time -s t -r
complete -c csub -n __csub_before_script -l time-min -r
complete -c csub -n __csub_before_script -l tmp -r
complete -c csub -n __csub_before_script -l tres-bind -r
complete -c csub -n __csub_before_script -l tres-per-task -r
complete -c csub -n __csub_before_script -l uid -r
complete -c csub -n __csub_before_script -l usage
complete -c csub -n __csub_before_script -l use-min-nodes
complete -c csub -n __csub_before_script -l verbose -s v
complete -c csub -n __csub_before_script -l version -s V
complete -c csub -n __csub_before_script -l wait -s W
complete -c csub -n __csub_before_script -l wait-all-nodes -r
complete -c csub -n __csub_before_script -l wckey -r
complete -c csub -n __csub_before_script -l wrap -r
