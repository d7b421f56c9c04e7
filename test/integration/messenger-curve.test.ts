import { chmod, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, describe, expect, it, vi } from 'vitest';
import { Dealer } from 'zeromq';
import { resolveCacheTransceiverConfig } from '../../src/config/index.js';
import { ConfigError } from '../../src/errors.js';
import { keyFileText } from '../../src/wire/curve-key-file.js';
import { type CurveKeyPair, generateCurveKeyPair } from '../../src/wire/curve-keys.js';
import { MAX_FRAME_BYTES } from '../../src/wire/limits.js';
import type { HandshakeRefusal, MessengerCounts } from '../../src/wire/messenger-counters.js';
import { messengerOptions } from '../../src/wire/messenger-options.js';
import { ZeromqMessenger, type ZeromqMessengerOptions } from '../../src/wire/zeromq-messenger.js';
import { Collector, HANG_LIMIT_MS, until, withDeadline } from '../support/deadline.js';
import { ownAddress } from '../support/own-address.js';

interface Rank {
  readonly messenger: ZeromqMessenger;
  readonly frames: Collector<string>;
  readonly warnings: Collector<string>;
}

const open: ZeromqMessenger[] = [];

async function rank(curve: ZeromqMessengerOptions['curve'], options: ZeromqMessengerOptions = {}): Promise<Rank> {
  const warnings = new Collector<string>();
  const messenger = await ZeromqMessenger.open({
    ...options,
    ...(curve === undefined ? {} : { curve }),
    onWarning: warnings.push,
  });
  open.push(messenger);
  const frames = new Collector<string>();
  messenger.onFrame((frame) => frames.push(new TextDecoder().decode(frame)));
  return { messenger, frames, warnings };
}

const text = (value: string): Uint8Array => new TextEncoder().encode(value);
const refused = ({ messenger }: Rank): Partial<Record<HandshakeRefusal, number>> =>
  Object.fromEntries(Object.entries(messenger.counts().handshakesRefused).filter(([, count]) => count > 0));

/** Frames both ways between two ranks that should be able to talk. */
async function talk(a: Rank, b: Rank, word: string): Promise<void> {
  const [atA, atB] = [a.frames.values.length, b.frames.values.length];
  a.messenger.send(b.messenger.endpoint, text(`to b ${word}`));
  b.messenger.send(a.messenger.endpoint, text(`to a ${word}`));
  expect((await b.frames.waitFor(atB + 1)).at(-1)).toBe(`to b ${word}`);
  expect((await a.frames.waitFor(atA + 1)).at(-1)).toBe(`to a ${word}`);
}

/** Sends until `count` warnings came at the sender, then a few times more. */
async function keepTrying(from: Rank, endpoint: string, count: (counts: MessengerCounts) => number): Promise<void> {
  for (let wanted = 1; wanted <= 3; wanted++) {
    from.messenger.send(endpoint, text('let me in'));
    await until(
      () => count(from.messenger.counts()) >= wanted,
      () => JSON.stringify(from.messenger.counts()),
    );
  }
}

/** Until the other side has refused the key of this one. */
const keyIsRefused = ({ messenger }: Rank): Promise<void> =>
  until(
    () => messenger.counts().handshakesRefused['peer-refused-key'] === 1,
    () => JSON.stringify(messenger.counts()),
  );

afterEach(async () => {
  await Promise.all(open.splice(0).map((messenger) => messenger.close(0)));
});

