import { Dealer, Router } from 'zeromq';
import { decodeFrame, encodeFrame } from '../../../src/wire/frame-codec.js';
import type { Hello, Message, ReceivedMessage } from '../../../src/wire/messages.js';
import { HANG_LIMIT_MS } from '../../support/deadline.js';

/** Keys of the stranger and of the rank it attacks; null = plaintext. */
export interface StrangerKeys {
  readonly publicKey: string;
  readonly secretKey: string;
  readonly serverKey: string;
}

/** What came, and on which of its sockets. */
export interface Heard {
  readonly socket: 'listener' | 'dealer';
  readonly message: ReceivedMessage;
}

/**
 * A process of its own as far as the rank under attack can tell: a listener, and one connection to the rank, of plain ZeroMQ sockets. It answers
 * whoever asks who is at its endpoint.
 */
export class ZeromqStranger {
  readonly heard: Heard[] = [];
  readonly endpoint: string;
  readonly #router: Router;
  readonly #dealer: Dealer;
  readonly #incarnation: bigint;

  static async open(target: string, incarnation: bigint, keys: StrangerKeys | null = null): Promise<ZeromqStranger> {
    const server = keys === null ? {} : { curveServer: true, curveSecretKey: keys.secretKey };
    const client =
      keys === null
        ? {}
        : { curvePublicKey: keys.publicKey, curveSecretKey: keys.secretKey, curveServerKey: keys.serverKey };
    const router = new Router({ linger: 0, ...server });
    await router.bind('tcp://127.0.0.1:*');
    const dealer = new Dealer({ linger: 0, sendTimeout: HANG_LIMIT_MS, ...client });
    dealer.connect(target);
    return new ZeromqStranger(router, dealer, incarnation);
  }

  private constructor(router: Router, dealer: Dealer, incarnation: bigint) {
    this.#router = router;
    this.#dealer = dealer;
    this.#incarnation = incarnation;
    this.endpoint = router.lastEndpoint ?? '';
    void this.#listen();
    void this.#read();
  }

  async say(message: Message, incarnation = this.#incarnation): Promise<void> {
    await this.sayBytes(encodeFrame(message, { incarnation }));
  }

  /** Lost when the rank does not let it in. */
  async sayBytes(bytes: Uint8Array): Promise<void> {
    await this.#dealer.send(bytes).catch(() => undefined);
  }

  /** The HELLO of another rank as if it were this one's. */
  greet(hello: Hello, endpoint = this.endpoint): Promise<void> {
    const incarnation = this.#incarnation;
    return this.say({ ...hello, rankInfo: { ...hello.rankInfo, endpoint, incarnation, rankEndpoints: [endpoint] } });
  }

  close(): void {
    this.#router.close();
    this.#dealer.close();
  }

  async #listen(): Promise<void> {
    for await (const parts of this.#router) {
      const { message } = decodeFrame(parts[1] as Buffer);
      this.heard.push({ socket: 'listener', message });
      if (message.type !== 'HELLO') continue;
      const answer = { accepted: false, message: 'here', findings: [] } as const;
      await this.say({ type: 'HELLO_ACK', nonce: message.nonce, endpoint: this.endpoint, answer });
    }
  }

  async #read(): Promise<void> {
    for await (const [bytes] of this.#dealer)
      this.heard.push({ socket: 'dealer', message: decodeFrame(bytes as Buffer).message });
  }
}
