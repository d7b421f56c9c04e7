import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { agentOptions } from '../../../src/agent/agent-options.js';
import {
  type CacheTransceiverConfig,
  type ConfigFacts,
  type ConfigProblem,
  checkServerPair,
  resolveCacheTransceiverConfig,
} from '../../../src/config/index.js';
import { ConfigError } from '../../../src/errors.js';

const NIXL: ConfigFacts = { nixlAvailable: true };
const DEFAULTS: CacheTransceiverConfig = {
  role: 'both',
  backend: 'NIXL',
  enablePipelinedTransfer: false,
  enableEarlyPrefixTransfer: false,
  kvTransferTimeoutMs: 60_000,
  transferQueueTimeoutMs: 120_000,
  noProgressTimeoutMs: 30_000,
  kvCacheBounceSizeMb: 0,
  bounce: null,
  copyBlocks: 16,
  maxTokensInBuffer: null,
  numTransferThreads: 1,
  ucx: { tls: null, netDevices: null, engineConfig: null },
  security: { curve: null, allowPlaintext: false, allowedClients: [] },
  listen: { host: '127.0.0.1', port: 0, advertiseHost: null },
  metrics: false,
  tracing: false,
};

function rejection(input: unknown, facts: ConfigFacts = NIXL): { message: string; problems: readonly ConfigProblem[] } {
  try {
    resolveCacheTransceiverConfig(input, facts);
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error;
    return { message: error.message, problems: error.details['problems'] as readonly ConfigProblem[] };
  }
  throw new Error('the configuration was not rejected');
}

describe('defaults', () => {
  it.each([[undefined], [null], [{}], [{ listen: null, security: undefined }]])('of %j', (input) => {
    expect(resolveCacheTransceiverConfig(input, NIXL)).toEqual({ config: DEFAULTS, warnings: [] });
  });

  it('that follow from other settings', () => {
    const resolve = (input: object) => resolveCacheTransceiverConfig(input, NIXL).config;
    expect(resolve({ enablePipelinedTransfer: true }).enableEarlyPrefixTransfer).toBe(true);
    expect(resolve({ enablePipelinedTransfer: true, enableEarlyPrefixTransfer: false }).enableEarlyPrefixTransfer).toBe(
      false,
    );
    expect(resolve({ kvTransferTimeoutMs: 5000 }).noProgressTimeoutMs).toBe(5000);
    expect(resolve({ kvTransferTimeoutMs: 90_000 }).noProgressTimeoutMs).toBe(30_000);
    expect(resolveCacheTransceiverConfig({}, { ...NIXL, role: 'context' }).config.role).toBe('context');
  });

  it('the result is frozen through and through, the input untouched', () => {
    const input = { listen: { host: '127.0.0.1' }, agent_bounce_buffer_enable: true };
    const { config, warnings } = resolveCacheTransceiverConfig(input, NIXL);
    for (const part of [config, config.listen, config.security, config.security.allowedClients, config.ucx, warnings]) {
      expect(Object.isFrozen(part)).toBe(true);
    }
    expect(input).toEqual({ listen: { host: '127.0.0.1' }, agent_bounce_buffer_enable: true });
    expect(Object.isFrozen(input.listen)).toBe(false);
  });
});

