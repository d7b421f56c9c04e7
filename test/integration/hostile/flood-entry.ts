import { decodeFrame } from '../../../src/wire/frame-codec.js';
import { until } from '../../support/deadline.js';
import { type StrangerKeys, ZeromqStranger } from './zeromq-stranger.js';

/** What the process is started with, as JSON. */
export interface FloodSettings {
  readonly target: string;
  readonly count: number;
  /** A HELLO that fits, in hex. */
  readonly hello: string;
  readonly keys: StrangerKeys | null;
  /** What each waits for its answer. */
  readonly limitMs: number;
}

/** How many of its strangers the rank accepted, refused, and left without an answer. */
export interface FloodResult {
  readonly accepted: number;
  readonly refused: number;
  readonly silent: number;
  readonly refusals: readonly string[];
}

const settings = JSON.parse(process.argv[2] ?? '{}') as FloodSettings;
const { message: hello } = decodeFrame(Buffer.from(settings.hello, 'hex'));
if (hello.type !== 'HELLO') throw new Error('no HELLO');
const strangers: ZeromqStranger[] = [];
for (let i = 0; i < settings.count; i += 1) {
  const stranger = await ZeromqStranger.open(settings.target, 0x5000n + BigInt(i), settings.keys);
  strangers.push(stranger);
  const answered = (): boolean => stranger.heard.some(({ message }) => message.type === 'HELLO_ACK');
  // Once: each of them is counted.
  await stranger.greet(hello);
  await until(answered, () => '', settings.limitMs).catch(() => undefined);
}
const refusals = new Set<string>();
let [accepted, refused] = [0, 0];
for (const { heard } of strangers) {
  const answer = heard.map(({ message }) => message).find((message) => message.type === 'HELLO_ACK')?.answer;
  if (answer?.accepted === true) accepted += 1;
  else if (answer !== undefined) {
    refused += 1;
    refusals.add(answer.message);
  }
}
const silent = strangers.length - accepted - refused;
const result: FloodResult = { accepted, refused, silent, refusals: [...refusals] };
process.stdout.write(`${JSON.stringify(result)}\n`);
// They stay until the process is ended.
setInterval(() => undefined, 1000);
