// A server process of the fault tests, driven over the IPC channel of its parent and ended with it.
import process from 'node:process';
import { FaultServer, textOf } from './fault-server.js';
import { liveInstances } from './live-instances.js';
import type { ChildMessage, ParentMessage, ServerCommand, ServerNews } from './server-messages.js';
import { runStream } from './stream.js';

const tell = (message: ChildMessage): void => {
  if (process.connected) process.send?.(message);
};

let server: FaultServer | null = null;
/** Where outcomes go: to the parent, or to the stream that runs here. */
let listener: (news: ServerNews) => void = tell;

function running(): FaultServer {
  if (server === null) throw new Error('the server is not open');
  return server;
}

async function run(command: ServerCommand): Promise<unknown> {
  switch (command.kind) {
    case 'open':
      server = await FaultServer.open(command.settings, (news) => listener(news));
      return { endpoint: server.endpoint };
    case 'prefill':
      // Its outcome is told; an error of the engine itself ends the process, with its stack.
      void running().prefill(command.rid, command.promptTokens, command.chunkTokens, command.holdBefore);
      return null;
    case 'continue':
      running().resume(command.rid);
      return null;
    case 'receive':
      return running().receive(command.rid, command.promptTokens, command.endpoint);
    case 'killAt':
      running().moments.arm(command);
      return null;
    case 'cancel':
      return running().cancel(command.rid);
    case 'stream':
      return runStream(running(), command.stream, (take) => {
        listener = take ?? tell;
      });
    case 'inspect':
      return running().inspect();
    case 'instances':
      return liveInstances();
    case 'close': {
      const report = await running().close(5000);
      // The channel is all that is left to keep this process alive.
      setImmediate(() => process.disconnect());
      return report;
    }
  }
}

process.on('message', ({ call, command }: ParentMessage) => {
  run(command).then(
    (value) => tell({ kind: 'reply', call, value }),
    (error: unknown) => tell({ kind: 'refusal', call, error: textOf(error) }),
  );
});
process.on('disconnect', () => {
  if (server === null) process.exit(0);
  // Closed servers end by themselves; one whose parent is gone must not stay.
  setTimeout(() => process.exit(3), 2000).unref();
});
tell({ kind: 'ready' });