describe('names', () => {
  it('snake_case means the same', () => {
    const { config, warnings } = resolveCacheTransceiverConfig(
      {
        backend: 'host',
        enable_pipelined_transfer: true,
        enable_early_prefix_transfer: false,
        kv_transfer_timeout_ms: 1,
        transfer_queue_timeout_ms: 2,
        no_progress_timeout_ms: 1,
        kv_cache_bounce_size_mb: 0,
        max_tokens_in_buffer: 4096,
        num_transfer_threads: 1,
        listen: { port: { first: 5000, last: 5010 }, advertise_host: 'node-1' },
      },
      NIXL,
    );
    expect(config).toEqual({
      ...DEFAULTS,
      backend: 'HOST',
      enablePipelinedTransfer: true,
      kvTransferTimeoutMs: 1,
      transferQueueTimeoutMs: 2,
      noProgressTimeoutMs: 1,
      maxTokensInBuffer: 4096,
      listen: { host: '127.0.0.1', port: { first: 5000, last: 5010 }, advertiseHost: 'node-1' },
    });
    expect(warnings).toEqual([]);
  });

  it.each([
    [{ kvTransferTimeout: 1 }, 'kvTransferTimeout is not a setting: did you mean kvTransferTimeoutMs?'],
    [{ kv_transfer_timout_ms: 1 }, 'kv_transfer_timout_ms is not a setting: did you mean kvTransferTimeoutMs?'],
    [{ Backend: 'NIXL' }, 'Backend is not a setting: did you mean backend?'],
    [{ listen: { prot: 1 } }, 'listen.prot is not a setting: did you mean listen.port?'],
    [
      { security: { allow_plain: true } },
      'security.allow_plain is not a setting: did you mean security.allowPlaintext?',
    ],
    [{ zzzzzzzz: 1 }, 'zzzzzzzz is not a setting: known are role, backend, '],
    [{ constructor: 1 }, 'constructor is not a setting'],
  ])('unknown: %j', (input, text) => {
    expect(rejection(input).message).toContain(text);
  });

  it('one setting under two spellings', () => {
    const { message } = rejection({ kvTransferTimeoutMs: 1, kv_transfer_timeout_ms: 2 });
    expect(message).toBe(
      'cacheTransceiverConfig: kvTransferTimeoutMs is given twice, as "kvTransferTimeoutMs" and as "kv_transfer_timeout_ms"; remove one',
    );
  });

  it.each([
    ['agent_bounce_buffer_enable', true, 'kvCacheBounceSizeMb'],
    ['agentBounceBufferEnable', false, 'kvCacheBounceSizeMb'],
    ['agent_bounce_params', { x: '1' }, 'kvCacheBounceSizeMb'],
    ['transceiver_runtime', 'PYTHON', 'there is one runtime'],
    ['kv_transfer_sender_future_timeout_ms', 1000, 'kvTransferTimeoutMs'],
    ['kv_transfer_poll_interval_ms', 5000, 'without polling'],
  ])('of other stacks: %s is ignored with one warning', (key, value, text) => {
    const { config, warnings } = resolveCacheTransceiverConfig({ [key]: value }, NIXL);
    expect(config).toEqual(DEFAULTS);
    expect(warnings).toHaveLength(1);
    expect(warnings[0]?.setting).toBe(key);
    expect(warnings[0]?.message).toContain(`${key} is ignored: `);
    expect(warnings[0]?.message).toContain(text);
  });
});

describe('keys that objects understand in a way of their own', () => {
  it.each(['{"__proto__": {"enablePipelinedTransfer": true}}', '{"listen": {"__proto__": {"port": 1}}}'])(
    'unknown: %s',
    (text) => {
      const { message } = rejection(JSON.parse(text));
      expect(message).toMatch(/__proto__ is not a setting/);
    },
  );
});

