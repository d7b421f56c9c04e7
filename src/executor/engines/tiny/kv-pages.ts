import type { TransferAgent } from '../../../agent/transfer-agent.js';
import { ConfigError, InternalError } from '../../../errors.js';
import type { BlockRun } from '../../../geometry/block-run.js';
import type { PageTable } from '../../../mapping/page-table.js';
import { type ElementCodec, elementCodec } from './element-codec.js';

/** Access to the bytes of pages. Copies: the engine computes in memory of its own. */
export type PageBytes = Pick<TransferAgent, 'readBytes' | 'writeBytes'>;

/**
 * Role: keys or values of one layer on one rank, where the page table puts them. Rows are `[token][head][element]` of this rank's heads.
 * Ownership: none; which slot belongs to a request is the cache manager's to say, and each call is told.
 */
export class KvPages {
  readonly #bytes: PageBytes;
  readonly #codec: ElementCodec;
  readonly #isHeadMajor: boolean;
  readonly #heads: number;
  readonly #headDim: number;
  readonly #tokensPerBlock: number;
  readonly #entryBytes: number;
  readonly #firstAddress: number;
  readonly #slotStride: number;

  /** @throws ConfigError when the table does not hold this layer in a form the tiny engine reads */
  constructor(bytes: PageBytes, table: PageTable, group: number, layer: number, role: 'key' | 'value') {
    const { views = [], tokensPerBlock = 0 } = table.layerGroups[group] ?? {};
    const view = views.find((candidate) => candidate.role === role);
    const entry = view?.layers.find((candidate) => candidate.layer === layer);
    const pool = entry === undefined ? undefined : table.pools[entry.pool];
    if (view === undefined || entry === undefined || pool === undefined) {
      throw new ConfigError(`tiny engine: the page table has no ${role} pages of layer ${layer} in group ${group}`);
    }
    if (view.layout !== 'HND' && view.layout !== 'NHD') {
      throw new ConfigError(`tiny engine: layout of layer ${layer} is ${view.layout}; use 'HND' or 'NHD'`);
    }
    if (pool.memory.kind !== 'host') {
      throw new ConfigError(`tiny engine: the pages of layer ${layer} are in device memory; use host pools`);
    }
    this.#bytes = bytes;
    this.#codec = elementCodec(view.dtype);
    this.#isHeadMajor = view.layout === 'HND';
    this.#heads = view.headsPerRank;
    this.#headDim = view.headDim;
    this.#tokensPerBlock = tokensPerBlock;
    this.#entryBytes = entry.bytes;
    this.#firstAddress = pool.base + entry.offset;
    this.#slotStride = pool.slotStride;
  }

  /** Writes rows of tokens from `begin` on. @throws InternalError when the run has no page for one of them */
  write(run: BlockRun, begin: number, rows: Float32Array): void {
    const rowElements = this.#heads * this.#headDim;
    const end = begin + rows.length / rowElements;
    this.#eachBlock(run, begin, end, (address, first, count, token) => {
      const part = rows.subarray((token - begin) * rowElements, (token - begin + count) * rowElements);
      if (!this.#isHeadMajor) this.#put(address, first * rowElements, part);
      else
        for (let head = 0; head < this.#heads; head++)
          this.#put(address, (head * this.#tokensPerBlock + first) * this.#headDim, this.#ofHead(part, head));
    });
  }

  /** Reads rows of tokens `[begin, end)` into `rows` from row `at` on. @throws InternalError as `write` */
  read(run: BlockRun, begin: number, end: number, rows: Float32Array, at: number): void {
    const [heads, headDim] = [this.#heads, this.#headDim];
    this.#eachBlock(run, begin, end, (address, first, count, token) => {
      const page = this.#codec.decode(this.#bytes.readBytes(address, this.#entryBytes));
      for (let i = 0; i < count; i++)
        for (let head = 0; head < heads; head++) {
          const from = this.#isHeadMajor
            ? (head * this.#tokensPerBlock + first + i) * headDim
            : ((first + i) * heads + head) * headDim;
          rows.set(page.subarray(from, from + headDim), ((at + token - begin + i) * heads + head) * headDim);
        }
    });
  }

  #put(address: number, element: number, values: Float32Array): void {
    this.#bytes.writeBytes(address + element * this.#codec.elementBytes, this.#codec.encode(values));
  }

  #ofHead(rows: Float32Array, head: number): Float32Array {
    const [heads, headDim] = [this.#heads, this.#headDim];
    const values = new Float32Array(rows.length / heads);
    for (let i = 0; i < values.length / headDim; i++) {
      const from = (i * heads + head) * headDim;
      values.set(rows.subarray(from, from + headDim), i * headDim);
    }
    return values;
  }

  /** Visits, block by block: address of the page, first token inside it, how many, and the first one's position. */
  #eachBlock(
    run: BlockRun,
    begin: number,
    end: number,
    visit: (address: number, first: number, count: number, token: number) => void,
  ): void {
    for (let token = begin; token < end; ) {
      const ordinal = Math.floor(token / this.#tokensPerBlock);
      const first = token - ordinal * this.#tokensPerBlock;
      const count = Math.min(this.#tokensPerBlock - first, end - token);
      const slot = run.slots[ordinal - run.begin];
      if (slot === undefined || slot < 0) {
        throw new InternalError(
          `tiny engine: token ${token} is needed and block ${ordinal} has no page; the cache gave ${run.slots.length} blocks from ${run.begin} on`,
        );
      }
      visit(this.#firstAddress + slot * this.#slotStride, first, count, token);
      token += count;
    }
  }
}
