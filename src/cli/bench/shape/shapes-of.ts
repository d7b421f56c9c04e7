import { sum } from '../../../mapping/rank-place.js';
import { flagName, type OptionValues } from '../../options.js';
import { UsageError } from '../../usage-error.js';
import { layerGroupsOf, type ModelPreset } from '../presets/model-preset.js';
import { checkTogether } from './shape-findings.js';
import { MAX_RANKS_PER_SIDE, type SHAPE_OPTIONS } from './shape-options.js';
import { evenStages, rankCount, type SideShape } from './side-shape.js';

type Side = 'context' | 'generation';

export type ShapeOptions = OptionValues<typeof SHAPE_OPTIONS> & {
  readonly blockSize: number;
  readonly poolLayout: SideShape['poolLayout'];
};

export interface Shapes {
  readonly context: SideShape;
  readonly generation: SideShape;
}

/**
 * Both sides as the options describe them.
 * @throws UsageError naming the option and what to choose instead
 */
export function shapesOf(options: ShapeOptions, preset: ModelPreset): Shapes {
  const shapes = { context: sideOf(options, 'context', preset), generation: sideOf(options, 'generation', preset) };
  checkTogether(shapes.context, shapes.generation, preset);
  return shapes;
}

function sideOf(options: ShapeOptions, side: Side, preset: ModelPreset): SideShape {
  const tp = options[`${side}Tp`];
  const cp = options[`${side}Cp`];
  checkHeads(flagName(`${side}Tp`), tp, preset);
  const layersPerStage = stagesOf(flagName(`${side}Pp`), options[`${side}Pp`], preset);
  const isContext = side === 'context';
  const layout = isContext ? options.layout : (options.generationLayout ?? options.layout);
  const shape: SideShape = {
    tp,
    cp,
    layersPerStage,
    tokensPerBlock: isContext ? options.blockSize : (options.generationBlockSize ?? options.blockSize),
    blockLayout: layout === 'hnd' ? 'HND' : 'NHD',
    poolLayout: options.poolLayout,
  };
  const ranks = rankCount(shape);
  if (ranks > MAX_RANKS_PER_SIDE) {
    throw new UsageError(
      `--${side}-tp, --${side}-pp, --${side}-cp: ${ranks} ranks, one process holds at most ${MAX_RANKS_PER_SIDE}; lower one of them`,
    );
  }
  return shape;
}

/** Query heads are split evenly; KV heads, and heads and groups of a state, are split or copied evenly. */
function checkHeads(option: string, tp: number, preset: ModelPreset): void {
  const state = preset.hybrid?.state;
  const amounts = [
    ...(preset.cache.kind === 'attention' ? [{ what: 'KV heads', units: preset.cache.kvHeads }] : []),
    ...(state?.convSections ?? []).map(({ name, units }) => ({ what: `${name} units of the state`, units })),
    ...(state === undefined ? [] : [{ what: 'state heads', units: state.ssmHeads }]),
  ];
  const fits = (size: number): boolean =>
    preset.attentionHeads % size === 0 && amounts.every(({ units }) => units % size === 0 || size % units === 0);
  if (fits(tp)) return;
  const uneven = amounts.find(({ units }) => units % tp !== 0 && tp % units !== 0);
  const what = uneven === undefined ? `${preset.attentionHeads} attention heads` : `${uneven.units} ${uneven.what}`;
  const sizes = Array.from({ length: MAX_RANKS_PER_SIDE }, (_, index) => index + 1).filter(fits);
  throw new UsageError(
    `${option}: ${tp} ranks cannot share the ${what} of ${preset.name} evenly; choose one of ${sizes.join(', ')}`,
  );
}

function stagesOf(option: string, typed: readonly number[], preset: ModelPreset): readonly number[] {
  const { layerCount, name } = preset;
  const [first = 1] = typed;
  if (typed.length === 1 && first > Math.min(layerCount, MAX_RANKS_PER_SIDE)) {
    throw new UsageError(
      `${option}: ${first} stages for the ${layerCount} layers of ${name}; choose at most ${Math.min(layerCount, MAX_RANKS_PER_SIDE)}`,
    );
  }
  const stages = typed.length === 1 ? evenStages(layerCount, first) : typed;
  if (sum(stages) !== layerCount) {
    throw new UsageError(
      `${option}: ${stages.join(' + ')} layers are ${sum(stages)}, ${name} has ${layerCount}; make the stages add up to that`,
    );
  }
  const cached = new Set(layerGroupsOf(preset).flatMap(({ layers }) => layers));
  let begin = 0;
  for (const [stage, count] of stages.entries()) {
    const end = begin + count;
    if (!Array.from({ length: count }, (_, index) => begin + index).some((layer) => cached.has(layer))) {
      throw new UsageError(
        `${option}: stage ${stage} (layers ${begin} to ${end - 1}) of ${name} keeps no cache; choose fewer or other stages`,
      );
    }
    begin = end;
  }
  return stages;
}
