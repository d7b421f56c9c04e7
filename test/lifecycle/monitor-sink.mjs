// A peer that the monitor tests lead: node monitor-sink.mjs. It tells its endpoint by IPC. Connections come by a gate: SIGUSR2 breaks those that there
// are and shuts it; the next one opens it, and of what comes then only the beginning is read; the third one reads on. It tells when such a
// connection has ended.
import net from 'node:net';
import process from 'node:process';
import { Router } from 'zeromq';

/** A handshake and no more. */
const BEGINNING_BYTES = 256;

const router = new Router({ linger: 0 });
await router.bind('tcp://127.0.0.1:*');
const port = Number(router.lastEndpoint.split(':').pop());
void (async () => {
  for await (const _ of router);
})();

let phase = 0;
const connections = new Set();
const waiting = new Set();

function forward(socket) {
  const upstream = net.connect(port, '127.0.0.1');
  connections.add(socket);
  let bytes = 0;
  socket.on('data', (chunk) => {
    upstream.write(chunk);
    bytes += chunk.length;
    if (phase === 2 && bytes > BEGINNING_BYTES) socket.pause();
  });
  upstream.pipe(socket, { end: false });
  socket.on('end', () => {
    if (phase === 3) process.send('ended');
  });
  socket.on('close', () => upstream.destroy());
}

const gate = net.createServer((socket) => {
  socket.on('error', () => socket.destroy());
  if (phase === 1) waiting.add(socket);
  else forward(socket);
});
gate.listen(0, '127.0.0.1', () => process.send(`tcp://127.0.0.1:${gate.address().port}`));

process.on('SIGUSR2', () => {
  phase += 1;
  if (phase === 1) for (const socket of connections) socket.destroy();
  if (phase === 1) connections.clear();
  if (phase === 2) for (const socket of waiting) forward(socket);
  if (phase === 3) for (const socket of connections) socket.resume();
});
process.on('disconnect', () => process.exit(0));
