import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import { readDisaggConfigFile } from '../../../src/config/index.js';
import { ConfigError } from '../../../src/errors.js';
import { ServeFront } from '../../../src/serve/front/serve-front.js';

async function refusalOf(text: string, engineModule: string | null = null): Promise<string[]> {
  const warnings: string[] = [];
  const { config, rejection } = readDisaggConfigFile(text, { fileName: 'a.yaml' });
  const opening = ServeFront.open({
    config: { ...config, port: 0 },
    rejection,
    engineModule,
    controlHost: null,
    maxLive: 1,
    maxQueued: 0,
    queueTimeoutMs: 1000,
    maxConnections: 1,
    headersTimeoutMs: 1000,
    requestTimeoutMs: 1000,
    stallLimitMs: 1000,
    maxBodyBytes: 1000,
    metricsAgeMs: 1000,
    log: { logger: null, warn: (message) => warnings.push(message), error: (message) => warnings.push(message) },
    logLevel: 'silent',
  });
  const error = await opening.then(
    (front) => {
      front.kill();
      return null;
    },
    (one: unknown) => one,
  );
  expect(error).toBeInstanceOf(ConfigError);
  // What a worker that was started has to say would be here.
  expect(warnings).toEqual([]);
  return (error as Error).message.split('\n');
}

const BOTH = 'context_servers: {}\ngeneration_servers: {}\n';

describe('what serve does not run is refused before a worker is started, with file, line and key', () => {
  it.each<[string, string, string[]]>([
    [
      'stages',
      'context_servers: { pipeline_parallel_size: 2 }\ngeneration_servers: {}',
      ['a.yaml:1: context_servers.pipeline_parallel_size: is 2; serve runs tensor parallel ranks alone, set it to 1'],
    ],
    [
      'context parallel ranks',
      'context_servers: {}\ngeneration_servers:\n  contextParallelSize: 2',
      ['a.yaml:3: generation_servers.contextParallelSize: is 2; serve runs tensor parallel ranks alone, set it to 1'],
    ],
    [
      'attention DP, for both sides',
      `enable_attention_dp: true\n${BOTH}`,
      ['a.yaml:1: enable_attention_dp: is true; serve runs tensor parallel ranks alone, set it to false'],
    ],
    [
      'settings that the engine does not have, each',
      `context_servers: {}\ngeneration_servers:\n  engine:\n    sed: 1\n    dtype: int4\n    maxModelTokens: -1\n`,
      [
        'a.yaml:4: generation_servers.engine.sed: is not a setting of the tiny engine: did you mean seed?',
        'a.yaml:6: generation_servers.engine.maxModelTokens: must be a whole number from 16 to 65536, got -1',
        'a.yaml:5: generation_servers.engine.dtype: must be float32 or bfloat16, got "int4"',
      ],
    ],
    [
      'an inherited one: the line at the top, also beside others of the section',
      'engine:\n  cache_tokens: 3\ncontext_servers: { engine: { seed: 1 } }\ngeneration_servers: { engine: { seed: 1 } }\n',
      ['a.yaml:2: engine.cache_tokens: must be a whole number from 16 to 16777216, got 3'],
    ],
    [
      'settings of the engine that do not go together',
      `engine: { cache_tokens: 16 }\n${BOTH}`,
      ['a.yaml:1: engine.cache_tokens: is 16; it must hold one request of max_model_tokens, 2048'],
    ],
    [
      'a split that the engine cannot do',
      'context_servers:\n  tensor_parallel_size: 3\ngeneration_servers: {}\n',
      ['a.yaml:2: context_servers.tensor_parallel_size: is 3; the tiny engine has 4 heads to split, use a divisor'],
    ],
    [
      'engines that are not the same',
      'context_servers: {}\ngeneration_servers:\n  engine: { seed: 5 }\n',
      [
        'a.yaml:3: generation_servers.engine: the engines of both sides must be the same: context has kvt-tiny, 2048 tokens, vocabulary of 261, seed 1, bfloat16; generation has kvt-tiny, 2048 tokens, vocabulary of 261, seed 5, bfloat16',
      ],
    ],
    [
      'workers that could not answer',
      'context_servers: {}\ngeneration_servers:\n  urls: [10.0.0.1:9100]\n',
      [
        'a.yaml:3: generation_servers.urls: names other machines, and they must be able to answer: give the address of this one that they reach (--control-host)',
      ],
    ],
    [
      'keys that are not there',
      'context_servers: {}\ngeneration_servers:\n  cache_transceiver_config:\n    security: { curve: { secret_key_file: /nonexistent/key } }\n',
      [
        expect.stringMatching(
          /^a\.yaml:4: generation_servers\.cache_transceiver_config\.security\.curve\.secret_key_file: \/nonexistent\/key /,
        ) as unknown as string,
      ],
    ],
  ])('%s', async (_, text, expected) => {
    expect(await refusalOf(text)).toEqual(expected);
  });
});

describe('an engine of the user’s', () => {
  const ERRORS = fileURLToPath(new URL('../../../src/errors.ts', import.meta.url));
  const TEXT = 'context_servers: {}\ngeneration_servers:\n  engine:\n    seed: 1\n    other: 2\n';

  async function refusalBy(body: string): Promise<string[]> {
    const folder = await mkdtemp(join(tmpdir(), 'kvt-engine-'));
    try {
      const module = join(folder, 'engine.ts');
      await writeFile(module, `import { ConfigError } from ${JSON.stringify(ERRORS)};\nexport default ${body};\n`);
      return (await refusalOf(TEXT, module)).map((line) => line.replace(module, 'MODULE'));
    } finally {
      await rm(folder, { recursive: true });
    }
  }

  it('has its ConfigError shown with the line of the setting, or of its map', async () => {
    const problems = `[{ setting: 'engine.seed', message: 'must be even' }]`;
    expect(
      await refusalBy(
        `(s, { role }) => { if (role === 'generation') throw new ConfigError('no', { details: { problems: ${problems} } }); return (() => { throw new ConfigError('context'); })(); }`,
      ),
    ).toEqual(['a.yaml:1: context_servers.engine: context']);
    expect(await refusalBy(`() => { throw new ConfigError('no', { details: { problems: ${problems} } }); }`)).toEqual([
      'a.yaml:1: context_servers.engine.seed: must be even',
    ]);
  });

  it('that breaks is named, without a stack', async () => {
    expect(await refusalBy(`() => { throw new TypeError('x is not a function'); }`)).toEqual([
      '--engine MODULE failed: x is not a function',
    ]);
  });
});
