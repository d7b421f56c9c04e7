import { ByteCodec } from '../../../serve/text/byte-codec.js';
import { mixSeed, SeededRandom } from '../seeded-random.js';
import { type ReferenceRequest, referenceAnswers } from './reference-answers.js';

/** A question, its body for `/v1/completions`, and the one right answer. */
export interface SoakQuestion {
  readonly body: Readonly<Record<string, unknown>>;
  readonly answer: readonly number[];
}

const QUESTIONS = 24;
const SHARED_PREFIX =
  'A context server computes the keys and values of a prompt; a generation server decodes with them. ';

/** Prompts of 1 to some 200 tokens, many with a beginning in common, greedy and drawn. */
export async function soakQuestions(
  seed: number,
  engine: Readonly<Record<string, unknown>>,
  model: string,
): Promise<readonly SoakQuestion[]> {
  const random = new SeededRandom(mixSeed(seed, 1));
  const codec = new ByteCodec();
  const drawn = Array.from({ length: QUESTIONS }, (_, index) => {
    const own = Array.from({ length: 1 + random.below(100) }, () => String.fromCharCode(97 + random.below(26))).join(
      '',
    );
    const prompt = index % 2 === 0 ? own : SHARED_PREFIX.slice(0, 16 * (1 + random.below(6))) + own;
    const temperature = index % 3 === 0 ? 0 : 0.8;
    return {
      prompt,
      temperature,
      max_tokens: 8 + random.below(40),
      top_p: 0.95,
      seed: index,
      ignore_eos: index % 4 !== 0,
    };
  });
  const requests = drawn.map(
    (one): ReferenceRequest => ({
      promptTokens: codec.encode(one.prompt),
      maxTokens: one.max_tokens,
      sampling: { temperature: one.temperature, topP: one.top_p, seed: one.seed },
      ignoreEnd: one.ignore_eos,
    }),
  );
  const answers = await referenceAnswers(engine, requests);
  const streaming = { model, stream: true, return_token_ids: true, stream_options: { include_usage: true } };
  return drawn.map((one, index) => ({ body: { ...one, ...streaming }, answer: answers[index] ?? [] }));
}
