#!/usr/bin/env node
'use strict';

// npm's install step. Does nothing where a prebuilt addon or an up-to-date build loads and has the expected interface; builds one otherwise.
// Not node-gyp: that would download Node's headers, which a Node-API addon does not need.

const { spawnSync } = require('node:child_process');
const fs = require('node:fs');
const path = require('node:path');
const { build, BuildError, root } = require('./build-addon.cjs');

/** Newest change of anything that the addon is made of. */
function newestSource() {
  let newest = 0;
  const pending = ['native', 'CMakeLists.txt'].map((name) => path.join(root, name));
  for (let at = pending.pop(); at !== undefined; at = pending.pop()) {
    if (!fs.existsSync(at)) continue;
    const info = fs.statSync(at);
    if (info.isDirectory()) for (const name of fs.readdirSync(at)) pending.push(path.join(at, name));
    else newest = Math.max(newest, info.mtimeMs);
  }
  return newest;
}

/**
 * Whether it loads and speaks the interface that the package's JavaScript expects.
 * In a process of its own: a broken binary must not take the installation down with it.
 */
function fits(file) {
  const { interface_version } = JSON.parse(fs.readFileSync(path.join(root, 'package.json'), 'utf8')).binary;
  const probe = 'process.exit(require(process.argv[1]).abiVersion === Number(process.argv[2]) ? 0 : 1)';
  const args = ['-e', probe, file, String(interface_version)];
  return spawnSync(process.execPath, args, { stdio: 'ignore' }).status === 0;
}

function findUsable() {
  let file;
  try {
    file = require(require.resolve('node-gyp-build', { paths: [root] })).path(root);
  } catch {
    return null; // nothing built, nothing shipped for this platform
  }
  const isOwnBuild = file.startsWith(path.join(root, 'build') + path.sep);
  if (isOwnBuild && fs.statSync(file).mtimeMs < newestSource()) return null;
  return fits(file) ? file : null;
}

if (findUsable() === null) {
  try {
    build();
  } catch (error) {
    if (!(error instanceof BuildError)) throw error;
    console.error(`kv-transceiver: no prebuilt addon fits this machine, and it could not be built: ${error.message}.`);
    console.error('Then run `npm install` again, or `npm run build:addon` in the package folder.');
    process.exit(1);
  }
}
