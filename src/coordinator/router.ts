/** A server that may be chosen. */
export interface RouteCandidate {
  /** Unique among the servers of its role. */
  readonly name: string;
  readonly incarnation: bigint;
  /** Requests it works on for this coordinator, or is about to: of a context server until their pages have left, not until they are decoded. */
  readonly liveRequests: number;
  /** Prompt tokens of those. */
  readonly liveTokens: number;
}

/** What a router looks at. */
export interface RoutedPrompt {
  readonly promptTokens: Uint32Array;
}

/** Chooses a server for each request. One router serves one role. */
export interface Router {
  /** @param candidates ready servers, at least one, in the order they were added */
  choose(candidates: readonly RouteCandidate[], prompt: RoutedPrompt): RouteCandidate;
  /** The server is gone for good. */
  forget?(name: string): void;
}
