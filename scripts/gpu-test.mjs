// Runs the tests and benches of scripts/gpu-runs.mjs on a GPU host and leaves their results as JSON, under the names that
// bench/results/<machine> has for them. Everything runs even when something fails; the exit code says whether anything did.
//
//   gpu-test.sh RESULTS_FOLDER [--together] [PART | NAME]...     default: everything
//   gpu-test.sh --list                                           parts, names, how long each takes
//
//   --together   what measures no time runs at once, before the rest, which runs one after the other
//
// Environment: KV_TRANSCEIVER_REQUIRE (default cuda: what lacks a GPU or NIXL fails), ROUNDS, SOAK_SLICES.
// host.json says what ran where, from which commit, how long and how it ended; each result names its commit too.
import { execFileSync, spawn } from 'node:child_process';
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { cpus, release } from 'node:os';
import { delimiter, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { FILES, gpuRuns } from './gpu-runs.mjs';

const ROOT = fileURLToPath(new URL('..', import.meta.url));
const NATIVES = ['bin', 'build-native/plain/native/test'].find((folder) => existsSync(join(ROOT, folder))) ?? 'bin';
/** The toolkit's own folders are often not on the PATH. */
const TOOLKIT = ['/usr/local/cuda/bin', '/usr/local/cuda/compute-sanitizer'];
const GRACE_MS = 5000;

class UsageError extends Error {}

function numberOf(name, otherwise) {
  const text = process.env[name];
  if (text === undefined || text === '') return otherwise;
  if (!/^[1-9]\d*$/.test(text)) throw new UsageError(`${name}=${text}: must be a whole number above 0`);
  return Number(text);
}

function read(file) {
  return JSON.parse(readFileSync(file, 'utf8'));
}

function write(file, value) {
  writeFileSync(file, `${JSON.stringify(value, null, 1)}\n`);
}

function nvidia(what) {
  try {
    const args = [`--query-gpu=${what}`, '--format=csv,noheader'];
    return execFileSync('nvidia-smi', args, { encoding: 'utf8' }).trim().split('\n');
  } catch {
    // The tests that need a GPU fail with the driver's own reason.
    return [];
  }
}

/** What this build was made from: an archive says so itself, a checkout is asked. */
function originOf() {
  if (existsSync(join(ROOT, 'packed.json'))) return read(join(ROOT, 'packed.json'));
  const git = (...args) => execFileSync('git', args, { cwd: ROOT, encoding: 'utf8' }).trim();
  const isClean = git('status', '--porcelain', '--untracked-files=no') === '';
  return { commit: `${git('rev-parse', 'HEAD')}${isClean ? '' : ', with changes'}`, node: process.version };
}

function environment(more) {
  // UCX's CUDA modules want libcudart by its plain name.
  const libraries = [...(existsSync(join(ROOT, 'lib')) ? [join(ROOT, 'lib')] : []), process.env.LD_LIBRARY_PATH];
  return {
    ...process.env,
    KV_TRANSCEIVER_REQUIRE: process.env.KV_TRANSCEIVER_REQUIRE || 'cuda',
    LD_LIBRARY_PATH: libraries.filter((path) => path).join(delimiter),
    PATH: [process.env.PATH, ...TOOLKIT].join(delimiter),
    ...more,
  };
}

/** A word of a command: of a tool that runs a test program, also a later one. */
function resolved(word) {
  if (word === 'node') return process.execPath;
  return word.startsWith('native:') ? join(ROOT, NATIVES, word.slice('native:'.length)) : word;
}

/** How the command ended: 0, another exit code, a signal's name, or why it did not start. */
function execute(run, place, isQuiet) {
  const [program, ...args] = run.command(place).map(resolved);
  return new Promise((done) => {
    // A group of its own, so that the benches' other processes end with it when it takes too long.
    const child = spawn(program, args, {
      cwd: ROOT,
      env: environment(run.env?.(place)),
      detached: true,
      stdio: ['ignore', isQuiet ? 'pipe' : 'inherit', isQuiet ? 'pipe' : 'inherit'],
    });
    let output = '';
    let isLate = false;
    const end = (signal) => {
      try {
        process.kill(-child.pid, signal);
      } catch {
        // It has ended.
      }
    };
    for (const stream of [child.stdout, child.stderr]) stream?.on('data', (bytes) => (output += bytes));
    let kill;
    const limit = setTimeout(() => {
      isLate = true;
      end('SIGTERM');
      kill = setTimeout(() => end('SIGKILL'), GRACE_MS);
    }, run.limitS * 1000);
    const settle = (status) => {
      clearTimeout(limit);
      clearTimeout(kill);
      done({ status: isLate ? `over ${run.limitS} s` : status, output });
    };
    child.once('error', (error) => settle(error.message));
    child.once('close', (code, signal) => settle(code ?? signal));
  });
}

/** Results of the benches say what they were made from; those of the test programs are told. */
function stamp(run, file, host, { startedAt, seconds, status }) {
  const result = read(file);
  if (!Array.isArray(result) && result.commit !== undefined) return;
  const head = {
    commit: host.packed.commit,
    gpus: host.gpus,
    driver: host.driver,
    startedAt,
    seconds,
    exitCode: status,
  };
  const settings = run.settings === undefined ? {} : { settings: run.settings };
  const named = JSON.parse(JSON.stringify(result, (key, value) => (key === 'file' ? inRepository(value) : value)));
  write(file, { ...head, ...settings, ...(Array.isArray(named) ? { results: named } : named) });
}

/** Test programs name their sources as the machine that built them did. */
function inRepository(path) {
  return path.replace(/^.*\/(?=native\/test\/)/, '');
}

async function perform(run, folder, host, isQuiet) {
  const place = { out: join(folder, run.file), testFiles: host.testFiles };
  // What an earlier run left would pass for this one's.
  rmSync(place.out, { force: true });
  if (!isQuiet) console.log(`\n== ${run.name}`);
  const startedAt = new Date().toISOString();
  const startMs = performance.now();
  const { status, output } = await execute(run, place, isQuiet);
  const ended = { startedAt, seconds: Math.round((performance.now() - startMs) / 100) / 10, status };
  let problem = status === 0 ? null : `ended with ${status}`;
  try {
    stamp(run, place.out, host, ended);
  } catch (error) {
    problem ??= `left no result: ${error.message}`;
  }
  if (isQuiet) console.log(`\n== ${run.name}\n${output.trimEnd()}`);
  console.log(`== ${run.name}: ${problem ?? 'ok'}, ${ended.seconds} s`);
  return { name: run.name, commit: host.packed.commit, ...ended, problem };
}

function list(runs) {
  for (const { part, name, aboutS, limitS } of runs) {
    console.log(`${part.padEnd(14)} ${name.padEnd(34)} about ${String(aboutS).padStart(3)} s, at most ${limitS} s`);
  }
  console.log(`about ${runs.reduce((sum, { aboutS }) => sum + aboutS, 0)} s in all`);
}

function chosen(runs, words) {
  for (const word of words) {
    if (runs.some(({ part, name }) => part === word || name === word)) continue;
    const parts = [...new Set(runs.map(({ part }) => part))].join(', ');
    throw new UsageError(`'${word}' is neither a part nor a name here; parts: ${parts}; names: --list`);
  }
  return words.length === 0 ? runs : runs.filter(({ part, name }) => words.includes(part) || words.includes(name));
}

async function main(args) {
  const options = args.filter((arg) => arg.startsWith('--'));
  const [folder, ...words] = args.filter((arg) => !arg.startsWith('--'));
  const unknown = options.find((option) => !['--together', '--list'].includes(option));
  if (unknown !== undefined) throw new UsageError(`unknown option ${unknown}`);
  const gpus = nvidia('name');
  const settings = { rounds: numberOf('ROUNDS', 7), soakSlices: numberOf('SOAK_SLICES', 100_000) };
  if (options.includes('--list')) return list(gpuRuns({ ...settings, gpus: gpus.length || 2 }));
  if (folder === undefined) throw new UsageError('usage: gpu-test.sh RESULTS_FOLDER [--together] [PART | NAME]...');

  const runs = chosen(gpuRuns({ ...settings, gpus: Math.max(1, gpus.length) }), words);
  const results = resolve(folder);
  mkdirSync(results, { recursive: true });
  const host = {
    at: new Date().toISOString(),
    packed: originOf(),
    gpus,
    driver: nvidia('driver_version')[0] ?? null,
    kernel: release(),
    cpus: cpus().length,
  };
  console.log(host);
  const testFiles = readdirSync(join(ROOT, 'test/gpu')).filter((name) => name.endsWith('.test.mjs'));
  const known = { ...host, testFiles: testFiles.map((name) => join('test/gpu', name)) };
  const hostFile = join(results, FILES.host);
  // Parts that ran before into the same folder stay told.
  const told = existsSync(hostFile) ? (read(hostFile).runs ?? []) : [];
  const ended = [];
  const tell = (end) => {
    ended.push(end);
    const earlier = told.filter(({ name }) => !ended.some((other) => other.name === name));
    write(hostFile, { commit: host.packed.commit, ...host, runs: [...earlier, ...ended] });
  };
  const isBeside = (run) => options.includes('--together') && !run.isTimed;
  await Promise.all(runs.filter(isBeside).map(async (run) => tell(await perform(run, results, known, true))));
  for (const run of runs.filter((one) => !isBeside(one))) tell(await perform(run, results, known, false));
  const failed = ended.filter(({ problem }) => problem !== null);
  console.log(
    `\n== done: ${failed.map(({ name, problem }) => `${name} ${problem}`).join('; ') || 'everything passed'}`,
  );
  process.exitCode = failed.length === 0 ? 0 : 1;
}

try {
  await main(process.argv.slice(2));
} catch (error) {
  if (!(error instanceof UsageError)) throw error;
  console.error(`gpu-test: ${error.message}`);
  process.exitCode = 2;
}
