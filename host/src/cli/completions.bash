# Completions of rlhost for bash: asks rlhost what fits at the cursor.
_rlhost() {
    # Readline splits words at "=" and ":"; rlhost wants them whole.
    local words=() i word prefix="" reply
    for ((i = 0; i <= COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        # Without what is behind the cursor.
        ((i == COMP_CWORD)) && [[ $word != [=:]* ]] && word=$2
        if ((i > 1)) && [[ $word == [=:]* || ${COMP_WORDS[i - 1]} == *[=:] ]]; then
            prefix=${words[${#words[@]} - 1]}
            words[${#words[@]} - 1]=$prefix$word
            [[ $word == [=:]* ]] && prefix=$prefix$word
        else
            prefix=""
            words+=("$word")
        fi
    done
    COMPREPLY=()
    while IFS= read -r reply || [[ -n $reply ]]; do
        COMPREPLY+=("${reply#"$prefix"}")
    done < <(ASKED=bash _CLAP_COMPLETE_INDEX=$((${#words[@]} - 1)) "${1/#\~/$HOME}" -- "${words[@]}" 2>/dev/null)
    if ((${#COMPREPLY[@]} == 1)) && [[ ${COMPREPLY[0]} == *[=/] ]]; then
        compopt -o nospace 2>/dev/null
    fi
}
complete -F _rlhost rlhost
