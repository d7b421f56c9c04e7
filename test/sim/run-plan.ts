import { Cluster } from './cluster/cluster.js';
import type { Violation } from './core/journal.js';
import { NEVER_MS } from './parts/sim-agent.js';
import { describeFault, describeRequest, type Fault, type Plan, type RequestItem } from './plan.js';

export interface RunReport {
  readonly seed: number;
  readonly violations: readonly Violation[];
  /** Of everything that happened: equal hashes are equal runs. */
  readonly hash: string;
  /** Request lives, those of the health check included. */
  readonly lives: number;
  readonly completed: number;
  readonly events: number;
  readonly virtualMs: number;
  /** Filled when the run was told to tell. */
  readonly story: readonly string[];
  readonly counters: Readonly<Record<string, number>>;
}

export interface RunOptions {
  /** Write the story down. */
  readonly tell?: boolean;
  /** Called with the cluster before the first event: scenarios add what no fault describes. */
  readonly prepare?: (cluster: Cluster) => void;
  /** Called at quiescence, before the health check. */
  readonly check?: (cluster: Cluster) => void;
}

/** More than any life of a run needs; a run that takes more spins. */
const EVENTS_PER_RUN = 2_000_000;
/** Greetings that nobody answers end after this. */
const HELLO_TIMEOUT_MS = 5000;
const SHUTDOWN_MS = 4000;

/** Lives one plan to quiescence, and beyond: a healthy transfer, then a shutdown of every server. Call it through `inMacrotask`. */
export function runPlan(plan: Plan, options: RunOptions = {}): RunReport {
  const cluster = new Cluster(plan, options.tell === true);
  const { scheduler, journal } = cluster;
  const { limits } = plan.shape;
  if (options.tell === true) {
    for (const item of plan.requests) journal.lines.push(`plan: ${describeRequest(item)}`);
    for (const fault of plan.faults) journal.lines.push(`plan: ${describeFault(fault)}`);
  }
  for (const item of plan.requests) scheduler.at(item.atMs, null, () => cluster.admit(item));
  for (const fault of plan.faults) schedule(cluster, plan, fault);
  options.prepare?.(cluster);

  let events = 0;
  /** Lets time pass until `done`, looked at every `everyMs`. False: the limit came first. */
  const until = (done: () => boolean, limitMs: number, everyMs = 50): boolean => {
    const limit = scheduler.now + limitMs;
    for (;;) {
      const stop = Math.min(limit, scheduler.now + everyMs);
      while (scheduler.step(stop)) {
        events += 1;
        if (events > EVENTS_PER_RUN) {
          journal.violation('I2 spin', `${EVENTS_PER_RUN} events and no end`);
          return false;
        }
      }
      scheduler.now = Math.max(scheduler.now, stop);
      if (journal.violations.length > 0) return false;
      if (done()) return true;
      if (scheduler.now >= limit) return false;
    }
  };
  const failed = (): boolean => journal.violations.length > 0;
  const finish = (): RunReport => report(cluster, plan, events);

  const lastMs = lastActMs(plan);
  until(() => false, lastMs + 1);
  if (failed()) return finish();
  // Everyone waits for everyone in a starved pool: each may need a whole clock of each before it.
  const outcomeLimitMs = NEVER_MS + 10_000 + plan.requests.length * limits.transferQueueTimeoutMs;
  const allOver = until(() => cluster.lives.every((life) => life.open === 0), outcomeLimitMs);
  checkBounds(cluster);
  if (failed()) return finish();
  if (!allOver) {
    const open = cluster.lives.filter((life) => life.open > 0).map((life) => life.item.number);
    journal.violation('I2 no outcome', `requests ${open.join(', ')} have none after ${Math.round(scheduler.now)} ms`);
    return finish();
  }
  cluster.endFaults();
  const quietLimitMs = NEVER_MS + 2 * limits.kvTransferTimeoutMs + limits.transferQueueTimeoutMs + HELLO_TIMEOUT_MS;
  const living = (): readonly (typeof cluster.hosts)[number][] => cluster.hosts.filter((host) => host.alive);
  const quiet = until(() => living().every((host) => host.server.leftovers() === null), quietLimitMs, 200);
  if (failed()) return finish();
  if (!quiet) {
    for (const { server } of living()) {
      const left = server.leftovers();
      if (left !== null) journal.violation('I1 leak', `${server.name}: ${left} at quiescence`);
    }
    return finish();
  }
  checkBounds(cluster);
  checkQuiet(cluster, plan);
  options.check?.(cluster);
  if (failed()) return finish();
  checkHealth(cluster, plan, until);
  // An attempt that failed there may have left pages to retain for a while.
  until(() => living().every((host) => host.server.leftovers() === null), quietLimitMs, 200);
  if (failed()) return finish();
  checkShutdown(cluster, until);
  return finish();
}

