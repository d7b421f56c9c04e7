import { describe, expect, it } from 'vitest';
import {
  parseDisaggConfigFile,
  readDisaggConfigFile,
  resolveCacheTransceiverConfig,
} from '../../../src/config/index.js';
import { ConfigError } from '../../../src/errors.js';

const C = 'context_servers: {}\n';
const BOTH = `${C}generation_servers: {}\n`;
const NIXL = 'cache_transceiver_config: { backend: HOST, enable_pipelined_transfer: true }\n';

function problemsOf(text: string): string[] {
  try {
    parseDisaggConfigFile(text, { fileName: 'f' });
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error;
    return error.message.split('\n');
  }
  return [];
}

describe('a file that is no good YAML: what to do about it, where, and near which key', () => {
  it.each<[string, string, string[]]>([
    [
      'keys given twice, two on one line',
      `context_servers: { num_instances: 1, num_instances: 2, router: a, router: b }\n`,
      [
        'f:1: context_servers.num_instances: is given twice; remove one',
        'f:1: context_servers.router: is given twice; remove one',
      ],
    ],
    [
      'two values on one line that want quotes',
      `context_servers: { engine: { a: @x, b: @y } }\n`,
      [
        'f:1: context_servers.engine.a (column 33): a value cannot begin with this character; put the value in quotes',
        'f:1: context_servers.engine.b (column 40): a value cannot begin with this character; put the value in quotes',
      ],
    ],
    [
      'a tab',
      `context_servers:\n\tport: 1\n`,
      ['f:2: context_servers (column 1): the line is indented with a tab; use spaces'],
    ],
    [
      'uneven indentation',
      'context_servers:\n  a: 1\n b: 2\n',
      [
        'f:3: context_servers.a (column 1): the indentation does not fit the lines above; keys of one map begin in the same column',
      ],
    ],
    [
      'an open brace',
      `context_servers: { num_instances: 1\ngeneration_servers: {}\n`,
      ['f:2: generation_servers (column 1): a { is not closed; add }, and indent what is between them'],
    ],
    ['an open quote', `hostname: "abc\n`, ['f:2: hostname (column 1): a quote is opened and not closed']],
    [
      'two keys on one line',
      'port: 1: 2\n',
      [
        'f:1: port.1 (column 7): one line has two keys; write the second on a line of its own, or put the value in quotes',
      ],
    ],
    [
      'an alias of nothing',
      `${C}generation_servers: *other\n`,
      ['f:2: generation_servers: *other needs its anchor, &other, above it'],
    ],
    [
      'a merge of what is no map',
      `context_servers:\n  <<: [1, 2]\n`,
      [expect.stringMatching(/^f:2: context_servers\..*: takes a map, an alias of one/) as unknown as string],
    ],
    [
      'a tag',
      `context_servers: !server {}\n`,
      ['f:1: context_servers (column 18): a tag (!name) is not known, or does not fit its value; remove it'],
    ],
    ...(
      [
        ['an ordered map', '!!omap [ enable_pipelined_transfer: maybe, foo: 5 ]'],
        ['a set', '!!set { a, b }'],
        ['pairs', '!!pairs [ a: 1 ]'],
        ['bytes of another spelling', '!<tag:yaml.org,2002:binary> aGVsbG8='],
        ['a date', '!!timestamp 2026-01-01'],
        ['an ordered map of nothing', '!!omap'],
      ] as const
    ).map(([what, value]): [string, string, string[]] => [
      `the tag of ${what}`,
      `${BOTH}cache_transceiver_config: ${value}\nengine: ${value}\n`,
      [
        'f:3: cache_transceiver_config (column 27): a tag (!name) is not known, or does not fit its value; remove it',
        'f:4: engine (column 9): a tag (!name) is not known, or does not fit its value; remove it',
      ],
    ]),
    [
      'a tag of another name',
      `%TAG !y! tag:yaml.org,2002:\n---\n${BOTH}engine: !y!set { a }\n`,
      ['f:5: engine (column 9): a tag (!name) is not known, or does not fit its value; remove it'],
    ],
    [
      'another version, in which an unquoted date is an object',
      `%YAML 1.1\n---\n${BOTH}engine: { a: 2026-01-01 }\n`,
      ['f:1: %YAML 1.1 would make other values of 010, yes and dates; the file is read as YAML 1.2, remove the line'],
    ],
    [
      'an alias in the map that it names',
      `engine: &e\n  seed: 1\n  self: *e\n${BOTH}`,
      ['f:3: engine.self: *e stands inside of &e, which it names; remove it'],
    ],
    [
      'an alias deep in the list around it, used elsewhere',
      `context_servers: &c\n  urls: [1, { a: [ *c ] }]\ngeneration_servers: *c\n`,
      ['f:2: context_servers.urls: *c stands inside of &c, which it names; remove it'],
    ],
    [
      'a map merged into itself',
      `context_servers: &c\n  <<: [{ router: a }, *c]\n`,
      ['f:2: context_servers.<<: *c stands inside of &c, which it names; remove it'],
    ],
    [
      'aliases of aliases',
      `${BOTH}engine:\n  a: &a [${'x, '.repeat(9)}]\n${['b', 'c', 'd', 'e', 'f'].map((name, at) => `  ${name}: &${name} [${`*${'abcde'[at]}, `.repeat(9)}]\n`).join('')}`,
      ['f:8: engine.e: up to here aliases (*name) repeat more than 10000 values; write them out'],
    ],
    ['a list as a key', `? [a, b]\n: 1\n`, ['f:1: column 3: a key must be plain text']],
    [
      'a key without end',
      `${'k'.repeat(1100)}: 1\n`,
      [expect.stringMatching(/^f:1: k{64}… \(column 1\): a key is longer/) as unknown as string],
    ],
    ['bytes', 'port\u0000: 1\n', ['f:1: the file is not text: character 5 is U+0000; is it the right one?']],
    [
      'braces without end',
      `a: ${'['.repeat(100_000)}`,
      ['f:1: lists and maps are nested more than 64 deep; no setting is'],
    ],
    [
      'lists without end',
      `a:\n${'- '.repeat(100_000)}1\n`,
      ['f:1: lists and maps are nested more than 64 deep; no setting is'],
    ],
    [
      'indentation without end',
      Array.from({ length: 1000 }, (_, depth) => `${' '.repeat(depth)}a:`).join('\n'),
      ['f:1: lists and maps are nested more than 64 deep; no setting is'],
    ],
  ])('%s', (_, text, expected) => {
    const problems = problemsOf(text);
    expect(problems.slice(0, expected.length)).toEqual(expected);
    for (const line of problems) {
      expect(line).toMatch(/^f:\d+: /);
      expect(line).not.toMatch(/YAML\.|parseAll|flow|implicit|collection|resource|stack|indicator/i);
    }
  });

  it('of very many problems the first are shown, and how many more there are', () => {
    const text = Array.from({ length: 80 }, (_, index) => `zz${index}: 1`).join('\n');
    const problems = problemsOf(`${text}\n${BOTH}`);
    expect(problems).toHaveLength(51);
    expect(problems.at(-1)).toBe('f: and 30 more');
  });

  it.each([
    ['anchors and aliases', 'context_servers: &one { num_instances: 2 }\ngeneration_servers: *one\n'],
    [
      'an anchor given anew inside of itself',
      'context_servers: &one { num_instances: &one 2 }\ngeneration_servers: { num_instances: *one }\n',
    ],
    [
      'hundreds of aliases of one value',
      `context_servers: { num_instances: &n 2, engine: { a: [${'*n, '.repeat(500)}] } }\ngeneration_servers: { num_instances: *n }\n`,
    ],
    [
      'tags of what a value is anyway',
      'context_servers: !!map { num_instances: !!int 2 }\ngeneration_servers: { num_instances: 2 }\n',
    ],
    [
      'the version that is meant',
      '%YAML 1.2\n---\ncontext_servers: { num_instances: 2 }\ngeneration_servers: { num_instances: 2 }\n',
    ],
    [
      'merge keys',
      'context_servers: &one { num_instances: 2 }\ngeneration_servers:\n  <<: *one\n  router: least_loaded\n',
    ],
    ['a byte order mark', '\uFEFFcontext_servers: { num_instances: 2 }\ngeneration_servers: { num_instances: 2 }\n'],
    ['line ends of Windows', 'context_servers:\r\n  num_instances: 2\r\ngeneration_servers:\r\n  num_instances: 2\r\n'],
    [
      'sections of nothing',
      'context_servers:\n  num_instances: 2\n  engine:\n  cache_transceiver_config:\ngeneration_servers: { num_instances: 2 }\n',
    ],
  ])('%s are read', (_, text) => {
    const { context, generation } = parseDisaggConfigFile(text);
    expect([context.instanceCount, generation.instanceCount]).toEqual([2, 2]);
  });

  it('what an alias or a merge brings has the line where it is written', () => {
    expect(problemsOf('context_servers: &one\n  num_instances: x\ngeneration_servers: *one\n')).toEqual([
      'f:2: context_servers.num_instances: must be a whole number from 1 to 1024, got "x"',
      'f:2: generation_servers.num_instances: must be a whole number from 1 to 1024, got "x"',
    ]);
    expect(problemsOf('context_servers: &one\n  num_instances: x\ngeneration_servers:\n  <<: *one\n')).toEqual([
      'f:2: context_servers.num_instances: must be a whole number from 1 to 1024, got "x"',
      'f:2: generation_servers.num_instances: must be a whole number from 1 to 1024, got "x"',
    ]);
  });
});

