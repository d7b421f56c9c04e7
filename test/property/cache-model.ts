import { expect } from 'vitest';
import {
  type CachePrompt,
  chainBlockHashes,
  GrowingCacheManager,
  type PagedCacheManager,
  type PageMove,
  ReservingCacheManager,
} from '../../src/cache/index.js';
import { RequestTooLargeError } from '../../src/errors.js';
import { CacheMemory } from '../conformance/cache-memory.js';
import {
  type Content,
  contentOf,
  ModelGeometry,
  type ModelGroup,
  type ModelOptions,
  type ModelRequest,
  ordinalOf,
  TPB,
} from './model-geometry.js';

/**
 * What the pages of one cache hold and who holds them, kept the slow way: every question is answered by looking at everything. Each
 * action is done to the manager and to the model, which must agree.
 */
export class CacheModel {
  readonly cache: PagedCacheManager;
  readonly memory: CacheMemory;
  readonly requests = new Map<number, ModelRequest>();
  readonly pins = new Map<number, { readonly slots: Set<number>[]; readonly first: readonly number[] }>();
  readonly seen = {
    hits: 0,
    parts: 0,
    onboarded: 0,
    offloaded: 0,
    ahead: 0,
    refusals: 0,
    evictions: 0,
    gaps: 0,
    failed: 0,
  };
  readonly #o: ModelOptions;
  readonly #geometry: ModelGeometry;
  /** Per group: content that may be found, by slot. */
  readonly #published: Map<number, Content>[];
  readonly #onHost: Map<number, Content>[];
  /** Per group: when a slot lost its last holder. */
  readonly #idleSince: Map<number, number>[];
  /** Per group and slot: the batch that filled the page. */
  readonly #filledBy: Map<number, number>[];
  #handedBefore = 0;
  #now = 0;
  #nextId = 1;

  constructor(options: ModelOptions) {
    this.#o = options;
    this.#geometry = new ModelGeometry(options);
    const { groups } = options;
    this.memory = new CacheMemory(
      TPB,
      groups.map((group) => group.slotCount),
      groups.map((group) => group.hostSlotCount),
    );
    this.#published = groups.map(() => new Map());
    this.#onHost = groups.map(() => new Map());
    this.#idleSince = groups.map(() => new Map());
    this.#filledBy = groups.map(() => new Map());
    const Manager = options.reserving ? ReservingCacheManager : GrowingCacheManager;
    this.cache = new Manager({
      tokensPerBlock: TPB,
      seed: options.seed,
      mover: this.memory,
      partialReuse: options.partialReuse,
      speculativeTokens: options.speculativeTokens,
      senderTokensPerBlock: options.senderTokensPerBlock,
      layerGroups: groups.map((group, index) => ({
        kind: group.isState ? 'state' : 'attention',
        windowSize: group.window,
        tokensPerBlock: TPB,
        layers: [index],
        slotCount: group.slotCount,
        sinkTokens: group.sinkTokens,
        hostSlotCount: group.hostSlotCount,
      })),
    });
  }

