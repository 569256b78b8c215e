#!/bin/bash
# Runs every test of this bundle that the machine can run, with the machine's own Python and its
# onnxruntime, and closes with one line: N passed, N failed, N skipped.
#
#   ./run             the conformance cases on the GPU, on it with kernels for sm_80, and on the CPU,
#                     then the Python tests
#   ./run --bench     the table of cases on the GPU, into results/bench
#   ./run --products  the table of block-scaled products on the GPU, into results/products; takes
#                     the options of `tenon bench`: --quick, --random COUNT, --only PATTERN
#                     ('*_by_*': rows that the model quantises)
#   ./run --attention the table of attentions on the GPU, into results/attention; takes --quick and
#                     --only PATTERN
#   ./run --convolution  networks of convolutions on the GPU, into results/convolution; takes --only
#                     PATTERN and --models-dir FOLDER, an absolute path of the models of PP-OCR
#   ./run --tuning    what tuning gains and costs on the GPU, into results/tuning; takes --only PATTERN,
#                     --constants-factor-seed SEED, --limit SECONDS and --resume FILE, an absolute path
#                     of the bench.json of a run that was cut short
#   ./run --decoder   whole decoders on the GPU, into results/decoder; takes the options of
#                     `tenon bench`: --preset, --weights, --batch, --past, --prefill, --limit SECONDS
#   ./run --sessions  how long sessions of whole decoders take to open, into results/sessions; takes
#                     --preset and --weights
#   ./run --races     random problems whose launches overlap, bit for bit against launches one by
#                     one; takes --seconds, --seed and --only of tests/python/races.py
#   ./run --nccl FOLDER     two ranks on this machine's GPU through the NCCL of FOLDER, as
#                     scripts/fetch_nccl.sh put it there: with MPS, which it starts and stops, all
#                     collectives and their times; without it, replays of a graph and lost ranks
#   ./run --nccl FOLDER --bench  sessions of two ranks under MPS, into results/nccl/sessions; takes
#                     the options of `tenon bench` for decoders
#   ./run --nvshmem FOLDER  the same as --nccl with NVSHMEM, under MPS alone
#   ./run --sanitize  a few kernels of each kind under compute-sanitizer
#
# PYTHON names another interpreter.
set -uo pipefail
called_from=$PWD
cd "$(dirname "$0")" || exit

python=${PYTHON:-python3}
runtime=$("$python" -c 'import pathlib, onnxruntime
print(next(pathlib.Path(onnxruntime.__file__).parent.glob("capi/libonnxruntime.so.*"), ""))') || {
  echo "run: $python has no onnxruntime; install it, or set PYTHON to an interpreter that has it" >&2
  exit 1
}
results=$PWD/results
# Tables stay beside each other; a run of the tests begins anew.
case ${1:-} in
  "" | --sanitize) rm -rf "$results" ;;
esac
mkdir -p "$results"

