package complete

import (
	"fmt"
	"io"
	"strings"
)

// Shells are the shells that Script knows.
var shells = map[string]string{
	"bash": bash,
	"zsh":  zsh,
	"fish": fish,
}

// Script writes the completion script of shell for program, which answers
// `program Verb -- WORD…` with one candidate a line, its help after a tab.
func Script(w io.Writer, shell, program string) error {
	script, ok := shells[shell]
	if !ok {
		return fmt.Errorf("no completion for %s", shell)
	}
	_, err := io.WriteString(w, strings.NewReplacer("PROGRAM", program, "VERB", Verb).Replace(script))
	return err
}

// Verb is the hidden command that scripts ask.
const Verb = "__complete"

const bash = `# bash completion for PROGRAM: source it, or put it where bash-completion looks.
_PROGRAM() {
    local IFS=$'\n' line
    local words=("${COMP_WORDS[@]:1:COMP_CWORD}")
    COMPREPLY=()
    # bash splits words at "=" and ":"; what it put before them is not ours to repeat.
    local typed="${COMP_LINE:0:COMP_POINT}"
    typed="${typed##*[[:space:]]}"
    local prefix="${typed%"${COMP_WORDS[COMP_CWORD]}"}"
    if [[ "$typed" == *[=:]* ]]; then
        local before="${COMP_LINE:0:COMP_POINT}"
        before="${before%"$typed"}"
        IFS=$' \t\n' read -ra words <<<"$before"
        words=("${words[@]:1}" "$typed")
    fi
    # Read, not split: a candidate such as "grant.*" is no pattern of files.
    while IFS= read -r line; do
        line="${line%%$'\t'*}"
        [[ "$typed" == *[=:]* ]] && line="${line#"$prefix"}"
        COMPREPLY+=("$(printf '%q' "$line")")
    done < <(PROGRAM VERB -- "${words[@]}" 2>/dev/null)
    [[ ${#COMPREPLY[@]} -eq 1 && "${COMPREPLY[0]}" == *: ]] && compopt -o nospace
}
complete -o default -F _PROGRAM PROGRAM
`

const zsh = `#compdef PROGRAM
# zsh completion for PROGRAM: put it into a directory of $fpath as _PROGRAM.
_PROGRAM() {
    local line
    local -a candidates
    for line in "${(@f)$(PROGRAM VERB -- "${(@)words[2,CURRENT]}" 2>/dev/null)}"; do
        [[ -n "$line" ]] || continue
        # _describe splits at the first colon that is not escaped.
        local word="${line%%$'\t'*}" help=""
        [[ "$line" == *$'\t'* ]] && help="${line#*$'\t'}"
        candidates+=("${word//:/\\:}${help:+:$help}")
    done
    if (( ${#candidates} )); then
        _describe -V 'PROGRAM' candidates
    else
        _files
    fi
}
if [[ "$funcstack[1]" == "_PROGRAM" ]]; then
    _PROGRAM "$@"
else
    compdef _PROGRAM PROGRAM
fi
`

const fish = `# fish completion for PROGRAM: put it into ~/.config/fish/completions/PROGRAM.fish
function __PROGRAM_complete
    set -l words (commandline -opc) (commandline -ct)
    PROGRAM VERB -- $words[2..-1] 2>/dev/null
end
complete -c PROGRAM -a '(__PROGRAM_complete)'
`
