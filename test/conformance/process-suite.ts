import { type ChildProcess, fork } from 'node:child_process';
import { createHash } from 'node:crypto';
import { fileURLToPath } from 'node:url';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import type { PeerHandle, Pool, TransferAgent } from '../../src/agent/transfer-agent.js';
import { TransferError } from '../../src/errors.js';
import { CompletionLog } from '../support/completion-log.js';
import { HANG_LIMIT_MS, withDeadline } from '../support/deadline.js';
import { expectedBytes, fragment, patterned, poolTable, shuffled } from '../support/paged-pools.js';
import { type TranspiledSources, transpileSources } from '../support/transpiled-sources.js';

const CHILD = fileURLToPath(new URL('agent-child.mjs', import.meta.url));
const SLOT = 4096;
const SLOTS = 256;
const POOL_BYTES = SLOT * SLOTS;

interface ChildMessage {
  readonly kind: string;
  readonly [field: string]: unknown;
}

/** One agent in another process. */
class AgentChild {
  readonly process: ChildProcess;
  readonly #messages: ChildMessage[] = [];
  #wake: () => void = () => {};
  #stderr = '';

  constructor(modulePath: string, kind: string) {
    this.process = fork(CHILD, [modulePath, kind, String(POOL_BYTES)], { stdio: ['ignore', 'ignore', 'pipe', 'ipc'] });
    this.process.on('message', (message: ChildMessage) => {
      this.#messages.push(message);
      this.#wake();
    });
    this.process.stderr?.on('data', (chunk: Buffer) => {
      this.#stderr += chunk.toString();
    });
  }

  send(message: ChildMessage): void {
    this.process.send(message);
  }

  async next(kind: string): Promise<ChildMessage> {
    const arrived = async (): Promise<ChildMessage> => {
      while (this.#messages.length === 0) {
        await new Promise<void>((resolve) => {
          this.#wake = resolve;
        });
      }
      return this.#messages.shift() as ChildMessage;
    };
    const message = await withDeadline(arrived(), HANG_LIMIT_MS, () => `waiting for ${kind}; stderr: ${this.#stderr}`);
    expect(message.kind).toBe(kind);
    return message;
  }

  async kill(): Promise<void> {
    if (this.process.exitCode !== null || this.process.signalCode !== null) return;
    const exited = new Promise((resolve) => this.process.once('exit', resolve));
    this.process.kill('SIGKILL');
    await exited;
  }
}

/** What must hold between two processes. */
export function processSuite(kind: 'host' | 'nixl', open: (name: string) => Promise<TransferAgent>): void {
  describe(`${kind} agents of two processes`, () => {
    let sources: TranspiledSources;
    let child: AgentChild;
    let agent: TransferAgent;
    let pool: Pool;
    let peer: PeerHandle;
    let peerBase: number;
    let metadata: Uint8Array;
    let log: CompletionLog;

    beforeAll(() => {
      sources = transpileSources(['agent/native-agent']);
    });
    afterAll(() => sources.remove());

    beforeEach(async () => {
      child = new AgentChild(sources.path('agent/native-agent'), kind);
      agent = await open('parent');
      pool = await agent.allocatePool({ sizeBytes: POOL_BYTES });
      const ready = await child.next('ready');
      peerBase = ready['base'] as number;
      metadata = Buffer.from(ready['metadata'] as string, 'base64');
      peer = await agent.addPeer(metadata, 'child');
      log = new CompletionLog(agent);
    });
    afterEach(async () => {
      await child.kill();
      await agent.close(5000);
    });

    function submitShuffled(id: number): Int32Array {
      const remote = { base: peerBase, sizeBytes: POOL_BYTES };
      const fragments = agent.prepareFragments(peer, poolTable(pool, SLOT), poolTable(remote, SLOT), [
        fragment({ bytes: SLOT }),
      ]);
      const to = shuffled(SLOTS, id);
      const slotPairs = Int32Array.from({ length: SLOTS }, (_, i) => (i % 2 === 0 ? i : (to[i] as number)));
      agent.submit({ id, peer, flow: 1, groups: [{ fragments, slotPairs }], after: null });
      return slotPairs;
    }

    it('moves pages into the other process’s memory, and back', async () => {
      const bytes = patterned(POOL_BYTES, 6);
      agent.writeBytes(pool.base, bytes);
      const slotPairs = submitShuffled(1);
      expect((await log.of(1)).status).toBe('transferred');
      const expected = expectedBytes(
        bytes,
        new Uint8Array(POOL_BYTES),
        SLOT,
        SLOT,
        [fragment({ bytes: SLOT })],
        slotPairs,
      );
      child.send({ kind: 'digest' });
      expect((await child.next('digest'))['sha256']).toBe(createHash('sha256').update(expected).digest('hex'));

      const metadata = Buffer.from(await agent.metadata()).toString('base64');
      child.send({ kind: 'write-back', metadata, base: pool.base });
      expect((await child.next('written'))['status']).toBe('transferred');
      expect(Buffer.from(agent.readBytes(pool.base, POOL_BYTES)).equals(expected)).toBe(true);
    });

    it('fails with a typed error that names the peer when its process was killed', async () => {
      await child.kill();
      submitShuffled(1);
      const completion = await log.of(1);
      expect(completion.status).toBe('failed');
      expect(completion.error).toBeInstanceOf(TransferError);
      expect(completion.error).toMatchObject({ peer: 'child' });
      if (kind === 'host') {
        expect(completion.error).toMatchObject({ code: 'ERR_KVT_PEER_LOST' });
        expect(completion.error?.message).toContain(`pid ${child.process.pid}`);
        expect(completion.drained).toBe(true);
      }
    });

    it('tells once when the other process has ended, and watches no stranger', async () => {
      const fenced: string[] = [];
      const told = new Promise<void>((resolve) =>
        agent.onPeerFenced?.((peerId) => {
          fenced.push(peerId);
          resolve();
        }),
      );
      expect(await agent.watchPeer?.(metadata, 'child')).toBe(true);
      await expect(agent.watchPeer?.(metadata, 'child')).rejects.toMatchObject({ code: 'ERR_KVT_ARGUMENT' });
      await expect(agent.watchPeer?.(new Uint8Array(100), 'stranger')).rejects.toBeInstanceOf(TransferError);
      expect(await agent.watchPeer?.(metadata, 'forgotten')).toBe(true);
      agent.unwatchPeer?.('forgotten');
      expect(fenced).toEqual([]);
      await child.kill();
      await withDeadline(told, HANG_LIMIT_MS, () => 'the end of the process was not told');
      expect(fenced).toEqual(['child']);
    });

    it('lets the other side close while it is still a peer', async () => {
      child.send({ kind: 'close' });
      expect((await child.next('closed'))['report']).toEqual({ drained: true, outstanding: 0 });
      await agent.removePeer(peer);
      expect(await agent.close(5000)).toEqual({ drained: true, outstanding: 0 });
    });
  });
}
