import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { CudaDevice } from '../../dist/agent/cuda-device.js';
import { applyPlan, fragment, noise, pairsOf, poolTable, Random, randomFragments, sha256 } from './support.mjs';

const MIB = 2 ** 20;
export const POOL_BYTES = 8 * MIB;
/** Slices between two looks at all bytes of the receiver. */
const CHECK_EVERY = 250;
const SHAPES = 24;
const IN_FLIGHT = 16;
/** Destinations of slices that may be under way at once never overlap: paths promise no order between slices. */
const WINDOWS = 32;
const WINDOW_BYTES = POOL_BYTES / WINDOWS;
const SCRATCH_BYTES = 16 * MIB;

/** MiB that each of these processes has on each GPU; of everybody where the driver does not tell processes apart. */
function deviceMiB(pids) {
  const ask = (what) =>
    execFileSync('nvidia-smi', [what, '--format=csv,noheader,nounits'], { encoding: 'utf8' })
      .trim()
      .split('\n')
      .map((line) => line.split(',').map((field) => field.trim()));
  const own = ask('--query-compute-apps=pid,gpu_uuid,used_memory')
    .filter(([pid, , used]) => pids.includes(Number(pid)) && /^\d+$/.test(used))
    .map(([pid, gpu, used]) => [pids.indexOf(Number(pid)), gpu, Number(used)]);
  if (pids.every((_, which) => own.some(([of]) => of === which))) {
    own.sort(([a, g], [b, h]) => a - b || g.localeCompare(h));
    return own.map(([, , used]) => used);
  }
  return ask('--query-gpu=memory.used').map(([used]) => Number(used));
}

/** Role: one pair of processes and what must be in the receiver's pool. */
export class Soak {
  tally;
  #pair;
  #shapes;
  #whole;
  #stream;
  #gpu;
  #scratch;
  #source = noise(POOL_BYTES, 1);
  #expected = noise(POOL_BYTES, 2).slice();
  #random = new Random(99);
  #flight = [];
  #windows = [];
  #events = [];
  /** A slice that was stopped may have left some of its bytes: it is sent again before all bytes are looked at. */
  #stopped = [];
  #nextId = 1;
  #ticket = 0n;

  static async open(pair, path) {
    const soak = new Soak();
    soak.#pair = pair;
    soak.tally = {
      path,
      slices: 0,
      transferred: 0,
      cancelled: 0,
      sentAgain: 0,
      behindEvents: 0,
      longRuns: 0,
      checks: 0,
      wrongBytes: 0,
    };
    soak.#gpu = await CudaDevice.open(pair.from);
    soak.#stream = await soak.#gpu.createStream('high');
    soak.#scratch = await pair.agent.allocatePool({ sizeBytes: SCRATCH_BYTES, device: pair.from });
    await pair.agent.writeMemory(pair.pool.base, soak.#source);
    await pair.child.ask('write', { bytes: soak.#expected });
    soak.#shapes = Array.from({ length: SHAPES }, (_, seed) => soak.#shapeOf(seed));
    soak.#whole = soak.#prepared({
      srcSlot: POOL_BYTES,
      dstSlot: POOL_BYTES,
      fragments: [fragment({ bytes: POOL_BYTES })],
      key: SHAPES,
    });
    await soak.#expectInbound();
    soak.#freeWindows();
    return soak;
  }

  async run(slices) {
    const startMs = performance.now();
    const marks = {
      first: slices / 10,
      quarter: slices / 4,
      half: slices / 2,
      threeQuarters: (3 * slices) / 4,
      last: slices,
    };
    const memory = {};
    while (this.tally.slices < slices) {
      await this.#sendNext();
      const isDue = this.tally.slices % CHECK_EVERY === 0 || this.tally.slices === slices;
      if (!isDue && this.#windows.length > 0) continue;
      await this.#check();
      for (const [mark, at] of Object.entries(marks)) {
        if (memory[mark] === undefined && this.tally.slices >= at) memory[mark] = await this.#memory();
      }
    }
    this.tally.memory = memory;
    this.tally.seconds = Math.round((performance.now() - startMs) / 100) / 10;
    this.#stream.close();
  }

  #prepared(shape) {
    const { agent, peer, pool, remoteBase, from, to } = this.#pair;
    const table = agent.prepareFragments(
      peer,
      poolTable(pool.base, POOL_BYTES, shape.srcSlot, from),
      poolTable(remoteBase, POOL_BYTES, shape.dstSlot, to),
      shape.fragments,
    );
    return { ...shape, table };
  }

  #shapeOf(key) {
    const random = new Random(key + 1);
    const [srcSlot, dstSlot] = [1024 + 16 * random.below(1500), 1024 + 16 * random.below(1500)];
    return this.#prepared({ srcSlot, dstSlot, fragments: randomFragments(random, srcSlot, dstSlot), key });
  }

