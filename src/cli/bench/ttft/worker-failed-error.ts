import type { ReportedError, WorkerSettings } from './worker-messages.js';

/** A server process reported that it cannot go on. `reported` is the error as it was thrown there. */
export class WorkerFailedError extends Error {
  override readonly name = 'WorkerFailedError';
  readonly role: WorkerSettings['role'];
  readonly reported: ReportedError;

  constructor(role: WorkerSettings['role'], reported: ReportedError) {
    super(`${role} server: ${reported.name}: ${reported.message}`);
    this.role = role;
    this.reported = reported;
  }
}