function schedule(cluster: Cluster, plan: Plan, fault: Fault): void {
  const { scheduler } = cluster;
  switch (fault.kind) {
    case 'break':
      scheduler.at(fault.atMs, null, () =>
        cluster.network.breakConnection(cluster.at(fault.from).infoEndpoint, cluster.at(fault.to).infoEndpoint),
      );
      return;
    case 'crash':
      scheduler.at(fault.atMs, null, () => cluster.at(fault.host).crash(fault.noticed));
      if (fault.restartAfterMs !== null)
        scheduler.at(fault.atMs + fault.restartAfterMs, null, () => cluster.at(fault.host).restart());
      return;
    case 'shutdown':
      scheduler.at(fault.atMs, null, () => cluster.at(fault.host).shutDown(SHUTDOWN_MS));
      if (fault.restartAfterMs !== null)
        scheduler.at(fault.atMs + 2 * SHUTDOWN_MS + fault.restartAfterMs, null, () => cluster.at(fault.host).restart());
      return;
    case 'stop':
      scheduler.at(fault.atMs, null, () => {
        const { process } = cluster.at(fault.host).server;
        cluster.journal.note(40, 0, fault.ms, () => `${process.name} stops for ${Math.round(fault.ms)} ms`);
        scheduler.stop(process, fault.ms);
      });
      return;
    case 'jump':
      scheduler.at(fault.atMs, null, () => {
        const { process } = cluster.at(fault.host).server;
        cluster.journal.note(41, 0, fault.ms, () => `the clock of ${process.name} jumps ${Math.round(fault.ms)} ms`);
        scheduler.jump(process, fault.ms);
      });
      return;
    case 'cancel': {
      const item = plan.requests.find(({ number }) => number === fault.request);
      if (item === undefined) return;
      scheduler.at(item.atMs + fault.afterMs, null, () =>
        cluster.lives.find((life) => life.item.number === fault.request)?.cancel(fault.by),
      );
      return;
    }
    default:
    // Frames, transfers and forwards: the injector answers when they happen.
  }
}

function lastActMs(plan: Plan): number {
  let last = 0;
  const arrivals = new Map<number, number>();
  for (const { number, atMs, lagMs } of plan.requests) {
    arrivals.set(number, atMs);
    last = Math.max(last, atMs + Math.abs(lagMs));
  }
  for (const fault of plan.faults) {
    if ('toMs' in fault) last = Math.max(last, fault.toMs);
    if ('atMs' in fault) last = Math.max(last, fault.atMs + ('ms' in fault ? fault.ms : 0));
    if ('restartAfterMs' in fault)
      last = Math.max(
        last,
        fault.atMs + (fault.restartAfterMs ?? 0) + (fault.kind === 'shutdown' ? 2 * SHUTDOWN_MS : 0),
      );
    if (fault.kind === 'cancel') last = Math.max(last, (arrivals.get(fault.request) ?? 0) + fault.afterMs);
  }
  return last;
}

function checkBounds(cluster: Cluster): void {
  for (const { server } of cluster.hosts) if (server.process.state !== 'dead') server.watched.checkBounds();
}

/** Kinds of faults that can delay a frame or a process. */
const DISTURBING: ReadonlySet<Fault['kind']> = new Set([
  'loss',
  'delay',
  'truncate',
  'partition',
  'frame',
  'break',
  'crash',
  'shutdown',
  'stop',
  'jump',
]);

