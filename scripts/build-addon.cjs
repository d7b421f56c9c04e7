#!/usr/bin/env node
'use strict';

// Builds the addon with cmake-js into build-cmake/ and copies the one .node file to where node-gyp-build looks for it.
// CMakeLists.txt owns sources and flags; Node-API headers come from a package, so nothing is downloaded.
//
//   node scripts/build-addon.cjs [--out DIR]      DIR defaults to build/Release

const { spawnSync } = require('node:child_process');
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');

const root = path.resolve(__dirname, '..');
const cmakeDir = path.join(root, 'build-cmake');
const ADDON_FILE = 'kv_transceiver.node';

class BuildError extends Error {}

function isRunnable(command) {
  const result = spawnSync(command, ['--version'], { stdio: 'ignore' });
  return result.error === undefined && result.status === 0;
}

function requireTools() {
  if (process.platform !== 'linux') {
    throw new BuildError(`the native addon runs on Linux; this is ${process.platform}`);
  }
  if (!isRunnable('cmake')) {
    throw new BuildError('cmake was not found. Install cmake 3.21 or newer (Debian/Ubuntu: apt-get install cmake)');
  }
  const compilers = process.env.CXX ? [process.env.CXX] : ['c++', 'g++', 'clang++'];
  if (!compilers.some(isRunnable)) {
    throw new BuildError(
      `no C++ compiler was found (looked for ${compilers.join(', ')}). ` +
        'Install one that knows C++20: GCC 11 or clang 14 or newer (Debian/Ubuntu: apt-get install g++)',
    );
  }
  if (!['ninja', 'ninja-build', 'make'].some(isRunnable)) {
    throw new BuildError('neither ninja nor make was found (Debian/Ubuntu: apt-get install make)');
  }
}

/** A cache made in another folder or by another compiler stops cmake; it holds nothing worth keeping. */
function dropForeignCache() {
  const cache = path.join(cmakeDir, 'CMakeCache.txt');
  if (!fs.existsSync(cache)) return;
  const home = /^CMAKE_HOME_DIRECTORY:INTERNAL=(.*)$/m.exec(fs.readFileSync(cache, 'utf8'))?.[1];
  if (home === undefined || path.resolve(home) !== root) fs.rmSync(cmakeDir, { recursive: true, force: true });
}

function runCmakeJs() {
  const cmakeJs = require.resolve('cmake-js/bin/cmake-js', { paths: [root] });
  // cmake-js finds its runtime headers by these; a build started by npm or node-gyp must not steer it elsewhere.
  const env = { ...process.env };
  for (const name of Object.keys(env)) if (/^npm_config_cmake_/i.test(name)) delete env[name];
  const parallel = String(Math.max(1, Math.min(os.availableParallelism(), 8)));
  const common = ['--directory', root, '--out', cmakeDir, '--config', 'Release', '--log-level', 'warn'];
  // Always both: `build` alone would go on with what was found when the folder was made, and never see an nvcc that came later.
  for (const command of [['configure'], ['build', '--parallel', parallel]]) {
    const args = [cmakeJs, ...command, ...common];
    const result = spawnSync(process.execPath, args, { cwd: root, env, stdio: ['ignore', 'inherit', 'inherit'] });
    if (result.status !== 0) throw new BuildError('the compiler output above says what went wrong');
  }
}

/** Renamed into place, so that a process that has the old file loaded keeps it whole. */
function install(outDir) {
  const built = path.join(cmakeDir, 'Release', ADDON_FILE);
  fs.mkdirSync(outDir, { recursive: true });
  const target = path.join(outDir, ADDON_FILE);
  const temporary = `${target}.${process.pid}.tmp`;
  fs.copyFileSync(built, temporary);
  fs.renameSync(temporary, target);
  return target;
}

function build(outDir = path.join(root, 'build', 'Release')) {
  requireTools();
  dropForeignCache();
  runCmakeJs();
  return install(outDir);
}

module.exports = { build, BuildError, root };

if (require.main === module) {
  const at = process.argv.indexOf('--out');
  try {
    const file = build(at > 0 ? path.resolve(process.argv[at + 1]) : undefined);
    console.log(`built ${path.relative(process.cwd(), file)}`);
  } catch (error) {
    if (!(error instanceof BuildError)) throw error;
    console.error(`kv-transceiver: the native addon was not built: ${error.message}.`);
    process.exit(1);
  }
}
