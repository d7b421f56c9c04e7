// A worker thread that ends by process.exit with its messenger open, and a main thread that has to survive it.
import process from 'node:process';
import { fileURLToPath } from 'node:url';
import { isMainThread, parentPort, Worker, workerData } from 'node:worker_threads';

const wireModule = isMainThread ? process.argv[2] : workerData.wireModule;
const { ZeromqMessenger, generateCurveKeyPair } = await import(wireModule);
let curve = null;
if (!isMainThread) ({ curve } = workerData);
else if (process.argv[3] === 'encrypted') curve = generateCurveKeyPair();
const messenger = await ZeromqMessenger.open({ curve });

if (isMainThread) {
  const lost = new Promise((resolve) => messenger.onDisconnect(resolve));
  const worker = new Worker(fileURLToPath(import.meta.url), { workerData: { wireModule, curve } });
  worker.once('message', (endpoint) => messenger.send(endpoint, Buffer.from('end')));
  await new Promise((resolve) => worker.once('exit', resolve));
  await lost;
  await messenger.close(0);
  process.stdout.write('survived\n');
} else {
  messenger.onFrame(() => {
    messenger.send('tcp://127.0.0.1:1', Buffer.from('never sent'));
    process.exit(0);
  });
  parentPort.postMessage(messenger.endpoint);
}
