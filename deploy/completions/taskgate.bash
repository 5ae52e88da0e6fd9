# Completion of taskgate for bash.
_taskgate() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev= verb=serve words=
  ((COMP_CWORD == 0)) || prev=${COMP_WORDS[COMP_CWORD - 1]}
  [[ ${COMP_WORDS[1]} == -* || COMP_CWORD -eq 1 ]] || verb=${COMP_WORDS[1]}
  case "$prev" in
    --config) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    --log-format) words="text json" ;;
    --log-level) words="debug info warn error" ;;
    --era) words="auto legacy modern" ;;
    --offer) words="auto both legacy modern" ;;
    --without-tasks) words="auto block handle" ;;
    --filter) words="upstream= tool= principal= replica= id= older_than= newer_than= ended_within= status=open status=queued status=working status=input_required status=completed status=tool_error status=failed status=cancelled status=unknown" ;;
    --upstream | --header | --listen | --admin | --store | --grace | --name | --key | --limit) return ;;
    *)
      case "$verb" in
        serve) words="--config --upstream --header --listen --admin --store --grace --offer --log-format --log-level" ;;
        stdio) words="--upstream --header --config --name --store --grace --era --offer --without-tasks --log-level --" ;;
        connect) words="claude-code claude-desktop vscode cursor codex gemini qwen opencode --url --upstream --name --write --file --yes" ;;
        reload) words="--config --admin --key" ;;
        tasks)
          words="--admin --config --key --json --filter --oldest --limit --yes"
          ((COMP_CWORD > 2)) || words="list show events watch cancel rerun $words"
          ;;
        replicas | upstreams | clients | pause | resume) words="--admin --config --key --json" ;;
        check) COMPREPLY=($(compgen -W "--connect" -- "$cur") $(compgen -f -- "$cur")); return ;;
        hash-key) words="--force" ;;
      esac
      ((COMP_CWORD > 1)) || words+=" serve reload stdio connect tasks replicas upstreams clients pause resume check hash-key state-key schema version help"
      ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
}
complete -o filenames -F _taskgate taskgate
