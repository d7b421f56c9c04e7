import type { ConfigProblem } from '../../config/index.js';
import type { WorkerSettings } from './worker-settings.js';

/** Parent to child, over the channel of `fork`. Requests go over the link; this is about the process alone. */
export type WorkerCommand =
  | { readonly kind: 'start'; readonly settings: WorkerSettings }
  /** Finish what runs, within `deadlineMs`, and end. */
  | { readonly kind: 'stop'; readonly deadlineMs: number };

/** Child to parent. */
export type WorkerNotice =
  | { readonly kind: 'ready'; readonly endpoint: string }
  /** It cannot go on, and ends after this. */
  | {
      readonly kind: 'fatal';
      readonly message: string;
      /** Another try may succeed. */
      readonly retryable: boolean;
      /** Settings of its section to change, if it is about those. */
      readonly problems: readonly ConfigProblem[] | null;
    };