describe('values', () => {
  it.each([
    ['role', 'decode', 'must be context, generation or both, got "decode"'],
    ['backend', 'UCX', 'must be DEFAULT, NIXL or HOST'],
    ['backend', 7, 'must be DEFAULT, NIXL or HOST'],
    ['enablePipelinedTransfer', 'yes', 'must be true or false, got "yes"'],
    ['enableEarlyPrefixTransfer', 1, 'must be true or false, got 1'],
    ['kvTransferTimeoutMs', null, 'must be a finite, whole number of milliseconds'],
    ['kvTransferTimeoutMs', Number.POSITIVE_INFINITY, 'must be a finite'],
    ['kvTransferTimeoutMs', 0, 'must be a finite, whole number of milliseconds from 1 to 2147483647'],
    ['kvTransferTimeoutMs', 1.5, 'must be a finite, whole number'],
    ['kvTransferTimeoutMs', 2 ** 31, 'must be a finite, whole number'],
    ['kvTransferTimeoutMs', '60000', 'must be a finite, whole number'],
    ['transferQueueTimeoutMs', null, 'must be a finite'],
    ['noProgressTimeoutMs', -1, 'must be a finite'],
    ['kvCacheBounceSizeMb', -1, 'must be a whole number of MiB'],
    ['maxTokensInBuffer', 0, 'must be a whole number of tokens'],
    ['numTransferThreads', 0, 'must be a whole number from 1 to 64'],
    ['ucx.tls', 5, 'must be a UCX transport list'],
    ['ucx.netDevices', '', 'must be a UCX device list'],
    ['ucx.engineConfig', [], 'must be a list of UCX settings'],
    ['security.curve', 'key', 'must be a map with secretKeyFile and peers'],
    ['security.allowPlaintext', 'no', 'must be true or false'],
    ['security.allowedClients', 'all', 'must be a list of public keys'],
    ['listen.host', 4, 'must be an IPv4 address or host name'],
    ['listen.port', 65536, 'must be'],
    ['listen.port', 'any', 'must be 0 (any free port), a port, or { first, last }'],
    ['listen.advertiseHost', '', 'must be an IPv4 address or host name'],
    ['metrics', 'on', 'must be true or false'],
    ['tracing', 'on', 'must be true or false'],
    ['bounce.maxChunkSize', '32 apples', 'must be a size'],
    ['bounce.maxChunkSize', 0, 'must be a size'],
    ['bounce.minDescriptorCount', 0, 'must be a whole number'],
    ['bounce.maxAverageDescriptorSize', -5, 'must be a size'],
    ['bounce.maxInflightChunksPerRequest', 'many', 'must be a whole number'],
    ['bounce.requestTimeoutMs', 0, 'must be a finite'],
    ['bounce.streams', 65, 'must be a whole number'],
    ['bounce.gatherBlocks', 1.2, 'must be a whole number'],
    ['copyBlocks', 0, 'must be a whole number from 1 to 1024'],
    ['copyBlocks', 2 ** 32, 'must be a whole number from 1 to 1024'],
    ['listen', 5, ''],
    ['bounce', 'big', ''],
  ])('%s: %j', (path, value, rule) => {
    const [outer, inner] = path.split('.') as [string, string | undefined];
    const { message, problems } = rejection({ [outer]: inner === undefined ? value : { [inner]: value } });
    expect(problems.map((problem) => problem.setting)).toContain(path);
    expect(message).toContain(`${path} ${rule}`);
  });

  it('a size may have a binary unit', () => {
    for (const [text, bytes] of [
      ['1', 1],
      ['64K', 65536],
      ['64 KiB', 65536],
      ['2MB', 2097152],
      ['1GiB', 1073741824],
    ] as const) {
      const input = { kvCacheBounceSizeMb: 4096, bounce: { maxChunkSize: text } };
      const { bounce } = resolveCacheTransceiverConfig(input, NIXL).config;
      expect([text, bounce?.maxChunkSize]).toEqual([text, bytes]);
    }
  });

  it('what is not a map of settings', () => {
    for (const input of ['x', 5, [], true]) expect(rejection(input).message).toContain('must be a map of settings');
  });

  it('all problems are named at once', () => {
    const { message, problems } = rejection({ backend: 'X', role: 'y', nonsense: 1 });
    expect(problems.map(({ setting }) => setting).toSorted()).toEqual(['backend', 'nonsense', 'role']);
    expect(message).toContain('3 problems');
  });
});

