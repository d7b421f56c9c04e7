import type { DisaggConfig, DisaggServerGroup } from '../../config/index.js';
import type { WorkerRole } from '../link/link-message.js';
import type { LogLevel } from '../serve-log.js';

/** What a worker process is started with; crosses a process boundary as it is. */
export interface WorkerSettings {
  readonly role: WorkerRole;
  /** In messages and metrics. */
  readonly name: string;
  readonly scheduleStyle: DisaggConfig['scheduleStyle'];
  readonly group: DisaggServerGroup;
  /** Absolute path of the module given to `--engine`; null: the tiny engine. */
  readonly engineModule: string | null;
  /** Where fronts reach it; null: any free port, on this machine alone. */
  readonly listen: { readonly host: string; readonly port: number } | null;
  readonly logLevel: LogLevel;
}
