# SPDX-License-Identifier: Apache-2.0
_csub_completion() {
    local IFS=$'
'
    COMPREPLY=( $( env COMP_WORDS="${COMP_WORDS[*]}" \
                   COMP_CWORD=$COMP_CWORD \
                   _CSUB_COMPLETE=complete_bash csub ) )
    return 0
}

complete -o default -F _csub_completion csub
