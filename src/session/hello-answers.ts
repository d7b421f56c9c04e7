import type { Finding } from '../mapping/index.js';
import type { RankInfo } from '../mapping/rank-info.js';
import type { FrameOrigin } from '../wire/index.js';
import { clipText } from './clip-text.js';
import type { ControlChannel } from './control-channel.js';
import type { Counters } from './counters.js';
import type { Claim } from './greetings.js';

/** What fits into an answer on the asker's connection. */
const MAX_REPLIED_FINDINGS = 4;

/** A HELLO, as far as it could be read. */
export interface Asker {
  readonly nonce: bigint;
  readonly origin: FrameOrigin;
  /** Of its frame; null when that is not known. */
  readonly major: number | null;
}

/**
 * Role: the three answers to a HELLO.
 * Why: only who proved to be at its endpoint is sent anything there, and the way into our memory with it. Everybody else is answered on the
 *   connection that it made: that costs none of ours, and reaches nobody but the one who asked.
 */
export class HelloAnswers {
  readonly #channel: ControlChannel;
  readonly #counters: Counters;
  readonly #self: () => RankInfo | null;

  constructor(channel: ControlChannel, counters: Counters, self: () => RankInfo | null) {
    this.#channel = channel;
    this.#counters = counters;
    this.#self = self;
  }

  accept(claim: Claim): void {
    const rankInfo = this.#self();
    if (rankInfo === null) return;
    const { nonce } = claim.hello;
    const answer = { accepted: true, rankInfo } as const;
    this.#channel.answerHello(claim, { type: 'HELLO_ACK', nonce, endpoint: this.#channel.endpoint, answer });
  }

  refuse({ nonce, origin, major }: Asker, message: string, findings: readonly Finding[] = []): void {
    this.#counters.add('hello_refused');
    const { endpoint } = this.#channel;
    const shown = findings.slice(0, MAX_REPLIED_FINDINGS);
    const answer = { accepted: false, message: clipText(message), findings: shown } as const;
    this.#channel.reply(origin, { type: 'HELLO_ACK', nonce, endpoint, answer }, major);
  }

  /**
   * Says who is here.
   * @param isOurs the asker's endpoint is one that we speak to anyway: then by that connection, so that the asker learns which one it is
   */
  identify(claim: Claim, isOurs: boolean): void {
    const { hello, origin, heard } = claim;
    const answer = { accepted: false, message: 'this is who is here; nothing was asked of it', findings: [] } as const;
    const { endpoint } = this.#channel;
    const message = { type: 'HELLO_ACK', nonce: hello.nonce, endpoint, answer } as const;
    if (isOurs) this.#channel.answerHello(claim, message);
    else this.#channel.reply(origin, message, heard.major);
  }
}

export function askerOf({ hello, origin, heard }: Claim): Asker {
  return { nonce: hello.nonce, origin, major: heard.major };
}
