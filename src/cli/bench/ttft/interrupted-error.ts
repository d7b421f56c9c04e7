/** The user stopped the run. */
export class InterruptedError extends Error {
  override readonly name = 'InterruptedError';
  constructor() {
    super('interrupted');
  }
}

/** What broke a run off, unless that was the user. */
export function faultOf(failure: unknown): Error | null {
  return failure instanceof Error && !(failure instanceof InterruptedError) ? failure : null;
}
