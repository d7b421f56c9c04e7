import type { PageTable } from './page-table.js';

/** What a rank publishes once to each peer, in HELLO and HELLO_ACK. */
export interface RankInfo {
  readonly packageVersion: string;
  readonly instanceName: string;
  /** Random at every start; a peer with another incarnation is another process. */
  readonly incarnation: bigint;
  /** Flat rank in the instance, `pp * (TP * CP) + tp * CP + cp`. */
  readonly rank: number;
  readonly tpSize: number;
  readonly tpRank: number;
  readonly ppSize: number;
  readonly ppRank: number;
  readonly cpSize: number;
  readonly cpRank: number;
  readonly dpSize: number;
  readonly dpRank: number;
  readonly attentionDp: boolean;
  readonly layersPerStage: readonly number[];
  /** Control endpoint, `tcp://host:port`. */
  readonly endpoint: string;
  /**
   * Control endpoint of every rank of the instance, by flat rank; `[endpoint]` for a single rank. Says where the other ranks can be
   * greeted, and nothing else: a question goes only to a rank that answered HELLO with the same list and its own place in it.
   * Empty on a rank of several that has not joined its instance yet; such a rank answers no HELLO.
   */
  readonly rankEndpoints: readonly string[];
  readonly agent: 'host' | 'nixl' | 'sim';
  /** Opaque; loaded only from an accepted HELLO. */
  readonly agentMetadata: Uint8Array;
  readonly pageTable: PageTable;
}
