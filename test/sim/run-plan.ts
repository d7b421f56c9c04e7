import { requestKey } from '../../src/executor/request.js';
import { Cluster } from './cluster/cluster.js';
import { KNOWN_WITHIN_MS } from './cluster/settle-book.js';
import type { SimServer } from './cluster/sim-server.js';
import { NEVER_MS } from './parts/sim-agent.js';
import type { WatchedTransceiver } from './parts/watched-transceiver.js';
import {
  describeFault,
  describeRequest,
  describeShape,
  type Fault,
  type HostRef,
  type Plan,
  type RequestItem,
} from './plan.js';
import { RunReport } from './run-report.js';

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
    journal.lines.push(`plan: ${describeShape(plan.shape)}`);
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
        cluster.checkLeases();
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
  const finish = (): RunReport => new RunReport(cluster, plan, events);

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
  const isQuiet = (): boolean => cluster.servers.every((server) => server.isIdle);
  const quiet = until(isQuiet, quietLimitMs, 200);
  if (failed()) return finish();
  if (!quiet) {
    for (const server of cluster.servers) {
      const left = server.leftovers();
      if (left !== null) journal.violation('I1 leak', `${server.name}: ${left} at quiescence`);
    }
    return finish();
  }
  checkBounds(cluster);
  checkQuiet(cluster, plan, options.prepare === undefined);
  options.check?.(cluster);
  if (failed()) return finish();
  if (plan.shape.generationDtype === undefined) checkHealth(cluster, plan, until);
  // An attempt that failed there may have left pages to retain for a while.
  until(isQuiet, quietLimitMs, 200);
  for (const host of cluster.hosts) host.instance.checkAlike();
  if (failed()) return finish();
  checkShutdown(cluster, until);
  return finish();
}