describe('backend', () => {
  it('DEFAULT is NIXL where it loads, else HOST with one warning that says why', () => {
    expect(resolveCacheTransceiverConfig({}, NIXL)).toMatchObject({ config: { backend: 'NIXL' }, warnings: [] });
    const without = resolveCacheTransceiverConfig({}, { nixlAvailable: false, nixlReason: 'no libnixl_capi.so' });
    expect(without.config.backend).toBe('HOST');
    expect(without.warnings.map(({ setting }) => setting)).toEqual(['backend']);
    expect(without.warnings[0]?.message).toContain('no libnixl_capi.so');
    expect(resolveCacheTransceiverConfig({}).warnings[0]?.message).toContain('nobody looked for it');
  });

  it('HOST is taken as said; NIXL only where it loads', () => {
    const facts = { nixlAvailable: false, nixlReason: 'it is a stub' };
    expect(resolveCacheTransceiverConfig({ backend: 'HOST' }, facts)).toMatchObject({
      config: { backend: 'HOST' },
      warnings: [],
    });
    const { message, problems } = rejection({ backend: 'NIXL' }, facts);
    expect(problems[0]?.setting).toBe('backend');
    expect(message).toContain('NIXL does not load (it is a stub); install it, or set backend to HOST or DEFAULT');
  });
});

describe('pipelined transfer', () => {
  const good: ConfigFacts = { ...NIXL, scheduleStyle: 'generation_first', chunkedPrefillEffective: true, beamWidth: 1 };

  it('is taken where everything it needs is there, or not known', () => {
    expect(resolveCacheTransceiverConfig({ enablePipelinedTransfer: true }, good).config.enablePipelinedTransfer).toBe(
      true,
    );
    expect(resolveCacheTransceiverConfig({ enablePipelinedTransfer: true }, NIXL).config.enablePipelinedTransfer).toBe(
      true,
    );
  });

  it.each([
    [{ scheduleStyle: 'context_first' }, 'set scheduleStyle to generation_first'],
    [{ chunkedPrefillEffective: false }, 'set enableChunkedPrefill to true'],
    [{ beamWidth: 4 }, 'set beamWidth to 1'],
  ] as const)('%j', (fact, remedy) => {
    for (const role of ['context', 'both'] as const) {
      const { message, problems } = rejection({ enablePipelinedTransfer: true, role }, { ...good, ...fact });
      expect(problems.map(({ setting }) => setting)).toEqual(['enablePipelinedTransfer']);
      expect(message).toContain(remedy);
      expect(message).toContain('or set enablePipelinedTransfer to false');
    }
    // The receiving side needs none of it, and without pipelining nobody does.
    for (const input of [{ enablePipelinedTransfer: true, role: 'generation' }, { enablePipelinedTransfer: false }]) {
      expect(() => resolveCacheTransceiverConfig(input, { ...good, ...fact })).not.toThrow();
    }
  });

  it('early prefix needs it', () => {
    const { problems } = rejection({ enableEarlyPrefixTransfer: true });
    expect(problems.map(({ setting }) => setting)).toEqual(['enableEarlyPrefixTransfer']);
    expect(problems[0]?.message).toContain('needs enablePipelinedTransfer');
  });
});

describe('role', () => {
  it('setting and fact must agree', () => {
    expect(rejection({ role: 'context' }, { ...NIXL, role: 'generation' }).message).toContain(
      'role is context, but the server is started as generation',
    );
    expect(resolveCacheTransceiverConfig({ role: 'context' }, { ...NIXL, role: 'context' }).config.role).toBe(
      'context',
    );
  });
});

