import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { type DisaggConfig, parseDisaggConfigFile } from '../../../src/config/index.js';
import { ConfigError } from '../../../src/errors.js';

const MINIMAL = 'context_servers:\ngeneration_servers:\n';

function problemsOf(text: string, options = {}): string[] {
  try {
    parseDisaggConfigFile(text, options);
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error;
    return error.message.split('\n');
  }
  throw new Error('the file was not rejected');
}

describe('a good file', () => {
  it('has defaults for everything but the two sections', () => {
    const group = {
      urls: [],
      instanceCount: 1,
      ranksPerInstance: 1,
      router: 'round_robin' as const,
      tensorParallelSize: 1,
      pipelineParallelSize: 1,
      contextParallelSize: 1,
      enableAttentionDp: false,
      enableChunkedPrefill: true,
      maxNumTokens: 2048,
      maxBeamWidth: 1,
      schedule: 'plain' as const,
      engine: {},
      cacheTransceiverConfig: {},
    };
    expect(parseDisaggConfigFile(MINIMAL)).toEqual({
      hostname: '127.0.0.1',
      port: 8000,
      scheduleStyle: 'context_first',
      maxRetries: 1,
      nodeId: 0,
      context: { role: 'context', ...group },
      generation: { role: 'generation', ...group },
      warnings: [],
    } satisfies DisaggConfig);
  });

  it('inherits worker settings, map by map, in both spellings', () => {
    const config = parseDisaggConfigFile(`
schedule_style: generation_first
tensorParallelSize: 2
cache_transceiver_config:
  kv_transfer_timeout_ms: 5000
engine: { name: tiny }
context_servers:
  urls: [ctx-0:9000, 10.0.0.2:9000]
  pipeline_parallel_size: 3
  tensor_parallel_size: 2
  cacheTransceiverConfig:
    enablePipelinedTransfer: true
generation_servers:
  numInstances: 3
  router: { type: least_loaded }
`);
    expect(config.context).toMatchObject({
      urls: ['ctx-0:9000', '10.0.0.2:9000'],
      instanceCount: 2,
      ranksPerInstance: 6,
      engine: { name: 'tiny' },
      cacheTransceiverConfig: { kv_transfer_timeout_ms: 5000, enablePipelinedTransfer: true },
    });
    expect(config.generation).toMatchObject({
      instanceCount: 3,
      ranksPerInstance: 2,
      router: 'least_loaded',
      cacheTransceiverConfig: { kv_transfer_timeout_ms: 5000 },
    });
  });

  it.each([
    ['', 'plain'],
    ['schedule: overlap', 'overlap'],
    ['disable_overlap_scheduler: false', 'overlap'],
    ['disable_overlap_scheduler: true', 'plain'],
    ['schedule: overlap\ndisable_overlap_scheduler: false', 'overlap'],
  ])('the schedule of the executors, %j: %s', (line, schedule) => {
    const config = parseDisaggConfigFile(`${line}\n${MINIMAL}`);
    expect([config.context.schedule, config.generation.schedule]).toEqual([schedule, schedule]);
  });

  it('the schedule style of the command line wins, and is checked alike', () => {
    const pipelined = `context_servers: { cache_transceiver_config: { enable_pipelined_transfer: true } }\ngeneration_servers: {}\n`;
    expect(parseDisaggConfigFile(pipelined, { scheduleStyle: 'generation_first' }).scheduleStyle).toBe(
      'generation_first',
    );
    expect(problemsOf(pipelined)).toEqual([
      expect.stringMatching(
        /^disagg\.yaml:1: context_servers\.cache_transceiver_config\.enable_pipelined_transfer: needs .*set schedule_style to generation_first/,
      ),
    ]);
    expect(
      problemsOf(`schedule_style: generation_first\n${pipelined}`, { scheduleStyle: 'context_first' }),
    ).toHaveLength(1);
    expect(problemsOf(MINIMAL, { scheduleStyle: 'gen' })).toEqual([
      'the schedule style of the command line must be context_first or generation_first, got "gen"',
    ]);
  });

  it('takes the port of the command line, and checks it like the file', () => {
    const text = 'port: 9001\ncontext_servers: { urls: [127.0.0.1:9002] }\ngeneration_servers:\n';
    expect(parseDisaggConfigFile(text, { port: 9003 }).port).toBe(9003);
    expect(problemsOf(text, { port: 9002 })).toEqual([expect.stringMatching(/urls\.0: .* own server listens/)]);
    expect(parseDisaggConfigFile(text, { port: 0 }).port).toBe(0);
  });

  it('hands on the warnings of both sections', () => {
    const { warnings } = parseDisaggConfigFile(
      'context_servers: { cache_transceiver_config: { transceiver_runtime: PYTHON } }\ngeneration_servers:\n',
    );
    expect(warnings.map(({ setting }) => setting)).toEqual(['transceiver_runtime']);
  });
});

