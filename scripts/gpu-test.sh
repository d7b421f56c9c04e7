#!/usr/bin/env bash
# Tests and measures on a GPU host, from an unpacked archive of scripts/gpu-pack.mjs or from a built checkout. Needs no
# network. Options and parts: scripts/gpu-test.mjs.
set -euo pipefail
scripts="$(cd "$(dirname "$0")" && pwd)"
node="$scripts/../bin/node"
[ -x "$node" ] || node=node
exec "$node" "$scripts/gpu-test.mjs" "$@"
