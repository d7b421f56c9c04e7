import { randomBytes } from 'node:crypto';
import type { Clock } from '../../clock.js';
import { isLoopback } from '../../config/host-address.js';
import { type DisaggConfig, type DisaggServerGroup, resolveCacheTransceiverConfig } from '../../config/index.js';
import { ConfigError } from '../../errors.js';
import { messengerOptions, ZeromqMessenger } from '../../wire/index.js';
import { FrontLinks } from '../link/front-links.js';
import type { WorkerLink } from '../link/worker-link.js';
import type { LogLevel } from '../serve-log.js';
import type { FrontIds } from './front-ids.js';
import type { LabelledMetrics } from './merge-metrics.js';
import { WorkerKeeper } from './worker-keeper.js';
import { WorkerProcess } from './worker-process.js';

export interface WorkerSideOptions {
  readonly clock: Clock;
  readonly config: Pick<DisaggConfig, 'scheduleStyle' | 'hostname'>;
  readonly group: DisaggServerGroup;
  readonly engineModule: string | null;
  /** See `engineLabel`. */
  readonly engineLabel: string;
  /** Where workers of other machines reach this process; null: worked out. */
  readonly controlHost: string | null;
  readonly ids: FrontIds;
  /** Of the workers of this machine. */
  readonly logLevel: LogLevel;
  readonly onWarning: (message: string) => void;
  /** The front is about to end. */
  readonly isEnding: () => boolean;
}

/** From `ready` to the first answer over the link. */
const LINK_LIMIT_MS = 15_000;

/**
 * Role: the context or the generation workers as the front has them: a link to each, and a keeper for those that it started itself.
 * Ownership: owns the links and the processes; `close` leaves none behind.
 */
export class WorkerSide {
  readonly links: readonly WorkerLink[];
  readonly role: DisaggServerGroup['role'];
  /** The section's setting. */
  readonly tracing: boolean;
  readonly #clock: Clock;
  readonly #front: FrontLinks;
  readonly #keepers: ReadonlyMap<string, WorkerKeeper>;

  private constructor(
    clock: Clock,
    role: DisaggServerGroup['role'],
    front: FrontLinks,
    links: readonly WorkerLink[],
    keepers: ReadonlyMap<string, WorkerKeeper>,
    tracing: boolean,
  ) {
    this.role = role;
    this.#clock = clock;
    this.#front = front;
    this.links = links;
    this.#keepers = keepers;
    this.tracing = tracing;
  }

  /** Nothing is started yet. @throws ConfigError for security settings or addresses that cannot be used */
  static async open(options: WorkerSideOptions): Promise<WorkerSide> {
    const { clock, group, onWarning, isEnding, engineLabel, engineModule, config, ids, logLevel } = options;
    // What the section says of keys holds for this end as well; the rest of it is about the workers' machines.
    const resolved = resolveCacheTransceiverConfig(group.cacheTransceiverConfig, {
      nixlAvailable: true,
      role: group.role,
    });
    const host = controlHostOf(options);
    const messenger = await ZeromqMessenger.open({
      ...(await messengerOptions(resolved.config)),
      host: host.bind,
      port: 0,
      advertiseHost: host.advertise,
      onWarning,
    });
    const front = new FrontLinks({
      clock,
      messenger,
      engine: engineLabel,
      newSession: () => randomBytes(8).readBigUInt64LE(),
      ids: () => ids.origin,
      onIdsTaken: (taken) => ids.refused(taken),
      onWarning,
      isEnding,
    });
    ids.onChange(() => front.announceIds());
    const keepers = new Map<string, WorkerKeeper>();
    const links = Array.from({ length: group.instanceCount }, (_, index) => {
      const url = group.urls[index];
      const name = url === undefined ? `${group.role}-${index}` : `${group.role}-${url}`;
      const link = front.add(name, group.role);
      if (url === undefined) {
        const settings = {
          role: group.role,
          name,
          scheduleStyle: config.scheduleStyle,
          group,
          engineModule,
          listen: null,
          logLevel,
        };
        const launch = (events: ConstructorParameters<typeof WorkerProcess>[1]) => new WorkerProcess(settings, events);
        keepers.set(name, new WorkerKeeper({ clock, link, launch, onWarning }));
      } else link.attach(`tcp://${url}`);
      return link;
    });
    return new WorkerSide(clock, group.role, front, links, keepers, resolved.config.tracing);
  }

  /** Starts the workers of this machine. @returns when each is ready @throws the first error that one of them ends with */
  async start(): Promise<void> {
    await Promise.all([...this.#keepers.values()].map((keeper) => keeper.start()));
    await Promise.all(this.links.filter(({ name }) => this.#keepers.has(name)).map((link) => this.#untilUp(link)));
  }

  async #untilUp(link: WorkerLink): Promise<void> {
    await new Promise<void>((resolve, reject) => {
      const timer = this.#clock.setTimer(LINK_LIMIT_MS, () => {
        const { reason } = link.condition();
        reject(
          new ConfigError(
            `${link.name} runs and cannot be reached (${reason}); check listen and security of its section`,
          ),
        );
      });
      void link.up().then(() => {
        timer.cancel();
        resolve();
      });
    });
  }

  status(): readonly { readonly name: string; readonly isReady: boolean; readonly starts: number }[] {
    return this.links.map((link) => ({
      name: link.name,
      isReady: link.condition().phase === 'ready',
      starts: this.#keepers.get(link.name)?.starts ?? 0,
    }));
  }

  /** At its links. */
  get internalErrors(): number {
    return this.#front.internalErrors;
  }

  metrics(): Promise<readonly LabelledMetrics[]> {
    return Promise.all(
      this.links.map(async (link) => ({
        labels: { worker: link.name, worker_role: link.role },
        text: (await link.metrics()) ?? '',
      })),
    );
  }

  /** Workers of this machine finish what runs, within the deadline, and end; those elsewhere are left alone. */
  async close(deadlineMs: number): Promise<void> {
    await Promise.all([...this.#keepers.values()].map((keeper) => keeper.stop(deadlineMs)));
    await this.#front.close(100);
  }

  /** Ends the processes that it started, at once. */
  kill(): void {
    for (const keeper of this.#keepers.values()) keeper.kill();
  }
}

/** Answers come over connections that workers make to this process. */
function controlHostOf({ group, controlHost, config }: WorkerSideOptions): {
  readonly bind: string;
  readonly advertise: string | null;
} {
  const hosts = group.urls.map((url) => url.slice(0, url.lastIndexOf(':')));
  if (controlHost === '0.0.0.0')
    throw new ConfigError('--control-host 0.0.0.0 is no address to answer to; name the one that workers reach');
  if (controlHost !== null) return { bind: controlHost, advertise: null };
  if (hosts.every(isLoopback)) return { bind: '127.0.0.1', advertise: null };
  if (isLoopback(config.hostname) || config.hostname === '0.0.0.0') {
    const message =
      'names other machines, and they must be able to answer: give the address of this one that they reach (--control-host)';
    throw new ConfigError(`${group.role}_servers.urls ${message}`, {
      details: { problems: [{ setting: 'urls', message }] },
    });
  }
  return { bind: config.hostname, advertise: null };
}
