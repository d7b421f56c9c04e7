import { parseArgs } from 'node:util';
import { garbageCollector } from './collect-garbage.js';
import { fuzzFrames } from './fuzz-frames.js';

const HELP = `usage: npm run fuzz -- [--frames N] [--seed N]

  --frames N  mutated frames to decode (default 1000000)
  --seed N    the same seed gives the same frames (default 1)`;

/** @returns the exit code */
export function main(args: readonly string[]): number {
  const { values } = parseArgs({
    args: [...args],
    options: {
      frames: { type: 'string', default: '1000000' },
      seed: { type: 'string', default: '1' },
      help: { type: 'boolean', default: false },
    },
  });
  if (values.help) {
    process.stdout.write(`${HELP}\n`);
    return 0;
  }
  const [frames, seed] = [Number(values.frames), Number(values.seed)];
  if (!Number.isSafeInteger(frames) || frames < 10 || !Number.isSafeInteger(seed) || seed < 0 || seed > 0xffff_ffff) {
    process.stderr.write(`${HELP}\n`);
    return 2;
  }
  const cpuBefore = process.cpuUsage();
  const result = fuzzFrames({
    frames,
    seed,
    collectGarbage: garbageCollector(),
    nowMs: () => performance.now(),
    onProgress: (done) => process.stderr.write(`${done} of ${frames}\n`),
  });
  const { user, system } = process.cpuUsage(cpuBefore);
  const { refused, elapsedMs, ...rest } = result;
  process.stdout.write(`${JSON.stringify({ seed, ...rest, refused }, null, 2)}\n`);
  const cpuS = (user + system) / 1e6;
  process.stdout.write(
    `${frames} frames in ${(elapsedMs / 1000).toFixed(1)} s, ${cpuS.toFixed(1)} s of processor time: ${Math.round(frames / cpuS)} a second\n`,
  );
  return 0;
}
