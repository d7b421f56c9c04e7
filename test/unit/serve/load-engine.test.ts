import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { ConfigError } from '../../../src/errors.js';
import { loadEngine } from '../../../src/serve/engine/load-engine.js';
import { MAX_TOKENS } from '../../../src/serve/link/link-limits.js';

describe('loadEngine', () => {
  let folder = '';
  let module = '';

  beforeAll(() => {
    folder = mkdtempSync(join(tmpdir(), 'kvt-engine-'));
    module = join(folder, 'engine.mjs');
    // Its settings are the fields that a test changes.
    writeFileSync(
      module,
      `export default (changed) => ({
        model: 'm', maxModelTokens: 1024, vocabularySize: 256, tokensPerBlock: 16,
        codec: { encode() {}, decoder() {}, endTokens: new Set() }, ranks() {}, ...changed,
      });`,
    );
  });
  afterAll(() => rmSync(folder, { recursive: true }));

  const load = (changed: Record<string, unknown>) =>
    loadEngine(module, changed, { role: 'context', tensorParallelSize: 1 });

  it('takes the longest prompt and the largest token that a frame can carry', async () => {
    const engine = await load({ maxModelTokens: MAX_TOKENS, vocabularySize: 2 ** 32 });
    expect([engine.maxModelTokens, engine.vocabularySize]).toEqual([1_048_576, 4_294_967_296]);
  });

  it.each([
    [{ maxModelTokens: MAX_TOKENS + 1 }, 'maxModelTokens must be at most 1048576'],
    [{ vocabularySize: 2 ** 32 + 1 }, 'vocabularySize must be at most 4294967296'],
    [{ maxModelTokens: 0 }, 'maxModelTokens must be a positive integer'],
    [{ tokensPerBlock: 1.5 }, 'tokensPerBlock must be a positive integer'],
    [{ model: 'a b' }, 'model must be a name'],
    [{ identity: 'i'.repeat(257) }, 'identity must be text of at most 256 characters'],
    [{ codec: {} }, 'codec must be a TextCodec'],
    [{ ranks: 1 }, 'ranks must be a function'],
  ])('refuses %j by name', async (changed, why) => {
    const failed = load(changed);
    await expect(failed).rejects.toThrow(ConfigError);
    await expect(failed).rejects.toThrow(`--engine ${module}: ${why}`);
  });
});
