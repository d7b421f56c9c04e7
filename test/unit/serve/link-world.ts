import { DEFAULT_EPOCH_MS } from '../../../src/coordinator/snowflake-ids.js';
import { FrontIds } from '../../../src/serve/front/front-ids.js';
import { FrontLinks } from '../../../src/serve/link/front-links.js';
import { LinkHost } from '../../../src/serve/link/link-host.js';
import type { WorkerLink } from '../../../src/serve/link/worker-link.js';
import type { FrameOrigin, Messenger } from '../../../src/wire/messenger.js';
import { FakeClock } from '../../sim-lite/fake-clock.js';
import { FakeServer } from '../coordinator/fake-server.js';

/** What happens to the next frame to an endpoint. */
export type Fate = 'arrives' | 'is lost';

/** Messengers in memory: a frame arrives in the next turn of the fake clock's timers. */
export class Wires {
  readonly clock: FakeClock;
  readonly sent: { readonly to: string; readonly frame: Uint8Array }[] = [];
  fate: (to: string) => Fate = () => 'arrives';
  readonly #ends = new Map<string, WireEnd>();

  constructor(clock: FakeClock) {
    this.clock = clock;
  }

  bind(port: number): WireEnd {
    const end = new WireEnd(this, `tcp://127.0.0.1:${port}`);
    this.#ends.set(end.endpoint, end);
    return end;
  }

  /** The process behind the endpoint is gone; the others notice. */
  kill(endpoint: string): void {
    this.#ends.delete(endpoint);
    for (const end of this.#ends.values()) end.disconnect(endpoint);
  }

  transmit(from: string, to: string, frame: Uint8Array): void {
    this.sent.push({ to, frame });
    if (this.fate(to) === 'is lost') return;
    this.clock.setTimer(0.1, () => this.#ends.get(to)?.deliver(frame, { kind: 'accepted', connection: from }));
  }
}

class WireEnd implements Messenger {
  readonly endpoint: string;
  readonly maxConnections = 64;
  readonly #wires: Wires;
  #onFrame: (frame: Uint8Array, origin: FrameOrigin) => void = () => {};
  #onDisconnect: (endpoint: string) => void = () => {};

  constructor(wires: Wires, endpoint: string) {
    this.#wires = wires;
    this.endpoint = endpoint;
  }

  send(endpoint: string, frame: Uint8Array): void {
    this.#wires.transmit(this.endpoint, endpoint, frame);
  }

  reply(origin: FrameOrigin, frame: Uint8Array): void {
    this.send(origin.kind === 'dialed' ? origin.endpoint : origin.connection, frame);
  }

  onFrame(listener: (frame: Uint8Array, origin: FrameOrigin) => void): void {
    this.#onFrame = listener;
  }

  onDisconnect(listener: (endpoint: string) => void): void {
    this.#onDisconnect = listener;
  }

  forget(): void {}

  async close(): Promise<void> {}

  deliver(frame: Uint8Array, origin: FrameOrigin): void {
    this.#onFrame(frame, origin);
  }

  disconnect(endpoint: string): void {
    this.#onDisconnect(endpoint);
  }
}

export const FRONT = 'tcp://127.0.0.1:1000';
export const WORKER = 'tcp://127.0.0.1:2000';

/** A front and a worker over wires in memory. */
export function linkWorld(role: 'context' | 'generation' = 'context', clock = new FakeClock()) {
  const wires = new Wires(clock);
  const log: string[] = [];
  const warnings: string[] = [];
  /** Whether the fronts are about to end. */
  const ending = { is: false };
  let nextSession = 100n;
  /** @param draws what the front draws for the part of the process */
  const startFront = (port: number, ...draws: number[]) => {
    const onWarning = (message: string): void => void warnings.push(message);
    const draw = (): number => draws.shift() ?? 0;
    const ids = new FrontIds({ clock, unixTimeAtOriginMs: DEFAULT_EPOCH_MS + 1e9, nodeId: 0, draw, onWarning });
    const links = new FrontLinks({
      clock,
      messenger: wires.bind(port),
      engine: 'tiny',
      newSession: () => nextSession++,
      ids: () => ids.origin,
      onIdsTaken: (taken) => ids.refused(taken),
      onWarning,
      isEnding: () => ending.is,
    });
    ids.onChange(() => links.announceIds());
    return { ids, links };
  };
  const { links: front, ids } = startFront(1000, 17);
  const link: WorkerLink = front.add(`${role}-0`, role);
  const startWorker = (
    more: {
      readonly engine?: string;
      readonly role?: 'generation';
      readonly incarnation?: bigint;
      readonly metrics?: string;
      readonly port?: number;
    } = {},
  ) => {
    const server = new FakeServer('worker', WORKER, log);
    const host = new LinkHost({
      clock,
      messenger: wires.bind(more.port ?? 2000),
      role: more.role ?? role,
      engine: more.engine ?? 'tiny',
      incarnation: more.incarnation ?? 7n,
      infoEndpoint: 'tcp://127.0.0.1:3000',
      pid: 42,
      server,
      metrics: async () => more.metrics ?? 'up 1\n',
      onWarning: (message) => warnings.push(message),
    });
    return { server, host };
  };
  return { clock, wires, log, warnings, ending, front, ids, link, startFront, startWorker };
}