describe('a wrong file is refused with line and key', () => {
  it.each<[string, string, string[]]>([
    ['empty', '', ['disagg.yaml:1: the file is empty; it needs context_servers and generation_servers']],
    [
      'only comments',
      '# nothing\n',
      ['disagg.yaml:1: the file is empty; it needs context_servers and generation_servers'],
    ],
    ['a list', '- a\n', ['disagg.yaml:1: the file must be a map with context_servers and generation_servers']],
    [
      'a section missing',
      'port: 1\ncontext_servers:\n',
      ['disagg.yaml:1: generation_servers is missing: say how many generation servers there are, or where they run'],
    ],
    [
      'unknown keys, the nearest name suggested',
      'prot: 1\ncontext_servers:\n  num_instance: 1\ngeneration_servers:\n',
      [
        'disagg.yaml:1: prot: is not a setting: did you mean port?',
        'disagg.yaml:3: context_servers.num_instance: is not a setting: did you mean num_instances?',
      ],
    ],
    [
      'wrong types',
      'port: "http"\nnode_id: 256\ncontext_servers:\n  urls: host:1\n  router: fastest\ngeneration_servers: 2\n',
      [
        'disagg.yaml:1: port: must be a whole number from 0 to 65535, got "http"',
        'disagg.yaml:2: node_id: must be a whole number from 0 to 255, got 256',
        'disagg.yaml:4: context_servers.urls: must be a list of host:port, got "host:1"',
        'disagg.yaml:5: context_servers.router: must be round_robin, least_loaded, prefix_overlap, or a map { type }, got "fastest"',
        'disagg.yaml:6: generation_servers: must be a map of settings, got 2',
      ],
    ],
    [
      'urls: twice, in both lists, not host:port',
      'context_servers:\n  urls: [a:1, a:1, http://b:2, a:001]\ngeneration_servers:\n  urls:\n    - A:1\n    - c:99999\n',
      [
        'disagg.yaml:2: context_servers.urls.1: a:1 is listed twice; remove one',
        'disagg.yaml:2: context_servers.urls.2: "http://b:2" must be host:port, without a scheme or a path',
        'disagg.yaml:2: context_servers.urls.3: a:001 is listed twice; remove one',
        'disagg.yaml:5: generation_servers.urls.0: A:1 is listed in context_servers too; a server has one role',
        'disagg.yaml:6: generation_servers.urls.1: "c:99999" has a port outside 1 to 65535',
      ],
    ],
    [
      'urls: one server by two names, in one list and in both',
      'context_servers:\n  urls: [localhost:9001, 127.0.0.1:09001]\ngeneration_servers:\n  urls:\n    - LocalHost:9001\n    - 127.0.0.2:9001\n',
      [
        'disagg.yaml:2: context_servers.urls.1: 127.0.0.1:09001 is listed twice; remove one',
        'disagg.yaml:5: generation_servers.urls.0: LocalHost:9001 is listed in context_servers too; a server has one role',
      ],
    ],
    [
      'urls: the server of the file itself',
      'hostname: Front.example\nport: 9001\ncontextServers:\n  urls: [a:9001, front.EXAMPLE:9001]\ngenerationServers:\n',
      [
        "disagg.yaml:4: contextServers.urls.1: front.EXAMPLE:9001 is where this file's own server listens (hostname, port); name a worker",
      ],
    ],
    [
      'urls: the server of the file itself, which listens everywhere',
      'hostname: 0.0.0.0\nport: 9001\ncontext_servers:\n  urls: [localhost:9001, 127.8.0.1:9001, 10.0.0.1:9001, localhost:9002]\ngeneration_servers:\n',
      [
        "disagg.yaml:4: context_servers.urls.0: localhost:9001 is where this file's own server listens (hostname, port); name a worker",
        "disagg.yaml:4: context_servers.urls.1: 127.8.0.1:9001 is where this file's own server listens (hostname, port); name a worker",
      ],
    ],
    [
      'urls: nobody, nowhere, and what is no address here',
      'context_servers:\n  urls: []\ngenerationServers:\n  urls: [0.0.0.0:9001, "[::1]:9001"]\n',
      [
        'disagg.yaml:2: context_servers.urls: lists no server; remove it to start servers here, or name those that run',
        'disagg.yaml:4: generationServers.urls.0: "0.0.0.0:9001" is no address to reach a server at; name the one that others know it by',
        'disagg.yaml:4: generationServers.urls.1: "[::1]:9001" must be host:port, without a scheme or a path',
      ],
    ],
    [
      'keys that objects understand in a way of their own',
      'engine:\n  "__proto__": { seed: 3 }\ncache_transceiver_config: { __proto__: { typo: 1 } }\ncontext_servers:\n  __proto__: 1\ngeneration_servers:\n__proto__: {}\n',
      [
        'disagg.yaml:2: engine.__proto__: is not a setting, and not possible as a key; remove it',
        'disagg.yaml:3: cache_transceiver_config.__proto__: is not a setting, and not possible as a key; remove it',
        'disagg.yaml:5: context_servers.__proto__: is not a setting, and not possible as a key; remove it',
        'disagg.yaml:7: __proto__: is not a setting, and not possible as a key; remove it',
      ],
    ],
    [
      'keys that every object has',
      'cache_transceiver_config: { constructor: 1, prototype: 2, toString: 3 }\ncontext_servers:\ngeneration_servers:\n',
      ['constructor', 'prototype', 'toString'].map(
        (key) =>
          expect.stringMatching(
            new RegExp(`^disagg.yaml:1: cache_transceiver_config.${key}: is not a setting: `),
          ) as unknown as string,
      ),
    ],
    [
      'a count that is not that of the urls',
      'context_servers:\n  num_instances: 2\n  urls: [a:1]\ngeneration_servers:\n',
      ['disagg.yaml:2: context_servers.num_instances: is 2, but urls lists 1 servers; remove one of them'],
    ],
    [
      'inherited keys that conflict, deep ones too',
      'cache_transceiver_config:\n  listen:\n    port: 5000\nmax_num_tokens: 512\ncontext_servers:\n  max_num_tokens: 256\n  cacheTransceiverConfig: { listen: { port: 5001 } }\ngeneration_servers:\n',
      [
        'disagg.yaml:7: context_servers.cacheTransceiverConfig.listen.port: differs from cache_transceiver_config.listen.port at the top of the file (line 3), which holds for both sections; remove one',
        'disagg.yaml:6: context_servers.max_num_tokens: differs from max_num_tokens at the top of the file (line 4), which holds for both sections; remove one',
      ],
    ],
    [
      'a transceiver setting out of range, inherited: the line at the top',
      'cache_transceiver_config:\n  kv_transfer_timeout_ms: 0\ncontext_servers:\ngeneration_servers:\n',
      [
        expect.stringMatching(
          /^disagg\.yaml:2: cache_transceiver_config\.kv_transfer_timeout_ms: must be a finite/,
        ) as unknown as string,
      ],
    ],
    [
      'servers of a pair that disagree',
      'context_servers:\n  cache_transceiver_config: { backend: NIXL }\ngeneration_servers:\n  cache_transceiver_config:\n    backend: HOST\n',
      [
        'disagg.yaml:5: generation_servers.cache_transceiver_config.backend: the context server uses NIXL, the generation server HOST; set both to the same',
      ],
    ],
    [
      'context parallelism on both sides',
      'context_parallel_size: 2\ncontext_servers:\ngeneration_servers:\n',
      ['disagg.yaml:1: context_parallel_size: context parallelism works on one side only; set it to 1 on one of them'],
    ],
    [
      'both spellings of one key',
      'nodeId: 1\nnode_id: 1\ncontext_servers:\ngeneration_servers:\n',
      [expect.stringMatching(/node_id: is given in two spellings; remove one$/) as unknown as string],
    ],
    ['a key given twice', 'port: 1\nport: 2\n', ['disagg.yaml:2: port: is given twice; remove one']],
    ['no YAML', 'port: [1\ncontext_servers: {', [expect.stringMatching(/^disagg\.yaml:\d: /) as unknown as string]],
    [
      'two documents',
      `${MINIMAL}---\n${MINIMAL}`,
      [expect.stringMatching(/^disagg\.yaml:3: .*more than one document; remove the line ---/) as unknown as string],
    ],
  ])('%s', (_, text, expected) => {
    const problems = problemsOf(text);
    for (const [index, one] of expected.entries()) expect(problems[index]).toEqual(one);
    if (expected.every((one) => typeof one === 'string')) expect(problems).toEqual(expected);
  });

  it('names the file it was given', () => {
    expect(problemsOf('', { fileName: 'cluster.yaml' })[0]).toMatch(/^cluster\.yaml:1: /);
  });

  it('an alias bomb and a huge file end at once', () => {
    const bomb = [
      'a: &a [x,x,x,x,x,x,x,x,x]',
      ...'bcdefghij'.split('').map((key, index) => {
        const before = String.fromCharCode(key.charCodeAt(0) - 1);
        return `${key}: &${key} [${Array.from({ length: 9 + 0 * index }, () => `*${before}`).join(',')}]`;
      }),
    ].join('\n');
    expect(problemsOf(bomb)[0]).toMatch(/alias/i);
    expect(problemsOf('#'.repeat(2 ** 20 + 1))[0]).toMatch(/is it the right one/);
  });

  it('whatever the text, the answer is a configuration or a ConfigError', () => {
    const keys = fc.constantFrom(
      'port',
      'urls',
      'context_servers',
      'generation_servers',
      'engine',
      'cache_transceiver_config',
      '__proto__',
      'constructor',
      '1',
      '? [a]',
    );
    const tree = fc.letrec((tie) => ({
      node: fc.oneof({ maxDepth: 3 }, fc.jsonValue(), fc.dictionary(keys, tie('node')), fc.array(tie('node'))),
    })).node;
    fc.assert(
      fc.property(
        fc.oneof(
          tree.map((value) => JSON.stringify(value) ?? ''),
          fc.string(),
        ),
        (text) => {
          try {
            parseDisaggConfigFile(text);
          } catch (error) {
            expect(error).toBeInstanceOf(ConfigError);
          }
        },
      ),
      { numRuns: 150 },
    );
  });
});
