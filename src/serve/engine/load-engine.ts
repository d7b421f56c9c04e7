import { pathToFileURL } from 'node:url';
import { ConfigError, KvTransceiverError } from '../../errors.js';
import { MAX_STOP_TOKENS, MAX_TOKEN, MAX_TOKENS } from '../link/link-limits.js';
import type { ServeEngine, ServeEngineFactory, ServeEngineSection } from './serve-engine.js';
import { tinyServeEngine } from './tiny-serve-engine.js';

/**
 * @param module absolute path of a module whose default export is a `ServeEngineFactory`; null: the tiny engine
 * @throws ConfigError when the module cannot be loaded, refuses its settings (then with `details.problems`) or gives no engine
 */
export async function loadEngine(
  module: string | null,
  settings: Readonly<Record<string, unknown>>,
  { role, tensorParallelSize }: ServeEngineSection,
): Promise<ServeEngine> {
  const section = { role, tensorParallelSize };
  if (module === null) return tinyServeEngine(settings, section);
  let factory: unknown;
  try {
    factory = ((await import(pathToFileURL(module).href)) as { readonly default?: unknown }).default;
  } catch (cause) {
    const what = cause instanceof Error ? cause.message : String(cause);
    throw new ConfigError(`--engine ${module} cannot be loaded: ${what.split('\n')[0]}`, { cause });
  }
  if (typeof factory !== 'function')
    throw new ConfigError(`--engine ${module}: its default export must be a function that returns an engine`);
  const engine = await made(factory as ServeEngineFactory, module, settings, section);
  const problem = problemOf(engine);
  if (problem !== null) throw new ConfigError(`--engine ${module}: ${problem}`);
  return engine;
}

async function made(
  factory: ServeEngineFactory,
  module: string,
  settings: Readonly<Record<string, unknown>>,
  section: ServeEngineSection,
): Promise<ServeEngine> {
  try {
    return await factory(settings, section);
  } catch (cause) {
    const message = cause instanceof Error ? cause.message : String(cause);
    if (!(cause instanceof ConfigError)) {
      if (cause instanceof KvTransceiverError) throw cause;
      throw new ConfigError(`--engine ${module} failed: ${message.split('\n')[0]}`, { cause });
    }
    if (Array.isArray(cause.details['problems'])) throw cause;
    throw new ConfigError(message, { cause, details: { problems: [{ setting: 'engine', message }] } });
  }
}

/** Asked here, where the module is known by name, rather than at the first request. */
function problemOf(engine: ServeEngine): string | null {
  if (typeof engine !== 'object' || engine === null) return 'it returned no engine';
  const { model, maxModelTokens, vocabularySize, tokensPerBlock, identity = '', codec, ranks } = engine;
  if (typeof model !== 'string' || !/^[\w./:-]{1,128}$/.test(model))
    return 'model must be a name of at most 128 letters, digits and . / : - _';
  for (const [name, value] of Object.entries({ maxModelTokens, vocabularySize, tokensPerBlock }))
    if (!Number.isSafeInteger(value) || value < 1) return `${name} must be a positive integer`;
  // What no frame between front and worker can carry must not be let in: it would cost them all of their requests.
  if (maxModelTokens > MAX_TOKENS) return `maxModelTokens must be at most ${MAX_TOKENS}`;
  if (vocabularySize > MAX_TOKEN + 1) return `vocabularySize must be at most ${MAX_TOKEN + 1}`;
  if (typeof identity !== 'string' || identity.length > 256) return 'identity must be text of at most 256 characters';
  if (typeof codec?.encode !== 'function' || typeof codec.decoder !== 'function') return 'codec must be a TextCodec';
  if (!(codec.endTokens instanceof Set) || codec.endTokens.size > MAX_STOP_TOKENS)
    return `codec.endTokens must be a Set of at most ${MAX_STOP_TOKENS} tokens`;
  return typeof ranks === 'function' ? null : 'ranks must be a function';
}
