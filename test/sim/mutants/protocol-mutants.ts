import type { Mutant } from './mutant.js';

const REPORTS = 'src/session/writer-reports.ts';
const REPEATER = 'src/session/repeater.ts';
const REGISTRY = 'src/session/peer-registry.ts';
const LIVENESS = 'src/session/peer-liveness.ts';
const GREETINGS = 'src/session/greetings.ts';
const LEDGER = 'src/session/transfer-ledger.ts';
const EARLY = 'src/session/early-requests.ts';
const CLOCKS = 'src/session/request-clocks.ts';
const TRANSCEIVER = 'src/transceiver.ts';

/** Reports, repeats, peers, ledger, clocks. */
export const PROTOCOL_MUTANTS: readonly Mutant[] = [
  {
    name: 'a report is sent once',
    file: REPORTS,
    find: 'this.#repeater.start(ticket, () => this.#channel.send(endpoint, report));',
    replace: 'this.#channel.send(endpoint, report);',
  },
  {
    name: 'a report is sent before it is recorded, and the record is lost',
    file: REPORTS,
    find: 'publish(endpoint: string, report: WriterReport): void {\n    this.#known.set(report.ticket, report, endpoint);',
    replace: 'publish(endpoint: string, report: WriterReport): void {',
  },
  {
    name: 'the answer to a question is not remembered',
    file: REPORTS,
    find: 'answer(to: Correspondent, report: WriterReport): void {\n    this.#known.set(report.ticket, report, ownerOf(to));',
    replace: 'answer(to: Correspondent, report: WriterReport): void {',
  },
  {
    name: 'an ack of the undrained report answers the drained one',
    file: REPORTS,
    find: 'if (this.#open.get(ticket)?.report.drained !== drained) return;',
    replace: 'void drained;',
  },
  {
    name: 'an ack does not stop the repeats',
    file: REPORTS,
    find: '    this.#stop(ticket);\n  }\n\n  sweep',
    replace: '  }\n\n  sweep',
  },
  {
    name: 'unacknowledged reports are repeated for ever',
    file: REPORTS,
    find: "this.#counters.add('reports_unacknowledged');\n      this.#stop(ticket);",
    replace: "this.#counters.add('reports_unacknowledged');",
  },
  {
    name: 'the first repeat is forgotten',
    file: REPEATER,
    find: 'this.#enter(key, entry, Math.min(stage + 1, WAITS_MS.length - 1));',
    replace: '',
  },
  {
    name: 'a new process at an endpoint is taken for the old one',
    file: REGISTRY,
    find: 'if (known !== undefined && known.incarnation !== incarnation)\n',
    replace: 'if (known !== undefined && known.incarnation < 0n)\n',
  },
  {
    name: 'a silent peer is never lost',
    file: LIVENESS,
    find: 'if (now - (this.#lastHeardMs.get(peer) ?? now) >= PEER_DEAD_AFTER_MS)',
    replace: 'if (now < 0)',
  },
  {
    name: 'a broken connection is not noticed',
    file: REGISTRY,
    find: "if (peer !== undefined) this.lose(peer, 'its connection broke');",
    replace: '',
  },
  {
    name: 'a greeting without answer never ends',
    file: GREETINGS,
    find: 'now - startedAtMs >= timeoutMs',
    replace: 'now - startedAtMs < 0',
  },
  {
    name: 'HELLO is sent once',
    file: GREETINGS,
    find: 'this.#repeater.start(endpoint, () => send(nonce, attempts++));',
    replace: 'send(nonce, attempts++);',
  },
  {
    name: 'an accepted HELLO that is repeated gets no answer',
    file: REGISTRY,
    find: 'this.#answers.accept(claim);\n      return;',
    replace: 'return;',
  },
  {
    name: 'a stranger’s ping is not answered',
    file: REGISTRY,
    find: "this.#channel.reply(origin, { type: 'GOODBYE', endpoint, drainMs: 0, reason });",
    replace: 'void reason;',
  },
  {
    name: 'pages are unpinned when the last slice was submitted',
    file: LEDGER,
    find: "this.#holds.set(request, this.#next(request, 'complete'));",
    replace: "this.#holds.set(request, this.#next(request, 'complete'));\n    this.settle(request);",
  },
  {
    name: 'settle does not unpin',
    file: LEDGER,
    find: 'this.#cache.unpin(request);',
    replace: '',
  },
  {
    name: 'early questions are not kept',
    file: EARLY,
    find: 'this.#requests.set(rid, entries);\n',
    replace: '\n',
  },
  {
    name: 'a remembered cancel is not taken',
    file: EARLY,
    find: 'const cancels = this.#cancels.get(rid) ?? [];\n',
    replace: 'const cancels: EarlyCancel[] = [];\n',
  },
  {
    name: 'the queue clock never runs out',
    file: CLOCKS,
    find: 'if (this.#waitingForPeer && now - this.#createdAtMs >= transferQueueTimeoutMs)',
    replace: 'if (this.#waitingForPeer && now < 0)',
  },
  {
    name: 'the transfer and progress clocks never run out',
    file: CLOCKS,
    find: 'const busy = this.#busySinceMs !== null;',
    replace: 'const busy = this.#busySinceMs !== null;\n    if (busy || !busy) return null;',
  },
  {
    name: 'clocks are swept only when a frame arrives',
    file: TRANSCEIVER,
    find: 'this.#sweepTimer = this.#armSweep(postpone);',
    replace: 'void postpone;',
  },
  {
    name: 'deadlines are judged before what arrived is read',
    file: TRANSCEIVER,
    find: 'const postpone = isLate && !postponed;',
    replace: 'const postpone = isLate && !postponed && dueMs < 0;',
  },
  {
    name: 'outcomes are told twice',
    file: TRANSCEIVER,
    find: 'this.#settled.push(settled);\n      this.#signalActivity();',
    replace: 'this.#settled.push(settled, settled);\n      this.#signalActivity();',
  },
  {
    name: 'a peer is believed by its endpoint, not its incarnation',
    file: TRANSCEIVER,
    find: 'const peer = this.#peers.sender(incarnation, origin);',
    replace: 'const peer = this.#peers.sender(incarnation, origin) ?? this.#peers.peers[0] ?? null;',
  },
  {
    name: 'a peer is asked for pages before it has accepted our greeting',
    file: TRANSCEIVER,
    find: 'if (peer.greeted) this.#receiver.peers.onReady(peer);',
    replace: 'this.#receiver.peers.onReady(peer);',
  },
];