describe('ranks that may talk', () => {
  it('share one key pair', async () => {
    const pair = generateCurveKeyPair();
    const [a, b] = [await rank(pair), await rank(pair)];
    await talk(a, b, 'first');
    expect([refused(a), refused(b), a.warnings.values, b.warnings.values]).toEqual([{}, {}, [], []]);
  });

  it('have a pair each, and name the other by host, by endpoint or by *', async () => {
    const [keyA, keyB, keyC] = [generateCurveKeyPair(), generateCurveKeyPair(), generateCurveKeyPair()];
    const b = await rank({ ...keyB, peers: { '*': keyA.publicKey } });
    const c = await rank({ ...keyC, peers: { '127.0.0.1': keyA.publicKey } });
    const a = await rank({
      ...keyA,
      peers: { '*': keyB.publicKey, [c.messenger.endpoint]: keyC.publicKey },
    });
    await talk(a, b, 'with b');
    await talk(a, c, 'with c');
    expect([a, b, c].map(refused)).toEqual([{}, {}, {}]);
  });

  it('are several in one process, each with its own allow-list; closing one leaves the others open', async () => {
    const [server, friend] = [generateCurveKeyPair(), generateCurveKeyPair()];
    const shut = await rank(server);
    const ajar = await rank({ ...server, allowedClients: [friend.publicKey] });
    const client = await rank({ ...friend, peers: { '*': server.publicKey } });
    client.messenger.send(shut.messenger.endpoint, text('x'));
    await keyIsRefused(client);
    client.messenger.send(ajar.messenger.endpoint, text('one'));
    await ajar.frames.waitFor(1);
    await shut.messenger.close(0);
    const later = await rank({ ...friend, peers: { '*': server.publicKey } });
    later.messenger.send(ajar.messenger.endpoint, text('two'));
    expect(await ajar.frames.waitFor(2)).toEqual(['one', 'two']);
    expect([refused(ajar), refused(shut)]).toEqual([{}, { 'client-not-allowed': 1 }]);
  });

  it('a rank whose warnings go to a log that throws refuses and serves as before', async () => {
    const [server, stranger] = [generateCurveKeyPair(), generateCurveKeyPair()];
    const told = vi.spyOn(process, 'emitWarning').mockImplementation(() => {});
    try {
      const onWarning = (): never => {
        throw new Error('the disk is full');
      };
      const b = await ZeromqMessenger.open({ curve: server, onWarning });
      open.push(b);
      const frames = new Collector<string>();
      b.onFrame((frame) => frames.push(new TextDecoder().decode(frame)));
      const refusedOne = await rank({ ...stranger, peers: { '*': server.publicKey } });
      await keepTrying(refusedOne, b.endpoint, ({ handshakesRefused }) => handshakesRefused['peer-refused-key']);
      const friend = await rank(server);
      friend.messenger.send(b.endpoint, text('from a friend'));
      expect(await frames.waitFor(1)).toEqual(['from a friend']);
      expect(b.counts().handshakesRefused['client-not-allowed']).toBeGreaterThan(0);
      expect(told).toHaveBeenCalledWith('kv-transceiver: onWarning threw: Error: the disk is full');
    } finally {
      told.mockRestore();
    }
  });

  it('frames of 16 MiB arrive whole when encrypted', async () => {
    const pair = generateCurveKeyPair();
    const a = await ZeromqMessenger.open({ curve: pair });
    const b = await ZeromqMessenger.open({ curve: pair });
    open.push(a, b);
    const received = new Collector<Uint8Array>();
    b.onFrame(received.push);
    const big = new Uint8Array(MAX_FRAME_BYTES);
    for (let i = 0; i < big.length; i += 4093) big[i] = i % 251;
    a.send(b.endpoint, big);
    const [frame] = await received.waitFor(1);
    expect(Buffer.compare(frame as Uint8Array, big)).toBe(0);
  });

  it('authentication can be set up again after the last messenger closed', async () => {
    for (let round = 0; round < 5; round++) {
      const pair = generateCurveKeyPair();
      const [a, b] = [await rank(pair), await rank(pair)];
      await talk(a, b, `round ${round}`);
      await Promise.all(open.splice(0).map((messenger) => messenger.close(0)));
    }
  });
});

