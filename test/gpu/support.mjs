// What the GPU tests share: which GPUs there are, the other process, and what bytes a plan moves.
import { fork } from 'node:child_process';
import { createHash } from 'node:crypto';
import { fileURLToPath } from 'node:url';
import { capabilities } from '../../dist/agent/native.js';

const CHILD = fileURLToPath(new URL('device-child.mjs', import.meta.url));
const REPLY_LIMIT_MS = 60_000;

const isRequired = (process.env.KV_TRANSCEIVER_REQUIRE ?? '').split(/[\s,]+/).includes('cuda');

export const found = await capabilities();
/** Why GPU tests cannot run; false where they must. */
export const skip = found.cuda.available || isRequired ? false : `needs a GPU: ${found.cuda.reason}`;
/** Of rdma and bounce too: whoever requires the GPU path requires all of it, and without NIXL those tests fail. */
export const skipNixl = skip || (found.nixl.available || isRequired ? false : `needs NIXL: ${found.nixl.reason}`);

/** (writer, receiver) GPUs to test with: the same one, and two where there are two. */
export const devicePairs = found.cuda.deviceCount > 1 ? [[0, 0], [0, 1]] : [[0, 0]]; // biome-ignore format: pairs

export function sha256(bytes) {
  return createHash('sha256').update(bytes).digest('hex');
}

/** Repeatable noise. */
export function noise(length, seed) {
  const out = new Uint32Array(Math.ceil(length / 4));
  let state = (seed * 2654435761 + 1) >>> 0;
  for (let i = 0; i < out.length; i++) {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    out[i] = state;
  }
  return new Uint8Array(out.buffer, 0, length);
}

export class Random {
  #state;
  constructor(seed) {
    this.#state = (seed * 2654435761 + 88172645) >>> 0 || 1;
  }
  /** 0 .. bound - 1 */
  below(bound) {
    this.#state ^= this.#state << 13;
    this.#state ^= this.#state >>> 17;
    this.#state ^= this.#state << 5;
    return (this.#state >>> 0) % bound;
  }
  /** `count` different numbers below `bound`, in random order. */
  different(count, bound) {
    const all = Int32Array.from({ length: bound }, (_, i) => i);
    for (let i = 0; i < count; i++) {
      const j = i + this.below(bound - i);
      [all[i], all[j]] = [all[j], all[i]];
    }
    return all.slice(0, count);
  }
}

/** A page table of one pool and nothing else: what prepareFragments needs. */
export function poolTable(base, sizeBytes, slotBytes, device) {
  const memory = device === undefined ? { kind: 'host' } : { kind: 'device', deviceId: device };
  const slotCount = Math.floor(sizeBytes / slotBytes);
  return { pools: [{ base, memory, slotBytes, slotStride: slotBytes, slotCount }], layerGroups: [], aux: null };
}

export function fragment(fields) {
  return { srcPool: 0, srcOffset: 0, dstPool: 0, dstOffset: 0, count: 1, srcStride: 0, dstStride: 0, ...fields };
}

export function pairsOf(from, to) {
  return Int32Array.from({ length: 2 * from.length }, (_, i) => (i % 2 === 0 ? from[i >> 1] : to[i >> 1]));
}

/** Does on host bytes what the agent must have done. */
export function applyPlan(source, destination, srcSlot, dstSlot, fragments, slotPairs) {
  for (const f of fragments) {
    for (let i = 0; i < slotPairs.length; i += 2) {
      for (let piece = 0; piece < f.count; piece++) {
        const from = slotPairs[i] * srcSlot + f.srcOffset + piece * f.srcStride;
        const to = slotPairs[i + 1] * dstSlot + f.dstOffset + piece * f.dstStride;
        destination.set(source.subarray(from, from + f.bytes), to);
      }
    }
  }
  return destination;
}

/** Up to four fragments inside slots of these sizes that do not overlap each other, of any alignment. */
export function randomFragments(random, srcSlot, dstSlot) {
  const parts = 1 + random.below(4);
  const [srcPart, dstPart] = [Math.floor(srcSlot / parts), Math.floor(dstSlot / parts)];
  const align = [1, 2, 16, 16][random.below(4)];
  const down = (value) => Math.floor(value / align) * align;
  return Array.from({ length: parts }, (_, part) => {
    const count = 1 + random.below(8);
    const [srcStride, dstStride] = [down(srcPart / count), down(dstPart / count)];
    const bytes = Math.max(1, down(1 + random.below(Math.min(srcStride, dstStride))));
    return fragment({
      srcOffset: Math.ceil((part * srcPart) / align) * align,
      dstOffset: Math.ceil((part * dstPart) / align) * align,
      bytes: Math.min(bytes, Math.max(1, Math.min(srcStride, dstStride) - align)),
      count,
      srcStride,
      dstStride,
    });
  });
}

/** Completions and drained notices by submission. */
export class Log {
  #settled = new Map();
  #waiting = new Map();
  #freeing = new Map();
  undrained = new Set();
  /** Submissions whose pages were free before they ended. */
  released = new Set();

