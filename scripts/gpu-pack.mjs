#!/usr/bin/env node
// Packs everything that a GPU host without network needs to test and measure this package into one archive: the addon,
// dist, the run-time dependencies, this Node, NIXL and libcudart where they were fetched, the native tests and benches.
//
//   node scripts/gpu-pack.mjs [OUT.tar.xz]      default: .gpu/kv-transceiver-gpu.tar.xz
//
// On the host: tar xf kv-transceiver-gpu.tar.xz && kv-transceiver-gpu/scripts/gpu-test.sh RESULTS_FOLDER
// Build first: npm run build, and the native tests (bash scripts/test-native.sh), both with nvcc.

import { execFileSync, spawnSync } from 'node:child_process';
import { cpSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, dirname, join, relative, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';

const NAME = 'kv-transceiver-gpu';
const ROOT = fileURLToPath(new URL('..', import.meta.url));
const NATIVE_TESTS = join(ROOT, 'build-native/plain/native/test');

class PackError extends Error {}

function run(command, args, options = {}) {
  const result = spawnSync(command, args, { cwd: ROOT, encoding: 'utf8', maxBuffer: 1 << 28, ...options });
  if (result.error) throw new PackError(`${command}: ${result.error.message}`);
  if (result.status !== 0) throw new PackError(`${command} ${args[0]} failed: ${result.stderr.trim()}`);
  return result.stdout;
}

function put(stage, path, remedy) {
  const from = join(ROOT, path);
  if (!existsSync(from)) throw new PackError(`${path} is missing; ${remedy}`);
  cpSync(from, join(stage, path), { recursive: true, dereference: true });
}

/** Nothing on a GPU host can add them. */
async function requireKernels() {
  const { capabilities } = await import('../dist/index.js');
  if ((await capabilities()).cuda.hasKernels) return;
  throw new PackError(
    'the addon has no GPU kernels: put nvcc on the PATH or run node scripts/fetch-nvcc.mjs, then npm run build:addon',
  );
}

/** Builds of a dependency for other systems than the one packed for. */
function isForeign(path) {
  return /\/(?:darwin|win32)(?:\/|$)|\/linux\/(?!x64)[^/]+(?:\/|$)|-musl(?:-|\/|$)|\/musl(?:\/|$)/.test(path);
}

function putDependencies(stage) {
  // npm ls also lists peers that are absent; those of no use at run time have no folder.
  const listed = run('npm', ['ls', '--omit=dev', '--all', '--parseable']);
  for (const from of listed.split('\n').slice(1)) {
    if (from === '' || !existsSync(from)) continue;
    cpSync(from, join(stage, relative(ROOT, from)), {
      recursive: true,
      filter: (path) => !isForeign(relative(ROOT, path)),
    });
  }
}

function putLibraries(stage) {
  if (existsSync(join(ROOT, '.nixl'))) put(stage, '.nixl', '');
  else console.warn('gpu-pack: without NIXL (npm run nixl fetches it)');
  const cudart = '.nvcc/cuda-13.0.88/nvidia/cu13/lib/libcudart.so.13';
  if (existsSync(join(ROOT, cudart))) {
    mkdirSync(join(stage, 'lib'), { recursive: true });
    cpSync(join(ROOT, cudart), join(stage, 'lib/libcudart.so.13'), { dereference: true });
  } else {
    console.warn(
      'gpu-pack: without libcudart.so.13 (node scripts/fetch-nvcc.mjs fetches it); UCX will not see the GPU',
    );
  }
}

function putNative(stage) {
  mkdirSync(join(stage, 'bin'), { recursive: true });
  for (const name of ['kvt_device_tests', 'kvt_device_bench']) {
    const from = join(NATIVE_TESTS, name);
    if (!existsSync(from)) throw new PackError(`${relative(ROOT, from)} is missing; run bash scripts/test-native.sh`);
    cpSync(from, join(stage, 'bin', name));
    run('strip', [join(stage, 'bin', name)]);
  }
  cpSync(process.execPath, join(stage, 'bin/node'), { dereference: true });
  run('strip', [join(stage, 'bin/node')]);
}

function describe() {
  const { version } = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8'));
  const commit = run('git', ['rev-parse', 'HEAD']).trim();
  const isClean = run('git', ['status', '--porcelain', '--untracked-files=no']).trim() === '';
  return { version, commit: isClean ? commit : `${commit}, with changes`, node: process.version };
}

async function main() {
  if (process.platform !== 'linux' || process.arch !== 'x64') throw new PackError('archives are made on linux x64');
  const out = resolve(process.argv[2] ?? join(ROOT, `.gpu/${NAME}.tar.xz`));
  const scratch = mkdtempSync(join(tmpdir(), 'gpu-pack-'));
  try {
    const stage = join(scratch, NAME);
    mkdirSync(stage);
    put(stage, 'dist', 'run npm run build');
    put(stage, 'build/Release/kv_transceiver.node', 'run npm run build');
    await requireKernels();
    const scripts = ['gpu-test.sh', 'gpu-test.mjs', 'gpu-runs.mjs'].map((name) => `scripts/${name}`);
    for (const path of ['package.json', 'binding.gyp', ...scripts, 'test/gpu']) put(stage, path, 'check it out');
    putDependencies(stage);
    putLibraries(stage);
    putNative(stage);
    writeFileSync(join(stage, 'packed.json'), `${JSON.stringify(describe(), null, 2)}\n`);
    mkdirSync(dirname(out), { recursive: true });
    execFileSync('tar', ['-C', scratch, '-cf', out, '-I', 'xz -T0 -6', NAME], { stdio: 'inherit' });
    console.log(`${basename(out)}: ${(statSync(out).size / 2 ** 20).toFixed(1)} MiB`);
  } finally {
    rmSync(scratch, { recursive: true, force: true });
  }
}

try {
  await main();
} catch (error) {
  if (!(error instanceof PackError)) throw error;
  console.error(`gpu-pack: ${error.message}`);
  process.exitCode = 1;
}
