import type { Mutant } from './mutant.js';

const SENDER = 'src/session/sender.ts';
const SESSION = 'src/session/tx-session.ts';
const NOTES = 'src/session/armed-reports.ts';
const INBOUND = 'src/session/inbound-notes.ts';
const RECEIVER = 'src/session/receiver.ts';
const BOOK = 'src/session/receive-book.ts';

/** Of a request that was cancelled while its note was under way. */
const SAY_CANCELLED =
  "if (session.ending !== null) this.#reports.publish(receiver.peer.endpoint, { ...doneReport(session.rid, receiver, receiver.bytesDone), outcome: 'CANCELLED', drained: receiver.drained });";

/** What is said ahead of a frame, and beside it. */
export const NOTE_MUTANTS: readonly Mutant[] = [
  {
    name: 'an outcome is decided while a note may be sent',
    file: SESSION,
    find: "if (receiver.note === 'armed' || (receiver.note === 'sent' && !this.delivered(receiver))) return true;",
    replace: '',
  },
  {
    name: 'an outcome is decided between a note and its completion',
    file: SESSION,
    find: "if (receiver.note === 'armed' || (receiver.note === 'sent' && !this.delivered(receiver))) return true;",
    replace: "if (receiver.note === 'armed') return true;",
  },
  {
    name: 'a cancel beside a note is forgotten',
    file: SENDER,
    find: 'session.endOnceTold(outcome, error);',
    replace: '',
  },
  {
    name: 'something else is said while a note may be sent',
    file: SENDER,
    find: "if (receiver.note === 'armed') return;",
    replace: `if (receiver.note === 'armed') {\n      ${SAY_CANCELLED}\n      return;\n    }`,
  },
  {
    name: 'a request that is cancelled after its note was sent reports CANCELLED',
    file: SENDER,
    find: 'if (isToldDone && !session.delivered(receiver)) return;',
    replace: `if (isToldDone && !session.delivered(receiver)) {\n      ${SAY_CANCELLED}\n      return;\n    }`,
  },
  {
    name: 'a refused submission leaves its note armed',
    file: SENDER,
    find: 'this.#o.agent.submit({ id: task.id, peer: link.handle, flow, groups, after, ...ticket, ...note });\n      if (note !== null) {',
    replace:
      'if (note !== null) receiver.noted("arm");\n      this.#o.agent.submit({ id: task.id, peer: link.handle, flow, groups, after, ...ticket, ...note });\n      if (note !== null && receiver.note !== "armed") {',
  },
  {
    name: 'a note does not wait for the aux content',
    file: NOTES,
    find: 'receiver.remoteAuxSlot < 0 ? task.slice?.isLast === true : task.slice === null;',
    replace: 'task.slice?.isLast === true;',
  },
  {
    name: 'a note does not count the slices that are over',
    file: NOTES,
    find: 'return sum + (ended ? bytesDone : bytesPlanned);',
    replace: 'return sum + (ended ? 0 * bytesDone : bytesPlanned);',
  },
  {
    name: 'who hears DONE by a note is told no more by a frame',
    file: SENDER,
    find: "if (isToldDone) outcome = 'DONE';",
    replace: 'if (isToldDone) return;',
  },
  {
    name: 'a note is acknowledged as a frame is',
    file: RECEIVER,
    find: 'this.#book.noted(peer, report.ticket);\n    this.#takeReport(peer, report);',
    replace: 'this.onWriterReport(peer, report);',
  },
  {
    name: 'a note of another ticket is believed',
    file: BOOK,
    find: 'live.writer.peer !== peer || live.session.rid !== rid',
    replace: 'live.session.rid !== rid',
  },
  {
    name: 'a note of an earlier process is believed',
    file: INBOUND,
    find: 'frame.incarnation !== peer.incarnation',
    replace: 'false',
  },
  {
    name: 'notes say nothing',
    file: INBOUND,
    find: 'onReport(peer, frame.message);',
    replace: '',
  },
];
