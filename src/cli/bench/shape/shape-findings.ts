import { explainCompatibility, type Finding } from '../../../mapping/compatibility.js';
import { peersOf } from '../../../mapping/peers-of.js';
import type { RankInfo } from '../../../mapping/rank-info.js';
import { flatRank } from '../../../mapping/rank-place.js';
import { UsageError } from '../../usage-error.js';
import type { ModelPreset } from '../presets/model-preset.js';
import { type RankLayout, rankLayout, type SlotCounts } from './rank-layout.js';
import { ranksOf, type SideShape } from './side-shape.js';

/** Shapes are compared with pools as small as can be: how many slots there are has no part in it. */
const ONE_SLOT: SlotCounts = { blocks: 1, states: 1 };

/** Fields of a finding that belong to the sizes of the two sides, not to a pair of ranks. */
const OPTIONS_BY_FIELD: readonly (readonly [RegExp, string])[] = [
  [/^tpSize/, '--context-tp, --generation-tp'],
  [/^cpSize/, '--context-cp, --generation-cp'],
  [/^layersPerStage/, '--context-pp, --generation-pp'],
  [/tokensPerBlock$/, '--block-size, --generation-block-size'],
  [/layout$/, '--layout, --generation-layout'],
];

/**
 * What neither side can see alone is left to the rule that real peers go by.
 * @throws UsageError with the first finding, in words of the command line
 */
export function checkTogether(context: SideShape, generation: SideShape, preset: ModelPreset): void {
  const writers = infosOf('context', context, preset);
  const receivers = infosOf('generation', generation, preset);
  const [first, other] = [writers[0], receivers[0]];
  if (first === undefined || other === undefined) return;
  // The first ranks share a head, a layer and a block, so that what they find is about the sizes.
  refuse(explainCompatibility(first, other));
  for (const writer of writers) {
    for (const peer of peersOf(writer, other, 0)) refuse(explainCompatibility(writer, receivers[peer] as RankInfo));
  }
}

function refuse([finding]: readonly Finding[]): void {
  if (finding === undefined) return;
  const { field, a, b, verdict, whichSideToChange } = finding;
  const options =
    OPTIONS_BY_FIELD.find(([pattern]) => pattern.test(field))?.[1] ?? `--context-*, --generation-* (${field})`;
  const [why, remedy] = [verdict.replace(/^refused: /, ''), whichSideToChange.replace(/^either: /, '')];
  throw new UsageError(`${options}: ${a} and ${b}: ${why}; ${remedy}`);
}

function infosOf(instanceName: string, shape: SideShape, preset: ModelPreset): readonly RankInfo[] {
  return ranksOf(shape).map((place) => infoOf(instanceName, rankLayout(preset, shape, place, ONE_SLOT)));
}

function infoOf(instanceName: string, { place, layout }: RankLayout): RankInfo {
  return {
    packageVersion: '',
    instanceName,
    incarnation: 1n,
    rank: flatRank(place),
    ...place,
    endpoint: '',
    rankEndpoints: [],
    agent: 'host',
    agentMetadata: new Uint8Array(0),
    pageTable: layout.table,
  };
}
