#!/usr/bin/env bash
# Tests and measures on a GPU host, from an unpacked archive of scripts/gpu-pack.mjs or from a built checkout. Needs no
# network. Everything runs even when something fails; the exit status says whether anything did.
#
#   gpu-test.sh RESULTS_FOLDER [PART]...      default: native-tests node-tests bench
#
#   native-tests   kernels, device memory and p2p, from C++
#   node-tests     test/gpu, from TypeScript
#   bench          bench transfer on one GPU and on two
#   big-slices     bench transfer again, with slices as a chunk of 8,192 tokens makes them
#   interference   bench interference, two GPUs: p2p and rdma side by side in each JSON
#   ttft           bench ttft --engine gemm, two GPUs: TTFT_MODELS, prompts of 8k, 32k and 128k tokens
#   native-bench   kernels and two processes without an agent; a writer that is killed
#   soak           100,000 slices (SOAK_SLICES)
#   sanitize       kernels under compute-sanitizer
#
# Results: host.json (what ran where), native-tests.json, node-tests.txt, soak.txt, transfer-*.json, interference.json,
# ttft-*.json, single.json, pair*.json, kill.json, sanitize-*.txt.
set -uo pipefail
[ $# -ge 1 ] || { echo "usage: gpu-test.sh RESULTS_FOLDER [PART]..." >&2; exit 2; }
mkdir -p "$1"
results="$(cd "$1" && pwd)"
shift
parts=" ${*:-native-tests node-tests bench} "
cd "$(dirname "$0")/.."

native=bin
[ -d "$native" ] || native=build-native/plain/native/test
node=bin/node
[ -x "$node" ] || node=node
# UCX's CUDA modules want libcudart by its plain name.
[ -d lib ] && export LD_LIBRARY_PATH="$PWD/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export KV_TRANSCEIVER_REQUIRE="${KV_TRANSCEIVER_REQUIRE:-cuda}"

failed=()
step() {
  local name="$1"
  shift
  printf '\n== %s\n' "$name"
  timeout "${STEP_LIMIT_S:-300}" "$@" || { failed+=("$name"); echo "== $name FAILED ($?)"; }
}

gpus="$(nvidia-smi --query-gpu=name --format=csv,noheader | wc -l)"
"$node" -e '
  const { readFileSync, writeFileSync, existsSync } = require("fs");
  const { execFileSync } = require("child_process");
  const query = (what) =>
    execFileSync("nvidia-smi", [`--query-gpu=${what}`, "--format=csv,noheader"], { encoding: "utf8" }).trim().split("\n");
  const packed = existsSync("packed.json") ? JSON.parse(readFileSync("packed.json", "utf8")) : null;
  const host = { at: new Date().toISOString(), packed, gpus: query("name"), driver: query("driver_version")[0],
    kernel: require("os").release(), cpus: require("os").cpus().length };
  writeFileSync(process.argv[1], `${JSON.stringify(host, null, 2)}\n`);
  console.log(host);
' "$results/host.json"

wants() { [[ "$parts" == *" $1 "* ]]; }

if wants native-tests; then
  step 'native tests' "$native/kvt_device_tests" --gtest_brief=1 --gtest_output="json:$results/native-tests.json"
fi
if wants node-tests; then
  step 'node tests' bash -c "set -o pipefail; '$node' --expose-gc --test --test-concurrency=1 test/gpu/*.test.mjs 2>&1 | tee '$results/node-tests.txt'"
fi
if wants soak; then
  step 'soak' bash -c "set -o pipefail; SOAK_SLICES=${SOAK_SLICES:-100000} '$node' --expose-gc --test test/gpu/soak.test.mjs 2>&1 | tee '$results/soak.txt'"
fi
if wants bench; then
  step 'transfer, one GPU' "$node" dist/cli/main.js bench transfer --memory device --page-bytes 4k,32k --gpus 0:0 --rounds "${ROUNDS:-7}" \
    --json "$results/transfer-one-gpu.json"
  if [ "$gpus" -ge 2 ]; then
    step 'transfer, two GPUs' "$node" dist/cli/main.js bench transfer --memory device --page-bytes 4k,32k,512k --gpus 0:1 \
      --rounds "${ROUNDS:-7}" --json "$results/transfer-two-gpus.json"
  fi
fi
if wants big-slices && [ "$gpus" -ge 2 ]; then
  step 'transfer, big slices' "$node" dist/cli/main.js bench transfer --memory device --page-bytes 4k,32k --gpus 0:1 \
    --total-bytes 2Gi --slice-pages 32k --blocks 16,32 --rounds "${ROUNDS:-7}" --json "$results/transfer-big-slices.json"
fi
if wants interference && [ "$gpus" -ge 2 ]; then
  step 'interference' "$node" dist/cli/main.js bench interference --gpus 0:1 --blocks 16,32 --chunk 2k \
    --rounds "${ROUNDS:-9}" --json "$results/interference-2k.json"
  step 'interference, chunks of 8,192 tokens' "$node" dist/cli/main.js bench interference --gpus 0:1 --blocks 16 --chunk 8k \
    --loads own --rounds "${ROUNDS:-9}" --json "$results/interference-8k.json"
fi
if wants ttft; then
  pair=0:0
  [ "$gpus" -ge 2 ] && pair=0:1
  for model in ${TTFT_MODELS:-llama-3.1-8b qwen3-32b}; do
    # prompt, chunk, requests
    for row in ${TTFT_ROWS:-8k,2k,5 32k,8k,3 128k,16k,1}; do
      IFS=, read -r prompt chunk requests <<<"$row"
      step "ttft $model $prompt" "$node" dist/cli/main.js bench ttft --engine gemm --memory device --gpus "$pair" --model "$model" \
        --prompt-tokens "$prompt" --chunk "$chunk" --requests "$requests" --variants "${TTFT_VARIANTS:-monolithic,pipelined}" --warm-up "${WARM_UP:-200}" \
        --json "$results/ttft-$model-$prompt.json"
    done
  done
fi
if wants native-bench; then
  step 'one GPU' "$native/kvt_device_bench" single "$results/single.json"
  if [ "$gpus" -ge 2 ]; then
    step 'two GPUs' "$native/kvt_device_bench" pair 0 1 "$results/pair.json"
    step 'two GPUs, registered memory' "$native/kvt_device_bench" pair-registered 0 1 "$results/pair-registered.json"
    step 'writer killed, two GPUs' "$native/kvt_device_bench" kill 0 1 12 "$results/kill.json"
  else
    step 'two processes, one GPU' "$native/kvt_device_bench" pair 0 0 "$results/pair.json"
    step 'writer killed, one GPU' "$native/kvt_device_bench" kill 0 0 12 "$results/kill.json"
  fi
fi
if wants sanitize; then
  # The toolkit's own folder is often not on the PATH.
  export PATH="$PATH:/usr/local/cuda/bin:/usr/local/cuda/compute-sanitizer"
  # Every kernel: copies by both methods, gather and scatter as the arena launches them, launches that are taken back,
  # and slices of two agents.
  for tool in memcheck racecheck; do
    # --error-exitcode makes a finding a failure.
    step "$tool" bash -c "set -o pipefail; compute-sanitizer --tool $tool --error-exitcode 9 '$native/kvt_device_tests' \
      --gtest_filter='Kernels.*:DeviceBounce.Chunks*:P2p.SlicesOfAny*:P2p.SlicesUnder*-Kernels.ManyPages*' 2>&1 |
      grep -v RUN | tee '$results/sanitize-$tool.txt'"
  done
fi

printf '\n== done: %s\n' "${failed[*]:-everything passed}"
[ ${#failed[@]} -eq 0 ]
