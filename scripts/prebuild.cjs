#!/usr/bin/env node
'use strict';

// Makes prebuilds/<platform>-<arch>/ for a release: one Node-API binary that every Node from `engines` on loads.

const { spawnSync } = require('node:child_process');
const fs = require('node:fs');
const path = require('node:path');

const root = path.resolve(__dirname, '..');
const env = { ...process.env };
// node-gyp wants Node's headers although a Node-API addon does not; those beside this Node spare it the download.
const prefix = path.dirname(path.dirname(fs.realpathSync(process.execPath)));
if (env.npm_config_nodedir === undefined && fs.existsSync(path.join(prefix, 'include/node/node_version.h'))) {
  env.npm_config_nodedir = prefix;
}
const prebuildify = require.resolve('prebuildify/bin.js', { paths: [root] });
const args = [prebuildify, '--napi', '--strip', '--name', 'node.napi', '--tag-libc', '-t', process.versions.node];
const result = spawnSync(process.execPath, args, { cwd: root, env, stdio: 'inherit' });
process.exit(result.status ?? 1);
