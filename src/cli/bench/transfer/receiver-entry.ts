// The receiving process of `bench transfer`: lends its memory and checks what arrived in it.
import { KvTransceiverError, StateError } from '../../../errors.js';
import { type BenchAgent, openAgent } from '../open-agent.js';
import { BounceReceiver } from './bounce-receiver.js';
import { pageTableOf, pageTokens } from './page-set.js';
import type { ReceiverAnswer, ReceiverCommand } from './receiver-messages.js';
import { SPLIT, splitDestinationTable } from './split-page-set.js';

interface Opened extends BenchAgent {
  readonly base: number;
}

const opened = new Map<string, Opened>();
const bounced = new BounceReceiver();

async function answer(command: ReceiverCommand): Promise<ReceiverAnswer> {
  if (command.kind === 'open') {
    const { agent, lane, sizeBytes, path, device } = command;
    const onDevice = device === undefined ? {} : { device };
    const bench = await openAgent(agent, null, 'transfer-receiver', { ...onDevice, ...(path ? { path } : {}) });
    const { base } = await bench.agent.allocatePool({ sizeBytes, ...onDevice });
    opened.set(lane, { ...bench, base });
    return { kind: 'opened', metadata: await bench.agent.metadata(), base };
  }
  if (command.kind !== 'verify') return bounced.answer(command);
  const receiver = opened.get(command.lane);
  if (receiver === undefined) throw new StateError(`agent ${command.lane} was not opened`);
  const { content, base } = receiver;
  const { pageBytes, slotCount, slots, seed, isSplit = false, canaryMs } = command;
  const tokens = slots.length * (isSplit ? SPLIT.tokensPerBlock : 1);
  const job = {
    table: isSplit ? splitDestinationTable(base, slotCount) : pageTableOf(base, pageBytes, slotCount),
    group: 0,
    run: { begin: 0, slots },
    tokenBegin: 0,
    tokenEnd: tokens,
    tokenSeeds: content.chainTokenSeeds(pageTokens(tokens, seed)),
    firstHead: isSplit ? SPLIT.head : 0,
  };
  if (canaryMs !== undefined) {
    await content.fill(job);
    await new Promise((resolve) => setTimeout(resolve, canaryMs));
  }
  const { bytesChecked, wrongBytes } = await content.verify(job);
  return { kind: 'verified', bytesChecked, wrongBytes };
}

function describe(error: unknown): ReceiverAnswer {
  const code = error instanceof KvTransceiverError ? error.code : '';
  return { kind: 'failed', code, message: error instanceof Error ? error.message : String(error) };
}

async function end(): Promise<void> {
  setTimeout(() => process.exit(1), 1000).unref();
  await Promise.all([...[...opened.values()].map(({ agent }) => agent.close(500)), bounced.close(500)]);
  process.exit(0);
}

let turn: Promise<void> = Promise.resolve();
process.on('message', (command) => {
  turn = turn.then(async () => {
    const reply = await answer(command as ReceiverCommand).catch(describe);
    if (process.connected) process.send?.(reply);
  });
});
// The sender decides when this process ends: it closes the channel.
process.on('SIGINT', () => {});
// Nobody reads what would be said; the sender notices the same and ends.
process.stderr.on('error', () => {});
process.on('disconnect', () => void end());
