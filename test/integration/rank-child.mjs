// One rank of an instance: node rank-child.mjs ROOT JSON, ROOT being the transpiled sources. Says what happens in lines of JSON.
import process from 'node:process';

const [root, json] = process.argv.slice(2);
const options = JSON.parse(json);
const { openRankGroup } = await import(`${root}/rank-group/index.js`);
const { Executor, createRequest } = await import(`${root}/executor/index.js`);
const { GrowingCacheManager } = await import(`${root}/cache/index.js`);
const { TransferLedger } = await import(`${root}/session/transfer-ledger.js`);
const { SystemClock } = await import(`${root}/clock.js`);

const say = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);
const told = (error) => ({ name: error.name, code: error.code, message: error.message });
process.on('uncaughtException', (error) => {
  say({ kind: 'crash', message: String(error.stack) });
  process.exit(1);
});

let group;
say({ kind: 'joining' });
try {
  group = await openRankGroup({ ...options.group, nonce: BigInt(options.group.nonce) });
} catch (error) {
  say({ kind: 'refused', ...told(error) });
  process.exit(0);
}
say({ kind: 'joined' });

const CHECK = { planHash: 1, prompts: 0, promptTokens: 0, decodes: 0, receives: 0, freeSlots: 9, live: 0 };
const EMPTY = {
  afterRest: true,
  leaving: false,
  check: CHECK,
  offered: [],
  cancelled: [],
  forwardError: null,
  ready: [],
  ended: [],
  drained: [],
};

const modes = {
  /** Exchanges reports by hand: `steps` right ones, then what `last` changes. */
  async exchange() {
    try {
      for (let step = 1; step <= options.steps; step++) {
        const reports = await group.exchange({ ...EMPTY, step, cancelled: [options.group.rank * 100 + step] });
        say({ kind: 'agreed', cancelled: reports.map((report) => report.cancelled[0]) });
      }
      if (options.last === 'nothing') return;
      await group.exchange({ ...EMPTY, step: options.steps + 1, ...options.last });
      say({ kind: 'agreed' });
    } catch (error) {
      say({ kind: 'error', ...told(error) });
    }
  },
  /** Joins and never says a word more; its messenger answers. */
  stayAway: () => new Promise(() => {}),
  /** An executor whose transfers take random times; `count` requests, then what was scheduled is told. */
  async execute() {
    const { rank } = options.group;
    const pick = (limit) => Math.floor(Math.random() * limit);
    const group1 = { kind: 'attention', windowSize: null, tokensPerBlock: 4, layers: [0], slotCount: 48 };
    const cache = new GrowingCacheManager({ tokensPerBlock: 4, layerGroups: [group1] });
    let wake = () => {};
    const ledger = new TransferLedger(cache, () => wake());
    const settled = [];
    const open = new Set();
    const later = (action) => setTimeout(action, options.transferMs ?? pick(15));
    const end = (request, outcome, error) => {
      if (!open.delete(request)) return;
      settled.push({ request, side: 'context', outcome, error, firstTokens: [], timings: null });
      setTimeout(() => {
        if (ledger.holds(request.id)) ledger.settle(request.id);
      }, pick(10));
      wake();
    };
    const transceiver = {
      ledger,
      respondAndSendAsync(request) {
        ledger.acquire(request.id);
        open.add(request);
        const isLast = request.chunkEnd === request.promptTokens.length;
        if (isLast) {
          ledger.complete(request.id);
          later(() => end(request, 'completed', null));
        }
        return { beginBlock: 0, endBlock: 1, isLast };
      },
      sendEarlyPrefix: () => null,
      requestAndReceiveAsync() {},
      receiverReady: () => true,
      cancelRequest(request) {
        end(request, 'cancelled', new Error('cancelled'));
        return false;
      },
      takeSettled: () => settled.splice(0),
      onActivity(listener) {
        wake = listener;
      },
    };
    const batches = [];
    const engine = {
      async forward(batch) {
        const pages = ({ request, chunkEnd }) =>
          cache.getBlockIdsRange(request.id, 0, 0, Math.ceil(chunkEnd / 4)).slots.join(',');
        batches.push(batch.context.map((w) => `${w.request.id}[${w.chunkStart},${w.chunkEnd}) ${pages(w)}`).join(' '));
        const tokens = new Map(batch.context.map(({ request }) => [request, request.id]));
        return { event: null, tokens: Promise.resolve(tokens) };
      },
    };
    const outcomes = [];
    let finish = () => {};
    const finished = new Promise((resolve) => {
      finish = resolve;
    });
    const executor = new Executor({
      clock: new SystemClock(),
      cache,
      transceiver,
      engine,
      limits: { chunkTokens: 8, tokenBudget: 32, maxTokensInBuffer: null },
      rankGroup: group,
      events: {
        onFinished(request, outcome) {
          outcomes.push(`${request.id} ${outcome} ${request.error?.code ?? ''}`);
          if (outcomes.length === options.count) finish();
        },
        onRankGroupLost: (error) => say({ kind: 'lost', ...told(error) }),
      },
    });
    const disagg = {
      requestType: 'context_only',
      scheduleStyle: 'generation_first',
      ctxRequestId: null,
      ctxDpRank: null,
      ctxInfoEndpoint: null,
      firstGenTokens: [],
      draftTokens: [],
      traceparent: '',
    };
    for (let id = 1; id <= options.count; id++) {
      const promptTokens = Uint32Array.from({ length: 5 + ((id * 7) % 30) }, (_, i) => id * 100 + i);
      const transferPolicy = { pipelined: true, earlyPrefix: false };
      executor.submit(
        createRequest({
          id,
          promptTokens,
          maxTokens: 2,
          disagg: { ...disagg, disaggRequestId: BigInt(id) },
          transferPolicy,
        }),
      );
      // The last one is cancelled before it can have begun.
      if (id < options.count && pick(3) === 0) await new Promise((resolve) => setTimeout(resolve, pick(3)));
    }
    if (rank === 0) executor.cancel(options.count);
    say({ kind: 'submitted' });
    await finished;
    // The pages of the last ones come back when all ranks have drained.
    while (cache.stats().some(({ pinned }) => pinned > 0)) await new Promise((resolve) => setTimeout(resolve, 5));
    const exchanges = executor.stats().rankGroup.exchanges;
    await new Promise((resolve) => setTimeout(resolve, options.idleMs ?? 0));
    say({
      kind: 'done',
      batches,
      outcomes: outcomes.toSorted(),
      idleExchanges: executor.stats().rankGroup.exchanges - exchanges,
      held: ledger.heldCount,
      free: cache.stats().map(({ free, reusable }) => free + reusable),
    });
    await executor.close();
  },
};

await modes[options.mode]();
await group.close();
