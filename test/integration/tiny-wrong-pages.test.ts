import { describe, expect, it } from 'vitest';
import { type Sampling, TINY_MODEL } from '../../src/executor/engines/tiny/index.js';
import { type Damage, PageDamage } from './tiny/page-damage.js';
import { Choices, randomCase, type TinyCase, type TinyPrompt } from './tiny/tiny-case.js';
import { aggregateAnswers, type TinyAnswer, TinyWorld } from './tiny/tiny-world.js';

const CASES = 16;
/** Many tokens close to each other in score, so that a small error is enough to say another one. */
const MODEL = { ...TINY_MODEL, vocabularySize: 4096 };

/** A case whose second wave is a prompt of several blocks that shares nothing with the first, and fills the pool that the first left. */
function damagedCase(seed: number, sampling: Sampling): TinyCase {
  const draw = new Choices(seed);
  const plain = randomCase(seed);
  const prompt = (length: number): TinyPrompt => ({
    tokens: Uint32Array.from({ length }, () => draw.pick(4096)),
    maxTokens: 16,
    stopIndex: null,
  });
  const side = (tinySide: TinyCase['context']): TinyCase['context'] => {
    const tokensPerBlock = Math.min(4, tinySide.tokensPerBlock);
    return { ...tinySide, tokensPerBlock, tpSize: Math.min(2, tinySide.tpSize), slotCount: 64 / tokensPerBlock };
  };
  return {
    ...plain,
    model: MODEL,
    sampling,
    context: side(plain.context),
    generation: { ...side(plain.generation), senderTokensPerBlock: null },
    aggregate: side(plain.aggregate),
    waves: [[prompt(40 + draw.pick(8))], [prompt(20 + draw.pick(24))]],
  };
}

const GREEDY: Sampling = { kind: 'greedy' };
const SEEDED: Sampling = { kind: 'seeded', seed: 7, temperature: 1 };
const known = new Map<string, readonly TinyAnswer[][]>();

async function rightAnswers(tinyCase: TinyCase): Promise<readonly TinyAnswer[][]> {
  const key = `${tinyCase.seed} ${tinyCase.sampling.kind}`;
  const answers = known.get(key) ?? (await aggregateAnswers(tinyCase));
  known.set(key, answers);
  return answers;
}

/** How many of the batch said other tokens; damage null: nothing is spoiled. */
async function changed(damage: Damage | null, sampling: Sampling): Promise<number> {
  let count = 0;
  for (let seed = 1; seed <= CASES; seed++) {
    const tinyCase = damagedCase(seed, sampling);
    const expected = await rightAnswers(tinyCase);
    const spoiler = new PageDamage(damage ?? 'flipped byte', new Choices(seed));
    const world = await TinyWorld.create(tinyCase, { wrapEngine: (engine, memory) => spoiler.wrap(engine, memory) });
    const [first, second] = tinyCase.waves as [TinyPrompt[], TinyPrompt[]];
    expect(await world.run(first)).toEqual(expected[0]);
    spoiler.remember();
    spoiler.enabled = damage !== null;
    const [answer] = await world.run(second);
    expect(spoiler.count).toBe(damage === null ? 0 : 1);
    const [right] = expected[1] ?? [];
    expect(answer?.outcome).toBe('completed');
    expect(answer?.tokens).toHaveLength(16);
    // The first token is the context server's, whose pages are right.
    expect(answer?.tokens[0]).toBe(right?.tokens[0]);
    if (answer?.tokens.join() !== right?.tokens.join()) count += 1;
  }
  return count;
}

describe(`tiny engine: one wrong page in each of ${CASES} received prompts`, { timeout: 120_000 }, () => {
  it.each([
    ['swapped slots', GREEDY, 0.9],
    ['shifted block', GREEDY, 0.9],
    ['stale page', GREEDY, 0.9],
    // One element of one head: the best token is often so far ahead that it stays the best.
    ['flipped byte', GREEDY, 0.3],
    ['swapped slots', SEEDED, 0.95],
    ['shifted block', SEEDED, 0.95],
    ['stale page', SEEDED, 0.95],
    ['flipped byte', SEEDED, 0.85],
  ] as const)('a %s changes the tokens, %o', async (damage, sampling, share) => {
    const count = await changed(damage, sampling);
    expect(count).toBeGreaterThanOrEqual(share * CASES);
  });

  it('the same requests with every page right change nothing', async () => {
    expect(await changed(null, GREEDY)).toBe(0);
    expect(await changed(null, SEEDED)).toBe(0);
  });
});
