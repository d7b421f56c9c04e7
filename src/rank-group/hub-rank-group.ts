import {
  CompatibilityError,
  type KvTransceiverError,
  PeerLostError,
  ProtocolError,
  TransferTimeoutError,
} from '../errors.js';
import type { FrameOrigin } from '../wire/messenger.js';
import type { GroupFrame, GroupMessage } from './group-frame.js';
import { MessengerRankGroup, type MessengerRankGroupOptions } from './messenger-rank-group.js';
import type { RankReport } from './rank-report.js';
import { RankSet } from './rank-set.js';
import { remoteError } from './remote-error.js';

interface Member {
  readonly rank: number;
  readonly endpoint: string;
  readonly incarnation: bigint;
  heardAtMs: number;
}

/** Role: rank 0 of a star: lets the others in, collects one report of each rank, sends all of them to all. */
export class HubRankGroup extends MessengerRankGroup {
  readonly #members = new Map<number, Member>();
  readonly #openedAtMs: number;
  #isComplete = false;
  #reports: (RankReport | undefined)[] = [];
  #here: RankSet;
  /** When the first report of the step that is being collected came. */
  #waitingSinceMs = 0;

  constructor(options: MessengerRankGroupOptions) {
    super(options);
    this.#here = new RankSet(options.size);
    this.#openedAtMs = options.clock.now();
  }

  protected get othersWait(): boolean {
    return !this.#here.isEmpty && !this.#here.has(0);
  }

  protected handIn(report: RankReport): void {
    this.#collect(0, report);
  }

  protected onFrame(frame: GroupFrame, origin: FrameOrigin): void {
    const { rank, nonce, incarnation, message } = frame;
    if (message.type === 'JOIN') {
      this.#join(frame, message, origin);
      return;
    }
    const member = this.#members.get(rank);
    if (nonce !== this.o.nonce || member?.incarnation !== incarnation) {
      this.refuse(`stranger:${message.type}`);
      return;
    }
    member.heardAtMs = this.o.clock.now();
    switch (message.type) {
      case 'REPORT':
        this.#collect(rank, message.report);
        break;
      case 'BROKEN':
        this.break(remoteError(message.code, message.text));
        break;
      case 'PONG':
        break;
      default:
        this.refuse(`unexpected:${message.type}`);
    }
  }

  protected onDisconnect(endpoint: string): void {
    for (const member of this.#members.values()) {
      if (member.endpoint === endpoint) this.#lost(member, 'its connection broke');
    }
  }

  protected tellBroken(message: GroupMessage): void {
    this.#sendAll(message);
  }

  protected sweep(nowMs: number): void {
    const { joinTimeoutMs, exchangeTimeoutMs, peerTimeoutMs } = this.o;
    for (const member of this.#members.values()) {
      if (nowMs - member.heardAtMs < peerTimeoutMs) continue;
      this.#lost(member, `it was silent for ${peerTimeoutMs} ms`);
      return;
    }
    if (!this.#isComplete && nowMs - this.#openedAtMs >= joinTimeoutMs) {
      const here = new RankSet(this.size);
      here.add(0);
      for (const rank of this.#members.keys()) here.add(rank);
      this.break(
        new TransferTimeoutError(
          `${here.describeMissing()} did not join the rank group within ${joinTimeoutMs} ms; start all ranks${this.refusalText}`,
        ),
      );
      return;
    }
    if (!this.#here.isEmpty && nowMs - this.#waitingSinceMs >= exchangeTimeoutMs) {
      this.break(
        new TransferTimeoutError(
          `${this.#here.describeMissing()} did not come to the exchange within ${exchangeTimeoutMs} ms`,
        ),
      );
      return;
    }
    this.#sendAll({ type: 'PING' });
    // A rank that sleeps while the others wait: should not be, and must not last.
    if (!this.#here.isEmpty) this.#wakeOthers();
  }

  #join(
    { rank, nonce, incarnation }: GroupFrame,
    { size, endpoint }: Extract<GroupMessage, { type: 'JOIN' }>,
    origin: FrameOrigin,
  ): void {
    const known = this.#members.get(rank);
    if (known !== undefined && known.incarnation === incarnation && nonce === this.o.nonce) {
      // Asked again before the answer came.
      known.heardAtMs = this.o.clock.now();
      if (this.#isComplete) this.send(endpoint, { type: 'WELCOME', incarnation });
      return;
    }
    const refusal = this.#refusal(rank, nonce, size);
    if (refusal !== null) {
      this.refuse('join_refused');
      this.replyToStranger(origin, nonce, {
        type: 'REFUSED',
        incarnation,
        code: refusal.code,
        text: refusal.message,
      });
      return;
    }
    this.#members.set(rank, { rank, endpoint, incarnation, heardAtMs: this.o.clock.now() });
    if (this.#members.size < this.size - 1) {
      // So that the connection stands: it is what tells when the rank dies before all are here.
      this.send(endpoint, { type: 'PING' });
      return;
    }
    this.#isComplete = true;
    for (const member of this.#members.values()) {
      this.send(member.endpoint, { type: 'WELCOME', incarnation: member.incarnation });
    }
    this.complete();
  }

  #refusal(rank: number, nonce: bigint, size: number): KvTransceiverError | null {
    if (nonce !== this.o.nonce) {
      return new CompatibilityError(
        `rank ${rank} belongs to another instance or to an earlier run (its nonce is not this group's); give every rank of one run the same nonce`,
      );
    }
    if (size !== this.size || rank === 0 || rank >= this.size) {
      return new CompatibilityError(
        `rank ${rank} of ${size} cannot join a group of ${this.size}; start all ranks with one size`,
      );
    }
    if (this.#members.has(rank)) {
      return new CompatibilityError(`rank ${rank} is taken by a process that joined before; start each rank once`);
    }
    return null;
  }

  #collect(rank: number, report: RankReport): void {
    if (this.#here.has(rank)) {
      this.break(
        new ProtocolError(`rank ${rank} reported step ${report.step} before the step it had reported was agreed on`),
      );
      return;
    }
    const isFirst = this.#here.isEmpty;
    if (isFirst) this.#waitingSinceMs = this.o.clock.now();
    this.#here.add(rank);
    this.#reports[rank] = report;
    if (this.#here.isFull) {
      const reports = this.#reports as RankReport[];
      this.#reports = [];
      this.#here = new RankSet(this.size);
      this.#sendAll({ type: 'AGREED', reports });
      this.agreed(reports);
      return;
    }
    if (!isFirst) return;
    // A step that follows on another needs no waking: whoever ran the last one comes by itself.
    if (report.afterRest) this.#wakeOthers();
    this.signal();
  }

  #wakeOthers(): void {
    for (const { rank, endpoint } of this.#members.values()) {
      if (!this.#here.has(rank)) this.send(endpoint, { type: 'AWAITED' });
    }
  }

  #lost({ rank }: Member, why: string): void {
    this.break(
      new PeerLostError(`rank ${rank} of this instance is gone: ${why}; restart all ranks`, { peer: `rank ${rank}` }),
    );
  }

  #sendAll(message: GroupMessage): void {
    for (const { endpoint } of this.#members.values()) this.send(endpoint, message);
  }
}
