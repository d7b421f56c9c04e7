import { describe, expect, it } from 'vitest';
import { workerArguments } from '../../../src/serve/worker-arguments.js';

describe('the Node arguments of a worker', () => {
  it('are those of the process that starts it, and a small young generation', () => {
    expect(workerArguments([], {})).toEqual(['--max-semi-space-size=4']);
    expect(workerArguments(['--enable-source-maps'], { NODE_OPTIONS: '--import ./tracing.mjs' })).toEqual([
      '--enable-source-maps',
      '--max-semi-space-size=4',
    ]);
  });

  it.each(['--max-semi-space-size=64', '--min-semi-space-size=8', '--max_semi_space_size=2'])(
    'leave the size to who has set it: %s',
    (flag) => {
      expect(workerArguments([flag], {})).toEqual([flag]);
      expect(workerArguments(['--trace-gc'], { NODE_OPTIONS: `--trace-warnings ${flag}` })).toEqual(['--trace-gc']);
    },
  );
});
