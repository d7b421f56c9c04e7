import { expect } from 'vitest';
import { HANG_LIMIT_MS, until } from '../../support/deadline.js';
import { ownAddress } from '../../support/own-address.js';
import { type TranspiledSources, transpileSources } from '../../support/transpiled-sources.js';
import { AUX_SLOTS, type Inspection, type OutcomeNews, type Role, type ServerSettings } from './server-messages.js';
import { ServerProcess } from './server-process.js';

const ENTRY = '../test/integration/faults/server-entry';
export type PairSettings = Omit<ServerSettings, 'role' | 'host' | 'port'>;

/** Longer than a test waits: what ends a request is what the test did, whatever the machine does meanwhile. */
export const PATIENT: PairSettings['limits'] = {
  transferQueueTimeoutMs: 10 * HANG_LIMIT_MS,
  noProgressTimeoutMs: 10 * HANG_LIMIT_MS,
  kvTransferTimeoutMs: 10 * HANG_LIMIT_MS,
};

const DEFAULTS: PairSettings = {
  agent: 'host',
  linkGbps: null,
  pageCount: 96,
  headDim: 64,
  limits: PATIENT,
};

/** The programs of the servers, made once for a test file. */
export class ServerPrograms {
  readonly #sources: TranspiledSources = transpileSources([ENTRY]);

  get entry(): string {
    return this.#sources.path(ENTRY);
  }

  remove(): void {
    this.#sources.remove();
  }
}

export interface TransferOptions {
  readonly promptTokens?: number;
  readonly chunkTokens?: number;
  readonly holdBefore?: number | null;
}

/** A context and a generation server in processes of their own, and a parent that plays the coordinator. */
export class ServerPair {
  context!: ServerProcess;
  generation!: ServerProcess;
  readonly #entry: string;
  readonly #settings: PairSettings;
  readonly #env: Readonly<Record<string, string>>;
  readonly #prefix: readonly string[];
  readonly #started: ServerProcess[] = [];
  /** Of this test process alone, so that the port of a server that ended is free for its successor. */
  readonly #host: string;
  #nextRid = 1n << 42n;

  private constructor(
    entry: string,
    settings: Partial<PairSettings>,
    env: Readonly<Record<string, string>>,
    prefix: readonly string[],
    host: string,
  ) {
    this.#host = host;
    this.#entry = entry;
    this.#settings = { ...DEFAULTS, ...settings };
    this.#env = env;
    this.#prefix = prefix;
  }

  static async start(
    entry: string,
    settings: Partial<PairSettings> = {},
    env: Readonly<Record<string, string>> = {},
    prefix: readonly string[] = [],
  ): Promise<ServerPair> {
    const { host } = await ownAddress();
    const pair = new ServerPair(entry, settings, env, prefix, host);
    try {
      [pair.context, pair.generation] = await Promise.all([pair.#open('context', 0), pair.#open('generation', 0)]);
    } catch (error) {
      await pair.kill();
      throw error;
    }
    return pair;
  }

  newRid(): string {
    return (this.#nextRid++).toString();
  }

  /** A process that waits to be opened, so that a restart takes no longer than it must. */
  spare(): ServerProcess {
    const server = new ServerProcess(this.#entry, this.#env, this.#prefix);
    this.#started.push(server);
    return server;
  }

  /** A new process at the address of one that ended. */
  async restart(role: Role, spare: ServerProcess = this.spare()): Promise<ServerProcess> {
    await spare.open({ ...this.#settings, role, host: this.#host, port: this[role].port });
    this[role] = spare;
    return spare;
  }

  /** Brings a request to both servers. */
  async submit(options: TransferOptions = {}): Promise<string> {
    const rid = this.newRid();
    const { promptTokens = 30, chunkTokens = 8, holdBefore = null } = options;
    const endpoint = this.context.endpoint;
    const [, admitted] = await Promise.all([
      this.context.call({ kind: 'prefill', rid, promptTokens, chunkTokens, holdBefore }),
      this.generation.call({ kind: 'receive', rid, promptTokens, endpoint }),
    ]);
    expect(admitted, `pages for request ${rid}`).toBe(true);
    return rid;
  }

  async outcomes(rid: string, limitMs = HANG_LIMIT_MS): Promise<{ context: OutcomeNews; generation: OutcomeNews }> {
    const servers = [this.context, this.generation];
    const told = servers.map((server) => server.outcome(rid, limitMs));
    try {
      const [context, generation] = await Promise.all(told);
      return { context: context as OutcomeNews, generation: generation as OutcomeNews };
    } catch (cause) {
      // What either of them waits for is told by both.
      await Promise.allSettled(told);
      const states = await Promise.allSettled(servers.map((server) => server.inspect()));
      throw new Error(`${(cause as Error).message}; context, generation: ${JSON.stringify(states)}`, { cause });
    }
  }

  /** A transfer that nothing happens to, every byte of it checked. */
  async healthyTransfer(options: TransferOptions = {}): Promise<void> {
    const rid = await this.submit(options);
    const { context, generation } = await this.outcomes(rid);
    expect(context).toMatchObject({ outcome: 'completed' });
    expect(generation).toMatchObject({ outcome: 'completed', wrongBytes: 0 });
    expect(generation.bytesChecked).toBeGreaterThan(0);
  }

  /** Nothing is held, nothing was written where nobody held anything, and no request had two outcomes. */
  async expectClean(server: ServerProcess, limitMs = HANG_LIMIT_MS): Promise<Inspection> {
    const inspection = await quiet(server, this.#settings.pageCount, limitMs);
    expect(inspection.violations).toEqual([]);
    expect(inspection).toMatchObject(nothingHeld(this.#settings.pageCount));
    for (const [name, count] of Object.entries(await server.instances())) expect(count, `${name} alive`).toBe(0);
    const rids = server.outcomes.map(({ rid }) => rid);
    expect(rids.length, 'one outcome each').toBe(new Set(rids).size);
    return inspection;
  }

  async close(): Promise<void> {
    for (const server of [this.context, this.generation]) {
      expect(await server.close()).toEqual({ drained: true, outstanding: 0 });
      expect(await server.exited).toBe(0);
    }
  }

  /** Whatever a test left. */
  async kill(): Promise<void> {
    await Promise.all(this.#started.map((server) => server.kill()));
  }

  async #open(role: Role, port: number): Promise<ServerProcess> {
    const server = this.spare();
    await server.open({ ...this.#settings, role, host: this.#host, port });
    return server;
  }
}

function nothingHeld(pageCount: number): Partial<Inspection> {
  return {
    open: [],
    held: 0,
    sendSessions: 0,
    receiveSessions: 0,
    freeAuxSlots: AUX_SLOTS,
    freePages: [pageCount, pageCount],
  };
}

/** Asks until nothing is held any more, or the limit. */
async function quiet(server: ServerProcess, pageCount: number, limitMs: number): Promise<Inspection> {
  const wanted = JSON.stringify(nothingHeld(pageCount));
  let inspection = await server.inspect();
  await until(
    async () => {
      inspection = await server.inspect();
      const { open, held, sendSessions, receiveSessions, freeAuxSlots, freePages } = inspection;
      return JSON.stringify({ open, held, sendSessions, receiveSessions, freeAuxSlots, freePages }) === wanted;
    },
    () => JSON.stringify(inspection),
    limitMs,
  );
  return inspection;
}
