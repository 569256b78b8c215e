#!/bin/bash
# Runs a step under a title and says how long it took: timed.sh <title> <command...>
title=$1
shift
echo "== $title"
start=$SECONDS
"$@"
status=$?
verdict="done"
[ $status = 0 ] || verdict="failed (exit $status)"
echo "== $title: $verdict in $((SECONDS - start)) s"
exit $status
