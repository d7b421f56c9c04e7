import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import { CapabilityError, InternalError, PeerLostError, TransportError } from '../../../errors.js';
import type { ReceiverAnswer, ReceiverCommand } from './receiver-messages.js';

const RECEIVER_ENTRY = fileURLToPath(new URL('./receiver-entry.js', import.meta.url));
const END_DEADLINE_MS = 1200;

/** The receiving process, seen from the sender. Commands are answered one at a time. */
export class ReceiverProcess {
  readonly #child: ChildProcess = fork(RECEIVER_ENTRY, [], {
    serialization: 'advanced',
    stdio: ['ignore', 'ignore', 'inherit', 'ipc'],
  });
  readonly #exit: Promise<PeerLostError>;

  constructor() {
    this.#exit = new Promise((resolve) => {
      this.#child.once('exit', (code, signal) => {
        const how = signal === null ? `ended with code ${code}` : `was ended by ${signal}`;
        resolve(
          new PeerLostError(`the receiving process (pid ${this.#child.pid}) ${how}`, {
            peer: 'receiver',
            drained: true,
          }),
        );
      });
    });
  }

  async ask<K extends ReceiverAnswer['kind']>(
    command: ReceiverCommand,
    kind: K,
  ): Promise<Extract<ReceiverAnswer, { kind: K }>> {
    const reply = new Promise<ReceiverAnswer>((resolve) =>
      this.#child.once('message', (message) => resolve(message as ReceiverAnswer)),
    );
    this.#child.send(command, () => {});
    const answer = await this.orLost(reply);
    if (answer.kind === 'failed') {
      const text = `receiving process: ${answer.message}`;
      throw answer.code === 'ERR_KVT_CAPABILITY'
        ? new CapabilityError(text)
        : new TransportError(text, { peer: 'receiver' });
    }
    if (answer.kind !== kind) throw new InternalError(`the receiving process answered ${answer.kind}, not ${kind}`);
    return answer as Extract<ReceiverAnswer, { kind: K }>;
  }

  /** @throws PeerLostError when the process ends first */
  async orLost<T>(work: Promise<T>): Promise<T> {
    return Promise.race([
      work,
      this.#exit.then((error) => {
        throw error;
      }),
    ]);
  }

  async end(): Promise<void> {
    if (this.#child.exitCode !== null || this.#child.signalCode !== null) return;
    const exit = once(this.#child, 'exit');
    if (this.#child.connected) this.#child.disconnect();
    const hardEnd = setTimeout(() => this.#child.kill('SIGKILL'), END_DEADLINE_MS);
    await exit;
    clearTimeout(hardEnd);
  }
}