  #freeWindows() {
    this.#windows = Array.from({ length: WINDOWS }, (_, i) => i);
  }

  /** What bounce may scatter: any slot of any shape, until the next check. */
  async #expectInbound() {
    if (this.tally.path !== 'bounce') return;
    this.#ticket += 1n;
    const slotsOf = (dstSlot) => Int32Array.from({ length: Math.floor(POOL_BYTES / dstSlot) }, (_, i) => i);
    const groups = [...this.#shapes, this.#whole].map(({ key, fragments, srcSlot, dstSlot }) => {
      return { key, fragments, slots: slotsOf(dstSlot), slotBytes: dstSlot, fromSlotBytes: srcSlot };
    });
    await this.#pair.child.ask(
      'expect',
      this.#ticket === 1n ? { ticket: this.#ticket, groups } : { ticket: this.#ticket },
    );
  }

  #submit(slice) {
    const id = this.#nextId++;
    const { shape, slotPairs, event } = slice;
    const { agent, peer } = this.#pair;
    const bounced = this.tally.path === 'bounce';
    const groups = [{ fragments: shape.table, slotPairs, ...(bounced ? { key: shape.key } : {}) }];
    const ticket = bounced ? { ticket: this.#ticket } : {};
    agent.submit({ id, peer, flow: 1 + (id % 3), groups, after: event ?? null, ...ticket });
    this.#flight.push({ ...slice, id });
    return id;
  }

  /** Recorded behind some microseconds to a millisecond of work. */
  #busyEvent() {
    const spare = this.#events.findIndex((event) => event.query() !== 'pending');
    const event = spare < 0 ? this.#gpu.createEvent() : this.#events.splice(spare, 1)[0];
    this.#stream.clear(this.#scratch.base, SCRATCH_BYTES, 1 + this.#random.below(60));
    event.record(this.#stream);
    this.tally.behindEvents++;
    return event;
  }

  async #sendNext() {
    while (this.#flight.length >= IN_FLIGHT) await this.#settleOldest();
    const random = this.#random;
    const shape = this.#shapes[random.below(SHAPES)];
    const window = this.#windows.shift();
    const firstSlot = Math.ceil((window * WINDOW_BYTES) / shape.dstSlot);
    const slots = Math.floor(((window + 1) * WINDOW_BYTES) / shape.dstSlot) - firstSlot;
    const sources = Math.floor(POOL_BYTES / shape.srcSlot);
    const count = 1 + random.below(Math.min(slots, 64));
    const to = random.different(count, slots).map((slot) => firstSlot + slot);
    // At once, or when it is likely under way, or never.
    const cancel = ['at once', 'later', ...Array(8).fill(null)][random.below(10)];
    const event = random.below(6) === 0 ? this.#busyEvent() : null;
    const id = this.#submit({ shape, slotPairs: pairsOf(random.different(count, sources), to), window, event, cancel });
    this.tally.slices++;
    if (cancel === 'at once') this.#pair.agent.cancel(id);
    const earlier = this.#flight.at(-4);
    if (earlier?.cancel === 'later') this.#pair.agent.cancel(earlier.id);
    while (this.#windows.length === 0 && this.#flight.length > 0) await this.#settleOldest();
  }

  async #settleOldest() {
    const slice = this.#flight.shift();
    const { id, shape, slotPairs, window, event, cancel } = slice;
    const done = await this.#pair.log.of(id);
    assert.equal(done.drained, true);
    assert.ok(
      done.status === 'transferred' || (cancel !== null && done.status === 'cancelled'),
      `${id}: ${done.status} ${done.error?.message}`,
    );
    this.tally[done.status]++;
    if (event !== null) this.#events.push(event);
    if (done.status === 'transferred') {
      applyPlan(this.#source, this.#expected, shape.srcSlot, shape.dstSlot, shape.fragments, slotPairs);
    } else {
      this.#stopped.push({ shape, slotPairs, window: null, event: null, cancel: null });
      // The receiver may scatter what had come of it until its receive ends.
      if (this.tally.path === 'bounce') return;
    }
    if (window !== null) this.#windows.push(window);
  }

  async #settleAll() {
    while (this.#flight.length > 0) await this.#settleOldest();
  }

  async #endInbound() {
    if (this.tally.path === 'bounce') await this.#pair.child.ask('endInbound', { ticket: this.#ticket });
  }

  async #check() {
    await this.#settleAll();
    await this.#endInbound();
    await this.#expectInbound();
    for (const slice of this.#stopped.splice(0)) {
      this.#submit(slice);
      this.tally.sentAgain++;
      await this.#settleAll();
    }
    this.tally.checks++;
    if ((await this.#pair.child.ask('digest')).sha256 !== sha256(this.#expected)) await this.#countWrong();
    await this.#sendWhole();
    this.#freeWindows();
  }

  async #countWrong() {
    const { bytes } = await this.#pair.child.ask('read', { offset: 0, length: POOL_BYTES });
    for (let i = 0; i < POOL_BYTES; i++) if (bytes[i] !== this.#expected[i]) this.tally.wrongBytes++;
    throw new Error(`${this.tally.wrongBytes} wrong bytes after ${this.tally.slices} slices`);
  }

  /** One run as long as the pool, which p2p gives to the copy engines; every other one is cancelled first. What it left shows at the next check. */
  async #sendWhole() {
    const slice = { shape: this.#whole, slotPairs: Int32Array.of(0, 0), window: null, event: this.#busyEvent() };
    this.tally.longRuns++;
    const id = this.#submit({ ...slice, cancel: this.tally.longRuns % 2 === 0 ? 'at once' : null });
    if (this.tally.longRuns % 2 === 0) this.#pair.agent.cancel(id);
    await this.#settleAll();
    if (this.#stopped.length === 0) return;
    await this.#endInbound();
    await this.#expectInbound();
    this.#submit(this.#stopped.pop());
    await this.#settleAll();
  }

  async #memory() {
    globalThis.gc?.();
    const { bytes } = await this.#pair.child.ask('rss');
    const { rss, heapUsed } = process.memoryUsage();
    const rssBytes = { writer: rss, receiver: bytes };
    return { rssBytes, heapBytes: heapUsed, deviceMiB: deviceMiB([process.pid, this.#pair.child.pid]) };
  }
}