  constructor(agent) {
    agent.onCompletions((batch) => {
      for (const notice of batch) {
        if (notice.kind === 'drained') {
          this.undrained.delete(notice.submission);
          continue;
        }
        this.#freeing.get(notice.submission)?.();
        if (notice.kind === 'released') {
          this.released.add(notice.submission);
          continue;
        }
        if (!notice.drained) this.undrained.add(notice.submission);
        const waiting = this.#waiting.get(notice.submission);
        if (waiting === undefined) this.#settled.set(notice.submission, notice);
        else waiting(notice);
        this.#waiting.delete(notice.submission);
      }
    });
  }

  /** Resolves when its pages are free; asked for before the submission. */
  releasedOf(id) {
    return new Promise((resolve) => this.#freeing.set(id, resolve));
  }

  async of(id) {
    const settled = this.#settled.get(id);
    if (settled !== undefined) {
      this.#settled.delete(id);
      return settled;
    }
    return withLimit(new Promise((resolve) => this.#waiting.set(id, resolve)), `submission ${id} did not settle`);
  }
}

export function withLimit(promise, what, limitMs = REPLY_LIMIT_MS) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`${what} within ${limitMs} ms`)), limitMs);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

/** The other process: one agent, commanded by messages that are answered one by one. */
export class Child {
  #process;
  #replies = [];
  #next = [];
  #exit;

  constructor(env = {}) {
    this.#process = fork(CHILD, [], {
      serialization: 'advanced',
      stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
      env: { ...process.env, ...env },
    });
    this.#process.on('message', (message) => {
      const next = this.#next.shift();
      if (next === undefined) this.#replies.push(message);
      else next.resolve(message);
    });
    this.#exit = new Promise((resolve) =>
      this.#process.once('exit', (code, signal) => {
        for (const { reject } of this.#next.splice(0)) reject(new Error(`the child ended: ${code ?? signal}`));
        resolve({ code, signal });
      }),
    );
  }

  get pid() {
    return this.#process.pid;
  }

  /** Rejects with what the child threw. */
  async ask(kind, fields = {}) {
    this.#process.send({ kind, ...fields });
    const queued = this.#replies.shift();
    const reply =
      queued ??
      (await withLimit(new Promise((resolve, reject) => this.#next.push({ resolve, reject })), `no reply to ${kind}`));
    if (reply.error !== undefined) throw Object.assign(new Error(reply.error.message), { code: reply.error.code });
    return reply;
  }

  kill(signal = 'SIGKILL') {
    this.#process.kill(signal);
    return this.#exit;
  }

  async end() {
    if (this.#process.connected) this.#process.disconnect();
    return withLimit(this.#exit, 'the child did not end');
  }
}

/** A writer in this process, a receiver in another, and a pool of each; with `bounce`, an arena of each too. */
export async function openPair(createAgent, [from, to], sizeBytes, options = {}) {
  const { kind = 'host', path = 'auto', env, copyBlocks, bounce, ...more } = options;
  const arena = bounce === undefined ? {} : { bounce };
  const agent = await createAgent({
    kind,
    name: 'writer',
    path,
    device: from,
    ...(copyBlocks ? { copyBlocks } : {}),
    ...arena,
    ...more,
  });
  const child = new Child(env);
  try {
    const pool = await agent.allocatePool({ sizeBytes, device: from });
    const opened = await child.ask('open', {
      options: { kind, name: 'receiver', path, device: to, ...arena },
      sizeBytes,
      device: to,
    });
    const peer = await agent.addPeer(opened.metadata, 'receiver');
    if (bounce !== undefined) await child.ask('meet', { metadata: await agent.metadata(), base: pool.base, sizeBytes });
    return { agent, child, pool, peer, remoteBase: opened.base, log: new Log(agent), from, to, sizeBytes };
  } catch (error) {
    await Promise.all([agent.close(2000), child.end()]);
    throw error;
  }
}

export async function closePair({ agent, child }) {
  const report = await agent.close(5000);
  await child.end();
  return report;
}
