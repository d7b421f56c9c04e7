/** In the order of `NoteGauge` of native/core/note_gauges.h. */
const NAMES = ['sent', 'unsent', 'received', 'dropped', 'refused'] as const;

/**
 * One agent's notes since it was opened: `sent`; `unsent` (armed, and not sent: a transfer failed or was cancelled, had ended before, or
 * there is no way to the peer's agent); `received`; `dropped` (came faster than this thread took them); `refused` (connections that were
 * cut because of what they said, or of who made them).
 */
export type NoteStats = Readonly<Record<(typeof NAMES)[number], number>>;

/** @param numbers of `NativeAgent.noteStats` */
export function readNoteStats(numbers: Float64Array): NoteStats {
  return Object.fromEntries(NAMES.map((name, index) => [name, numbers[index] ?? 0])) as NoteStats;
}
