# Completion of taskgate for fish.
set -l serving 'not __fish_seen_subcommand_from reload stdio check hash-key state-key schema version help'
set -l stdio '__fish_seen_subcommand_from stdio'
complete -c taskgate -f
complete -c taskgate -n __fish_use_subcommand -a 'serve reload stdio check hash-key state-key schema version help'
complete -c taskgate -n '__fish_seen_subcommand_from check' -F
complete -c taskgate -n '__fish_seen_subcommand_from reload' -l config -rF -d 'configuration file'
complete -c taskgate -n '__fish_seen_subcommand_from reload' -l admin -x -d 'address to ask at'
complete -c taskgate -n '__fish_seen_subcommand_from hash-key' -l force -d 'hash a weak key, too'
for verb in $serving $stdio
    complete -c taskgate -n $verb -l config -rF -d 'configuration file'
    complete -c taskgate -n $verb -l upstream -x -d 'MCP endpoint'
    complete -c taskgate -n $verb -l grace -x -d 'how long a call may take before it becomes a task'
    complete -c taskgate -n $verb -l store -x -d 'where tasks are kept'
    complete -c taskgate -n $verb -l log-level -x -a 'debug info warn error'
end
complete -c taskgate -n $serving -l listen -x -d 'address to serve on'
complete -c taskgate -n $serving -l admin -x -d 'address of probes and metrics'
complete -c taskgate -n $serving -l log-format -x -a 'text json'
complete -c taskgate -n $stdio -l name -x -d 'which server of the file'
complete -c taskgate -n $stdio -l era -x -a 'auto legacy modern'
complete -c taskgate -n $stdio -l without-tasks -x -a 'auto block handle'
