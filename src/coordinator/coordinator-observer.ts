import type { CoordinatorRequest, CoordinatorResult } from './coordinator-request.js';

/** One call of `DisaggCoordinator.submit`. */
export interface CoordinatorSubmission {
  readonly request: CoordinatorRequest;
  /** `Clock` ms. */
  readonly atMs: number;
}

/** Hears of the requests of one coordinator. What a handler throws becomes a process warning. */
export interface CoordinatorObserver {
  /** @returns the `traceparent` that both servers get. Undefined: the request's own */
  onSubmitted?(submission: CoordinatorSubmission): string | undefined;
  /** The one outcome, of the same submission. */
  onFinished?(submission: CoordinatorSubmission, result: CoordinatorResult): void;
}

/** Tells the observers of a submission. @returns the request as the servers shall get it, and whom to tell how it ended */
export function tellSubmitted(
  observers: ReadonlySet<CoordinatorObserver>,
  request: CoordinatorRequest,
  atMs: number,
): { readonly request: CoordinatorRequest; readonly finished: (result: CoordinatorResult) => void } {
  const submission: CoordinatorSubmission = { request, atMs };
  // Whoever is taken away meanwhile hears nothing more.
  const told = [...observers];
  let traceparent: string | undefined;
  for (const observer of told) {
    const answer = guarded('onSubmitted', () => observer.onSubmitted?.(submission));
    traceparent ??= answer;
  }
  return {
    request: traceparent === undefined ? request : { ...request, traceparent },
    finished: (result) => {
      for (const observer of told)
        if (observers.has(observer)) guarded('onFinished', () => observer.onFinished?.(submission, result));
    },
  };
}

function guarded<T>(handler: string, call: () => T): T | undefined {
  try {
    return call();
  } catch (error) {
    process.emitWarning(`kv-transceiver: coordinator observer ${handler} threw: ${String(error)}`);
    return undefined;
  }
}
