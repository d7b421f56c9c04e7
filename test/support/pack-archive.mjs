// One archive with this Node, for a machine that has many cores and nothing else.
import { execFileSync } from 'node:child_process';
import { chmodSync, cpSync, mkdirSync, mkdtempSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));

/**
 * @param options.path ends in .tar.xz, .tar.gz or .tgz
 * @param options.name of the one folder in it
 * @param options.command started by a script of this name
 * @param options.script what Node runs then, a path in the archive
 * @param options.packages that the code imports, as they are installed here
 * @param options.fill puts the rest into the folder that it is given
 * @returns the exit status
 */
export async function packArchive({ path, name, command, script, packages, fill }) {
  const folder = mkdtempSync(join(tmpdir(), `${name}-pack-`));
  try {
    const stage = join(folder, name);
    mkdirSync(stage);
    await fill(stage);
    for (const wanted of packages) putPackage(stage, wanted);
    cpSync(process.execPath, join(stage, 'node'), { dereference: true });
    writeFileSync(
      join(stage, command),
      `#!/bin/sh\nhere=$(dirname "$(readlink -f "$0")")\nexec "$here/node" "$here/${script}" "$@"\n`,
    );
    chmodSync(join(stage, command), 0o755);
    const out = resolve(path);
    mkdirSync(dirname(out), { recursive: true });
    execFileSync('tar', ['caf', out, '-C', folder, name], {
      stdio: 'inherit',
      env: { ...process.env, XZ_OPT: '-1 -T0' },
    });
    process.stdout.write(`${out}: ${(statSync(out).size / 2 ** 20).toFixed(1)} MiB\n`);
    return 0;
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

/** Without builds for other systems. */
function putPackage(stage, name) {
  const foreign =
    /\/build\/(?:darwin|win32)(?:\/|$)|\/build\/linux\/(?!x64|arm64)|-musl|\/musl-|\/(?:src|script|docs?)(?:\/|$)|\.map$/;
  const native = `${process.platform}/${process.arch}`;
  cpSync(join(ROOT, 'node_modules', name), join(stage, 'node_modules', name), {
    recursive: true,
    filter: (path) => {
      const inside = path.slice(join(ROOT, 'node_modules', name).length);
      if (foreign.test(inside)) return false;
      return !/\/build\/linux\/[^/]+/.test(inside) || inside.includes(`/build/${native}`);
    },
  });
}
