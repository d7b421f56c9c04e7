import type { Mutant } from './mutant.js';

const FILE = 'src/session/receiver.ts';
const SESSION = 'src/session/rx-session.ts';

/** The side that is written to. */
export const RECEIVER_MUTANTS: readonly Mutant[] = [
  {
    name: 'complete on the last slice instead of the report',
    file: FILE,
    find: 'session.clocks.setBusy(result.isLast);',
    replace: 'session.clocks.setBusy(result.isLast);\n    if (result.isLast) this.#complete(session);',
  },
  {
    name: 'pages are released at the outcome, drained or not',
    file: FILE,
    find: 'if (session.outcome !== null && session.drained) this.#release(session);',
    replace: 'if (session.outcome !== null) this.#release(session);',
  },
  {
    name: 'every report counts as drained',
    file: SESSION,
    find: 'if (report.drained) this.reportedDrained = true;',
    replace: 'this.reportedDrained = true;',
  },
  {
    name: 'an asked writer counts as drained',
    file: SESSION,
    find: 'return !this.asked || this.reportedDrained;',
    replace: 'return !this.accepted || this.reportedDrained;',
  },
  {
    name: 'retained pages are released after no time',
    file: FILE,
    find: 'session.releaseAtMs = this.#o.clock.now() + this.#o.limits.kvTransferTimeoutMs;\n    this.#settled(session, []);',
    replace: 'session.releaseAtMs = this.#o.clock.now();\n    this.#settled(session, []);',
  },
  {
    name: 'retained pages are never released without proof',
    file: FILE,
    find: '} else if (session.releaseAtMs !== null && now >= session.releaseAtMs) {',
    replace: '} else if (session.releaseAtMs !== null && now < 0) {',
  },
  {
    name: 'a release without proof is not counted',
    file: FILE,
    find: "this.#o.counters.add('released_unproven');",
    replace: '',
  },
  {
    name: 'a release without proof is not told',
    file: FILE,
    find: 'this.#o.onWarning(',
    replace: '((_text: string): void => {})(',
  },
  {
    name: 'an old ticket is taken for the live one',
    file: FILE,
    find: 'const session = this.#byTicket.get(ticket);\n    const writer = session?.writers.find((candidate) => candidate.peer === peer);',
    replace:
      'const session = this.#byTicket.get(ticket) ?? [...this.#byTicket.values()].find(({ writers }) => writers.some((candidate) => candidate.peer === peer));\n    const writer = session?.writers.find((candidate) => candidate.peer === peer);',
  },
  {
    name: 'reports are not acknowledged',
    file: FILE,
    find: "      type: 'REPORT_ACK',",
    replace: "      type: 'CANCEL_ACK',",
  },
  {
    name: 'the question is asked once',
    file: FILE,
    find: 'this.#repeater.start(askKey(session, writer), () =>',
    replace: '((send: () => void) => send())(() =>',
  },
  {
    name: 'an end is not told to the writers',
    file: FILE,
    find: 'if (writer.asked && writer.outcome === null) this.#tellCancel(session, writer, error.message);',
    replace: '',
  },
  {
    name: 'a writer that was away is not told the cancel',
    file: FILE,
    find: "this.#tellCancel(session, writer, session.error?.message ?? 'the request ended');",
    replace: '',
  },
  {
    name: 'a lost writer does not end the request',
    file: FILE,
    find: "if (writer.outcome !== 'DONE') this.#end(session, 'failed', error);",
    replace: '',
  },
  {
    name: 'the receiver never looks at its clocks',
    file: FILE,
    find: 'if (session.outcome === null) {\n        this.#expire(session, now);',
    replace: 'if (session.outcome === null) {',
  },
  {
    name: 'the aux content is not looked at',
    file: FILE,
    find: 'firstTokens = aux.firstTokens;',
    replace: 'firstTokens = aux.firstTokens.map((token) => token + 1);',
  },
  {
    name: 'the aux slot is not given back by the receiver',
    file: FILE,
    find: 'if (session.auxSlot >= 0) this.#o.aux.free(session.auxSlot);',
    replace: '',
  },
  {
    name: 'the receiver frees its aux slot at the outcome',
    file: FILE,
    find: 'session.releaseAtMs = this.#o.clock.now() + this.#o.limits.kvTransferTimeoutMs;\n    this.#settled(session, []);',
    replace:
      'session.releaseAtMs = this.#o.clock.now() + this.#o.limits.kvTransferTimeoutMs;\n    this.#settled(session, []);\n    if (session.auxSlot >= 0) {\n      this.#o.aux.free(session.auxSlot);\n      this.#o.aux.allocate();\n    }',
  },
  {
    name: 'destination pages are not held',
    file: FILE,
    find: 'this.#o.ledger.acquire(request.id);\n    this.#byTicket.set(session.ticket, session);',
    replace: 'this.#byTicket.set(session.ticket, session);',
  },
  {
    name: 'the next attempt keeps the ticket',
    file: FILE,
    find: 'session.renew(this.#o.newTicket());',
    replace: '',
  },
];
