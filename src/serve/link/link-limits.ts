/** Version of the frames; both ends must have the same. */
export const LINK_VERSION = 3;

/** A frame is sent when it has this much, so that no frame comes near what the messenger refuses. */
export const FRAME_MESSAGES = 512;
export const FRAME_BYTES = 1024 * 1024;

/** Tokens of a prompt or an answer, and the largest of all. */
export const MAX_TOKENS = 1024 * 1024;
export { MAX_TOKEN } from '../../token.js';
/** Tokens that end an answer. */
export const MAX_STOP_TOKENS = 256;
export const MAX_METRICS_BYTES = 4 * 1024 * 1024;
export const MAX_REASON_BYTES = 2048;
export const MAX_LABEL_BYTES = 512;
/** Fronts of one worker at once. */
export const MAX_SESSIONS = 64;
/** Requests of one front at one worker. */
export const MAX_CALLS = 65_536;

/** How often a front greets a worker that does not answer, and pings one that does. */
export const HELLO_INTERVAL_MS = 250;
export const PING_INTERVAL_MS = 1000;
/** Silence after which the other end counts as gone. A process that is stopped for shorter is not. */
export const SILENCE_LIMIT_MS = 15_000;
