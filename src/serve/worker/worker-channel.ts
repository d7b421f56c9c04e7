import type { WorkerSettings } from './worker-settings.js';

/** Parent to child, over the channel of `fork`. Requests go over the link; this is about the process alone. */
export type WorkerCommand =
  | { readonly kind: 'start'; readonly settings: WorkerSettings }
  /** Finish what runs, within `deadlineMs`, and end. */
  | { readonly kind: 'stop'; readonly deadlineMs: number };

/** Child to parent. */
export type WorkerNotice =
  | { readonly kind: 'ready'; readonly endpoint: string }
  /** It cannot go on, and ends after this. `retryable`: another try may succeed. */
  | { readonly kind: 'fatal'; readonly message: string; readonly retryable: boolean };