export PYTHONPATH=$PWD/python:$PWD/vendor${PYTHONPATH:+:$PYTHONPATH}
export TENON_LIBRARY_PATH=$PWD/python/onnxruntime_ep_tenon/libonnxruntime_ep_tenon.so
export TENON_TEST_ONNXRUNTIME=$runtime
TENON_LIBRARY_DIRS=$("$python" -c 'from onnxruntime_ep_tenon import cuda
print(":".join(cuda.library_folders()))')
export TENON_LIBRARY_DIRS
"$python" -m onnxruntime_ep_tenon doctor

# Small cases of each kind of kernel: the tools slow a launch down by up to a hundred times.
sanitized=(
  'Loop.*Softmax*:Loop.*Reduc*'
  'Concat.*:Gather.*:Scatter.*:CumSum.*'
  'ConformanceScaledDot.ExtremeScales'
  'ConformanceAttention.MaskedKeysMayHoldNan:ConformanceAttention.KeysBeyond*'
  'FlashDecode.LengthsOutOfRange*:FlashDecode.NothingPast*:DecodeToken.OneLaunch*'
  'CodedCache.LengthsBeyond*:SharedCache.LengthsBeyond*:PagedAttention.SequencesOfDifferentLengths'
  'PrefillAttention.LengthsOfEachRow:PrefillAttention.CachesAndSinks'
  'PrefillAttention.QueriesAndKeysOfAnyNumber'
  'PagedAttention.DecodeOfEach:PagedAttention.PagesOfCodes'
  'FlashDecode.LengthsAroundAStageAndManySplits'
  'PipelinedDot.EveryFormat'
  'PipelinedDot.SkinnyGemmOfEveryFormat'
  'PipelinedDot.ManyRowsAndSplits'
  'MergedDots.SplitsAndManyRows'
  'Formats/Merged.GateAndUp/nvfp4:Formats/Merged.GateAndUp/int4_n_major'
  'Formats/Prologue.GateAndUp/nvfp4:Formats/Prologue.RmsNormOfSeveralProducts/int4_n_major'
  'DeviceRun.MemoryGoesBack'
)
launches_each=8
# One lane of a warp gives a stage back for all, behind bar.warp.sync. Where ptxas is sure that the warp
# is converged it leaves that instruction out, and racecheck reports the reads of the other 31 lanes.
unseen_by_racecheck='PipelinedDot.ManyRowsAndSplits'

# sanitize_one <tool> <number>: one process under one tool.
sanitize_one() {
  timeout 280 compute-sanitizer --tool "$1" --error-exitcode 9 --launch-count $launches_each \
    bin/gpu_test --gtest_brief=1 "--gtest_filter=${sanitized[$2]}" >"$results/$1-$2.log" 2>&1
  echo "$? $1 ${sanitized[$2]}" >>"$results/sanitized"
}

sanitize() {
  local tool number
  command -v compute-sanitizer >/dev/null || {
    echo "sanitize: skipped, since there is no compute-sanitizer here"
    return 0
  }
  for tool in memcheck racecheck initcheck synccheck; do
    for number in "${!sanitized[@]}"; do
      [ "$tool ${sanitized[$number]}" != "racecheck $unseen_by_racecheck" ] || continue
      sanitize_one $tool "$number" &
    done
  done
  wait
  echo "exit status, tool and cases, $launches_each launches each:"
  sort "$results/sanitized"
  grep -hE "SUMMARY" "$results"/*.log | sort | uniq -c
  ! grep -qv "^0 " "$results/sanitized"
}

# start <name> <command...>: a program in the background, with its results under that name.
start() {
  local name=$1
  shift
  timeout 290 "$@" --gtest_brief=1 "--gtest_output=xml:$results/$name.xml" \
    >"$results/$name.log" 2>&1 &
  expected+=("$name")
}

# One queue for all processes of a whole run: as many at a time as there are cores, the longest first.
queue=()
# queue_job <name> <command...>: with its log under that name; it writes $results/<name>.xml.
queue_job() {
  local name=$1
  shift
  queue+=("timeout 400 $(printf '%q ' "$@") >$(printf '%q' "$results/$name.log") 2>&1")
  expected+=("$name")
}

queue_program() {
  queue_job "$1" "${@:2}" --gtest_brief=1 "--gtest_output=xml:$results/$1.xml"
}

cores=$(nproc)
# deal_program <parts> <name> <command...>: its cases over processes, since most of their time is
# compiling.
deal_program() {
  local parts=$1 name=$2 part
  shift 2
  for ((part = 0; part < parts; part++)); do
    queue_program "$name-$part" env GTEST_TOTAL_SHARDS="$parts" GTEST_SHARD_INDEX=$part "$@"
  done
}

# deal_python <parts> <file>: the same with a file of Python tests; tests/python/conftest.py picks.
deal_python() {
  local parts=$1 file=$2 part name
  for ((part = 0; part < parts; part++)); do
    name=python-$(basename "$file" .py)
    [ "$parts" = 1 ] || name=$name-$part
    queue_job "$name" env TENON_TEST_PART="$part/$parts" "$python" -m pytest -q \
      -p no:cacheprovider "$file" "--junitxml=$results/$name.xml"
  done
}

run_queue() {
  local begun=$SECONDS
  printf '%s\n' "${queue[@]}" | xargs -d '\n' -P "$cores" -n 1 bash -c
  echo "${#queue[@]} processes on $cores cores in $((SECONDS - begun)) s"
  queue=()
}

# Looks at the memory that the GPU has left, which others must not change.
alone=DeviceRun.MemoryGoesBack

queue_programs() {
  local program name
  local rest="--gtest_filter=-$alone"
  deal_program $((2 * cores)) sm_80 env TENON_TEST_TARGET=gpu TENON_TEST_ARCH=sm_80 bin/gpu_test "$rest"
  deal_program $((2 * cores)) gpu env TENON_TEST_TARGET=gpu bin/gpu_test "$rest"
  deal_program $((2 * cores)) host env TENON_TEST_TARGET=host bin/gpu_test "$rest"
  deal_program "$cores" codegen_gpu_test bin/codegen_gpu_test
  for program in bin/*; do
    name=$(basename "$program")
    # The ranks of two_ranks_gpu_test wait for each other on a GPU of their own: --nccl.
    case $name in
      gpu_test | codegen_gpu_test | two_ranks_gpu_test) ;;
      *) queue_program "$name" "$program" ;;
    esac
  done
}

# Files of Python tests that take minutes on a GPU machine come first, in that many parts. One whose
# cases all wait for one run of everything gains nothing by parts.
longest_python=(
  test_sizes_at_run:1 test_session:1 test_random_graphs:1 test_bad_input:1
  test_gpu_models:2 test_decoder_layers:2
)

queue_python() {
  local entry name file
  local -A first=()
  for entry in "${longest_python[@]}"; do
    name=${entry%:*}
    first[$name]=1
    deal_python "${entry#*:}" "tests/python/$name.py"
  done
  for file in tests/python/test_*.py tests/python/conformance/test_*.py; do
    name=$(basename "$file" .py)
    [ -n "${first[$name]:-}" ] || deal_python 1 "$file"
  done
}

run_all() {
  if "$python" -c 'import onnx, ml_dtypes' 2>/dev/null; then
    queue_python
  else
    echo "== python: left out, since it needs the packages onnx and ml_dtypes"
  fi
  queue_programs
  echo "== conformance on the GPU, as on an older one, and on the CPU; other programs; Python"
  run_queue
  queue_program alone bin/gpu_test "--gtest_filter=$alone"
  run_queue
  grep -hE "FAILED  \\]|^(FAILED|ERROR) " "$results"/*.log | sort -u
}

# join_library <engine> <file> <folder>: the path of the file there, made of its parts once.
join_library() {
  local engine=$1 library=$3/$2
  if [ ! -f "$library" ]; then
    compgen -G "$3/$engine.??" >/dev/null || {
      echo "run: $3 has neither $2 nor its parts, $engine.aa and on; scripts/fetch_nccl.sh makes them" >&2
      return 1
    }
    if [ -f "$3/$engine.sha256" ]; then
      (cd "$3" && sha256sum --quiet -c "$engine.sha256") >&2 || return
    fi
    cat "$3/$engine".?? | xz -dc | tar -x -C "$3" || return
  fi
  realpath "$library"
}

# Its own MPS, so that one that runs here already is left alone.
start_mps() {
  mps=$(mktemp -d)
  mkdir "$mps/pipe" "$mps/log"
  trap stop_mps EXIT
  mps_where=("CUDA_MPS_PIPE_DIRECTORY=$mps/pipe" "CUDA_MPS_LOG_DIRECTORY=$mps/log")
  env "${mps_where[@]}" timeout 30 nvidia-cuda-mps-control -d >"$mps/log/start.log" 2>&1 || {
    echo "run: MPS does not start (nvidia-cuda-mps-control -d)" >&2
    tail -n 5 "$mps"/log/* >&2
    return 1
  }
}

stop_mps() {
  local pid
  [ -n "${mps:-}" ] || return 0
  pid=$(cat "$mps/pipe/nvidia-cuda-mps-control.pid" 2>/dev/null)
  echo quit | env "${mps_where[@]}" timeout 30 nvidia-cuda-mps-control >/dev/null 2>&1
  if [ -n "$pid" ] && [ -d "/proc/$pid" ]; then kill "$pid"; fi
  cp -r "$mps/log" "$results/mps-log" 2>/dev/null
  rm -rf "$mps"
  mps=
}

# two_ranks <how> <engine> <filter> [VARIABLE=value...]: the program of two ranks, for itself.
two_ranks() {
  local how=$1 engine=$2 filter=$3
  shift 3
  echo "== two ranks, $engine, $how"
  start "$how" env "TENON_TEST_FIGURES=$results/$how.figures" "$@" \
    bin/two_ranks_gpu_test "--gtest_filter=$filter"
  wait
  grep -hE "FAILED|Failure|Skipped" -A 3 "$results/$how.log" | head -n 40
}

# under_mps <command...>: with an MPS of its own, half of the GPU for each process.
under_mps() {
  start_mps || return
  "$@" "${mps_where[@]}" CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50
  local status=$?
  stop_mps
  return $status
}

# bench_ranks [VARIABLE=value...]: sessions of two ranks, with the options in bench_options.
bench_ranks() {
  timeout 570 env "$@" "$python" -m onnxruntime_ep_tenon bench --suite ranks --device gpu \
    --out "$results/sessions" "${bench_options[@]}"
}

# run_engine <engine> <file> <folder> [--bench <options>...]
run_engine() {
  local engine=$1 library
  results=$results/$engine
  [ -n "$3" ] || { echo "run: --$engine needs the folder of $2" >&2; return 2; }
  library=$(join_library "$1" "$2" "$(cd "$called_from" && realpath "$3")") || return
  # What lies on one machine needs none of NVSHMEM's network plugins, which are not in FOLDER.
  export "TENON_${engine^^}_LIBRARY=$library" NCCL_MULTI_RANK_GPU_ENABLE=1 \
    NVSHMEM_REMOTE_TRANSPORT=none
  if [ "${4:-}" = --bench ]; then
    bench_options=("${@:5}")
    mkdir -p "$results"
    under_mps bench_ranks
    return
  fi
  rm -rf "$results"
  mkdir -p "$results"
  local all="*/TwoRanksGpuTest.*/$engine*"
  under_mps two_ranks mps "$engine" "$all"
  [ -e "$results/mps.log" ] || expected+=(mps)
  # NVSHMEM reduces on a shared GPU under MPS only.
  if [ "$engine" = nccl ]; then
    two_ranks alone "$engine" "$all:-*TimeOf*"
    two_ranks lost "$engine" "*/TwoRanksFaultGpuTest.*/$engine*"
    start one_rank bin/nccl_gpu_test
    wait
  fi
  "$python" scripts/print_figures.py "$results"/{mps,alone,lost}.figures --out "$results/$engine.json"
  "$python" scripts/summarize_tests.py "$results" --expect "${expected[@]}"
}

expected=()
case ${1:-} in
  --bench) exec "$python" -m onnxruntime_ep_tenon bench --suite --device gpu --out "$results/bench" ;;
  --products)
    exec "$python" -m onnxruntime_ep_tenon bench --suite products --device gpu \
      --out "$results/products" "${@:2}"
    ;;
  --attention)
    exec "$python" -m onnxruntime_ep_tenon bench --suite attention --device gpu \
      --out "$results/attention" "${@:2}"
    ;;
  --convolution | --tuning)
    exec "$python" -m onnxruntime_ep_tenon bench --suite "${1#--}" --device gpu \
      --out "$results/${1#--}" "${@:2}"
    ;;
  --decoder)
    exec "$python" -m onnxruntime_ep_tenon bench --suite decoder --device gpu \
      --out "$results/decoder" "${@:2}"
    ;;
  --sessions)
    exec "$python" -m onnxruntime_ep_tenon bench --suite sessions --device gpu \
      --out "$results/sessions" "${@:2}"
    ;;
  --races)
    cd tests/python || exit
    exec "$python" races.py --out "$results/races.json" "${@:2}"
    ;;
  --nccl) run_engine nccl libnccl.so.2 "${2:-}" "${@:3}" ;;
  --nvshmem) run_engine nvshmem libnvshmem_host.so.3 "${2:-}" ;;
  --sanitize) sanitize ;;
  "")
    run_all
    "$python" scripts/summarize_tests.py "$results" --expect "${expected[@]}"
    ;;
  *)
    echo "run: unknown argument '$1'; one of: --bench, --products, --attention, --convolution, --tuning, --decoder, --sessions, --races, --nccl, --nvshmem, --sanitize" >&2
    exit 2
    ;;
esac
