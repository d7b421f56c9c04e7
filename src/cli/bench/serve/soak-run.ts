import { mixSeed, SeededRandom } from '../seeded-random.js';
import type { ServedProcess } from './served-process.js';
import type { SoakQuestion } from './soak-questions.js';
import { askOnce, type ClientOutcome } from './stream-client.js';

export interface SoakOptions {
  readonly clients: number;
  readonly seconds: number;
  /** Of 100 requests. */
  readonly leave: number;
  readonly seed: number;
  readonly kill: boolean;
}

/** A worker that was killed, and what became of it. */
export interface KilledWorker {
  readonly name: string;
  readonly pid: number;
  /** Until another process took requests under its name; null: none did. */
  readonly replacedAfterMs: number | null;
}

export interface SoakResult {
  readonly right: number;
  readonly tokens: number;
  readonly left: number;
  /** By code. */
  readonly errors: ReadonlyMap<string, number>;
  readonly wrong: readonly string[];
  readonly killed: readonly KilledWorker[];
}

/** When workers are killed, as a share of the run. */
const KILL_AT = { context: 0.35, generation: 0.5 } as const;
const REPLACEMENT_LIMIT_MS = 60_000;

/** Clients that ask without a pause until the time is up; each request of each has exactly one outcome. */
export async function soak(
  server: ServedProcess,
  questions: readonly SoakQuestion[],
  options: SoakOptions,
): Promise<SoakResult> {
  const endMs = performance.now() + options.seconds * 1000;
  const outcomes: ClientOutcome[] = [];
  const client = async (index: number): Promise<void> => {
    const random = new SeededRandom(mixSeed(options.seed, 2, index));
    while (performance.now() < endMs) {
      const question = questions[random.below(questions.length)] as SoakQuestion;
      const leaves = random.below(100) < options.leave;
      const outcome = await askOnce(server.port, question, leaves ? random.below(question.answer.length) : null);
      outcomes.push(outcome);
      // As clients do that are told to come back later.
      if (outcome.kind === 'error') await later(100 + random.below(200));
    }
  };
  const kills = options.kill
    ? (['context', 'generation'] as const).map((role) => killOne(server, role, KILL_AT[role] * options.seconds * 1000))
    : [];
  await Promise.all(Array.from({ length: options.clients }, (_, index) => client(index)));
  return { ...summed(outcomes), killed: await Promise.all(kills) };
}

async function killOne(server: ServedProcess, role: 'context' | 'generation', afterMs: number): Promise<KilledWorker> {
  await later(afterMs);
  const [victim] = await server.workers(role);
  if (victim === undefined || victim.pid === 0) return { name: role, pid: 0, replacedAfterMs: null };
  process.kill(victim.pid, 'SIGKILL');
  const killedAtMs = performance.now();
  while (performance.now() - killedAtMs < REPLACEMENT_LIMIT_MS) {
    await later(20);
    const now = (await server.workers(role)).find(({ name }) => name === victim.name);
    if (now?.phase === 'ready' && now.pid !== victim.pid)
      return { name: victim.name, pid: victim.pid, replacedAfterMs: performance.now() - killedAtMs };
  }
  return { name: victim.name, pid: victim.pid, replacedAfterMs: null };
}

function summed(outcomes: readonly ClientOutcome[]): Omit<SoakResult, 'killed'> {
  const errors = new Map<string, number>();
  const wrong: string[] = [];
  let [right, tokens, left] = [0, 0, 0];
  for (const outcome of outcomes) {
    switch (outcome.kind) {
      case 'right':
        right += 1;
        tokens += outcome.tokens;
        break;
      case 'left':
        left += 1;
        break;
      case 'error':
        errors.set(outcome.code, (errors.get(outcome.code) ?? 0) + 1);
        break;
      case 'wrong':
        wrong.push(outcome.what);
        break;
    }
  }
  return { right, tokens, left, errors, wrong };
}

function later(delayMs: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, delayMs));
}
