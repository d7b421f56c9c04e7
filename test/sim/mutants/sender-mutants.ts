import type { Mutant } from './mutant.js';

const FILE = 'src/session/sender.ts';
const QUESTIONS = 'src/session/receiver-questions.ts';
const SESSION = 'src/session/tx-session.ts';
const ADMISSION = 'src/session/receiver-admission.ts';
const TASK = 'src/session/send-task.ts';
const NOTES = 'src/session/armed-reports.ts';

/** The writing side. */
export const SENDER_MUTANTS: readonly Mutant[] = [
  {
    name: 'close a session before its writes drained',
    file: FILE,
    find: 'if (session.outcome !== null && session.drained && this.#sessions.has(session.rid)) this.#close(session);',
    replace: 'if (session.outcome !== null && this.#sessions.has(session.rid)) this.#close(session);',
  },
  {
    name: 'a failed task counts as drained',
    file: TASK,
    find: 'this.#drained = completion.drained;',
    replace: 'this.#drained = true;',
  },
  {
    name: 'a submitted task counts as drained',
    file: TASK,
    find: "this.#state = SEND_TASK_TRANSITIONS.next(this.#state, 'submit');\n    this.#drained = false;",
    replace: "this.#state = SEND_TASK_TRANSITIONS.next(this.#state, 'submit');",
  },
  {
    name: 'ignore the drained notice',
    file: FILE,
    find: "if (notice.kind === 'drained') task.becameDrained();",
    replace: "if (notice.kind === 'drained') {}",
  },
  {
    name: 'complete when every existing task is done, last slice or not',
    file: SESSION,
    find: '      this.lastSliceSubmitted &&\n      receiver.tasks.length === this.slices.length &&',
    replace: '      this.slices.length > 0 &&\n      receiver.tasks.length === this.slices.length &&',
  },
  {
    name: 'complete when the last slice was submitted, whatever of it arrived',
    file: SESSION,
    find: "receiver.tasks.every((task) => task.state === 'transferred')\n    );",
    replace: "receiver.tasks.slice(0, -1).every((task) => task.state === 'transferred')\n    );",
  },
  {
    name: 'complete without aux',
    file: SESSION,
    find: 'return auxDone && this.pagesDelivered(receiver);',
    replace: 'return (auxDone || true) && this.pagesDelivered(receiver);',
  },
  {
    name: 'aux leaves before its token is known',
    file: FILE,
    find: 'if (firstToken === undefined) return;',
    replace: '',
  },
  {
    name: 'a late receiver gets no earlier slices',
    file: FILE,
    find: 'for (const slice of session.slices) this.#dispatch(session, receiver, slice);',
    replace: 'for (const slice of session.slices.slice(-1)) this.#dispatch(session, receiver, slice);',
  },
  {
    name: 'slices are not sent to receivers that asked before',
    file: FILE,
    find: 'for (const receiver of session.receivers.values()) this.#dispatch(session, receiver, slice);\n    this.#advance(session);\n    return',
    replace: 'this.#advance(session);\n    return',
  },
  {
    name: 'a slice does not wait for its event',
    file: FILE,
    find: 'this.#o.agent.submit({ id: task.id, peer: link.handle, flow, groups, after, ...ticket, ...note });',
    replace: 'this.#o.agent.submit({ id: task.id, peer: link.handle, flow, groups, after: null, ...ticket, ...note });',
  },
  {
    name: 'pages are not held from the first slice on',
    file: FILE,
    find: "this.#o.ledger.acquire(request.id, request.promptTokens.length);\n    session.pages = 'held';\n    if (bounds.isLast) this.#o.ledger.complete(request.id);",
    replace:
      "session.pages = 'held';\n    if (bounds.isLast) {\n      this.#o.ledger.acquire(request.id, request.promptTokens.length);\n      this.#o.ledger.complete(request.id);\n    }",
  },
  {
    name: 'a cancel frees at once',
    file: FILE,
    find: 'for (const task of session.tasks) if (!task.ended) this.#o.agent.cancel(task.id);\n    this.#advance(session);',
    replace:
      'for (const task of session.tasks) if (!task.ended) this.#o.agent.cancel(task.id);\n    if (this.#o.ledger.holds(session.request.id)) this.#o.ledger.settle(session.request.id);\n    this.#advance(session);',
  },
  {
    name: 'a cancel reports drained',
    file: FILE,
    find: 'const { drained } = receiver;\n    const last',
    replace: "const drained = receiver.drained || outcome === 'CANCELLED';\n    const last",
  },
  {
    name: 'a failure reports drained',
    file: FILE,
    find: 'const { drained } = receiver;\n    const last',
    replace: "const drained = receiver.drained || outcome === 'FAILED';\n    const last",
  },
  {
    name: 'the drained report is not sent after the undrained one',
    file: FILE,
    find: "if (last !== undefined && (last.outcome === 'DONE' || last.drained === drained)) return;",
    replace: 'if (last !== undefined) return;',
  },
  {
    name: 'cancelled tasks are not cancelled at the agent',
    file: FILE,
    find: 'for (const task of session.tasks) if (!task.ended) this.#o.agent.cancel(task.id);',
    replace: '',
  },
  {
    name: 'a cancel does not keep an ended session from sending',
    file: FILE,
    find: 'if (session !== undefined && session.outcome === null) return session;',
    replace: 'if (session !== undefined) return session;',
  },
  {
    name: 'a cancel before the session exists is forgotten',
    file: QUESTIONS,
    find: 'this.#cancelEarly(peer, cancel, error);',
    replace: '{}',
  },
  {
    name: 'an ended request is created again by a late slice',
    file: FILE,
    find: '(hasEnded ? undefined : this.#create(rid, request))',
    replace: 'this.#create(rid, request)',
  },
  {
    name: 'a context request whose id has ended is told to wait',
    file: FILE,
    find: 'if (session !== undefined || this.#retired.has(rid)) throw this.#retiredError(rid, request);',
    replace: 'if (session !== undefined || this.#retired.has(rid)) return false;',
  },
  {
    name: 'REQUEST_DATA of an ended request is kept instead of refused',
    file: ADMISSION,
    find: 'if (ended !== undefined || (session !== undefined && session.outcome !== null)) {',
    replace: 'if (session !== undefined && session.outcome !== null) {',
  },
  {
    name: 'a repeated REQUEST_DATA registers a second receiver',
    file: QUESTIONS,
    find: 'if (session?.receivers.has(ticket) === true) {\n      this.#accepted(peer, rid, ticket);\n      return;\n    }',
    replace: '',
  },
  {
    name: 'a lost peer does not end its sessions',
    file: FILE,
    find: "if (!one.delivered(receiver)) this.#end(one, 'failed', error);",
    replace: '',
  },
  {
    name: 'a cancel from the peer is answered but not obeyed',
    file: QUESTIONS,
    find: 'if (session?.receivers.has(ticket) === true) {\n      this.#o.cancel(',
    replace: 'if (session?.receivers.has(-1n) === true) {\n      this.#o.cancel(',
  },
  {
    name: 'a report of DONE may follow CANCELLED',
    file: FILE,
    find: "if (session.outcome === 'failed') outcome = 'FAILED';\n    else if (session.outcome === 'cancelled') outcome = 'CANCELLED';\n    else if (session.delivered(receiver)) outcome = 'DONE';",
    replace:
      "if (session.delivered(receiver)) outcome = 'DONE';\n    else if (session.outcome === 'failed') outcome = 'FAILED';\n    else if (session.outcome === 'cancelled') outcome = 'CANCELLED';",
  },
  {
    name: 'a note does not wait for the slices before it',
    file: NOTES,
    find: 'also: others.map(({ id }) => id) } };',
    replace: 'also: [] } };',
  },
  {
    name: 'a note is left with every submission',
    file: NOTES,
    find: 'if (!isLast || !session.lastSliceSubmitted || receiver.tasks.length !== session.slices.length) return null;',
    replace: '',
  },
  {
    name: 'a dropped note leaves its receiver without a report',
    file: FILE,
    find: "receiver.noted(isSent ? 'send' : 'drop');",
    replace: "if (isSent) receiver.noted('send');",
  },
  {
    name: 'the answer to an accepted early question is sent once',
    file: QUESTIONS,
    find: 'this.#reports.publishAnswer(peer.endpoint, emptyReport(rid, ticket, outcome, error));',
    replace: 'this.#reports.answer(peer, emptyReport(rid, ticket, outcome, error));',
  },
  {
    name: 'close does not wait for what its peers have to acknowledge',
    file: 'src/transceiver.ts',
    find: 'while ((this.#ledger.heldCount > 0 || this.#hasOpenReports()) && clock.now() < deadline)',
    replace: 'while (this.#ledger.heldCount > 0 && clock.now() < deadline)',
  },
  {
    name: 'a request settles twice',
    file: SESSION,
    find: 'if (this.#outcome !== null) return false;',
    replace: '',
  },
  {
    name: 'the sender never looks at its clocks',
    file: FILE,
    find: "if (expired !== null) this.#end(one, 'failed', sendTimeout(one, expired));",
    replace: '',
  },
  {
    name: 'the transfer clock counts a prefill that still runs',
    file: SESSION,
    find: 'if (tasks.some((task) => !task.ended && !(computing && task.slice === newest))) return true;',
    replace: 'if (tasks.some((task) => !task.ended && (computing || !computing))) return true;',
  },
  {
    name: 'a failed post is not an outcome',
    file: FILE,
    find: 'task.refused(cause);\n      this.#onTaskEnded(session, task);\n      return;',
    replace: 'task.refused(cause);\n      return;',
  },
  {
    name: 'the aux slot is not given back',
    file: FILE,
    find: 'if (session.auxSlot !== null) this.#o.aux.free(session.auxSlot);',
    replace: '',
  },
  {
    name: 'a stranger is told drained whatever was reported',
    file: QUESTIONS,
    find: "if (this.#reports.repeat(asker, ticket)) return;\n    if (this.#isForeign(message, 'kind' in asker ? null : asker)) return;\n    const text =",
    replace: 'const text =',
  },
  {
    name: 'early askers are not told that the request has ended',
    file: FILE,
    find: 'this.questions.onEnded(session);',
    replace: '',
  },
  {
    name: 'a question about a prompt that was computed elsewhere is kept',
    file: QUESTIONS,
    find: 'session === undefined && message.isComputed === true',
    replace: 'false',
  },
];