describe('bounce', () => {
  it('has its defaults where there is an arena', () => {
    const { config } = resolveCacheTransceiverConfig({ kvCacheBounceSizeMb: 64 }, NIXL);
    expect(config.bounce).toEqual({
      maxChunkSize: 32 << 20,
      minDescriptorCount: null,
      maxAverageDescriptorSize: null,
      maxInflightChunksPerRequest: 8,
      requestTimeoutMs: 30_000,
      streams: 1,
      gatherBlocks: 16,
    });
    expect(resolveCacheTransceiverConfig(config, NIXL).config).toEqual(config);
  });

  it('is what the agent is opened with', () => {
    const { config } = resolveCacheTransceiverConfig(
      { backend: 'HOST', kvCacheBounceSizeMb: 8, bounce: { maxChunkSize: '3M', requestTimeoutMs: 5 } },
      NIXL,
    );
    expect(agentOptions(config)).toEqual({
      kind: 'host',
      copyBlocks: 16,
      bounce: {
        sizeBytes: 8 << 20,
        maxChunkSize: 3 << 20,
        maxInflightChunksPerRequest: 8,
        requestTimeoutMs: 5,
        gatherBlocks: 16,
      },
    });
    const set = { kvCacheBounceSizeMb: 64, bounce: { minDescriptorCount: 1024 } };
    const { bounce } = agentOptions(resolveCacheTransceiverConfig(set, NIXL).config);
    expect(bounce?.minDescriptorCount).toBe(1024);
    expect(bounce).not.toHaveProperty('maxAverageDescriptorSize');
    expect(agentOptions(resolveCacheTransceiverConfig({}, NIXL).config)).toEqual({ kind: 'nixl', copyBlocks: 16 });
    expect(agentOptions(resolveCacheTransceiverConfig({ copy_blocks: 32 }, NIXL).config)).toMatchObject({
      copyBlocks: 32,
    });
  });

  it('needs an arena for two of the largest chunk, each rounded up to a power of two', () => {
    for (const [arenaMb, maxChunkSize, isEnough] of [
      [64, '32M', true],
      [63, '32M', false],
      [8, '3M', true],
      [7, '3M', false],
    ] as const) {
      const input = { kvCacheBounceSizeMb: arenaMb, bounce: { maxChunkSize } };
      if (isEnough) expect(() => resolveCacheTransceiverConfig(input, NIXL)).not.toThrow();
      else expect(rejection(input).problems.map(({ setting }) => setting)).toEqual(['bounce.maxChunkSize']);
    }
    expect(rejection({ kvCacheBounceSizeMb: 32 }).message).toContain('raise kvCacheBounceSizeMb to 64');
  });

  it('has no effect without an arena', () => {
    expect(rejection({ bounce: {} }).problems).toEqual([
      {
        setting: 'bounce',
        message: 'bounce has no effect without an arena; set kvCacheBounceSizeMb, or remove bounce',
      },
    ]);
  });
});

describe('what this build does not do is refused, not ignored', () => {
  it.each([
    ['numTransferThreads', { numTransferThreads: 2 }, 'set numTransferThreads to 1'],
    ['ucx', { ucx: { tls: 'rc_x' } }, 'UCX_TLS'],
    ['ucx', { ucx: { netDevices: 'mlx5_0:1' } }, 'UCX_NET_DEVICES'],
    ['ucx', { ucx: { engineConfig: 'X=1' } }, 'remove ucx'],
  ])('%s', (setting, input, remedy) => {
    const { message, problems } = rejection(input);
    expect(problems.map((problem) => problem.setting)).toEqual([setting]);
    expect(message).toContain(remedy);
  });
});

describe('listen', () => {
  it('beyond loopback needs keys, or consent, and then warns', () => {
    const { message, problems } = rejection({ listen: { host: '10.0.0.5' } });
    expect(problems.map(({ setting }) => setting)).toEqual(['security.curve']);
    expect(message).toContain('security.allowPlaintext');
    const { config, warnings } = resolveCacheTransceiverConfig(
      { listen: { host: '10.0.0.5' }, security: { allow_plaintext: true } },
      NIXL,
    );
    expect(config.listen.host).toBe('10.0.0.5');
    expect(warnings.map(({ setting }) => setting)).toEqual(['security.allowPlaintext']);
    expect(warnings[0]?.message).toContain('neither encrypted nor authenticated');
  });

  it.each([
    ['listen.advertiseHost', { host: '0.0.0.0' }],
    ['listen.advertiseHost', { host: '0.0.0.0', advertiseHost: '0.0.0.0' }],
    ['listen.advertiseHost', { advertiseHost: 'a b' }],
    ['listen.host', { host: '300.1.1.1' }],
    ['listen.host', { host: 'eth0;x' }],
    ['listen.port', { port: { first: 10, last: 9 } }],
  ])('%s: %j', (setting, listen) => {
    const { problems } = rejection({ listen, security: { allowPlaintext: true } });
    expect(problems.map((problem) => problem.setting)).toEqual([setting]);
    expect(problems[0]?.message).toContain(setting);
  });
});

