// What becomes of monitors: node --expose-gc monitor-child.mjs WIRE_FOLDER MODE. Ends by itself, unless ZeroMQ's reaper thread is stuck.
import { fork } from 'node:child_process';
import { closeSync, openSync } from 'node:fs';
import process from 'node:process';
import { setImmediate as turn } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { Dealer } from 'zeromq';

const [wire, mode] = process.argv.slice(2);
const { ZeromqMessenger } = await import(`${wire}/zeromq-messenger.js`);
const { watchSocket } = await import(`${wire}/zeromq-monitor.js`);
const { zeromqContext } = await import(`${wire}/zeromq-context.js`);

const LINGER_MS = 60_000;
const FRAMES = 50;
const FRAME_BYTES = 256 * 1024;

async function collect() {
  for (let i = 0; i < 50; i++) {
    globalThis.gc();
    await turn();
  }
}

/** Later sockets of the thread are destroyed too. */
async function cycle() {
  for (let i = 0; i < 10; i++) await (await ZeromqMessenger.open()).close(0);
}

/** Until it holds, without a turn of the event loop: what ZeroMQ's threads do meanwhile is not read. */
function spinUntil(holds, what) {
  const pause = new Int32Array(new SharedArrayBuffer(4));
  for (let i = 0; !holds(); i++) {
    if (i > 60_000) throw new Error(`never ${what}`);
    Atomics.wait(pause, 0, 0, 1);
  }
}

const modes = {
  /** The peer is closed with events unread, and its socket lives on in the background, to send what it took. */
  async unread() {
    let isWritable = () => false;
    const connect = Dealer.prototype.connect;
    Object.defineProperty(Dealer.prototype, 'connect', {
      value(...args) {
        const dealer = new WeakRef(this);
        isWritable = () => dealer.deref().writable;
        connect.apply(this, args);
      },
    });
    const sink = fork(fileURLToPath(new URL('monitor-sink.mjs', import.meta.url)), [], { execArgv: [] });
    const message = () => new Promise((resolve) => sink.once('message', resolve));
    const endpoint = await message();
    const messenger = await ZeromqMessenger.open();
    messenger.send(endpoint, Buffer.alloc(8));
    while (messenger.counts().framesSent < 1) await turn();
    sink.kill('SIGUSR2');
    spinUntil(() => !isWritable(), 'cut off');
    sink.kill('SIGUSR2');
    spinUntil(() => isWritable(), 'connected again');
    for (let i = 0; i < FRAMES; i++) messenger.send(endpoint, Buffer.alloc(FRAME_BYTES));
    // Promise callbacks only.
    for (let i = 0; messenger.counts().framesSent < 1 + FRAMES; i++) {
      if (i > 10_000) throw new Error(`${messenger.counts().framesSent} of ${1 + FRAMES} frames were sent`);
      await null;
    }
    await messenger.close(LINGER_MS);
    await collect();
    const ended = message();
    sink.kill('SIGUSR2');
    if ((await ended) !== 'ended') throw new Error('the connection has not ended');
    sink.disconnect();
    await cycle();
  },

  /** A listener that throws is heard of, and its monitor is read on. */
  async throwing() {
    let thrown = 0;
    process.on('uncaughtException', () => {
      thrown += 1;
    });
    const dealer = new Dealer({ context: zeromqContext(), linger: 0, reconnectInterval: 1 });
    let heard = 0;
    const { ended } = watchSocket(dealer, () => {
      heard += 1;
      throw new Error('out of the blue');
    });
    dealer.connect('tcp://127.0.0.1:1');
    while (heard < 10) await turn();
    dealer.close();
    await collect();
    await ended;
    await turn();
    if (thrown !== heard) throw new Error(`${heard} events, ${thrown} errors`);
    await cycle();
  },

  /** Peers and messengers that come while descriptors run out, at each number of free ones. */
  async descriptors() {
    const messenger = await ZeromqMessenger.open({ descriptorLimit: Number.POSITIVE_INFINITY });
    const refusals = [];
    for (let free = 0; free < 12; free++) {
      await cycle();
      const taken = [];
      try {
        for (;;) taken.push(openSync('/dev/null', 'r'));
      } catch {
        for (const fd of taken.splice(0, free)) closeSync(fd);
      }
      messenger.send(`tcp://127.0.0.1:${free + 1}`, Buffer.alloc(1));
      const opened = ZeromqMessenger.open().then(
        (other) => other.close(0),
        (error) => void refusals.push(error),
      );
      // What it takes it takes at once, or after a promise callback.
      for (let i = 0; i < 100; i++) await null;
      for (const fd of taken) closeSync(fd);
      await opened;
      messenger.forget(`tcp://127.0.0.1:${free + 1}`);
      await collect();
    }
    const wrong = refusals.filter(({ code }) => code !== 'ERR_KVT_RESOURCE');
    if (wrong.length > 0) throw wrong[0];
    const dropped = messenger.counts().framesDropped.closed;
    if (refusals.length === 0 || dropped === 0) throw new Error(`refused ${refusals.length}, dropped ${dropped}`);
    await messenger.close(0);
    await cycle();
  },
};

await modes[mode]();
process.stdout.write('done\n');
