#!/bin/bash
# Checks the sources; with --fix rewrites what a formatter can. TIDY=1 adds clang-tidy, which needs a
# configured build/release, and the order of operands; both take minutes.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

mapfile -t cpp < <(git ls-files -co --exclude-standard '*.h' '*.cc' '*.c')
mapfile -t shell < <(git ls-files -co --exclude-standard '*.sh' '.ci/run')
failed=0

# check <what> <command...>
check() {
  local what=$1
  shift
  if "$@"; then echo "ok      $what"; else echo "failed  $what"; failed=1; fi
}

if [ "${1:-}" = --fix ]; then
  [ ${#cpp[@]} = 0 ] || clang-format -i "${cpp[@]}"
  .venv/bin/ruff check -q --fix .
  .venv/bin/ruff format -q .
  exit
fi

[ ${#cpp[@]} = 0 ] || check "clang-format" clang-format --dry-run -Werror "${cpp[@]}"
check "shellcheck" shellcheck "${shell[@]}"
check "ruff check" .venv/bin/ruff check -q .
check "ruff format" .venv/bin/ruff format -q --check .
check "python compiles" .venv/bin/python -m compileall -q -f models python tests scripts
if [ "${TIDY:-0}" = 1 ]; then
  mapfile -t units < <(printf '%s\n' "${cpp[@]}" | grep '\.cc$')
  check "clang-tidy" clang-tidy -quiet -p build/release "${units[@]}"
  check "operand order" .venv/bin/python scripts/check_operand_order.py
fi
exit $failed
