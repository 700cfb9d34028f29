#!/bin/sh
# Starts the CLI so that it is told to end when the process that started it dies; TERM, so that it ends its tools too.
if command -v setpriv >/dev/null 2>&1; then
    exec setpriv --pdeathsig TERM -- "$GARRISON_CLAUDE_CLI" "$@"
fi
exec "$GARRISON_CLAUDE_CLI" "$@"