describe('warnings', () => {
  it('a limit that another one makes pointless', () => {
    const { warnings } = resolveCacheTransceiverConfig({ kvTransferTimeoutMs: 10, noProgressTimeoutMs: 20 }, NIXL);
    expect(warnings).toEqual([
      { setting: 'noProgressTimeoutMs', message: 'noProgressTimeoutMs 20 has no effect above kvTransferTimeoutMs 10' },
    ]);
  });
});

describe('a pair of servers', () => {
  const server = (input: object): CacheTransceiverConfig => resolveCacheTransceiverConfig(input, NIXL).config;
  const context = server({ role: 'context', enablePipelinedTransfer: true });
  const generation = server({ role: 'generation' });
  const withArena = ({ role }: CacheTransceiverConfig, maxChunkSize: number): CacheTransceiverConfig =>
    server({ role, kvCacheBounceSizeMb: 64, bounce: { maxChunkSize } });

  it('may differ in what only one side uses', () => {
    expect(() => checkServerPair(context, generation)).not.toThrow();
    expect(() => checkServerPair(withArena(context, 1), withArena(generation, 1))).not.toThrow();
  });

  it.each([
    ['role', generation, generation],
    ['role', context, context],
    ['backend', context, server({ role: 'generation', backend: 'HOST' })],
    ['kvCacheBounceSizeMb', withArena(context, 1), generation],
    ['bounce.maxChunkSize', withArena(context, 1), withArena(generation, 2)],
  ])('disagreement about %s is named', (setting, a, b) => {
    expect(() => checkServerPair(a, b)).toThrow(ConfigError);
    expect(() => checkServerPair(a, b)).toThrow(`${setting}: `);
  });
});

describe('properties', () => {
  const timeout = fc.integer({ min: 1, max: 100_000 });
  const pipelining = fc.constantFrom(
    {},
    { enablePipelinedTransfer: true },
    { enablePipelinedTransfer: true, enableEarlyPrefixTransfer: false },
  );
  const validInput = fc
    .record(
      {
        role: fc.constantFrom('context', 'generation', 'both', null),
        backend: fc.constantFrom('DEFAULT', 'HOST', 'host'),
        kv_transfer_timeout_ms: timeout,
        transferQueueTimeoutMs: timeout,
        no_progress_timeout_ms: timeout,
        maxTokensInBuffer: fc.option(timeout, { nil: null }),
        transceiver_runtime: fc.constant('auto'),
        listen: fc.record(
          {
            host: fc.constantFrom('127.0.0.1', 'localhost', '10.1.2.3'),
            port: fc.constantFrom(0, 80, { first: 1, last: 9 }),
          },
          { requiredKeys: [] },
        ),
        security: fc.constant({ allow_plaintext: true }),
      },
      { requiredKeys: ['security'] },
    )
    .chain((settings) => pipelining.map((extra) => ({ ...settings, ...extra })));
  const facts: fc.Arbitrary<ConfigFacts> = fc.record(
    { nixlAvailable: fc.boolean(), nixlReason: fc.constant('no'), cudaAvailable: fc.boolean() },
    { requiredKeys: [] },
  );

  it('resolving a result gives it again; equal inputs give equal results', () => {
    fc.assert(
      fc.property(validInput, facts, (input, known) => {
        const first = resolveCacheTransceiverConfig(input, known);
        expect(resolveCacheTransceiverConfig(input, known)).toEqual(first);
        expect(resolveCacheTransceiverConfig(first.config, known).config).toEqual(first.config);
        expect(resolveCacheTransceiverConfig(JSON.parse(JSON.stringify(first.config)), known).config).toEqual(
          first.config,
        );
      }),
    );
  });

  it('any JSON is resolved or rejected with a ConfigError that names a setting', () => {
    fc.assert(
      fc.property(fc.jsonValue(), (input) => {
        try {
          resolveCacheTransceiverConfig(input, NIXL);
        } catch (error) {
          if (!(error instanceof ConfigError)) throw error;
          expect(error.message.startsWith('cacheTransceiverConfig: ')).toBe(true);
        }
      }),
    );
  });
});
