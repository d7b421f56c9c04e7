import { Router } from 'zeromq';
import { encodeKey } from '../config/z85.js';
import { ResourceError } from '../errors.js';
import { zeromqContext } from './zeromq-context.js';
import { isWakeUp } from './zeromq-wake-up.js';

const ADDRESS = 'inproc://zeromq.zap.01';
/** By when the connections of a closed socket have been torn down. */
const HANDSHAKES_END_MS = 250;
const VERSION = '1.0';
const ACCEPTED = ['200', 'OK'] as const;
const REFUSED = ['400', 'this public key is not allowed'] as const;

/** @param address of the client, as ZeroMQ knows it */
export type ClientCheck = (publicKey: string, address: string) => boolean;

/**
 * Role: answers ZeroMQ's question who may connect (ZAP, ZeroMQ RFC 27), for every messenger of this JS thread.
 * Why one: a context has one handler; each messenger has a domain of its own in it.
 * Ownership: its socket lives while a messenger is registered, so that it keeps no process alive on its own.
 * Ordering: a handshake waits for the answer; no frame of the connection arrives before it.
 */
class Authenticator {
  readonly #checks = new Map<string, ClientCheck>();
  #handler: Router | null = null;
  /** Its address is free again once this settles. */
  #closing: Promise<void> | null = null;
  #nextDomain = 1;

  /** @returns the domain for the messenger's sockets; give it back with `unregister` */
  async register(check: ClientCheck): Promise<string> {
    while (this.#closing !== null) await this.#closing;
    this.#handler ??= this.#open();
    const domain = `kv-transceiver-${this.#nextDomain++}`;
    this.#checks.set(domain, check);
    return domain;
  }

  /** Resolves when nothing of it is pending any more. */
  async unregister(domain: string): Promise<void> {
    const handler = this.#handler;
    if (!this.#checks.delete(domain) || this.#checks.size > 0 || handler === null) return;
    this.#handler = null;
    this.#closing = this.#close(handler);
    await this.#closing;
  }

  /** As `unregister`, for a thread whose event loop has ended. */
  unregisterAtExit(domain: string): void {
    this.#checks.delete(domain);
    if (this.#checks.size > 0) return;
    this.#handler?.close();
    this.#handler = null;
  }

  /**
   * Not at once: libzmq ends the process (an assertion in its pipes) when the handler goes while a connection of a socket that was just
   * closed still waits for its answer. Then unbound before it is closed: a closed socket gives its address back some time later.
   */
  async #close(handler: Router): Promise<void> {
    await new Promise((resolve) => setTimeout(resolve, HANDSHAKES_END_MS));
    try {
      await handler.unbind(ADDRESS);
    } finally {
      handler.close();
      this.#closing = null;
    }
  }

  #open(): Router {
    const handler = new Router({ context: zeromqContext(), linger: 0 });
    try {
      handler.bindSync(ADDRESS);
    } catch (cause) {
      handler.close();
      throw new ResourceError(
        'cannot open the socket that authenticates peers; check the limits of the process (ulimit -n)',
        {
          cause,
        },
      );
    }
    void this.#answerAll(handler);
    return handler;
  }

  async #answerAll(handler: Router): Promise<void> {
    while (!handler.closed) {
      try {
        // Frames of libzmq itself, in this process: nothing of a peer but the key and its address.
        const [sender, empty, version, requestId, domain, address, , mechanism, key] = await handler.receive();
        if (sender === undefined || empty === undefined || requestId === undefined) continue;
        const known = version?.toString() === VERSION && mechanism?.toString() === 'CURVE' && key?.length === 32;
        const check = this.#checks.get(domain?.toString() ?? '');
        const accepted = known && check?.(encodeKey(key), address?.toString() ?? '') === true;
        const [status, text] = accepted ? ACCEPTED : REFUSED;
        await handler.send([sender, empty, VERSION, requestId, status, text, '', '']);
      } catch (error) {
        if (handler.closed) return;
        // A wake-up without a message. Anything else must not leave the rank closed to everybody in silence.
        if (isWakeUp(error)) continue;
        throw error;
      }
    }
  }
}

export const authenticator = new Authenticator();
