import type { Event } from 'zeromq';
import type { HandshakeRefusals } from './handshake-refusals.js';
import { authenticator } from './zeromq-authenticator.js';
import type { BoundSecurity } from './zeromq-bind.js';
import type { CurveIdentity } from './zeromq-curve.js';
import { clientNotAllowed, refusedClient } from './zeromq-refusal-texts.js';

/** Role: decides who may connect to one messenger's bound socket, and tells who may not. Without keys everybody who speaks plaintext may. */
export class Door {
  /** For the bound socket. */
  readonly options: BoundSecurity;
  readonly #curve: CurveIdentity | null;
  readonly #refusals: HandshakeRefusals;

  static async open(curve: CurveIdentity | null, refusals: HandshakeRefusals): Promise<Door> {
    if (curve === null) return new Door(null, null, refusals);
    const domain = await authenticator.register((publicKey, address) => {
      if (curve.accepts(publicKey)) return true;
      const { cause, message } = clientNotAllowed(publicKey, address);
      refusals.add(cause, `${publicKey} ${address}`, message);
      return false;
    });
    return new Door(curve, curve.serverOptions(domain), refusals);
  }

  private constructor(curve: CurveIdentity | null, options: BoundSecurity, refusals: HandshakeRefusals) {
    this.#curve = curve;
    this.options = options;
    this.#refusals = refusals;
  }

  /** Of the bound socket's monitor. */
  onEvent(event: Event): void {
    const refused = refusedClient(event, this.#curve);
    // ZeroMQ names the bound address here, not the client's.
    if (refused !== null) this.#refusals.add(refused.cause, '', refused.message);
  }

  /** After the socket was closed. */
  async close(): Promise<void> {
    if (this.options !== null) await authenticator.unregister(this.options.zapDomain);
  }

  closeAtExit(): void {
    if (this.options !== null) authenticator.unregisterAtExit(this.options.zapDomain);
  }
}
