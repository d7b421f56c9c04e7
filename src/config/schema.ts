import { z } from 'zod';
import { MAX_TIMER_MS } from './max-timer.js';

const KIB = 1024;
const MIB = 1024 * KIB;

const flag = () => z.boolean('must be true or false');

const wholeNumber = (min: number, max: number, unit = '') => {
  const rule = `must be a whole number${unit} from ${min} to ${max}`;
  return z.int(rule).min(min, rule).max(max, rule);
};

const timeoutMs = () => {
  const rule = `must be a finite, whole number of milliseconds from 1 to ${MAX_TIMER_MS}; a transfer without a limit can hold pages for ever`;
  return z.int(rule).min(1, rule).max(MAX_TIMER_MS, rule);
};

const text = (what: string) => z.string(`must be ${what}`).min(1, `must be ${what}`).max(1024, `must be ${what}`);

/** A size in bytes, or text with a binary unit: 32768, "32 KiB", "32K". */
const sizeBytes = (min: number, max: number) => {
  const rule = `must be a size from ${min} to ${max} bytes, as a number or with K, M or G (KiB, MiB, GiB)`;
  return z
    .union([z.number(), z.string()], rule)
    .transform((value) => (typeof value === 'number' ? value : parseSize(value)))
    .pipe(z.int(rule).min(min, rule).max(max, rule));
};

const port = (min: number) => wholeNumber(min, 65535);

export const bounceSchema = z.object({
  maxChunkSize: sizeBytes(1, 4096 * MIB).default(32 * MIB),
  minDescriptorCount: wholeNumber(1, 0x7fff_ffff).nullable().default(null),
  maxAverageDescriptorSize: sizeBytes(1, 4096 * MIB)
    .nullable()
    .default(null),
  maxInflightChunksPerRequest: wholeNumber(1, 1024).default(8),
  requestTimeoutMs: timeoutMs().default(30_000),
  streams: wholeNumber(1, 64).default(1),
  gatherBlocks: wholeNumber(1, 1024).default(16),
});

const ucxSchema = z.object({
  tls: text('a UCX transport list, such as "rc_x,cuda_copy"').nullable().default(null),
  netDevices: text('a UCX device list, such as "mlx5_0:1"').nullable().default(null),
  engineConfig: text('a list of UCX settings, such as "MAX_RMA_RAILS=4"').nullable().default(null),
});

/** A section that is given must name its key; `curve: null`, or none, is no encryption. */
export const curveSchema = z.object(
  {
    secretKeyFile: text('the path of a key file; `kv-transceiver keygen` writes one'),
    peers: z.record(z.string(), z.string('must be a public key'), 'must be a map from peer to public key').default({}),
  },
  'must be a map with secretKeyFile and peers',
);

const securitySchema = z.object({
  curve: curveSchema.nullable().default(null),
  allowPlaintext: flag().default(false),
  allowedClients: z.array(z.string('must be a public key'), 'must be a list of public keys').default([]),
});

const listenSchema = z.object({
  host: text('an IPv4 address or host name').default('127.0.0.1'),
  port: z
    .union(
      [port(0), z.object({ first: port(1), last: port(1) })],
      'must be 0 (any free port), a port, or { first, last }',
    )
    .default(0),
  advertiseHost: text('an IPv4 address or host name').nullable().default(null),
});

const BACKEND_RULE = 'must be DEFAULT, NIXL or HOST (UCX is what NIXL runs over; set ucx to steer it)';
const ROLE_RULE = 'must be context, generation or both';

/**
 * Every setting with its own default and range; the rules between settings are in rules.ts. Defaults that follow from other settings
 * are null here and filled by `resolveCacheTransceiverConfig`.
 */
export const cacheTransceiverSchema = z.object({
  role: z.enum(['context', 'generation', 'both'], ROLE_RULE).nullable().default(null),
  backend: z
    .string(BACKEND_RULE)
    .toUpperCase()
    .pipe(z.enum(['DEFAULT', 'NIXL', 'HOST'], BACKEND_RULE))
    .default('DEFAULT'),
  enablePipelinedTransfer: flag().default(false),
  enableEarlyPrefixTransfer: flag().nullable().default(null),
  kvTransferTimeoutMs: timeoutMs().default(60_000),
  transferQueueTimeoutMs: timeoutMs().default(120_000),
  noProgressTimeoutMs: timeoutMs().nullable().default(null),
  kvCacheBounceSizeMb: wholeNumber(0, 1024 * 1024, ' of MiB').default(0),
  bounce: bounceSchema.nullable().default(null),
  copyBlocks: wholeNumber(1, 1024).default(16),
  maxTokensInBuffer: wholeNumber(1, 0x7fff_ffff, ' of tokens').nullable().default(null),
  numTransferThreads: wholeNumber(1, 64).default(1),
  ucx: ucxSchema.prefault({}),
  security: securitySchema.prefault({}),
  listen: listenSchema.prefault({}),
  metrics: flag().default(false),
  tracing: flag().default(false),
});

export type ParsedConfig = z.output<typeof cacheTransceiverSchema>;

/** What may be passed in, in camelCase; snake_case is accepted too. */
export type CacheTransceiverConfigInput = z.input<typeof cacheTransceiverSchema>;

const UNITS: Readonly<Record<string, number>> = { '': 1, K: KIB, M: MIB, G: 1024 * MIB };

function parseSize(text: string): number {
  const match = /^(\d{1,15})\s*([KMG]?)(?:iB|B)?$/i.exec(text.trim());
  if (match === null) return Number.NaN;
  return Number(match[1]) * (UNITS[(match[2] ?? '').toUpperCase()] as number);
}
