import { describe, expect, it } from 'vitest';
import { createAgent } from '../../src/agent/native-agent.js';
import { resolveCacheTransceiverConfig } from '../../src/config/index.js';
import { settingPaths } from '../../src/config/setting-keys.js';
import { ConfigError, KvTransceiverError } from '../../src/errors.js';
import { explainCompatibility } from '../../src/mapping/compatibility.js';
import type { RankInfo } from '../../src/mapping/rank-info.js';
import { keyFileText, parseKeyFile } from '../../src/wire/curve-key-file.js';
import { generateCurveKeyPair } from '../../src/wire/curve-keys.js';
import { decodeFrame } from '../../src/wire/frame-codec.js';
import { Random } from '../sim/core/random.js';
import { frameCorpus } from './frame-corpus.js';
import { MUTATIONS } from './mutate-frame.js';
import { mutateValue } from './mutate-value.js';

const flips = [MUTATIONS['flipBits'], MUTATIONS['cutOut'], MUTATIONS['insert'], MUTATIONS['truncate']] as const;

/** Mutations of bytes that know nothing of frames. */
function spoiled(random: Random, bytes: Uint8Array): Uint8Array {
  // A copy: slice of a Buffer shares its memory.
  let result: Uint8Array = new Uint8Array(bytes);
  for (let count = random.between(1, 3); count > 0; count--) {
    result = (random.pick(flips) as NonNullable<(typeof flips)[number]>)(random, result, []);
  }
  return result;
}

describe('configuration', () => {
  const KEY = generateCurveKeyPair().publicKey;
  const COMPLETE = {
    role: 'generation',
    backend: 'HOST',
    enablePipelinedTransfer: true,
    kvTransferTimeoutMs: 60_000,
    bounce: null,
    maxTokensInBuffer: 8192,
    security: { curve: { secretKeyFile: '/k', peers: { '*': KEY, h: KEY } }, allowedClients: [KEY] },
    listen: { host: '10.0.0.1', port: { first: 1, last: 9 }, advertiseHost: 'h' },
    agent_bounce_buffer_enable: true,
  };

  it('any value resolves or is a ConfigError; what resolves, resolves to itself', () => {
    const random = new Random(5);
    const paths = settingPaths();
    let [resolved, refused] = [0, 0];
    for (let i = 0; i < 8000; i++) {
      let input: unknown = random.chance(0.5) ? structuredClone(COMPLETE) : {};
      // One setting at a time, or all at once.
      if (random.chance(0.5)) {
        const [outer, ...inner] = random.pick(paths).split('.');
        const value = mutateValue(random, null, 1);
        input = { [outer as string]: inner.reduceRight<unknown>((node, key) => ({ [key]: node }), value) };
      } else input = mutateValue(random, input, random.between(1, 6));
      try {
        const { config } = resolveCacheTransceiverConfig(input, { nixlAvailable: true });
        expect(resolveCacheTransceiverConfig(config, { nixlAvailable: true }).config).toEqual(config);
        resolved++;
      } catch (error) {
        if (!(error instanceof ConfigError)) throw new Error(`input ${i}: ${String(error)}`, { cause: error });
        expect(error.message.length).toBeLessThan(20_000);
        refused++;
      }
    }
    expect(Math.min(resolved, refused)).toBeGreaterThan(500);
    expect(({} as Record<string, unknown>)['polluted']).toBeUndefined();
  }, 120_000);
});

describe('key files', () => {
  it('any text is a pair or a ConfigError that does not repeat the secret', () => {
    const random = new Random(6);
    const pair = generateCurveKeyPair();
    const original = Buffer.from(keyFileText(pair));
    let [read, refused] = [0, 0];
    for (let i = 0; i < 8000; i++) {
      const text = Buffer.from(spoiled(random, original)).toString(random.pick(['utf8', 'latin1']));
      try {
        parseKeyFile(text, 'f');
        read++;
      } catch (error) {
        if (!(error instanceof ConfigError)) throw new Error(`text ${i}: ${String(error)}`, { cause: error });
        expect(error.message).not.toContain(pair.secretKey.slice(0, 12));
        refused++;
      }
    }
    expect(Math.min(read, refused)).toBeGreaterThan(500);
  }, 60_000);
});

describe('page tables', () => {
  it('explainCompatibility never throws, whatever a RankInfo holds', () => {
    const random = new Random(7);
    const infos = frameCorpus(7).flatMap(({ bytes }) => {
      const { message } = decodeFrame(bytes);
      return message.type === 'HELLO' ? [message.rankInfo] : [];
    });
    let findings = 0;
    for (let i = 0; i < 2000; i++) {
      const own = random.pick(infos);
      const other = mutateValue(random, structuredClone(random.pick(infos)), random.between(1, 4)) as RankInfo;
      findings += explainCompatibility(own, other).length + explainCompatibility(other, own).length;
    }
    expect(findings).toBeGreaterThan(2000);
  }, 120_000);
});

describe('agent metadata', () => {
  const ROUNDS = 100_000;

  it(`host: ${ROUNDS} spoiled descriptions are typed errors, and the agent goes on`, async () => {
    const [agent, peer] = await Promise.all([
      createAgent({ kind: 'host', name: 'fuzzed' }),
      createAgent({ kind: 'host', name: 'peer' }),
    ]);
    try {
      await agent.allocatePool({ sizeBytes: 1 << 16 });
      await peer.allocatePool({ sizeBytes: 1 << 16 });
      const metadata = await peer.metadata();
      const random = new Random(8);
      let [added, refused] = [0, 0];
      const batch = 200;
      for (let done = 0; done < ROUNDS; done += batch) {
        await Promise.all(
          Array.from({ length: batch }, async () => {
            try {
              const handle = await agent.addPeer(spoiled(random, metadata), 'fuzz');
              added++;
              await agent.removePeer(handle);
            } catch (error) {
              if (!(error instanceof KvTransceiverError) || error.code === 'ERR_KVT_INTERNAL') throw error;
              refused++;
            }
          }),
        );
      }
      expect(added + refused).toBe(ROUNDS);
      expect(refused).toBeGreaterThan(ROUNDS / 2);
      const handle = await agent.addPeer(metadata, 'good');
      await agent.removePeer(handle);
    } finally {
      await Promise.all([agent.close(1000), peer.close(1000)]);
    }
  }, 240_000);
});
