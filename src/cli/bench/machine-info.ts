import { execFileSync } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { arch, cpus, homedir, release, totalmem } from 'node:os';
import { relative } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { MachineInfo } from './output-contract.js';

/** Package root, seen from dist/cli/bench and from src/cli/bench alike. */
const PACKAGE_ROOT = fileURLToPath(new URL('../../../', import.meta.url));

/**
 * The checkout's commit, that of the archive of scripts/gpu-pack.mjs, or `unknown` where the package was installed without its
 * history.
 */
export function commitOfCheckout(): string {
  const packed = `${PACKAGE_ROOT}packed.json`;
  if (existsSync(packed)) return (JSON.parse(readFileSync(packed, 'utf8')) as { readonly commit: string }).commit;
  try {
    const git = (args: readonly string[]): string =>
      execFileSync('git', args, { cwd: PACKAGE_ROOT, encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] }).trim();
    // An installed copy may lie inside somebody else's checkout; that commit is not ours.
    if (git(['rev-parse', '--show-prefix']) !== '') return 'unknown';
    return `${git(['rev-parse', 'HEAD'])}${git(['status', '--porcelain']) === '' ? '' : '-dirty'}`;
  } catch {
    // No git, or no repository: a report without a commit is still a report.
    return 'unknown';
  }
}

export function describeMachine(nixl: MachineInfo['nixl'], gpus: MachineInfo['gpus'] = []): MachineInfo {
  return {
    cpu: cpus()[0]?.model.trim() ?? arch(),
    cores: cpus().length,
    memoryGiB: Math.round((totalmem() / 2 ** 30) * 10) / 10,
    kernel: release(),
    node: process.version,
    gpus,
    nixl: nixl === null ? null : { ...nixl, path: sharedPath(nixl.path) },
  };
}

/** Reports are published: they say where a library was found without saying where its user keeps his files. */
export function sharedPath(path: string): string {
  const inside = relative(PACKAGE_ROOT, path);
  if (!inside.startsWith('..')) return inside;
  const home = homedir();
  return path.startsWith(`${home}/`) ? `~${path.slice(home.length)}` : path;
}
