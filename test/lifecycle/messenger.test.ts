import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { startChild } from '../support/child.js';
import { HANG_LIMIT_MS, withDeadline } from '../support/deadline.js';
import { type TranspiledSources, transpileSources } from '../support/transpiled-sources.js';

const CHILD = fileURLToPath(new URL('messenger-worker.mjs', import.meta.url));
let sources: TranspiledSources;
beforeAll(() => {
  sources = transpileSources(['wire/index']);
});
afterAll(() => sources.remove());

it.each(['plaintext', 'encrypted'])(
  'a worker thread that exits with its %s messenger open does not take the process along',
  async (mode) => {
    const child = await startChild([CHILD, sources.path('wire/index'), mode]);
    expect(child.firstLine).toBe('survived');
    expect(await withDeadline(child.exited, HANG_LIMIT_MS, () => 'the process does not end')).toBe(0);
  },
);
