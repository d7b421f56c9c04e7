#!/usr/bin/env node
// Fetches the pinned CUDA compiler wheels with the machine's own pip and unpacks them into `.nvcc/`, where the build looks
// for nvcc when there is none on the PATH. Needed only to compile the GPU kernels; nothing of it is installed or shipped.
//
// Trust: pip compares the hashes below (--require-hashes). Where pip looks is the user's pip configuration.
// Atomicity: the tree is unpacked beside its final name and renamed, so that a build sees all of it or nothing.

import { spawnSync } from 'node:child_process';
import {
  chmodSync,
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

const RELEASE = '13.0.88';
const COMPILER = 'nvidia/cu13/bin/nvcc';

/** What nvcc needs to compile to a fat binary: the driver, its front end headers, the optimiser, the runtime's headers, CCCL's. */
const PACKAGES = [
  { name: 'nvidia-cuda-nvcc', version: '13.0.88' },
  { name: 'nvidia-cuda-crt', version: '13.0.88' },
  { name: 'nvidia-nvvm', version: '13.0.88' },
  { name: 'nvidia-cuda-runtime', version: '13.0.96' },
  { name: 'nvidia-cuda-cccl', version: '13.0.85' },
];

const HASHES = {
  x64: [
    '56fe502eb77625a12f25172caa3cdddb4e4c8ba2c8c17dba44b164761b380f03',
    '2c8043c7c9e02492716426e9919fc78d2c5b3b2a7a768a88e952676b08aa55a4',
    'c5f41ffeb6466944a026dfa5317d7d85355c119bbec279205d22f1869d1054e0',
    '7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548',
    'e0da7ad981f3a8aff08241b5bfc1af868742a63e2762f53a5171c492ef242649',
  ],
  arm64: [
    'c7ff28f86a24effdc6c034fa15230c549a273e4771b10a7fec14996f8cf3307f',
    'ee2ea2a97073e02ee62bb27841f437332be2c248e3eac013df07997ada39c003',
    'c4376a291d72d22a315d9d2f69bdae8f8cd83a627f75bad395cee49a0fe65dc1',
    'ef9bcbe90493a2b9d810e43d249adb3d02e98dd30200d86607d8d02687c43f55',
    '6f0203e29fed809ee2b7fe9b1344df66ecab990c37d6a2e0e189b26d6c97ed7c',
  ],
};

const PLATFORMS = {
  x64: ['manylinux2014_x86_64', 'manylinux2010_x86_64'],
  arm64: ['manylinux2014_aarch64'],
};

const UNPACK = `
import sys, zipfile
for path in sys.argv[2:]:
    with zipfile.ZipFile(path) as wheel:
        wheel.extractall(sys.argv[1], [n for n in wheel.namelist() if n.startswith("nvidia/") or "/licenses/" in n])
`;

class FetchError extends Error {}

const root = join(dirname(fileURLToPath(import.meta.url)), '..');
const home = join(root, '.nvcc');
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
  if (result.status === 0) return;
  const text = `${result.stderr}\n${result.stdout}`;
  if (/No module named pip/.test(text)) {
    throw new FetchError(`${python} has no pip; run \`${python} -m ensurepip\` or install python3-pip`);
  }
  const last = text
    .split('\n')
    .filter((line) => /error/i.test(line))
    .at(-1);
  throw new FetchError(`${what} failed: ${last?.trim() ?? `exit status ${result.status}${result.signal ?? ''}`}`);
}

/** The compiler calls its parts by their own names, and zip files that pip made do not always keep the execute bit. */
function makeExecutable(folder) {
  for (const entry of readdirSync(folder, { withFileTypes: true })) {
    if (entry.isFile()) chmodSync(join(folder, entry.name), 0o755);
  }
}

function isComplete(tree) {
  try {
    return (
      JSON.parse(readFileSync(join(tree, 'fetched.json'), 'utf8')).release === RELEASE &&
      existsSync(join(tree, COMPILER))
    );
  } catch {
    // An absent or damaged marker means the tree is not ours to trust: it is fetched again.
    return false;
  }
}

function main() {
  const hashes = process.platform === 'linux' ? HASHES[process.arch] : undefined;
  if (hashes === undefined) {
    throw new FetchError(
      `no CUDA compiler wheels are pinned for ${process.platform} ${process.arch}; put nvcc on the PATH`,
    );
  }
  const tree = join(home, `cuda-${RELEASE}`);
  if (isComplete(tree)) {
    console.log(`nvcc ${RELEASE} is in place: ${join(tree, COMPILER)}`);
    return;
  }
  mkdirSync(home, { recursive: true });
  const scratch = mkdtempSync(join(home, 'fetching-'));
  try {
    console.log(`Fetching nvcc ${RELEASE} (about 105 MB) with ${python} -m pip`);
    const requirements = join(scratch, 'requirements.txt');
    writeFileSync(
      requirements,
      PACKAGES.map(({ name, version }, i) => `${name}==${version} --hash=sha256:${hashes[i]}\n`).join(''),
    );
    runPython(
      ['-m', 'pip', 'download', '--quiet', '--no-deps', '--only-binary=:all:', '--require-hashes']
        .concat(PLATFORMS[process.arch].flatMap((platform) => ['--platform', platform]))
        .concat(['--dest', scratch, '--requirement', requirements]),
      'downloading the CUDA compiler',
    );
    const wheels = readdirSync(scratch).filter((name) => name.endsWith('.whl'));
    if (wheels.length !== PACKAGES.length) {
      throw new FetchError(`pip reported success but left ${wheels.length} of ${PACKAGES.length} wheels`);
    }
    const unpacked = join(scratch, 'tree');
    runPython(['-c', UNPACK, unpacked, ...wheels.map((name) => join(scratch, name))], 'unpacking the CUDA compiler');
    if (!existsSync(join(unpacked, COMPILER)))
      throw new FetchError(`the wheels hold no ${COMPILER}; nothing was installed`);
    makeExecutable(join(unpacked, 'nvidia/cu13/bin'));
    makeExecutable(join(unpacked, 'nvidia/cu13/nvvm/bin'));
    writeFileSync(
      join(unpacked, 'fetched.json'),
      `${JSON.stringify({ release: RELEASE, packages: PACKAGES }, null, 2)}\n`,
    );
    rmSync(tree, { recursive: true, force: true });
    renameSync(unpacked, tree);
    console.log(`nvcc ${RELEASE} is in place: ${join(tree, COMPILER)}`);
  } finally {
    rmSync(scratch, { recursive: true, force: true });
  }
}

try {
  main();
} catch (error) {
  if (!(error instanceof FetchError) && error?.code === undefined) throw error;
  console.error(`fetch-nvcc: ${error.message}`);
  process.exitCode = 1;
}
