#!/usr/bin/env bash
# Builds and runs the native tests in build-native/. SANITIZE=address,undefined or SANITIZE=thread checks with sanitizers.
set -euo pipefail
cd "$(dirname "$0")/.."

# Tests stay on the loopback interface.
export UCX_NET_DEVICES="${UCX_NET_DEVICES:-lo}"

sanitize="${SANITIZE:-}"
out="build-native/${sanitize:-plain}"
type=Release
[ -n "$sanitize" ] && type=RelWithDebInfo

cmake -S . -B "$out" -DCMAKE_BUILD_TYPE="$type" -DKVT_BUILD_TESTS=ON -DKVT_BUILD_ADDON=OFF -DKVT_SANITIZE="$sanitize"
cmake --build "$out" --parallel "$(nproc)"
ctest --test-dir "$out" --output-on-failure --no-tests=error "$@"
