import { deepStrictEqual } from 'node:assert/strict';
import { randomCase, type TinyPrompt } from './tiny-case.js';
import { aggregateAnswers, type TinyAnswer, TinyWorld } from './tiny-world.js';

const TP_SIZES = [1, 2, 4];
const MANAGERS = ['growing', 'reserving'];
const SCHEDULES = ['plain', 'overlap'];
/** Cases that a series must have before what it met is judged: one that is repeated cannot meet everything. */
export const JUDGED_CASES = 300;
/** Times that 300 cases meet each of these at least. */
const EACH_MET: Readonly<Record<string, number>> = {
  tokens: 2000,
  generation_first: 100,
  context_first: 60,
  'whole prompt': 60,
  'early prefix': 30,
  prefix: 30,
  'unequal blocks': 100,
  ...Object.fromEntries(TP_SIZES.flatMap((from) => TP_SIZES.map((to) => [`tp ${from} -> ${to}`, 8]))),
  ...Object.fromEntries(MANAGERS.flatMap((from) => MANAGERS.map((to) => [`${from} -> ${to}`, 40]))),
  ...Object.fromEntries(SCHEDULES.flatMap((from) => SCHEDULES.map((to) => [`${from} -> ${to}`, 40]))),
  'stopped early': 30,
  'pages moved': 10,
};

/** How often a set of cases met what; a set that missed some would prove less than it says. */
export class Met {
  readonly #counts = new Map<string, number>();

  add(what: string, count = 1): void {
    this.#counts.set(what, (this.#counts.get(what) ?? 0) + count);
  }

  addAll(counts: Readonly<Record<string, number>>): void {
    for (const [what, count] of Object.entries(counts)) this.add(what, count);
  }

  get counts(): Record<string, number> {
    return Object.fromEntries(this.#counts);
  }

  /** What was met too rarely. */
  get missed(): string[] {
    return Object.keys(EACH_MET).filter((what) => (this.#counts.get(what) ?? 0) < (EACH_MET[what] as number));
  }
}

/**
 * Runs the case of this seed on a context and a generation server and on one that does both.
 * @throws when tokens differ or something is still held afterwards; the message says how to repeat the case
 */
export async function checkCase(seed: number, met: Met): Promise<void> {
  try {
    await check(seed, met);
  } catch (error) {
    const text = error instanceof Error ? error.message : String(error);
    throw new Error(`KV_TRANSCEIVER_TINY_SEED=${seed} KV_TRANSCEIVER_TINY_CASES=1 repeats this case: ${text}`, {
      cause: error,
    });
  }
}

async function check(seed: number, met: Met): Promise<void> {
  const tinyCase = randomCase(seed);
  const { waves, context, generation, scheduleStyle, transferPolicy } = tinyCase;
  const expected = await aggregateAnswers(tinyCase);
  equal(
    expected.flat().map(({ outcome }) => outcome),
    waves.flat().map(() => 'completed'),
    'outcomes of the one server',
  );
  const world = await TinyWorld.create(tinyCase);
  const story = JSON.stringify({ ...tinyCase, waves: waves.map((wave) => wave.map(({ tokens }) => tokens.length)) });
  for (const [index, wave] of waves.entries()) {
    const stopped = wave.map((prompt, at) => stopping(prompt, expected[index]?.[at] as TinyAnswer, met));
    const answers = await world.run(stopped.map(({ prompt }) => prompt));
    equal(
      answers,
      stopped.map(({ answer }) => answer),
      story,
    );
    for (const { tokens } of answers) met.add('tokens', tokens.length);
  }
  for (const instance of [world.context, world.generation]) {
    const nothing = { pinned: 0, owned: 0, held: 0, sessions: 0, live: 0 };
    equal(
      instance.leftovers(),
      instance.ranks.map(() => nothing),
      story,
    );
  }
  met.add(scheduleStyle);
  if (!transferPolicy.pipelined) met.add('whole prompt');
  met.add(`tp ${context.tpSize} -> ${generation.tpSize}`);
  met.add(`${context.manager} -> ${generation.manager}`);
  met.add(`${context.schedule} -> ${generation.schedule}`);
  if (context.tokensPerBlock !== generation.tokensPerBlock) met.add('unequal blocks');
  const copies = [world.context, world.generation].flatMap(({ copiers }) => copiers.map((copier) => copier.copies));
  if (copies.some((count) => count > 0)) met.add('pages moved');
  if (world.context.prepopulated > 0) met.add(transferPolicy.earlyPrefix ? 'early prefix' : 'prefix');
}

/** The prompt with its stop token, and what is left of the answer of a server that does not stop. */
function stopping(prompt: TinyPrompt, answer: TinyAnswer, met: Met): { prompt: TinyPrompt; answer: TinyAnswer } {
  const { outcome } = answer;
  const { stopIndex } = prompt;
  if (stopIndex === null) return { prompt, answer: { outcome, tokens: answer.tokens } };
  const stop = answer.tokens[stopIndex] as number;
  const tokens = answer.tokens.slice(0, answer.tokens.indexOf(stop) + 1);
  if (tokens.length < answer.tokens.length) met.add('stopped early');
  return { prompt: { ...prompt, stopTokens: [stop] }, answer: { outcome, tokens } };
}

/** Also outside of a test runner: where nothing but Node is. */
function equal(actual: unknown, expected: unknown, story: string): void {
  try {
    deepStrictEqual(actual, expected);
  } catch (difference) {
    throw new Error(`${story}\n${(difference as Error).message}`);
  }
}
