import { mix32 } from './random.js';

/** What one run broke. */
export interface Violation {
  readonly rule: string;
  readonly text: string;
  readonly atMs: number;
}

/**
 * Role: what happened, as a hash always and as text when somebody wants to read it.
 * Why: two runs of a seed are the same run exactly when their hashes are equal.
 */
export class Journal {
  readonly lines: string[] = [];
  readonly violations: Violation[] = [];
  readonly #telling: boolean;
  readonly #now: () => number;
  #low = 0x811c9dc5;
  #high = 0x01000193;
  #count = 0;

  constructor(telling: boolean, now: () => number) {
    this.#telling = telling;
    this.#now = now;
  }

  /** Events that went into the hash. */
  get count(): number {
    return this.#count;
  }

  /** 64 bits over every event and its virtual time. */
  get hash(): string {
    return [this.#high, this.#low].map((half) => half.toString(16).padStart(8, '0')).join('');
  }

  /** `story` is made only when somebody reads it. */
  note(kind: number, a: number, b: number, story: () => string): void {
    const at = Math.round(this.#now() * 1024) | 0;
    this.#low = mix32(this.#low ^ Math.imul(kind + 1, 0x9e3779b1) ^ at);
    this.#high = mix32(this.#high ^ this.#low ^ Math.imul(a | 0, 0x85ebca6b) ^ (b | 0));
    this.#count += 1;
    if (this.#telling) this.lines.push(`${this.#now().toFixed(2).padStart(10)} ms  ${story()}`);
  }

  violation(rule: string, text: string): void {
    this.violations.push({ rule, text, atMs: this.#now() });
    this.note(99, this.violations.length, 0, () => `!! ${rule}: ${text}`);
  }
}