  /**
   * @param between what others do between two portions of what is brought ahead; null: nobody brings anything ahead
   * @returns null for a prompt that can never fit
   */
  async add(
    tokens: readonly number[],
    receives: boolean,
    between: ((portion: number) => Promise<void>) | null = null,
  ): Promise<number | null> {
    const promptLen = tokens.length;
    const id = this.#nextId++;
    const prompt: CachePrompt = {
      promptLen,
      blockHashes: chainBlockHashes(Uint32Array.from(tokens), TPB),
      tokens: Uint32Array.from(tokens),
      ...(receives ? { firstToken: promptLen } : {}),
    };
    if (this.#geometry.neverFits(promptLen, receives)) {
      expect(() => this.cache.addRequest(id, prompt)).toThrow(RequestTooLargeError);
      return null;
    }
    if (between !== null) await this.#fetchAhead(tokens, prompt, 1 + (id % 3), between);
    const expected = this.#expectedHit(tokens, receives);
    expect(this.cache.locatePrefix(prompt).prepopulatedLen).toBe(expected.prepopulatedLen);
    // In portions or not: it is the same.
    if (id % 2 === 0) while (!this.cache.lookAhead(prompt, 1 + (id % 3)));
    const { prepopulatedLen } = this.cache.addRequest(id, prompt);
    expect(prepopulatedLen).toBe(expected.prepopulatedLen);
    const end = Math.ceil(prepopulatedLen / TPB);
    const hasPart = prepopulatedLen % TPB > 0;
    if (expected.blocks > 0) this.seen.hits++;
    if (hasPart) this.seen.parts++;

    const blocks = this.#o.groups.map((group, index) => {
      const slots = new Map<number, number>();
      if (group.isState) return slots;
      for (let ordinal = 0; ordinal < end; ordinal++) {
        const isPart = hasPart && ordinal === end - 1;
        if (!isPart && !this.#geometry.isSeen(index, ordinal, expected.blocks * TPB)) continue;
        const [slot] = this.cache.getBlockIdsRange(id, index, ordinal, ordinal + 1).slots;
        expect(slot, `block ${ordinal} of the hit in group ${index}`).toBeDefined();
        slots.set(ordinal, slot as number);
      }
      return slots;
    });
    // What was on the device is that very slot; everything else came into slots that nobody held.
    blocks.forEach((slots, index) => {
      for (const [ordinal, slot] of slots) {
        const content = contentOf(tokens, (ordinal + 1) * TPB);
        const isShared = ordinal < expected.blocks && this.#published[index]?.get(slot) === content;
        if (!isShared) expect(this.#holders(index).has(slot)).toBe(false);
      }
    });
    this.#noteMoves();
    const broughtBy = Math.max(
      -1,
      ...blocks.flatMap((slots, index) => [...slots.values()].map((slot) => this.#filledBy[index]?.get(slot) ?? -1)),
    );
    const request: ModelRequest = {
      tokens,
      promptLen,
      receives,
      computed: prepopulatedLen,
      end,
      tableEnd: end,
      blocks,
      broughtBy,
      failed: false,
      unfilled: blocks.map(() => new Set()),
    };
    blocks.forEach((slots, index) => {
      for (const [ordinal, slot] of slots) {
        this.#idleSince[index]?.delete(slot);
        if (ordinal < expected.blocks) {
          // A fetched block is published with the hit.
          this.#published[index]?.set(slot, contentOf(tokens, (ordinal + 1) * TPB));
        } else this.#published[index]?.delete(slot);
      }
    });
    this.requests.set(id, request);
    return id;
  }

  /**
   * What is brought before the prompt is admitted is content that nobody holds, and costs the prompt nothing of what it would have found,
   * whatever others do between.
   */
  async #fetchAhead(
    tokens: readonly number[],
    prompt: CachePrompt,
    portion: number,
    between: (portion: number) => Promise<void>,
  ): Promise<void> {
    const receives = prompt.firstToken !== undefined;
    let found = this.#expectedHit(tokens, receives).blocks;
    while (!this.cache.lookAhead(prompt, 2));
    let isBegun = false;
    for (let portions = 0; ; portions++) {
      const { handed } = this.memory;
      const isDone = this.cache.fetchAhead(prompt, portion);
      if (handed.length > this.#handedBefore) {
        if (!isBegun) this.#touchPrefix(tokens, found);
        isBegun = true;
        this.#noteBrought(tokens, found, portion);
        this.seen.ahead++;
        this.check(0, 0);
      }
      expect(this.#expectedHit(tokens, receives).blocks).toBe(found);
      if (isDone) return;
      const before = this.#now;
      await between(portions);
      // It is begun anew when others have changed anything.
      isBegun &&= this.#now === before;
      found = this.#expectedHit(tokens, receives).blocks;
    }
  }

  /** The moves of one portion: each block comes into a slot that nothing was in, or the longest unused content. */
  #noteBrought(tokens: readonly number[], blocks: number, portion: number): void {
    const brought = this.#o.groups.map(() => 0);
    for (const move of this.memory.handed[this.#handedBefore] as PageMove[]) {
      if (move.kind === 'copy') throw new Error('a part of a block, before the prompt was admitted');
      const { group, slot } = move;
      if (move.kind === 'offload') {
        this.#onHost[group]?.set(move.hostSlot, this.#published[group]?.get(slot) as Content);
        this.seen.offloaded++;
        continue;
      }
      const content = this.#onHost[group]?.get(move.hostSlot) as Content;
      const ordinal = ordinalOf(content);
      expect(content).toBe(contentOf(tokens, (ordinal + 1) * TPB));
      expect(ordinal < blocks && this.#geometry.isSeen(group, ordinal, blocks * TPB)).toBe(true);
      this.#handOut(group, slot);
      this.#published[group]?.set(slot, content);
      // Behind all others, which this portion may still evict.
      this.#idleSince[group]?.set(slot, this.#now + 1);
      this.#filledBy[group]?.set(slot, this.#handedBefore);
      this.seen.onboarded++;
      brought[group] = (brought[group] as number) + 1;
    }
    for (const count of brought) expect(count).toBeLessThanOrEqual(portion);
    this.#now++;
    this.#handedBefore++;
    this.#evicted.clear();
  }

  #touchPrefix(tokens: readonly number[], blocks: number): void {
    this.#now++;
    this.#o.groups.forEach((_, index) => {
      for (const [slot, content] of this.#published[index] ?? []) {
        const ordinal = ordinalOf(content);
        const isOwn = ordinal < blocks && content === contentOf(tokens, (ordinal + 1) * TPB);
        if (isOwn && this.#geometry.isSeen(index, ordinal, blocks * TPB)) this.#noteIdle(index, slot);
      }
    });
  }

  /** @returns whether the blocks exist now */
  grow(id: number, endToken: number): boolean {
    const request = this.requests.get(id) as ModelRequest;
    const { promptLen } = request;
    const { reserving, speculativeTokens, groups } = this.#o;
    const next =
      request.receives && request.computed < promptLen && endToken >= promptLen ? promptLen : request.computed;
    const tokens = reserving ? Math.max(endToken, promptLen) : endToken;
    const end = Math.max(request.end, Math.ceil(tokens / TPB));
    const extra = tokens >= promptLen ? speculativeTokens : 0;
    const tableEnd = Math.max(end, request.tableEnd, Math.ceil((tokens + extra) / TPB));
    const grows = tableEnd > request.tableEnd;
    const plans = groups.map((group, index) => {
      const own = request.blocks[index] as Map<number, number>;
      if (group.isState) return { wanted: own.has(0) || tableEnd === 0 ? [] : [0], dropped: [] };
      const wanted: number[] = [];
      for (let ordinal = request.tableEnd; ordinal < tableEnd; ordinal++) {
        if (this.#geometry.isSeen(index, ordinal, next)) wanted.push(ordinal);
      }
      // A reserving manager keeps what it has, unless the new blocks would not follow on it, or it receives: then it needs the final window.
      const firstBehindSinks = wanted.find((ordinal) => ordinal * TPB >= group.sinkTokens) ?? tableEnd;
      const breaks = firstBehindSinks > Math.max(request.tableEnd, Math.ceil(group.sinkTokens / TPB));
      const dropped = [...own.keys()].filter(
        (ordinal) =>
          grows &&
          ordinal * TPB >= group.sinkTokens &&
          (reserving && next === request.computed ? breaks : !this.#geometry.isSeen(index, ordinal, next)),
      );
      return { wanted, dropped };
    });
    const fits = plans.every(({ wanted, dropped }, index) => {
      const freed = dropped.filter((ordinal) =>
        this.#heldOnlyBy(id, index, request.blocks[index]?.get(ordinal) as number),
      );
      const { slotCount } = groups[index] as ModelGroup;
      return wanted.length <= slotCount - this.#holders(index).size + freed.length;
    });
    const before = JSON.stringify(this.cache.stats());
    if ((id + endToken) % 2 === 0) {
      const first = next === request.computed ? [] : [next];
      while (!this.cache.growAhead(id, 1 + (endToken % 3), endToken, ...first));
    }
    const grown =
      next === request.computed
        ? this.cache.ensureCapacity(id, endToken)
        : this.cache.ensureCapacity(id, endToken, next);
    expect(grown).toBe(fits);
    if (!grown) {
      this.seen.refusals++;
      expect(JSON.stringify(this.cache.stats())).toBe(before);
      return false;
    }
    request.end = end;
    request.tableEnd = tableEnd;
    this.#now++;
    plans.forEach(({ dropped }, index) => {
      const own = request.blocks[index] as Map<number, number>;
      for (const ordinal of dropped) this.#letGo(index, own, ordinal);
    });
    plans.forEach(({ wanted }, index) => {
      const own = request.blocks[index] as Map<number, number>;
      for (const ordinal of wanted) {
        const slot = this.#slotOf(id, index, ordinal);
        this.#handOut(index, slot);
        own.set(ordinal, slot);
        const pin = this.pins.get(id);
        if (pin !== undefined && this.#geometry.isPinned(index, ordinal, pin.first, request.promptLen))
          pin.slots[index]?.add(slot);
      }
    });
    this.#noteMoves();
    return true;
  }

  /** What an engine or a peer does: waits for the pages, fills them, says so. */
  async fill(id: number, endToken: number): Promise<void> {
    const request = this.requests.get(id) as ModelRequest;
    while (this.cache.pagesReady(id) !== null) await this.memory.runNext();
    const from = request.computed;
    request.blocks.forEach((own, index) => {
      if (this.#o.groups[index]?.isState) return;
      for (const [ordinal, slot] of own) {
        const isSent = !request.receives || this.#geometry.arrivesWhole(index, ordinal, request.promptLen);
        if (from < request.promptLen && (ordinal + 1) * TPB > from && !isSent) request.unfilled[index]?.add(ordinal);
        if (request.unfilled[index]?.has(ordinal)) continue;
        const begin = Math.max(from, ordinal * TPB);
        const end = Math.min(endToken, (ordinal + 1) * TPB);
        const contents = Array.from({ length: Math.max(0, end - begin) }, (_, offset) =>
          contentOf(request.tokens, begin + offset + 1, id),
        );
        this.memory.write(index, slot, contents, begin);
      }
    });
    this.cache.markComputed(id, endToken);
    request.computed = endToken;
    this.#now++;
    const canReuse = this.#o.groups.every((group) => !group.isState);
    request.blocks.forEach((own, index) => {
      const published = this.#published[index] as Map<number, Content>;
      for (const [ordinal, slot] of own) {
        const isNew = (ordinal + 1) * TPB > from && (ordinal + 1) * TPB <= Math.min(endToken, request.promptLen);
        const content = contentOf(request.tokens, (ordinal + 1) * TPB);
        if (request.unfilled[index]?.has(ordinal)) continue;
        if (isNew && canReuse && ![...published.values()].includes(content)) published.set(slot, content);
      }
      if (this.#o.reserving || this.#o.groups[index]?.isState) return;
      for (const ordinal of [...own.keys()]) {
        if (!this.#geometry.isSeen(index, ordinal, endToken)) this.#letGo(index, own, ordinal);
      }
    });
  }

  /** A device error ends all moves that are pending: what they carried is lost, and whoever rests on it. */
  async fail(): Promise<void> {
    const first = this.memory.handed.length - this.memory.pending.length;
    if (this.memory.pending.length === 0) return;
    await this.memory.failAll('the device is gone');
    for (const move of this.memory.handed.slice(first).flat()) {
      if (move.kind === 'offload') this.#onHost[move.group]?.delete(move.hostSlot);
      else if (move.kind === 'onboard') this.#published[move.group]?.delete(move.slot);
    }
    for (const request of this.requests.values()) {
      if (request.broughtBy < first) continue;
      request.failed = true;
      this.seen.failed++;
    }
  }

  pin(id: number, fromWindow: boolean): void {
    const request = this.requests.get(id) as ModelRequest;
    const first = this.#o.groups.map((_, index) => {
      let ordinal = 0;
      while (fromWindow && !this.#geometry.isInWindow(index, ordinal, request.promptLen)) ordinal++;
      return ordinal;
    });
    if (fromWindow) this.cache.pin(id, first);
    else this.cache.pin(id);
    const slots = request.blocks.map(
      (own, index) =>
        new Set(
          [...own]
            .filter(([ordinal]) => this.#geometry.isPinned(index, ordinal, first, request.promptLen))
            .map(([, slot]) => slot),
        ),
    );
    this.pins.set(id, { slots, first });
  }

  unpin(id: number): void {
    this.cache.unpin(id);
    const slots = this.pins.get(id)?.slots ?? [];
    this.pins.delete(id);
    this.#now++;
    slots.forEach((held, index) => {
      for (const slot of held) this.#noteIdle(index, slot);
    });
  }

  free(id: number): void {
    this.cache.freeRequest(id);
    const { blocks } = this.requests.get(id) as ModelRequest;
    this.requests.delete(id);
    this.#now++;
    blocks.forEach((own, index) => {
      for (const slot of own.values()) this.#noteIdle(index, slot);
    });
  }

  check(a: number, b: number): void {
    const stats = this.cache.stats();
    this.#o.groups.forEach((group, index) => {
      const holders = this.#holders(index);
      const published = this.#published[index] as Map<number, Content>;
      const pinned = new Set([...this.pins.values()].flatMap((pin) => [...(pin.slots[index] ?? [])]));
      const reusable = [...published.keys()].filter((slot) => !holders.has(slot)).length;
      expect(stats[index]).toEqual({
        slotCount: group.slotCount,
        free: group.slotCount - holders.size - reusable,
        reusable,
        pinned: pinned.size,
        ...(group.hostSlotCount > 0 ? { offloaded: this.#onHost[index]?.size } : {}),
      });
    });
    for (const [id, request] of this.requests) {
      expect(this.cache.isPinned(id)).toBe(this.pins.has(id));
      request.blocks.forEach((own, index) => {
        if (this.#o.groups[index]?.isState) {
          expect([...this.cache.getBlockIdsRange(id, index, 0, own.size).slots]).toEqual([...own.values()]);
          return;
        }
        const end = request.end === 0 ? 0 : b % (request.end + 1);
        for (const [from, to] of [
          [0, request.end],
          [end === 0 ? 0 : a % end, end],
        ] as const) {
          let begin = to;
          while (begin > from && own.has(begin - 1)) begin--;
          if (begin > from && own.has(from)) this.seen.gaps++;
          const run = this.cache.getBlockIdsRange(id, index, from, to);
          expect(run.begin).toBe(begin);
          expect([...run.slots]).toEqual(Array.from({ length: to - begin }, (_, offset) => own.get(begin + offset)));
        }
        const { end: asked, tableEnd } = request;
        expect([...this.cache.getSpeculativeBlockIds(id, index).slots]).toEqual(
          [...own]
            .filter(([ordinal]) => ordinal >= asked)
            .sort(([x], [y]) => x - y)
            .map(([, slot]) => slot),
        );
        expect(() => this.cache.getBlockIdsRange(id, index, 0, asked + 1)).toThrow(RangeError);
        expect(tableEnd).toBeGreaterThanOrEqual(asked);
        expect(new Set(own.values()).size).toBe(own.size);
        if (request.failed) expect(() => this.cache.pagesReady(id)).toThrow(/the device is gone/);
        else if (this.cache.pagesReady(id) === null) this.#checkContent(id, request, index);
      });
    }
  }

  /** Every page that may be read holds what it should, to the position. */
  #checkContent(id: number, request: ModelRequest, index: number): void {
    for (const [ordinal, slot] of request.blocks[index] ?? []) {
      if (request.unfilled[index]?.has(ordinal)) continue;
      const end = Math.min(request.computed, (ordinal + 1) * TPB);
      for (let position = ordinal * TPB; position < end; position++) {
        const content = this.memory.device[index]?.[slot]?.[position % TPB];
        expect(content, `group ${index} position ${position}`).toBe(contentOf(request.tokens, position + 1, id));
      }
    }
  }

  #expectedHit(tokens: readonly number[], receives: boolean): { prepopulatedLen: number; blocks: number } {
    const { groups, partialReuse } = this.#o;
    if (groups.some((group) => group.isState)) return { prepopulatedLen: 0, blocks: 0 };
    const available = groups.map((group, index) => group.slotCount - this.#holders(index).size);
    const costOf = (index: number, content: Content): number => {
      const slot = [...(this.#published[index] ?? [])].find(([, found]) => found === content)?.[0];
      if (slot !== undefined) return this.#holders(index).has(slot) ? 0 : 1;
      return [...(this.#onHost[index]?.values() ?? [])].includes(content) ? 1 : Infinity;
    };
    const costsOf = (blocks: number): number[] =>
      groups.map((_, index) => {
        let cost = 0;
        for (let ordinal = 0; ordinal < blocks; ordinal++) {
          if (this.#geometry.isSeen(index, ordinal, blocks * TPB))
            cost += costOf(index, contentOf(tokens, (ordinal + 1) * TPB));
        }
        return cost;
      });
    let blocks = Math.floor((tokens.length - 1) / TPB);
    while (costsOf(blocks).some((cost, index) => cost > (available[index] as number))) blocks--;
    let part = 0;
    if (partialReuse && !receives) {
      const costs = costsOf(blocks);
      const most = Math.min(tokens.length, (blocks + 1) * TPB) - 1;
      const candidates = new Set([...(this.#published[0]?.values() ?? []), ...(this.#onHost[0]?.values() ?? [])]);
      for (const content of candidates) {
        const theirs = content.split(',').map(Number);
        if (theirs.length !== (blocks + 1) * TPB) continue;
        let shared = 0;
        while (shared < most && theirs[shared] === tokens[shared]) shared++;
        const fits = groups.every((_, index) => {
          const cost = costOf(index, content);
          const slot = [...(this.#published[index] ?? [])].find(([, found]) => found === content)?.[0];
          const idle = slot !== undefined && !this.#holders(index).has(slot);
          return cost < Infinity && (costs[index] as number) + (idle ? 2 : 1) <= (available[index] as number);
        });
        if (fits) part = Math.max(part, shared - blocks * TPB);
      }
    }
    return { prepopulatedLen: blocks * TPB + part, blocks };
  }

  /** What the moves of the last call say of the pages. */
  #noteMoves(): void {
    const { handed } = this.memory;
    for (; this.#handedBefore < handed.length; this.#handedBefore++) {
      for (const move of handed[this.#handedBefore] as PageMove[]) {
        if (move.kind === 'onboard') this.#filledBy[move.group]?.set(move.slot, this.#handedBefore);
        if (move.kind === 'copy') this.#filledBy[move.group]?.set(move.toSlot, this.#handedBefore);
        if (move.kind === 'offload') {
          const content =
            this.#published[move.group]?.get(move.slot) ?? this.#evicted.get(`${move.group}:${move.slot}`);
          expect(content, 'only content is saved').toBeDefined();
          expect([...(this.#onHost[move.group]?.values() ?? [])]).not.toContain(content);
          this.#onHost[move.group]?.set(move.hostSlot, content as Content);
          this.seen.offloaded++;
        } else if (move.kind === 'onboard') this.seen.onboarded++;
        else {
          // Being copied is being used.
          this.#now++;
          this.#noteIdle(move.group, move.fromSlot);
        }
      }
    }
    this.#evicted.clear();
  }

  readonly #evicted = new Map<string, Content>();

  #handOut(index: number, slot: number): void {
    const holders = this.#holders(index);
    this.#filledBy[index]?.delete(slot);
    expect(holders.has(slot), `slot ${slot} of group ${index} is in two hands`).toBe(false);
    const published = this.#published[index] as Map<number, Content>;
    const content = published.get(slot);
    if (content !== undefined) {
      this.seen.evictions++;
      const idle = this.#idleSince[index] as Map<number, number>;
      for (let other = 0; other < (this.#o.groups[index] as ModelGroup).slotCount; other++) {
        if (holders.has(other)) continue;
        expect(published.has(other), 'a slot without content is taken first').toBe(true);
        expect(idle.get(other)).toBeGreaterThanOrEqual(idle.get(slot) as number);
      }
      this.#evicted.set(`${index}:${slot}`, content);
      published.delete(slot);
    }
    this.#idleSince[index]?.delete(slot);
  }

  #letGo(index: number, own: Map<number, number>, ordinal: number): void {
    const slot = own.get(ordinal) as number;
    own.delete(ordinal);
    this.#noteIdle(index, slot);
  }

  #noteIdle(index: number, slot: number): void {
    if (!this.#holders(index).has(slot)) this.#idleSince[index]?.set(slot, this.#now);
  }

  #holders(index: number): Set<number> {
    const held = new Set<number>();
    for (const request of this.requests.values())
      for (const slot of request.blocks[index]?.values() ?? []) held.add(slot);
    for (const pin of this.pins.values()) for (const slot of pin.slots[index] ?? []) held.add(slot);
    return held;
  }

  #heldOnlyBy(id: number, index: number, slot: number): boolean {
    for (const [other, request] of this.requests) {
      if (other !== id && [...(request.blocks[index]?.values() ?? [])].includes(slot)) return false;
    }
    return ![...this.pins.values()].some((pin) => pin.slots[index]?.has(slot) === true);
  }

  #slotOf(id: number, index: number, ordinal: number): number {
    const { end } = this.requests.get(id) as ModelRequest;
    const spare = this.cache.getSpeculativeBlockIds(id, index);
    const slot =
      ordinal < end || this.#o.groups[index]?.isState
        ? this.cache.getBlockIdsRange(id, index, ordinal, ordinal + 1).slots[0]
        : spare.slots[ordinal - spare.begin];
    if (slot === undefined) throw new Error(`group ${index}: block ${ordinal} was not allocated`);
    return slot;
  }
}
