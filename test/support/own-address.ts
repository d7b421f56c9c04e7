import { createServer } from 'node:net';

/** Loopback has as many addresses as it takes: this one is nobody's but this process's, and so are all its ports. */
const HOST = `127.${64 + ((process.pid >> 16) & 63)}.${(process.pid >> 8) & 255}.${process.pid & 255}`;

export interface OwnAddress {
  readonly host: string;
  readonly port: number;
  readonly endpoint: string;
}

/**
 * A loopback address at which nobody listens, and which stays free until the test uses it, or once more: a port of 127.0.0.1 that was free a
 * moment ago may be another's by then, as the kernel gives it to whoever asks for any.
 */
export async function ownAddress(): Promise<OwnAddress> {
  const server = createServer();
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject);
    server.listen(0, HOST, resolve);
  });
  const { port } = server.address() as { port: number };
  await new Promise((resolve) => server.close(resolve));
  return { host: HOST, port, endpoint: `tcp://${HOST}:${port}` };
}