function schedule(cluster: Cluster, plan: Plan, fault: Fault): void {
  const { scheduler } = cluster;
  switch (fault.kind) {
    case 'break':
      scheduler.at(fault.atMs, null, () =>
        eachPair(cluster, fault, (from, to) => cluster.network.breakConnection(from, to)),
      );
      return;
    case 'crash': {
      scheduler.at(fault.atMs, null, () => {
        const host = cluster.at(fault.host);
        const gone = host.running.filter(({ rank }) => (fault.rank ?? rank) === rank);
        host.crash(fault.noticed, fault.rank ?? null);
        if (fault.noticed) for (const server of gone) expectLossKnown(cluster, fault.host, server);
      });
      const { rank } = fault;
      if (fault.restartAfterMs !== null && fault.aloneFirst === true && rank !== undefined)
        scheduler.at(fault.atMs + fault.restartAfterMs / 2, null, () => cluster.at(fault.host).restartRank(rank));
      if (fault.restartAfterMs !== null)
        scheduler.at(fault.atMs + fault.restartAfterMs, null, () => cluster.at(fault.host).restart());
      return;
    }
    case 'shutdown':
      scheduler.at(fault.atMs, null, () => cluster.at(fault.host).shutDown(SHUTDOWN_MS));
      if (fault.restartAfterMs !== null)
        scheduler.at(fault.atMs + 2 * SHUTDOWN_MS + fault.restartAfterMs, null, () => cluster.at(fault.host).restart());
      return;
    case 'stop':
      scheduler.at(fault.atMs, null, () => {
        for (const { process, rank } of cluster.at(fault.host).instance.ranks) {
          if ((fault.rank ?? rank) !== rank) continue;
          cluster.journal.note(40, rank, fault.ms, () => `${process.name} stops for ${Math.round(fault.ms)} ms`);
          scheduler.stop(process, fault.ms);
        }
      });
      return;
    case 'jump':
      scheduler.at(fault.atMs, null, () => {
        for (const { process, rank } of cluster.at(fault.host).instance.ranks) {
          if ((fault.rank ?? rank) !== rank) continue;
          cluster.journal.note(
            41,
            rank,
            fault.ms,
            () => `the clock of ${process.name} jumps ${Math.round(fault.ms)} ms`,
          );
          scheduler.jump(process, fault.ms);
        }
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

function eachPair(
  cluster: Cluster,
  { from, to }: { readonly from: HostRef; readonly to: HostRef },
  visit: (from: string, to: string) => void,
): void {
  for (const { endpoint } of cluster.at(from).instance.ranks)
    for (const other of cluster.at(to).instance.ranks) visit(endpoint, other.endpoint);
}

/** How soon a side must have ended what it had with a process whose end its sockets noticed. */
const LOSS_KNOWN_MS = 1500;

function expectLossKnown(cluster: Cluster, gone: HostRef, lost: SimServer): void {
  for (const life of cluster.lives) {
    const { item, rid } = life;
    const side = gone.side === 'context' ? 'generation' : 'context';
    const known = side === 'context' ? cluster.book.accepted : cluster.book.asked;
    if (item[gone.side] !== gone.index || rid === null || !known.has(rid)) continue;
    for (const server of cluster.at({ side, index: item[side] }).running) {
      const waits = (): boolean => server.watched.unsettled.some((request) => requestKey(request) === rid);
      // A restarted server that was never greeted has no connection whose end it could notice.
      const name = `${gone.side}${gone.index} rank ${lost.rank} `;
      const knows = server.transceiver.stats().peers.some((peer) => peer.startsWith(name));
      const [asker, writer] = side === 'context' ? [lost, server] : [server, lost];
      if (!knows || !cluster.book.hasAsked(rid, asker.name, writer.endpoint)) continue;
      // Nobody said which DP group has the request: it may be another one, which is asked once it is greeted.
      const named = server.watched.unsettled.find((request) => requestKey(request) === rid)?.disagg?.ctxDpRank ?? null;
      const isElsewhere = ({ dpRank }: SimServer): boolean => named === null && dpRank !== lost.dpRank;
      if (side === 'generation' && cluster.at(gone).instance.ranks.some(isElsewhere)) continue;
      // The request names a rank that is no peer yet: until it is, nobody's question counts, and nobody's end.
      const owner = server.watched.unsettled.find((request) => requestKey(request) === rid)?.disagg?.genInfoEndpoint;
      const ownerKnown = server.transceiver.stats().peers.some((peer) => peer.includes(owner ?? ''));
      if (side === 'context' && !ownerKnown) continue;
      // A writer that has done its part may go, and a receiver that was sent its part: their siblings are waited for.
      const isDone = (): boolean =>
        side === 'context'
          ? cluster.book.hasSentAll(rid, server.endpoint, lost.endpoint)
          : cluster.book.hasAllOf(rid, lost.endpoint, server.endpoint);
      // Ranks say what they agreed on: one that waits for a sibling which went without a word has the clock of its group.
      const agrees = (): boolean =>
        cluster
          .at({ side, index: item[side] })
          .instance.siblingsOf(server)
          .every(({ process }) => process.state === 'running');
      const isOpen = (): boolean => waits() && !isDone() && agrees();
      if (server.process.state !== 'running' || !isOpen()) continue;
      const lostMs = server.process.lostMs;
      cluster.scheduler.at(LOSS_KNOWN_MS, null, () => {
        if (server.process.state !== 'running' || server.closing || server.process.lostMs !== lostMs || !isOpen())
          return;
        cluster.journal.violation(
          'I2 loss',
          `${server.name} still waits for request ${item.number} of ${lost.name}, which is gone`,
        );
      });
    }
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
  for (const host of cluster.hosts)
    for (const { process, watched } of host.instance.ranks) if (process.state !== 'dead') watched.checkBounds();
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

function loses(fault: Fault): boolean {
  return fault.kind === 'loss' || (fault.kind === 'frame' && fault.copies === 0);
}

function checkQuiet(cluster: Cluster, plan: Plan, asPlanned: boolean): void {
  const { journal } = cluster;
  const calm = !plan.faults.some((fault) => DISTURBING.has(fault.kind));
  if (plan.faults.every((fault) => !DISTURBING.has(fault.kind) || loses(fault)))
    cluster.book.checkPropagation(cluster.lostFrames);
  if (calm && plan.shape.joinWithinMs <= 1) checkCancelsHeard(cluster);
  const swift = calm && !plan.faults.some((fault) => fault.kind === 'transfers');
  if (swift && asPlanned)
    for (const server of cluster.servers)
      server.watched.checkReleases(KNOWN_WITHIN_MS, lateSiblings(cluster, plan, server));
  const alike = plan.shape.generationDtype === undefined;
  if (asPlanned && alike && isGentle(plan)) checkUnfounded(cluster);
  const endless = plan.faults.some((fault) => fault.kind === 'transfers' && fault.fate === 'never');
  for (const server of cluster.servers) {
    server.pages.checkIdle();
    const { counters } = server.transceiver.stats();
    const unproven = counters['released_unproven'] ?? 0;
    if (calm && !endless && unproven > 0)
      journal.violation(
        'I1 unproven',
        `${server.name}: ${unproven} releases without proof while every writer could give it`,
      );
    const unheard = counters['reports_unacknowledged'] ?? 0;
    if (calm && unheard > 0)
      journal.violation('I2 unheard', `${server.name}: ${unheard} reports were never acknowledged`);
    const told = server.warnings.filter((warning) => warning.includes('without proof')).length;
    if (unproven !== told)
      journal.violation('I9 silent', `${server.name}: ${unproven} unproven releases, ${told} told`);
    for (const request of server.watched.unsettled)
      journal.violation('I2 no outcome', `${server.name}: request ${request.id} never settled`);
  }
}

/**
 * Ranks that share the pages of their requests with this one, where that may keep them: a rank of either side that joins its instance late greets
 * late, or is greeted late, so that its receive may begin when those of its siblings are over.
 */
function lateSiblings({ hosts }: Cluster, { shape }: Plan, server: SimServer): readonly WatchedTransceiver[] {
  if (shape.joinWithinMs <= 1) return [];
  const instance = hosts.map((host) => host.instance).find(({ ranks }) => ranks.includes(server));
  return (instance?.siblingsOf(server) ?? []).map(({ watched }) => watched);
}

/** A receive that its user gave up, before or after its pages were asked for, does not keep the context side waiting. */
function checkCancelsHeard(cluster: Cluster): void {
  for (const { item, endings, cancelled } of cluster.lives) {
    const [context, generation] = (['context', 'generation'] as const).map((side) =>
      endings.find(({ who }) => who === side),
    );
    if (!cancelled || context === undefined || generation?.outcome !== 'cancelled') continue;
    const cameMs = item.atMs + Math.max(0, item.lagMs);
    const lateMs = context.atMs - Math.max(generation.atMs, cameMs);
    if (lateMs > KNOWN_WITHIN_MS)
      cluster.journal.violation(
        'I2 late',
        `request ${item.number}: context waited ${Math.round(lateMs)} ms for a receive that had been cancelled`,
      );
  }
}

/** Frames of a type that may be lost without an effect on any outcome: repeats come well before every clock. */
const LOSSES_REPAIRED = 2;

/** Nothing happens that the protocol does not have to make good. */
function isGentle(plan: Plan): boolean {
  // Who asks an instance that has not come together yet may wait for its clocks.
  if (plan.shape.joinWithinMs > 1) return false;
  const losses = new Map<string, number>();
  for (const fault of plan.faults) {
    if (fault.kind === 'cancel' || fault.kind === 'duplicate') continue;
    if (fault.kind !== 'frame' || fault.type === 'PING' || fault.type === 'PONG') return false;
    if (fault.delayMs > 0) return false;
    if (fault.copies === 0) losses.set(fault.type, (losses.get(fault.type) ?? 0) + fault.count);
  }
  return [...losses.values()].every((count) => count <= LOSSES_REPAIRED);
}

/** What may end a request that nothing happened to: others that took what it needed. */
const STARVED: ReadonlySet<string> = new Set(['ERR_KVT_RESOURCE', 'ERR_KVT_REQUEST_TOO_LARGE']);

/** The same, as the other side tells it. */
const STARVED_TEXTS: readonly string[] = ['transferQueueTimeoutMs', 'no blocks for '];

/** Nothing went wrong, so nothing may fail. */
function checkUnfounded(cluster: Cluster): void {
  for (const life of cluster.lives) {
    const { item, endings, cancelled } = life;
    if (cancelled || item.entrance === 'context-only' || item.entrance === 'generation-only') continue;
    const failures = endings.filter(({ outcome }) => outcome !== 'completed');
    const starved = failures.some(
      ({ code, message }) => STARVED.has(code ?? '') || STARVED_TEXTS.some((text) => message?.includes(text) === true),
    );
    // A prompt that waits for blocks in its middle makes no progress.
    const stalled = failures.some(({ message }) => message?.includes('noProgressTimeoutMs') === true);
    const [first] = failures;
    if (first === undefined || starved || (stalled && !cluster.book.promptIsOut(life.rid))) continue;
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
      until(() => host.running.every((server) => server.isIdle), 20_000, 200);
      return life.completed;
    };
    // The first may be the one that finds out that a peer was replaced a moment ago, in each DP group for itself.
    for (let attempt = 0; attempt <= plan.shape.generation.dpSize; attempt++)
      if (works(item.number + 100 * attempt) || journal.violations.length > 0) return;
    journal.violation('I2 wedged', `${host.name} cannot receive from context${context} after everything ended`);
  });
}

function checkShutdown(cluster: Cluster, until: Until): void {
  const living = cluster.servers;
  for (const host of cluster.hosts) host.shutDown(SHUTDOWN_MS);
  until(() => living.every((server) => server.closed !== null), 3 * SHUTDOWN_MS);
  for (const server of living) {
    if (server.closed?.drained === true) continue;
    const what = server.closed === null ? 'does not end' : `leaves ${server.closed.outstanding} outstanding`;
    cluster.journal.violation('I1 shutdown', `${server.name}: shutdown of an idle server ${what}`);
  }
}
