import type { Mutant } from './mutant.js';

const RECEIVER = 'src/session/receiver.ts';
const RX = 'src/session/rx-session.ts';
const TX = 'src/session/tx-session.ts';
const ASKING = 'src/session/writer-asking.ts';
const TALK = 'src/session/writer-talk.ts';
const CONSENSUS = 'src/executor/rank-consensus.ts';
const LEDGER = 'src/session/transfer-ledger.ts';
const QUESTIONS = 'src/session/receiver-questions.ts';
const FAREWELLS = 'src/session/farewells.ts';
const LOOP = 'src/executor/executor-loop.ts';
const PIPELINE = 'src/executor/step-pipeline.ts';
const AGENT = 'test/sim/parts/sim-agent.ts';
const ADMISSION = 'src/session/receiver-admission.ts';

/** Several writers, several receivers, ranks that act alike. */
export const RANK_MUTANTS: readonly Mutant[] = [
  {
    name: 'complete when the first of several writers reports',
    file: RX,
    find: "return expected.length > 0 && expected.every((writer) => writer.outcome === 'DONE');",
    replace: "return expected.some((writer) => writer.outcome === 'DONE');",
  },
  {
    name: 'count reports by payload: a writer that moves no byte is not waited for',
    file: RX,
    find: "expected.every((writer) => writer.outcome === 'DONE');",
    replace: "expected.every((writer) => writer.bytesExpected === 0 || writer.outcome === 'DONE');",
  },
  {
    name: 'only the first of several writers is asked',
    file: ASKING,
    find: 'for (const writer of session.writers) {\n      // One',
    replace: 'for (const writer of session.writers.slice(0, 1)) {\n      // One',
  },
  {
    name: 'the aux slot is named to every writer',
    file: TALK,
    find: 'auxSlot: writer.sendsAux ? session.auxSlot : -1,',
    replace: 'auxSlot: session.auxSlot,',
  },
  {
    name: 'a cancel is told to the first writer only',
    file: RECEIVER,
    find: 'if (writer.asked && writer.outcome === null) this.#tellCancel(session, writer, error.message);',
    replace:
      'if (writer === session.writers[0] && writer.asked && writer.outcome === null) this.#tellCancel(session, writer, error.message);',
  },
  {
    name: 'the first DP group is the one that completes, whichever writes',
    file: RX,
    find: 'return this.assigned?.writers ?? [];',
    replace: 'return this.#groups[0]?.writers ?? [];',
  },
  {
    name: 'any DP group rules all of them out',
    file: RECEIVER,
    find: "if (session.groups.every(({ standing }) => standing === 'out')) this.#end(",
    replace: 'this.#end(',
  },
  {
    name: 'pages are given back when the writers of the assigned group are drained',
    file: RX,
    find: 'return this.#writers.every((writer) => writer.drained);',
    replace: 'return this.expected.every((writer) => writer.drained);',
  },
  {
    name: 'a sender is ready after its first receiver',
    file: TX,
    find: 'return expected !== null && this.receivers.size >= expected.size;',
    replace: 'return expected !== null && this.receivers.size >= 1;',
  },
  {
    name: 'what one writer has to send is expected of all',
    file: ASKING,
    find: 'expectedBytes(this.#mappingFrom(peer), session.runs',
    replace: 'expectedBytes(this.#mappingFrom(session.writers[0]?.peer ?? peer), session.runs',
  },
  {
    name: 'a renewed ticket is not live',
    file: ASKING,
    find: 'writer.renew(this.#o.newTicket());\n    this.#o.book.admit(session, writer);',
    replace: 'writer.renew(this.#o.newTicket());',
  },
  {
    name: 'a DP group that is not the one is not told',
    file: RECEIVER,
    find: 'if (writer.asked && writer.outcome === null)\n        this.#tellCancel(',
    replace: 'if (writer.asked && writer.outcome === undefined)\n        this.#tellCancel(',
  },
  {
    name: 'any rank that asks is a receiver of the request',
    file: ADMISSION,
    find: 'if (session.receiverReady)\n',
    replace: 'if (session.receivers.size > 0)\n',
  },
  {
    name: 'a prompt that arrived on one rank is decoded on all',
    file: CONSENSUS,
    find: '} else if (completed.isFull) {',
    replace: '} else if (!completed.isEmpty) {',
  },
  {
    name: 'a prompt that one context rank has sent is complete on all',
    file: CONSENSUS,
    find: "if (completed.isFull && entry.role === 'context') endings.complete(entry);",
    replace: "if (!completed.isEmpty && entry.role === 'context') endings.complete(entry);",
  },
  {
    name: 'ranks do not share the hold of pages',
    file: CONSENSUS,
    find: "if (this.#state !== 'parted') this.#ledger.share(request.id, request.promptTokens.length);",
    replace: 'void request;',
  },
  {
    name: 'shared pages are given back when the first rank has drained',
    file: CONSENSUS,
    find: 'if (!verdicts.drained.isFull) return;\n',
    replace: '',
  },
  {
    name: 'a failure on one rank is not told to the others',
    file: CONSENSUS,
    find: 'this.#outbox.ended(id, outcome, error);\n',
    replace: '',
  },
  {
    name: 'a shared hold ends with the transfer of this rank',
    file: LEDGER,
    find: '    if (this.#shared.has(request)) {\n      this.#onDrained?.(request);\n      return;\n    }\n    this.#release(request);',
    replace: '    if (this.#shared.delete(request)) this.#onDrained?.(request);\n    this.#release(request);',
  },
  {
    name: 'pages are kept for a rank that has parted',
    file: CONSENSUS,
    find: 'if (turns.isSpentBySmall()) await turns.nextTurn();\n      this.#ledger.unshare(id);',
    replace: 'void id;',
  },
  {
    name: 'a forward that failed on one rank counts on the others',
    file: PIPELINE,
    find: 'error ?? result',
    replace: 'result',
  },
  {
    name: 'what a forward computed counts before the other ranks agree',
    file: LOOP,
    find: 'if (ranks !== null) ranks.computed(error);',
    replace: 'if (ranks !== null && error !== null) ranks.computed(error);',
  },
  {
    name: 'a receiver that has not asked gives up without a word',
    file: RECEIVER,
    find: 'this.#farewells.begin(session, error.message, unreachable);',
    replace: '',
  },
  {
    name: 'a receiver that was refused leaves its writer waiting for it',
    file: FAREWELLS,
    find: 'if (writer.refusedOnly)',
    replace: 'if (writer.refusedOnly && writer.rank < 0)',
  },
  {
    name: 'who is no peer yet is not told of a receiver that gave up',
    file: FAREWELLS,
    find: 'if (peer === null) this.#o.greet(farewell.endpoint);\n    else this.#tell(farewell, peer);',
    replace: 'if (peer !== null) this.#tell(farewell, peer);',
  },
  {
    name: 'a receiver that has not asked cannot cancel',
    file: QUESTIONS,
    find: 'if (session?.outcome === null && mayCancelUnasked(peer, session))',
    replace: 'if (session !== undefined && session.rid < 0n)',
  },
  {
    // Of the simulated arena: shows that what a region leaks is seen.
    name: 'the region of a bounced write that was cancelled is not given back',
    file: AGENT,
    find: '        this.#giveRegion(work);\n      },',
    replace: '        if (!work.cancelled) this.#giveRegion(work);\n      },',
  },
  {
    name: 'pages are given back before the last slice was handed over',
    file: 'src/session/tx-session.ts',
    find: 'if (this.#outcome === null && !this.#isDispatched) return false;\n',
    replace: '',
  },
  {
    name: 'a task needs its source no more from its post on',
    file: 'src/session/send-task.ts',
    find: 'this.#needsSource = true;',
    replace: 'this.#needsSource = false;',
  },
];
