import type { TransferAgent } from '../../agent/transfer-agent.js';
import type { KvCacheManager, LayerGroup } from '../../cache/kv-cache-manager.js';
import type { Clock } from '../../clock.js';
import type { ModelEngine } from '../../executor/model-engine.js';
import type { PageTable } from '../../mapping/page-table.js';
import type { TextCodec } from '../text/text-codec.js';

/** What a rank's engine is put together with; all of it stays its owner's. */
export interface ServeRankParts {
  readonly clock: Clock;
  readonly agent: TransferAgent;
  readonly cache: KvCacheManager;
  /** Where the pages are. */
  readonly pageTable: PageTable;
}

/** One tensor parallel rank of a model. */
export interface ServeRank {
  readonly layerGroups: readonly LayerGroup[];
  /** What `buildPageTable` gave for them. */
  readonly layout: { readonly table: PageTable; readonly sizeBytes: number };
  createEngine(parts: ServeRankParts): ModelEngine;
}

/** What the section of the YAML file says besides. */
export interface ServeEngineSection {
  readonly role: 'context' | 'generation';
  readonly tensorParallelSize: number;
}

/** A model as `kv-transceiver serve` runs it: the front process asks for its name, limits and text, a worker process for its ranks. */
export interface ServeEngine {
  /** Name in the API. */
  readonly model: string;
  /** Tokens of prompt and answer together, at most. */
  readonly maxModelTokens: number;
  /** Token ids are below it. */
  readonly vocabularySize: number;
  readonly tokensPerBlock: number;
  /** Whatever else must be the same on both sides, the weights above all; at most 256 characters. */
  readonly identity?: string;
  readonly codec: TextCodec;
  /** @throws ConfigError for a split it cannot do */
  ranks(section: ServeEngineSection): readonly ServeRank[];
}

/**
 * What the default export of a module given to `--engine` must be. Called for each section in the front, before anything is started, and once in
 * each worker. A `ConfigError` is reported with file, line and key: those of its `details.problems` (`setting` counts from the section on,
 * `engine.seed`), or of the map.
 * @param settings the map `engine` of the YAML file, as it stands there
 */
export type ServeEngineFactory = (
  settings: Readonly<Record<string, unknown>>,
  section: ServeEngineSection,
) => ServeEngine | Promise<ServeEngine>;

/** Equal exactly when two processes run the same model with the same limits. */
export function engineLabel({ model, maxModelTokens, vocabularySize, identity = '' }: ServeEngine): string {
  return `${model}, ${maxModelTokens} tokens, vocabulary of ${vocabularySize}${identity === '' ? '' : `, ${identity}`}`;
}
