/** Where a pool lives. */
export type PoolMemory = { readonly kind: 'host' } | { readonly kind: 'device'; readonly deviceId: number };

/** One array of equally sized page slots. `address(slot) = base + slot * slotStride`. */
export interface PagePool {
  /** Address in the owner's address space (below 2^53). */
  readonly base: number;
  readonly memory: PoolMemory;
  readonly slotBytes: number;
  readonly slotStride: number;
  readonly slotCount: number;
}

/**
 * What a view holds. `kv`: K, then V, each laid out as the view says. `scale`: scales of quantised K and V, one view for both (K, then V) or two views
 * in that order.
 */
export type ViewRole = 'key' | 'value' | 'kv' | 'latent' | 'index_k' | 'scale' | 'conv_state' | 'ssm_state' | 'aux';

/**
 * Inside a block: `HND` head, token, element; `NHD` token, head, element; `REPLICATED` token, element, the same on every rank;
 * `SECTIONED` state without tokens, see `LayerView.sections`.
 */
export type ViewLayout = 'HND' | 'NHD' | 'REPLICATED' | 'SECTIONED';

/** Where one layer's part of a view lies inside each slot of `pool`. */
export interface LayerEntry {
  /** Global layer id, counted over all pipeline stages. */
  readonly layer: number;
  /** Index into `PageTable.pools`. */
  readonly pool: number;
  readonly offset: number;
  readonly bytes: number;
}

/** One separately sharded stretch of a state entry, e.g. x, B or C of a convolution state. */
export interface StateSection {
  /** On this rank. */
  readonly bytes: number;
  /** The smallest piece a rank can hold (a head, a channel group); `bytes` is a multiple of it. */
  readonly unitBytes: number;
}

/** One kind of content (keys, values, ...) of a layer group. */
export interface LayerView {
  readonly role: ViewRole;
  readonly dtype: string;
  readonly layout: ViewLayout;
  /**
   * Of the whole model's heads, those this rank holds. How many the model has is not published: ranks with one head each may all hold the
   * same one, so that one head on one rank fits one head on each of eight.
   */
  readonly headsPerRank: number;
  readonly headDim: number;
  /**
   * SECTIONED views only: what each entry is made of, in order, without gaps; the bytes of all sections are the entry's. Absent =
   * one section of `headsPerRank` equal units.
   */
  readonly sections?: readonly StateSection[];
  /** Ascending global layer id. */
  readonly layers: readonly LayerEntry[];
}

/** How this package packs an aux slot. Ranks that pack them differently would read each other's tokens wrongly, so they do not pair up. */
export const AUX_LAYOUT = 2;

/** Layers with one life cycle and where their pages lie. */
export interface PageTableGroup {
  readonly kind: 'attention' | 'latent' | 'state' | 'aux';
  readonly windowSize: number | null;
  /** First tokens that stay resident beside the window, in whole blocks. Absent = 0. */
  readonly sinkTokens?: number;
  /** Aux only: how its slots are packed. Absent = 1. */
  readonly auxLayout?: number;
  readonly tokensPerBlock: number;
  /** Every pool a view of this group names has exactly this many slots: one slot number addresses all of them. */
  readonly slotCount: number;
  readonly views: readonly LayerView[];
}

/** Everything a peer needs to address this rank's pages. Published once, in HELLO. */
export interface PageTable {
  readonly pools: readonly PagePool[];
  /** Attention, latent and state groups, in the cache manager's order. */
  readonly layerGroups: readonly PageTableGroup[];
  /** The aux buffer, addressed like a group of one view, or null. */
  readonly aux: PageTableGroup | null;
}
