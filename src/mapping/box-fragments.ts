import type { Fragment } from './transfer-plan.js';

/** One dimension of a box of equal cells, and how far apart its neighbours lie on each side. */
export interface BoxAxis {
  readonly count: number;
  readonly srcStride: number;
  readonly dstStride: number;
}

/** Where the first cell lies. */
export type BoxOrigin = Pick<Fragment, 'srcPool' | 'srcOffset' | 'dstPool' | 'dstOffset'>;

/**
 * The fewest fragments that move a box of cells: axes whose cells touch on both sides become longer pieces, the longest of what is
 * left becomes `count` and strides, the others become fragments of their own.
 */
export function boxFragments(origin: BoxOrigin, cellBytes: number, axes: readonly BoxAxis[]): Fragment[] {
  let bytes = cellBytes;
  let left = axes.filter(({ count }) => count > 1);
  for (;;) {
    const touching = left.find((axis) => axis.srcStride === bytes && axis.dstStride === bytes);
    if (touching === undefined) break;
    bytes *= touching.count;
    left = left.filter((axis) => axis !== touching);
  }
  const longest = left.reduce<BoxAxis | null>(
    (best, axis) => (best === null || axis.count > best.count ? axis : best),
    null,
  );
  const { count, srcStride, dstStride } = longest ?? { count: 1, srcStride: 0, dstStride: 0 };
  const { srcPool, srcOffset, dstPool, dstOffset } = origin;
  let fragments: Fragment[] = [{ srcPool, srcOffset, dstPool, dstOffset, bytes, count, srcStride, dstStride }];
  for (const axis of left) {
    if (axis === longest) continue;
    fragments = fragments.flatMap((fragment) =>
      Array.from({ length: axis.count }, (_, index) => ({
        ...fragment,
        srcOffset: fragment.srcOffset + index * axis.srcStride,
        dstOffset: fragment.dstOffset + index * axis.dstStride,
      })),
    );
  }
  return fragments;
}

/** Whole pieces that touch on both sides become one, also across layers and views; the others keep their order. */
export function mergeTouching(fragments: readonly Fragment[]): Fragment[] {
  if (fragments.length < 2) return [...fragments];
  const order = new Map(fragments.map((fragment, index) => [fragment, index]));
  const byPlace = [...fragments].sort((x, y) => x.srcPool - y.srcPool || x.srcOffset - y.srcOffset);
  const merged: { readonly first: Fragment; bytes: number; order: number }[] = [];
  for (const next of byPlace) {
    const last = merged.at(-1);
    const position = order.get(next) as number;
    if (last === undefined || !touches(last.first, last.bytes, next)) {
      merged.push({ first: next, bytes: next.bytes, order: position });
      continue;
    }
    last.bytes += next.bytes;
    last.order = Math.min(last.order, position);
  }
  merged.sort((x, y) => x.order - y.order);
  return merged.map(({ first, bytes }) => (bytes === first.bytes ? first : { ...first, bytes }));
}

/** @param bytes of the first, with those that were found to touch it */
function touches(first: Fragment, bytes: number, second: Fragment): boolean {
  return (
    first.count === 1 &&
    second.count === 1 &&
    first.srcPool === second.srcPool &&
    first.dstPool === second.dstPool &&
    first.srcOffset + bytes === second.srcOffset &&
    first.dstOffset + bytes === second.dstOffset
  );
}
