import type { Random } from './core/random.js';
import { type InstanceShape, rankCount, type Shape } from './plan.js';

/** How often an instance has several ranks: they cost what they are. */
const SEVERAL_RANKS = 0.2;
const MAX_RANKS = 8;
const USUAL_RANKS = 4;

type Split = Pick<Shape, 'context' | 'generation' | 'kvHeads' | 'latent' | 'windowSize' | 'joinWithinMs'>;

/** The model, and how each side splits it: independent of each other, so that heads, stages and copies meet unequal. */
export function randomSplit(random: Random): Split {
  const windowSize = random.chance(0.5) ? null : random.between(5, 14);
  if (!random.chance(SEVERAL_RANKS)) {
    const one: InstanceShape = {
      tpSize: 1,
      dpSize: 1,
      cpSize: 1,
      layersPerStage: [windowSize === null ? 1 : 3],
      blockLayout: 'HND',
    };
    return { context: one, generation: one, kvHeads: 1, latent: false, windowSize, joinWithinMs: 1 };
  }
  const latent = windowSize === null && random.chance(0.3);
  // With a window every second layer has it, and each stage must have both kinds.
  const stages = random.pick(
    windowSize === null
      ? [
          [[3], [1, 2], [2, 1], [1, 1, 1]],
          [[2], [1, 1]],
        ]
      : [
          [[4], [2, 2]],
          [[5], [2, 3], [3, 2]],
        ],
  );
  // On one side, and without a window: what a rank counts of one is not what the others do.
  const cpSide = windowSize === null && random.chance(0.3) ? random.pick(['context', 'generation'] as const) : null;
  const side = (which: 'context' | 'generation'): InstanceShape => {
    const most = random.chance(0.9) ? USUAL_RANKS : MAX_RANKS;
    for (;;) {
      const dpSize = random.chance(0.3) ? 2 : 1;
      const shape: InstanceShape = {
        tpSize: random.pick([1, 1, 2, 2, 4]) * dpSize,
        dpSize,
        cpSize: cpSide === which ? 2 : 1,
        layersPerStage: random.pick(stages),
        blockLayout: random.pick(['HND', 'NHD']),
      };
      if (rankCount(shape) <= most) return shape;
    }
  };
  return {
    context: side('context'),
    generation: side('generation'),
    kvHeads: latent ? 1 : random.pick([1, 2, 4]),
    latent,
    windowSize,
    joinWithinMs: random.chance(0.8) ? 1 : random.real(1, 1500),
  };
}
