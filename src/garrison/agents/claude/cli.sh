#!/bin/sh
# Starts the CLI, in its sandbox if it has one, so that it gets a signal when the process that started it dies; TERM, so
# that it ends its tools too. A sandbox then ends at once.
if [ -n "$GARRISON_CLI_LAUNCHER" ]; then
    set -- /bin/sh "$GARRISON_CLI_LAUNCHER" "$@"
else
    set -- "$GARRISON_CLAUDE_CLI" "$@"
fi
if command -v setpriv >/dev/null 2>&1; then
    exec setpriv --pdeathsig TERM -- "$@"
fi
exec "$@"
