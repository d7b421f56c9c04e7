/** Answers to early questions that are repeated at once. */
const MAX_REPEATED_ANSWERS = 16384;
/** One peer gets this part of them: as many as it has questions. */
const PEER_PART = 1 / 8;

/**
 * Role: counts the answers to early questions that wait for an acknowledgement.
 * Why: a peer says itself how long a question waits, and cancels as it likes, so that it can have thousands answered a second; each is repeated
 *   for as long as a transfer may take. Who acknowledges none of them must not fill the memory with them.
 */
export class AnswerRoom {
  readonly #held = new Map<string, number>();
  #total = 0;

  get count(): number {
    return this.#total;
  }

  /** @returns why this peer's answer cannot be repeated: the room, or its part of it, is full */
  take(endpoint: string): 'taken' | 'full' | 'peer_full' {
    const held = this.#held.get(endpoint) ?? 0;
    if (this.#total >= MAX_REPEATED_ANSWERS) return 'full';
    if (held >= MAX_REPEATED_ANSWERS * PEER_PART) return 'peer_full';
    this.#held.set(endpoint, held + 1);
    this.#total += 1;
    return 'taken';
  }

  /** One that was taken is over. */
  giveBack(endpoint: string): void {
    const held = (this.#held.get(endpoint) ?? 0) - 1;
    if (held > 0) this.#held.set(endpoint, held);
    else this.#held.delete(endpoint);
    this.#total -= 1;
  }

  clear(): void {
    this.#held.clear();
    this.#total = 0;
  }
}
