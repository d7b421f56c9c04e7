import type { Mutant } from './mutant.js';

const FILE = 'src/session/receiver.ts';
const PEERS = 'src/session/receiver-peers.ts';
const WRITER = 'src/session/rx-writer.ts';
const BOOK = 'src/session/receive-book.ts';
const SALVAGE = 'src/session/salvage.ts';
const TALK = 'src/session/writer-talk.ts';

/** The side that is written to. */
export const RECEIVER_MUTANTS: readonly Mutant[] = [
  {
    name: 'complete on the last slice instead of the report',
    file: FILE,
    find: 'session.firstProgressAtMs ??= this.#o.clock.now();',
    replace: 'session.firstProgressAtMs ??= this.#o.clock.now();\n    if (result.isLast) this.#complete(session);',
  },
  {
    name: 'pages are released at the outcome, drained or not',
    file: FILE,
    find: 'if (session.outcome === null || !session.drained) return;',
    replace: 'if (session.outcome === null) return;',
  },
  {
    name: 'every report counts as drained',
    file: WRITER,
    find: 'if (report.drained) this.reportedDrained = true;',
    replace: 'this.reportedDrained = true;',
  },
  {
    name: 'an asked writer counts as drained',
    file: WRITER,
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
    name: 'a slice without a block is progress',
    file: WRITER,
    find: 'const brings = result.ok && result.endBlock > result.beginBlock;',
    replace: 'const brings = true;',
  },
  {
    name: 'salvage does not ask how many bytes a slice moved',
    file: SALVAGE,
    find: 'if (verifiedBytes !== plannedBytes(writer, verifiedEndBlock)) return false;',
    replace: 'void plannedBytes;',
  },
  {
    name: 'what one of several writers delivered is salvaged',
    file: SALVAGE,
    find: 'const delivered = Math.min(promptLen, ...expected.map(verifiedTokens));',
    replace: 'const delivered = Math.min(promptLen, Math.max(...expected.map(verifiedTokens)));',
  },
  {
    name: 'a receive that is given up before it asked says nothing',
    file: FILE,
    find: 'this.#farewells.beginUnasked(request, ',
    replace: 'void (',
  },
  {
    name: 'a receive that waits for its turn is given up in silence',
    file: 'src/executor/transfer-outcomes.ts',
    find: 'const ended = !isAwaited(entry) || transceiver',
    replace: "const ended = !isAwaited(entry) || entry.request.state === 'DISAGG_GENERATION_INIT' || transceiver",
  },
  {
    name: 'an old ticket is taken for the live one',
    file: BOOK,
    find: 'const live = this.#byTicket.get(ticket);',
    replace:
      'const live = this.#byTicket.get(ticket) ?? [...this.#byTicket.values()].find(({ writer }) => writer.peer === peer);',
  },
  {
    name: 'reports are not acknowledged',
    file: FILE,
    find: "{ type: 'REPORT_ACK',",
    replace: "{ type: 'CANCEL_ACK',",
  },
  {
    name: 'the question is asked once',
    file: TALK,
    find: 'this.#questions.start(ticket, () =>',
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
    file: PEERS,
    find: "tellCancel(session, writer, session.error?.message ?? 'the request ended');",
    replace: '',
  },
  {
    name: 'a lost writer does not end the request',
    file: PEERS,
    find: "if (writer.outcome !== 'DONE') onFailed(one, writer, error, null);",
    replace: '',
  },
  {
    name: 'the receiver never looks at its clocks',
    file: FILE,
    find: 'if (session.outcome === null) {\n      this.#expire(session, now);',
    replace: 'if (session.outcome === null) {',
  },
  {
    name: 'the aux content is not looked at',
    file: FILE,
    find: 'this.#settled(session, answer.firstTokens);',
    replace: 'this.#settled(session, answer.firstTokens.map((token) => token + 1));',
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
    find: 'this.#o.ledger.acquire(request.id, request.promptTokens.length);\n    this.#book.add(session);',
    replace: 'this.#book.add(session);',
  },
  {
    name: 'the next attempt keeps the ticket',
    file: WRITER,
    find: 'this.#ticket = ticket;\n    this.#attempts += 1;',
    replace: 'this.#attempts += 1;',
  },
];
