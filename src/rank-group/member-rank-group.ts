import type { Timer } from '../clock.js';
import { CompatibilityError, PeerLostError, ProtocolError, TransferTimeoutError } from '../errors.js';
import type { GroupFrame, GroupMessage } from './group-frame.js';
import { MessengerRankGroup, type MessengerRankGroupOptions } from './messenger-rank-group.js';
import type { RankReport } from './rank-report.js';
import { remoteError } from './remote-error.js';

const JOIN_INTERVAL_MS = 250;

/** Role: every rank but 0 of a star. */
export class MemberRankGroup extends MessengerRankGroup {
  readonly #hubEndpoint: string;
  readonly #openedAtMs: number;
  /** Rank 0's process; null until it let this one in. */
  #hub: { readonly incarnation: bigint } | null = null;
  #heardAtMs: number;
  #othersWait = false;
  #joinTimer: Timer | null = null;

  constructor(options: MessengerRankGroupOptions & { readonly hubEndpoint: string }) {
    super(options);
    this.#hubEndpoint = options.hubEndpoint;
    this.#openedAtMs = options.clock.now();
    this.#heardAtMs = this.#openedAtMs;
    this.#askToJoin();
  }

  protected get othersWait(): boolean {
    return this.#othersWait;
  }

  protected handIn(report: RankReport): void {
    this.#othersWait = false;
    this.send(this.#hubEndpoint, { type: 'REPORT', report });
  }

  protected onFrame(frame: GroupFrame): void {
    const { message } = frame;
    if (frame.rank !== 0 || frame.nonce !== this.o.nonce || !this.#isFromHub(frame)) {
      this.refuse(`stranger:${message.type}`);
      return;
    }
    this.#heardAtMs = this.o.clock.now();
    switch (message.type) {
      case 'WELCOME':
        this.#joinTimer?.cancel();
        this.#hub ??= { incarnation: frame.incarnation };
        this.complete();
        break;
      case 'REFUSED':
        this.break(remoteError(message.code, message.text));
        break;
      case 'AGREED':
        this.#agreed(message.reports);
        break;
      case 'AWAITED':
        if (!this.isInExchange) {
          this.#othersWait = true;
          this.signal();
        }
        break;
      case 'PING':
        this.send(this.#hubEndpoint, { type: 'PONG' });
        break;
      case 'BROKEN':
        this.break(remoteError(message.code, message.text));
        break;
      default:
        this.refuse(`unexpected:${message.type}`);
    }
  }

  protected onDisconnect(endpoint: string): void {
    if (endpoint !== this.#hubEndpoint) return;
    // Before it let this rank in, rank 0 may be starting again: the question is asked until the time to join is over.
    if (this.#hub !== null) this.#lost('its connection broke');
  }

  protected tellBroken(message: GroupMessage): void {
    this.#joinTimer?.cancel();
    if (this.#hub !== null) this.send(this.#hubEndpoint, message);
  }

  protected sweep(nowMs: number): void {
    const { joinTimeoutMs, peerTimeoutMs } = this.o;
    if (this.#hub !== null) {
      if (nowMs - this.#heardAtMs >= peerTimeoutMs) this.#lost(`it was silent for ${peerTimeoutMs} ms`);
      return;
    }
    // Rank 0 knows who is missing, so that its word, which comes at the same time, is the better one.
    if (nowMs - this.#openedAtMs < joinTimeoutMs + peerTimeoutMs) return;
    this.break(
      new TransferTimeoutError(
        `rank 0 at ${this.#hubEndpoint} did not let rank ${this.rank} in within ${joinTimeoutMs + peerTimeoutMs} ms; start it, or correct its address`,
      ),
    );
  }

  #isFromHub({ incarnation, message }: GroupFrame): boolean {
    if (message.type === 'WELCOME' || message.type === 'REFUSED') {
      if (message.incarnation !== this.o.incarnation) return false;
      return this.#hub === null || this.#hub.incarnation === incarnation;
    }
    // Until all are here rank 0 only pings, and says why nothing came of it.
    if (this.#hub === null) return message.type === 'PING' || message.type === 'BROKEN';
    return this.#hub.incarnation === incarnation;
  }

  #agreed(reports: readonly RankReport[]): void {
    if (!this.isInExchange || reports.length !== this.size) {
      this.break(
        new ProtocolError(
          `rank 0 sent ${reports.length} reports to rank ${this.rank} of ${this.size}, which ${this.isInExchange ? 'waits' : 'does not wait'} for any`,
        ),
      );
      return;
    }
    this.agreed(reports);
  }

  #askToJoin(): void {
    if (this.failure !== null || this.#hub !== null) return;
    const { size, messenger, clock, refusal } = this.o;
    const refused = refusal?.() ?? null;
    if (refused !== null) {
      // Keys do not change while a process runs: asking again would only be refused again.
      this.break(new CompatibilityError(`rank ${this.rank} cannot join the rank group: ${refused}`));
      return;
    }
    this.send(this.#hubEndpoint, { type: 'JOIN', size, endpoint: messenger.endpoint });
    this.#joinTimer = clock.setTimer(JOIN_INTERVAL_MS, () => this.#askToJoin());
  }

  #lost(why: string): void {
    this.break(new PeerLostError(`rank 0 of this instance is gone: ${why}; restart all ranks`, { peer: 'rank 0' }));
  }
}
