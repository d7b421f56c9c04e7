// A peer process for the messenger tests: node messenger-child.mjs WIRE_MODULE MODE JSON. It says its endpoint in its first line.
import process from 'node:process';

const [wireModule, mode, json] = process.argv.slice(2);
const { ZeromqMessenger } = await import(wireModule);
const options = JSON.parse(json);
const messenger = await ZeromqMessenger.open({ host: options.host ?? '127.0.0.1', port: options.port ?? 0 });
const text = (bytes) => Buffer.from(bytes).toString();

const modes = {
  /** Sends every frame back to the endpoint in its first line. Only the messenger keeps this process alive. */
  echo() {
    messenger.onFrame((frame) => messenger.send(text(frame).split('\n')[0], frame));
  },
  /** Sends `count` frames to `to`, closes and ends, at once or by itself. */
  async farewell() {
    for (let i = 0; i < options.count; i++)
      messenger.send(options.to, Buffer.from(`${i}:${'x'.repeat(options.padding)}`));
    await messenger.close(options.lingerMs);
    if (options.exit === 'at-once') process.exit(0);
  },
};

process.stdout.write(`${messenger.endpoint}\n`);
await modes[mode]();
