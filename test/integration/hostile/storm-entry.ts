import { Dealer } from 'zeromq';
import { decodeFrame, encodeFrame } from '../../../src/wire/frame-codec.js';

/** What the process is started with, as JSON. */
export interface StormSettings {
  readonly target: string;
  readonly connections: number;
  readonly layers: number;
  /** A HELLO that fits, in hex. */
  readonly hello: string;
}

// HELLOs by each connection, in the name of a rank that is not there, as fast as the rank takes them, until the process is ended.
const settings = JSON.parse(process.argv[2] ?? '{}') as StormSettings;
const { message } = decodeFrame(Buffer.from(settings.hello, 'hex'));
if (message.type !== 'HELLO') throw new Error('no HELLO');
const endpoint = 'tcp://127.0.0.1:1';
// The page table of a model of that many layers, which nobody has: what it costs to read one is what the storm is about.
const pageTable = {
  ...message.rankInfo.pageTable,
  layerGroups: message.rankInfo.pageTable.layerGroups.map((group) => ({
    ...group,
    views: group.views.map((view) => ({
      ...view,
      layers: Array.from({ length: settings.layers }, (_, layer) => ({ layer, pool: 0, offset: 0, bytes: 512 })),
    })),
  })),
};
const rankInfo = { ...message.rankInfo, endpoint, incarnation: 0x77n, rankEndpoints: [endpoint], pageTable };
const bytes = encodeFrame({ ...message, rankInfo }, { incarnation: 0x77n }).slice();
const storm = async (): Promise<void> => {
  const dealer = new Dealer({ linger: 0, sendHighWaterMark: 1000 });
  dealer.connect(settings.target);
  for (;;) await dealer.send(bytes);
};
for (let i = 0; i < settings.connections; i += 1) void storm();
process.stdout.write('storming\n');
