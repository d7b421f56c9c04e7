import { blockShape, sectionsOf } from './block-shape.js';
import type { LayerView } from './page-table.js';
import { pairShards } from './shard.js';
import type { ViewSide } from './view-side.js';

/** Why the bytes of one view on two ranks do not mean the same. */
export interface ViewDifference {
  /** Field of the view. */
  readonly name: string;
  readonly a: number | string;
  readonly b: number | string;
  readonly why: string;
  readonly remedy: string;
}

/** Empty = `viewFragments` can move one into the other, in either direction. */
export function compareViews(a: ViewSide, b: ViewSide): ViewDifference[] {
  const differences: ViewDifference[] = [];
  const [x, y] = [a.view, b.view];
  const differ = (name: string, of: number | string, to: number | string, why: string, remedy: string): void => {
    if (of !== to) differences.push({ name, a: of, b: to, why, remedy });
  };
  differ('dtype', x.dtype, y.dtype, 'no converter between dtypes', 'set the same KV cache dtype');
  if (arrangement(x) !== arrangement(y)) {
    differ('layout', x.layout, y.layout, 'no converter between layouts', 'set the same KV layout');
  }
  differ('headDim', x.headDim, y.headDim, 'the head dim differs', 'serve the same model');
  if (differences.length > 0) return differences;
  const more = { heads: compareBlocks, replicated: compareReplicated, sections: compareSections }[arrangement(x)](a, b);
  return more === null ? [] : [more];
}

function arrangement(view: LayerView): 'heads' | 'replicated' | 'sections' {
  if (view.layout === 'REPLICATED') return 'replicated';
  return view.layout === 'SECTIONED' ? 'sections' : 'heads';
}

function compareBlocks(a: ViewSide, b: ViewSide): ViewDifference | null {
  const [x, y] = [a.view, b.view];
  if (pairShards(headsOf(a), headsOf(b)) === null) {
    const times = a.tpSize > 1 || b.tpSize > 1;
    return {
      name: 'headsPerRank',
      a: times ? `${x.headsPerRank} x ${a.tpSize} ranks` : x.headsPerRank,
      b: times ? `${y.headsPerRank} x ${b.tpSize} ranks` : y.headsPerRank,
      why: 'the heads differ',
      remedy: 'serve the same model and split its heads evenly',
    };
  }
  if (isWhole(a, b)) return compareBytes(a, b);
  const [shapeA, shapeB] = [
    blockShape(x, a.entry.bytes, a.tokensPerBlock),
    blockShape(y, b.entry.bytes, b.tokensPerBlock),
  ];
  if (shapeA === null || shapeB === null) {
    return {
      name: 'bytes',
      a: a.entry.bytes,
      b: b.entry.bytes,
      why: 'one head of one token is not a whole number of bytes, so a block cannot be split',
      remedy: 'split the heads alike and set the same tokensPerBlock and layout',
    };
  }
  if (shapeA.planes === shapeB.planes && shapeA.cellBytes === shapeB.cellBytes) return null;
  return pageSizes(a.entry.bytes, b.entry.bytes);
}

function compareReplicated(a: ViewSide, b: ViewSide): ViewDifference | null {
  const [x, y] = [a.view.headsPerRank, b.view.headsPerRank];
  if (x !== y) return { name: 'headsPerRank', a: x, b: y, why: 'the heads differ', remedy: 'serve the same model' };
  if (a.tokensPerBlock === b.tokensPerBlock) return compareBytes(a, b);
  const [perTokenA, perTokenB] = [a.entry.bytes / a.tokensPerBlock, b.entry.bytes / b.tokensPerBlock];
  return perTokenA === perTokenB && Number.isSafeInteger(perTokenA) ? null : pageSizes(a.entry.bytes, b.entry.bytes);
}

function compareSections(a: ViewSide, b: ViewSide): ViewDifference | null {
  const [x, y] = [sectionsOf(a.view, a.entry.bytes), sectionsOf(b.view, b.entry.bytes)];
  const alike =
    x.length === y.length &&
    x.every(({ bytes, unitBytes }, index) => {
      const other = y[index];
      if (other === undefined || other.unitBytes !== unitBytes) return false;
      const mine = { perRank: bytes, unit: unitBytes, tpSize: a.tpSize, tpRank: a.tpRank };
      return pairShards(mine, { perRank: other.bytes, unit: unitBytes, tpSize: b.tpSize, tpRank: b.tpRank }) !== null;
    });
  if (alike) return null;
  const show = (sections: typeof x, tpSize: number): string =>
    `${sections.map(({ bytes, unitBytes }) => `${bytes} (units of ${unitBytes})`).join(' + ')} bytes x ${tpSize} ranks`;
  return {
    name: 'sections',
    a: show(x, a.tpSize),
    b: show(y, b.tpSize),
    why: 'different state layouts',
    remedy: 'serve the same model and split its state evenly',
  };
}

/** Both ranks hold the same heads of the same tokens in the same order, so that nothing needs to be known of the inside. */
export function isWhole(a: ViewSide, b: ViewSide): boolean {
  return (
    a.view.layout === b.view.layout &&
    a.view.headsPerRank === b.view.headsPerRank &&
    a.tpSize === b.tpSize &&
    a.tokensPerBlock === b.tokensPerBlock
  );
}

/** The heads of a view as tensor parallelism splits them; a rank holds one at least. */
export function headsOf(side: ViewSide) {
  return { perRank: side.view.headsPerRank, unit: 1, tpSize: side.tpSize, tpRank: side.tpRank };
}

function compareBytes(a: ViewSide, b: ViewSide): ViewDifference | null {
  return a.entry.bytes === b.entry.bytes ? null : pageSizes(a.entry.bytes, b.entry.bytes);
}

function pageSizes(a: number, b: number): ViewDifference {
  return { name: 'bytes', a, b, why: 'the page sizes differ', remedy: 'use the same page format' };
}
