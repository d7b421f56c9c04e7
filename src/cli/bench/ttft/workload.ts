import type { TtftVariant } from '../output-contract.js';
import { presetNamed } from '../presets/index.js';
import type { PromptSource } from '../prompt-source.js';
import type { TraceRequest } from '../request-trace.js';
import { mixSeed } from '../seeded-random.js';
import type { Shapes } from '../shape/shapes-of.js';
import { stripeTokens } from '../shape/side-shape.js';
import type { StandingCaches } from '../trace/rounds.js';
import type { StandingPrompt } from '../trace/standing-prompts.js';
import { TTFT_VARIANTS, type TtftOptions } from './ttft-options.js';
import { contextWarmTokens, generationWarmTokens } from './variants.js';

/** One request to measure, and what the two caches must hold before it. */
export interface PlannedRequest {
  readonly variant: TtftVariant;
  readonly request: number;
  readonly seed: bigint;
  readonly prompt: PromptSource;
  readonly prefixHit: number;
  readonly contextWarmTokens: number;
  readonly generationWarmTokens: number;
  /** Tokens to generate, the first one included. */
  readonly maxTokens: number;
  /** When it arrives, ms after its group's start; null: as soon as a place is free. */
  readonly arrivalMs: number | null;
  /** Of a replay whose variants take turns; left out: 0. */
  readonly round?: number;
}

/** Variants that need a prefix in a cache. */
const REUSING: ReadonlySet<TtftVariant> = new Set(['pipelined-early-prefix', 'ideal']);

/** What each server's cache is given before the clock runs, in this order. */
export interface StandingPrompts {
  readonly context: readonly StandingPrompt[];
  readonly generation: readonly StandingPrompt[];
}

/** Requests that are measured together; the next group starts when the last one is over. */
export interface RequestGroup {
  readonly label: string;
  readonly requests: readonly PlannedRequest[];
  /** Beside what each request says; left out: nothing. */
  readonly standing?: StandingPrompts;
}

/**
 * Variants of one prefix share, in the order in which they take turns. What was computed before cannot be resumed in a hybrid model, for
 * its state is not kept by block: there is nothing to send early, and no server that already has the rest.
 */
export function variantsFor(
  options: Pick<TtftOptions, 'variants' | 'model'>,
  prefixHit: number,
): readonly TtftVariant[] {
  const chosen = options.variants ?? TTFT_VARIANTS;
  if (presetNamed(options.model).hybrid !== null) return chosen.filter((variant) => !REUSING.has(variant));
  return chosen.filter((variant) => variant !== 'pipelined-early-prefix' || prefixHit > 0);
}

/**
 * Closed loop: one group per (prompt length, prefix share, round, variant) with `concurrency` requests at a time. Rounds are the outer
 * loop, so that variants take turns and a slow moment of the machine hits all of them.
 */
export function planClosedLoop(options: TtftOptions, shapes: Shapes, concurrency: number): readonly RequestGroup[] {
  const groups: RequestGroup[] = [];
  const rounds = Math.ceil(options.requests / concurrency);
  for (let round = 0; round < rounds; round++) {
    const first = round * concurrency;
    const size = Math.min(concurrency, options.requests - first);
    for (const promptTokens of options.promptTokens) {
      for (const prefixHit of options.prefixHit) {
        for (const variant of variantsFor(options, prefixHit)) {
          const requests = Array.from({ length: size }, (_, index) =>
            plannedRequest(options, shapes, variant, promptTokens, prefixHit, first + index),
          );
          groups.push({ label: `${variant} ${promptTokens} tokens`, requests });
        }
      }
    }
  }
  return groups;
}

export function plannedRequest(
  options: TtftOptions,
  shapes: Shapes,
  variant: TtftVariant,
  promptTokens: number,
  prefixHit: number,
  request: number,
): PlannedRequest {
  const warm = contextWarmTokens(promptTokens, prefixHit, stripeTokens(shapes.context));
  return {
    ...randomRequest(options, variant, promptTokens, prefixHit, request),
    contextWarmTokens: warm,
    generationWarmTokens: generationWarmTokens(
      variant,
      promptTokens,
      warm,
      options.chunk,
      stripeTokens(shapes.generation),
    ),
  };
}

/** A request that finds nothing cached. */
export function randomRequest(
  { seed: runSeed }: Pick<TtftOptions, 'seed'>,
  variant: TtftVariant,
  promptTokens: number,
  prefixHit: number,
  request: number,
): PlannedRequest {
  // Every request has its own prompt: a repeated one would be found in the cache of the request before.
  const seed = mixSeed(runSeed, request, promptTokens, Math.round(prefixHit * 1e6), TTFT_VARIANTS.indexOf(variant));
  return {
    variant,
    request,
    seed,
    prompt: { kind: 'random', seed, tokenCount: promptTokens },
    prefixHit,
    contextWarmTokens: 0,
    generationWarmTokens: 0,
    // The first token is what is measured; decoding further would only add the model's time.
    maxTokens: 1,
    arrivalMs: null,
  };
}

/**
 * Open loop: each variant replays the same arrivals, one variant after the other, so that each finds what it left itself. The salt keeps one variant's
 * prompts out of the next one's cache hits.
 */
export function planTrace(options: TtftOptions, trace: readonly TraceRequest[]): readonly RequestGroup[] {
  const start = trace[0]?.timestampMs ?? 0;
  // How much of a prompt is found is the trace's to say: early prefixes may come up in any.
  const variants = variantsFor(options, 1).filter((variant) => variant !== 'ideal');
  return variants.map((variant, index) => {
    const salt = mixSeed(options.seed, index);
    const requests = trace.map((entry, request) => ({
      variant,
      request,
      seed: salt,
      prompt: { kind: 'trace' as const, salt, hashIds: entry.hashIds, tokenCount: entry.inputTokens },
      prefixHit: 0,
      contextWarmTokens: 0,
      generationWarmTokens: 0,
      maxTokens: 1,
      arrivalMs: (entry.timestampMs - start) / options.speed,
    }));
    return { label: `${variant} trace`, requests };
  });
}

/** What a variant may find again of its round before. A hybrid model finds nothing. */
export function standingCaches(
  { model }: Pick<TtftOptions, 'model'>,
  shapes: Shapes,
  poolTokens: number,
  generationReuses: boolean,
): StandingCaches {
  if (presetNamed(model).hybrid !== null) return { context: null, generation: null };
  const of = (side: 'context' | 'generation') => ({ poolTokens, stripeTokens: stripeTokens(shapes[side]) });
  return { context: of('context'), generation: generationReuses ? of('generation') : null };
}
