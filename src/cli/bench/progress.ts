import type { WriteStream } from 'node:tty';

export interface ProgressSink {
  readonly isTTY?: boolean;
  readonly columns?: number;
  write(text: string): unknown;
}

const BAR_WIDTH = 24;

/** One updating line on a terminal; elsewhere a line for each tenth of the work, so that logs stay short. */
export class Progress {
  readonly #sink: ProgressSink;
  readonly #total: number;
  #done = 0;
  #printedTenths = -1;
  #lineOpen = false;

  constructor(total: number, sink: ProgressSink = process.stderr as WriteStream) {
    this.#total = Math.max(1, total);
    this.#sink = sink;
  }

  /** Says what is being done now. */
  show(label: string): void {
    if (this.#sink.isTTY !== true) return;
    const filled = Math.round((BAR_WIDTH * this.#done) / this.#total);
    const bar = `[${'='.repeat(filled)}${' '.repeat(BAR_WIDTH - filled)}] ${this.#done}/${this.#total}  ${label}`;
    this.#sink.write(`\r\u001b[2K${bar.slice(0, (this.#sink.columns ?? 80) - 1)}`);
    this.#lineOpen = true;
  }

  advance(label: string): void {
    this.#done++;
    if (this.#sink.isTTY === true) {
      this.show(label);
      return;
    }
    const tenths = Math.floor((10 * this.#done) / this.#total);
    if (tenths === this.#printedTenths) return;
    this.#printedTenths = tenths;
    this.#sink.write(`${this.#done}/${this.#total}  ${label}\n`);
  }

  /** Leaves the terminal line clean for what is printed next. */
  end(): void {
    if (this.#lineOpen) this.#sink.write('\r\u001b[2K');
    this.#lineOpen = false;
  }
}