function checkQuiet(cluster: Cluster, plan: Plan): void {
  const { journal } = cluster;
  const calm = !plan.faults.some((fault) => DISTURBING.has(fault.kind));
  if (calm) cluster.book.checkPropagation();
  if (plan.faults.every(({ kind }) => kind === 'cancel' || kind === 'duplicate')) checkUnfounded(cluster);
  const endless = plan.faults.some((fault) => fault.kind === 'transfers' && fault.fate === 'never');
  for (const { server, alive } of cluster.hosts) {
    if (!alive) continue;
    server.pages.checkIdle();
    const unproven = server.transceiver.stats().counters['released_unproven'] ?? 0;
    if (calm && !endless && unproven > 0)
      journal.violation(
        'I1 unproven',
        `${server.name}: ${unproven} releases without proof while every writer could give it`,
      );
    const told = server.warnings.filter((warning) => warning.includes('without proof')).length;
    if (unproven !== told)
      journal.violation('I9 silent', `${server.name}: ${unproven} unproven releases, ${told} told`);
    for (const request of server.watched.unsettled)
      journal.violation('I2 no outcome', `${server.name}: request ${request.id} never settled`);
  }
}

/** What may end a request that nothing happened to: others that took what it needed. */
const STARVED: ReadonlySet<string> = new Set(['ERR_KVT_RESOURCE', 'ERR_KVT_REQUEST_TOO_LARGE']);

/** The same, as the other side tells it; a prompt that waits for blocks in its middle makes no progress. */
const STARVED_TEXTS: readonly string[] = ['transferQueueTimeoutMs', 'noProgressTimeoutMs', 'no blocks for its prompt'];

/** Nothing went wrong, so nothing may fail. */
function checkUnfounded(cluster: Cluster): void {
  for (const { item, endings, cancelled } of cluster.lives) {
    if (cancelled || item.entrance === 'context-only' || item.entrance === 'generation-only') continue;
    const failures = endings.filter(({ outcome }) => outcome !== 'completed');
    const starved = failures.some(
      ({ code, message }) => STARVED.has(code ?? '') || STARVED_TEXTS.some((text) => message?.includes(text) === true),
    );
    const [first] = failures;
    if (first === undefined || starved) continue;
    cluster.journal.violation(
      'I2 unfounded',
      `request ${item.number}, ${first.who}: ${first.outcome} (${first.message})`,
    );
  }
}

type Until = (done: () => boolean, limitMs: number, everyMs?: number) => boolean;

/** After everything: each generation server that lives gets a request from a context server that lives, and it must work. */
function checkHealth(cluster: Cluster, plan: Plan, until: Until): void {
  const { journal } = cluster;
  const context = cluster.contexts.findIndex((host) => host.alive);
  if (context < 0) return;
  cluster.generations.forEach((host, generation) => {
    if (!host.alive || journal.violations.length > 0) return;
    const item: RequestItem = {
      number: 10_000 + generation,
      atMs: 0,
      entrance: 'coordinated',
      context,
      generation,
      style: 'generation_first',
      pipelined: true,
      earlyPrefix: true,
      promptLen: 13,
      family: (plan.seed + generation) % 6,
      maxTokens: 2,
      lagMs: 0,
    };
    const works = (number: number): boolean => {
      const life = cluster.admit({ ...item, number });
      until(() => life.open === 0, 20_000);
      // A failed attempt may retain its pages and its aux slot for a while.
      until(() => host.server.leftovers() === null, 20_000, 200);
      return life.completed;
    };
    // The first may be the one that finds out that a peer was replaced.
    if (works(item.number) || works(item.number + 100) || journal.violations.length > 0) return;
    journal.violation('I2 wedged', `${host.name} cannot receive from context${context} after everything ended`);
  });
}

function checkShutdown(cluster: Cluster, until: Until): void {
  const living = cluster.hosts.filter((host) => host.alive);
  for (const host of living) host.shutDown(SHUTDOWN_MS);
  until(() => living.every(({ server }) => server.closed !== null), 3 * SHUTDOWN_MS);
  for (const { server } of living) {
    if (server.closed?.drained === true) continue;
    const what = server.closed === null ? 'does not end' : `leaves ${server.closed.outstanding} outstanding`;
    cluster.journal.violation('I1 shutdown', `${server.name}: shutdown of an idle server ${what}`);
  }
}

function report(cluster: Cluster, plan: Plan, events: number): RunReport {
  const { journal, lives, scheduler } = cluster;
  const counters: Record<string, number> = {};
  for (const host of cluster.hosts)
    for (const server of host.history)
      for (const [name, count] of Object.entries(server.transceiver.stats().counters))
        counters[name] = (counters[name] ?? 0) + count;
  return {
    seed: plan.seed,
    violations: journal.violations,
    hash: journal.hash,
    lives: lives.length,
    completed: lives.filter((life) => life.completed).length,
    events,
    virtualMs: scheduler.now,
    story: journal.lines,
    counters,
  };
}
