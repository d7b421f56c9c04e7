/** Timers and the wire hold milliseconds in 31 bits: about 24 days. A longer timer of Node fires at once. */
export const MAX_TIMER_MS = 0x7fff_ffff;