describe('who may not is refused, counted, and told once with the remedy; others are unharmed', () => {
  async function legitimatePair(): Promise<{ a: Rank; b: Rank; pair: CurveKeyPair }> {
    const pair = generateCurveKeyPair();
    const [a, b] = [await rank(pair), await rank(pair)];
    await talk(a, b, 'before');
    return { a, b, pair };
  }

  it('a key that is not in the allow-list', async () => {
    const { a, b, pair } = await legitimatePair();
    const strangerKey = generateCurveKeyPair();
    const stranger = await rank({ ...strangerKey, peers: { '*': pair.publicKey } });
    await keepTrying(stranger, b.messenger.endpoint, (counts) => counts.handshakesRefused['peer-refused-key']);
    await talk(a, b, 'after');
    expect(refused(stranger)).toEqual({ 'peer-refused-key': 3 });
    expect(refused(b)).toEqual({ 'client-not-allowed': 3 });
    expect(b.warnings.values).toEqual([
      `refused a client at 127.0.0.1 with the public key ${strangerKey.publicKey}: add it to security.allowedClients if it is one of yours`,
    ]);
    expect(stranger.warnings.values).toEqual([
      `${b.messenger.endpoint} does not accept the public key ${strangerKey.publicKey}: add it to security.allowedClients there`,
    ]);
    expect(stranger.messenger.counts().framesDropped.refused).toBeLessThanOrEqual(3);
    expect(b.frames.values).toEqual(['to b before', 'to b after']);
  });

  it('a client that expects another server key', async () => {
    const { a, b, pair } = await legitimatePair();
    const wrong = generateCurveKeyPair();
    const client = await rank({ ...pair, peers: { '*': wrong.publicKey } });
    await keepTrying(client, b.messenger.endpoint, (counts) => counts.handshakesRefused['peer-closed']);
    await talk(a, b, 'after');
    expect(Object.keys(refused(b))).toEqual(['client-expects-other-key']);
    expect(b.warnings.values).toHaveLength(1);
    expect(b.warnings.values[0]).toContain(`set security.curve.peers for this rank to ${pair.publicKey}`);
    expect(client.warnings.values).toEqual([
      `${b.messenger.endpoint} closes connections during the handshake: it is likely not the holder of ${wrong.publicKey}; ` +
        'set its public key in security.curve.peers',
    ]);
  });

  it('a plaintext client at a rank with keys', async () => {
    const { a, b } = await legitimatePair();
    const plain = await rank(null);
    await keepTrying(plain, b.messenger.endpoint, (counts) => counts.handshakesRefused['peer-mechanism']);
    await talk(a, b, 'after');
    expect(Object.keys(refused(b))).toEqual(['client-mechanism']);
    expect(b.warnings.values).toEqual(['refused a client that does not encrypt: set security.curve there too']);
    expect(plain.warnings.values).toEqual([`${b.messenger.endpoint} demands encryption: set security.curve here too`]);
  });

  it('a client with keys at a plaintext rank', async () => {
    const [a, b] = [await rank(null), await rank(null)];
    await talk(a, b, 'before');
    const client = await rank(generateCurveKeyPair());
    await keepTrying(client, b.messenger.endpoint, (counts) => counts.handshakesRefused['peer-mechanism']);
    await talk(a, b, 'after');
    expect(Object.keys(refused(b))).toEqual(['client-mechanism']);
    expect(b.warnings.values).toHaveLength(1);
    expect(b.warnings.values[0]).toContain('this rank has no security.curve');
    expect(client.warnings.values).toEqual([
      `${b.messenger.endpoint} does not encrypt, and is not spoken to: set security.curve there too`,
    ]);
  });

  it('a stranger with the right server key but no key pair of its own in the list learns nothing and sends nothing', async () => {
    const { a, b, pair } = await legitimatePair();
    const own = generateCurveKeyPair();
    const raw = new Dealer({
      linger: 0,
      curveServerKey: pair.publicKey,
      curvePublicKey: own.publicKey,
      curveSecretKey: own.secretKey,
    });
    const rejected = new Promise<void>((resolve) => raw.events.on('handshake:error:auth', () => resolve()));
    raw.connect(b.messenger.endpoint);
    void raw.send('a frame').catch(() => undefined);
    await withDeadline(rejected, HANG_LIMIT_MS, () => 'the handshake was not refused');
    raw.close();
    await talk(a, b, 'after');
    expect(b.frames.values).toEqual(['to b before', 'to b after']);
  });

  it('is let in as soon as its key is allowed', async () => {
    const [key, serverKey] = [generateCurveKeyPair(), generateCurveKeyPair()];
    const { host } = await ownAddress();
    const before = await rank(serverKey, { host });
    const client = await rank({ ...key, peers: { '*': serverKey.publicKey } });
    client.messenger.send(before.messenger.endpoint, text('x'));
    await keyIsRefused(client);
    const port = Number(before.messenger.endpoint.split(':')[2]);
    await before.messenger.close(0);
    const after = await rank({ ...serverKey, peers: { '*': key.publicKey } }, { host, port });
    await talk(client, after, 'restarted');
  });
});

describe('from a configuration', () => {
  it('the key file, the peers and the allow-list are used, beyond loopback too', async () => {
    const folder = await mkdtemp(join(tmpdir(), 'curve-'));
    try {
      const [a, b] = [generateCurveKeyPair(), generateCurveKeyPair()];
      const ranks: Rank[] = [];
      for (const [name, own, other] of [
        ['a', a, b],
        ['b', b, a],
      ] as const) {
        const secretKeyFile = join(folder, name);
        await writeFile(secretKeyFile, keyFileText(own), { mode: 0o600 });
        const { config, warnings } = resolveCacheTransceiverConfig(
          {
            backend: 'HOST',
            listen: { host: '0.0.0.0', advertise_host: '127.0.0.1' },
            security: { curve: { secret_key_file: secretKeyFile, peers: { '*': other.publicKey } } },
          },
          { nixlAvailable: false },
        );
        expect(warnings).toEqual([]);
        ranks.push(await rank(undefined, await messengerOptions(config)));
      }
      await talk(ranks[0] as Rank, ranks[1] as Rank, 'configured');

      await chmod(join(folder, 'a'), 0o644);
      const { config } = resolveCacheTransceiverConfig(
        { security: { curve: { secretKeyFile: join(folder, 'a') } } },
        { nixlAvailable: true },
      );
      await expect(messengerOptions(config)).rejects.toThrow('has mode 0644');
    } finally {
      await rm(folder, { recursive: true });
    }
  });

  it('keys that are none are refused without being repeated', async () => {
    const pair = generateCurveKeyPair();
    const bad = [
      { ...pair, secretKey: 'hunter2' },
      { ...pair, publicKey: generateCurveKeyPair().publicKey },
      { ...pair, peers: { '*': 'hunter2' } },
      { ...pair, allowedClients: ['hunter2'] },
    ];
    for (const curve of bad) {
      const error = await rank(curve).catch((thrown: unknown) => thrown);
      if (!(error instanceof ConfigError)) throw new Error(`expected a ConfigError, got ${String(error)}`);
      expect(error.message).not.toMatch(/hunter2/);
      expect(error.message).not.toContain(pair.secretKey);
    }
  });
});
