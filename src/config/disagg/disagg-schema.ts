import { z } from 'zod';

const wholeNumber = (min: number, max: number) => {
  const rule = `must be a whole number from ${min} to ${max}`;
  return z.int(rule).min(min, rule).max(max, rule);
};

const ROUTERS = ['round_robin', 'least_loaded', 'prefix_overlap'] as const;
const router = z.enum(ROUTERS, `must be ${ROUTERS.join(', ')}, or a map { type }`);

const STYLE_RULE = 'must be context_first or generation_first';
export const scheduleStyleSchema = z.enum(['context_first', 'generation_first'], STYLE_RULE);

/** What a worker is started with; at the top of the file it holds for both sections. */
const workerShape = {
  tensorParallelSize: wholeNumber(1, 1024).default(1),
  pipelineParallelSize: wholeNumber(1, 1024).default(1),
  contextParallelSize: wholeNumber(1, 1024).default(1),
  enableAttentionDp: z.boolean('must be true or false').default(false),
  enableChunkedPrefill: z.boolean('must be true or false').default(true),
  /** Tokens of one forward step: the size of a prefill chunk. */
  maxNumTokens: wholeNumber(1, 0x7fff_ffff).default(2048),
  maxBeamWidth: wholeNumber(1, 1024).default(1),
  schedule: z.enum(['plain', 'overlap'], 'must be plain or overlap').nullable().default(null),
  /** What files of TensorRT-LLM say instead of `schedule`. */
  disableOverlapScheduler: z.boolean('must be true or false').nullable().default(null),
  engine: z.looseObject({}, 'must be a map of engine settings').default({}),
  cacheTransceiverConfig: z.looseObject({}, 'must be a map of settings').default({}),
};

const sectionShape = {
  numInstances: wholeNumber(1, 1024).nullable().default(null),
  urls: z.array(z.string('must be host:port'), 'must be a list of host:port').optional(),
  router: router.default('round_robin'),
};

export const sectionSchema = z.object({ ...sectionShape, ...workerShape });

/** Keys of the file that are not the workers'. */
export const fileSchema = z.object({
  hostname: z.string('must be a host name or an IPv4 address').min(1, 'must not be empty').default('127.0.0.1'),
  port: wholeNumber(0, 65535).default(8000),
  scheduleStyle: scheduleStyleSchema.default('context_first'),
  maxRetries: wholeNumber(0, 16).default(1),
  nodeId: wholeNumber(0, 255).default(0),
});

export type ParsedSection = z.output<typeof sectionSchema>;
export type RouterName = z.output<typeof router>;

export const SECTIONS = { context: 'contextServers', generation: 'generationServers' } as const;
export const FILE_KEYS: readonly string[] = Object.keys(fileSchema.shape);
export const WORKER_KEYS: readonly string[] = Object.keys(workerShape);
/** Also as a map, `{ type }`. */
export const ROUTER_KEYS: readonly string[] = ['type'];
/** Maps; one without entries is nothing in YAML, and means that all is left to its defaults. */
export const MAP_KEYS: readonly string[] = ['engine', 'cacheTransceiverConfig'];

export function isSectionKey(key: string | undefined): boolean {
  return key === SECTIONS.context || key === SECTIONS.generation;
}

export const SECTION_KEYS: readonly string[] = [...Object.keys(sectionShape), ...WORKER_KEYS];
