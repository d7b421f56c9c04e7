import { readdirSync, readFileSync } from 'node:fs';
import { dirname } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { type Child, startChild } from '../support/child.js';
import { HANG_LIMIT_MS, withDeadline } from '../support/deadline.js';
import { type TranspiledSources, transpileSources } from '../support/transpiled-sources.js';

const CHILD = fileURLToPath(new URL('monitor-child.mjs', import.meta.url));
const WIRE = fileURLToPath(new URL('../../src/wire/', import.meta.url));
let sources: TranspiledSources;
beforeAll(() => {
  sources = transpileSources(['wire/index']);
});
afterAll(() => sources.remove());

async function ends(child: Child): Promise<void> {
  try {
    const stuck = (): string => `a socket is never destroyed: the process does not end; stderr: ${child.stderr()}`;
    expect(await withDeadline(child.exited, HANG_LIMIT_MS, stuck)).toBe(0);
  } finally {
    child.kill('SIGKILL');
  }
}

it.each([
  ['a peer that is closed with events unread, while what ZeroMQ took is still being sent', 'unread', null],
  ['a listener that throws', 'throwing', null],
  ['peers and messengers that come while descriptors run out', 'descriptors', 256],
])('the reaper of ZeroMQ is never left waiting for a monitor: %s', async (_, mode, openFiles) => {
  const child = await startChild(['--expose-gc', CHILD, dirname(sources.path('wire/index')), mode], {}, openFiles);
  expect(child.firstLine).toBe('done');
  await ends(child);
});

it('nobody else takes a monitor from a socket, which could be given up unread', () => {
  const takers = readdirSync(WIRE).filter((file) => {
    const source = readFileSync(`${WIRE}${file}`, 'utf8');
    return /\bObserver\b|\b(router|dealer|socket|handler)\.events\b/.test(source);
  });
  expect(takers).toEqual(['zeromq-monitor.ts']);
});