describe('a setting that is wrong', () => {
  it.each<[string, string, string[]]>([
    ['no host', `hostname: "a b"\n${BOTH}`, ['f:1: hostname: must be a host name or an IPv4 address, got "a b"']],
    ['nothing', `port:\n${BOTH}`, ['f:1: port: must be a whole number from 0 to 65535, got nothing']],
    [
      'a router of another kind',
      'context_servers: { router: { kind: x } }\ngeneration_servers: { router: { type: x } }\n',
      [
        'f:1: context_servers.router.kind: is not a setting: known are type',
        'f:1: context_servers.router: must be round_robin, least_loaded, prefix_overlap, or a map { type }, got nothing',
        'f:2: generation_servers.router: must be round_robin, least_loaded, prefix_overlap, or a map { type }, got "x"',
      ],
    ],
    [
      'an unknown key of the transceiver, deep',
      `cache_transceiver_config:\n  listen:\n    hostt: a\n${BOTH}`,
      ['f:3: cache_transceiver_config.listen.hostt: is not a setting: did you mean listen.host?'],
    ],
    [
      'a key with characters that a terminal would act on',
      `"a\\e[31m": 1\n${BOTH}`,
      [expect.stringMatching(/^f:1: "a\\u001b\[31m": is not a setting/) as unknown as string],
    ],
    [
      'a beam, whose key here is another than the library’s',
      `schedule_style: generation_first\n${NIXL}max_beam_width: 4\n${BOTH}`,
      [
        'f:2: cache_transceiver_config.enable_pipelined_transfer: needs beam width 1, not 4; set max_beam_width to 1, or set enable_pipelined_transfer to false (or role to generation on a server that only receives)',
      ],
    ],
    [
      'a setting that is missing, which is named',
      `cache_transceiver_config: { listen: { host: 10.0.0.1 } }\n${BOTH}`,
      [
        'f:1: cache_transceiver_config.security.curve: listen.host 10.0.0.1 can be reached from other machines and control frames are not encrypted; set security.curve (`kv-transceiver keygen` makes the keys), listen on a loopback address, or set security.allow_plaintext to true on a network you trust',
      ],
    ],
  ])('%s', (_, text, expected) => {
    expect(problemsOf(text)).toEqual(expected);
  });

  it('is named, and its remedy too, as the file spells names', () => {
    const snake = `schedule_style: generation_first\nenable_chunked_prefill: false\n${NIXL}${BOTH}`;
    const camel = snake.replace(/_([a-z])(?=\w*:)/g, (_, letter: string) => letter.toUpperCase());
    const needs = 'needs chunked prefill, and the scheduler runs without it; set';
    expect(problemsOf(snake)[0]).toContain(
      `cache_transceiver_config.enable_pipelined_transfer: ${needs} enable_chunked_prefill to`,
    );
    expect(problemsOf(camel)[0]).toContain(
      `cacheTransceiverConfig.enablePipelinedTransfer: ${needs} enableChunkedPrefill to`,
    );
  });

  it('in a call, as the call spells them; values stay as they are', () => {
    const messageOf = (input: object): string => {
      try {
        resolveCacheTransceiverConfig(input, { scheduleStyle: 'context_first' });
      } catch (error) {
        return (error as Error).message;
      }
      return '';
    };
    expect(messageOf({ enable_pipelined_transfer: true })).toMatch(
      /enable_pipelined_transfer needs .* set schedule_style to/,
    );
    expect(messageOf({ enablePipelinedTransfer: true })).toMatch(
      /enablePipelinedTransfer needs .* set scheduleStyle to/,
    );
    expect(messageOf({ max_tokens_in_buffer: 'maxTokensInBuffer' })).toMatch(
      /^cacheTransceiverConfig: max_tokens_in_buffer must be .* got "maxTokensInBuffer"$/,
    );
  });

  it.each([
    [new Map([['backend', 'HOST']]), 'it must be a map of settings, got an object of Map'],
    [new Date(0), 'it must be a map of settings, got an object of Date'],
    [{ security: new Map([['curve', 1]]) }, 'security must be a map of settings, got an object of Map'],
    [{ ucx: new Uint8Array(2) }, 'ucx must be a map of settings, got an object of Uint8Array'],
    [{ kv_transfer_timeout_ms: 5n }, /^kv_transfer_timeout_ms must be .*, got 5n$/],
  ])('in a call, as something that YAML has not (%$)', (input, message) => {
    let problems: readonly { message: string }[] = [];
    try {
      resolveCacheTransceiverConfig(input);
    } catch (error) {
      problems = (error as ConfigError).details['problems'] as typeof problems;
    }
    expect(problems.map((one) => one.message)).toEqual([
      typeof message === 'string' ? message : (expect.stringMatching(message) as unknown),
    ]);
  });

  it('that is found later has line and key as well', () => {
    const { rejection } = readDisaggConfigFile(
      'engine:\n  seed: 1\ncontext_servers: { engine: { dtype: x } }\ngeneration_servers: {}\n',
      {
        fileName: 'f',
      },
    );
    const error = rejection([
      { setting: 'contextServers.engine.seed', message: 'is odd' },
      { setting: 'contextServers.engine.dtype', message: 'is odd' },
      { setting: 'generationServers.engine.other', message: 'is missing' },
      { setting: 'port', message: 'is taken' },
    ]);
    expect(error.message.split('\n')).toEqual([
      'f:2: engine.seed: is odd',
      'f:3: context_servers.engine.dtype: is odd',
      'f:1: engine.other: is missing',
      'f:1: port: is taken',
    ]);
  });
});
