import { dtypeBits } from './dtype.js';
import type { LayerView, StateSection } from './page-table.js';

/** One entry of a view in one block. A cell is what one head of one token takes. */
export interface BlockShape {
  /** K and V of a role that holds both: the planes follow one another, each laid out as the view says. */
  readonly planes: number;
  readonly heads: number;
  readonly tokens: number;
  readonly cellBytes: number;
}

/** @returns null when the cells of the entry have no place of their own: it can only be moved whole */
export function blockShape(view: LayerView, entryBytes: number, tokensPerBlock: number): BlockShape | null {
  const [heads, tokens] = [view.headsPerRank, tokensPerBlock];
  const bits = dtypeBits(view.dtype);
  const cells = heads * tokens;
  if (bits === null) {
    const planes = view.role === 'kv' ? 2 : 1;
    const cellBytes = entryBytes / (planes * cells);
    return Number.isSafeInteger(cellBytes) ? { planes, heads, tokens, cellBytes } : null;
  }
  const cellBytes = (view.headDim * bits) / 8;
  const planes = entryBytes / (cells * cellBytes);
  return Number.isSafeInteger(cellBytes) && Number.isSafeInteger(planes) ? { planes, heads, tokens, cellBytes } : null;
}

/** Bytes from one plane, head or token to the next. */
export function shapeStrides(
  shape: BlockShape,
  layout: LayerView['layout'],
): {
  readonly plane: number;
  readonly head: number;
  readonly token: number;
} {
  const { heads, tokens, cellBytes } = shape;
  const plane = heads * tokens * cellBytes;
  return layout === 'HND'
    ? { plane, head: tokens * cellBytes, token: cellBytes }
    : { plane, head: cellBytes, token: heads * cellBytes };
}

/** What a SECTIONED entry is made of. */
export function sectionsOf(view: LayerView, entryBytes: number): readonly StateSection[] {
  if (view.sections !== undefined) return view.sections;
  const unitBytes = entryBytes / view.headsPerRank;
  return [{ bytes: entryBytes, unitBytes: Number.isSafeInteger(unitBytes) ? unitBytes : entryBytes }];
}
