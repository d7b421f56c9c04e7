import { decodeFrame, encodeFrame, type Message, type ReceivedMessage } from '../../src/wire/index.js';
import type { Hello } from '../../src/wire/messages.js';
import type { FakeMessenger, FakeNetwork } from './fake-messenger.js';

/**
 * A process of its own that speaks the protocol, and says what it is told to. It answers whoever asks who is at its endpoint, unless it is
 * told to be silent.
 */
export class Stranger {
  readonly messenger: FakeMessenger;
  readonly incarnation: bigint;
  readonly heard: ReceivedMessage[] = [];
  silent = false;

  constructor(network: FakeNetwork, incarnation: bigint, endpoint?: string) {
    this.incarnation = incarnation;
    this.messenger = network.bind(endpoint);
    this.messenger.onFrame((bytes) => {
      const { message } = decodeFrame(bytes);
      this.heard.push(message);
      if (message.type === 'HELLO' && !this.silent) this.answer(message);
    });
  }

  get endpoint(): string {
    return this.messenger.endpoint;
  }

  answer({ nonce, rankInfo }: Hello): void {
    const answer = { accepted: false, message: 'here', findings: [] } as const;
    this.say(rankInfo.endpoint, { type: 'HELLO_ACK', nonce, endpoint: this.endpoint, answer });
  }

  say(to: string, message: Message, incarnation = this.incarnation): void {
    this.messenger.send(to, encodeFrame(message, { incarnation }));
  }

  /** The HELLO of another rank as if it were this one's. */
  greet(to: string, hello: Hello, changes: Partial<Hello['rankInfo']> = {}): void {
    const { endpoint, incarnation } = this;
    this.say(to, {
      ...hello,
      rankInfo: { ...hello.rankInfo, endpoint, incarnation, rankEndpoints: [endpoint], ...changes },
    });
  }
}
