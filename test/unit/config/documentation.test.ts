import { readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { DEPRECATED_KEYS } from '../../../src/config/deprecated-keys.js';
import { parseDisaggConfigFile, resolveCacheTransceiverConfig } from '../../../src/config/index.js';
import { bounceSchema, curveSchema } from '../../../src/config/schema.js';
import { settingPaths } from '../../../src/config/setting-keys.js';

const DOCS = readFileSync(new URL('../../../docs/configuration.md', import.meta.url), 'utf8');
const section = (title: string): string => DOCS.split(`## ${title}\n`)[1]?.split('\n## ')[0] ?? '';
const ROWS = [...section('Settings').matchAll(/^\| `([\w.]+)` \| (.*?) \| (.*) \|$/gm)].map((row) => ({
  setting: row[1] as string,
  byDefault: row[2] as string,
  rule: row[3] as string,
}));

describe('docs/configuration.md', () => {
  it('has a row for each setting of the schema, in its order, and no other', () => {
    expect(ROWS.map(({ setting }) => setting)).toEqual(settingPaths());
  });

  it('states the defaults that hold', () => {
    const { config } = resolveCacheTransceiverConfig({}, { nixlAvailable: true });
    const values = {
      ...config,
      backend: 'DEFAULT',
      bounce: bounceSchema.parse({}),
      security: { ...config.security, curve: curveSchema.parse({ secretKeyFile: 'null' }) },
    };
    const follows = new Set(['role', 'enableEarlyPrefixTransfer', 'noProgressTimeoutMs', 'listen.advertiseHost']);
    for (const { setting, byDefault } of ROWS) {
      if (follows.has(setting)) continue;
      const value: unknown = setting.split('.').reduce((node: object, key) => Reflect.get(node, key), values);
      const text = /^`(.*)`$/.exec(byDefault)?.[1] ?? '';
      const size = /^(\d+) ([KM])iB$/.exec(text);
      const stated = size === null ? text : Number(size[1]) * (size[2] === 'K' ? 1024 : 1024 * 1024);
      expect(`${setting} = ${stated}`).toBe(
        `${setting} = ${typeof value === 'object' ? JSON.stringify(value) : value}`,
      );
    }
    expect(config.role).toBe('both');
    expect(config.noProgressTimeoutMs).toBe(30_000);
  });

  it('marks exactly the settings that this build refuses', () => {
    const asked: Readonly<Record<string, unknown>> = {
      'bounce.streams': 2,
      numTransferThreads: 2,
      'ucx.tls': 'tcp',
      'ucx.netDevices': 'eth0',
      'ucx.engineConfig': 'A=1',
    };
    const marked = ROWS.filter(({ rule }) => /not available in this build/i.test(rule)).map(({ setting }) => setting);
    expect(marked.toSorted()).toEqual(Object.keys(asked).toSorted());
    for (const [setting, value] of Object.entries(asked)) {
      const [outer, inner] = setting.split('.') as [string, string | undefined];
      const section = inner === undefined ? value : { [inner]: value };
      const input = { ...(outer === 'bounce' ? { kvCacheBounceSizeMb: 64 } : {}), [outer]: section };
      expect(() => resolveCacheTransceiverConfig(input, { nixlAvailable: true })).toThrow('this build');
    }
  });

  it('lists the names of other stacks', () => {
    const listed = [...section('Names of other stacks').matchAll(/`(\w+)`/g)].map((match) => match[1] as string);
    const camel = listed.map((name) => name.replace(/_([a-z])/g, (_, letter: string) => letter.toUpperCase()));
    expect(camel.toSorted()).toEqual([...DEPRECATED_KEYS.keys()].toSorted());
  });
});

describe('docs/examples', () => {
  it.each([
    ['disagg.yaml', [1, 2], [1, 1]],
    ['disagg-remote.yaml', [2, 1], [2, 4]],
  ])('%s is read without a warning', (name, instances, ranks) => {
    const text = readFileSync(new URL(`../../../docs/examples/${name}`, import.meta.url), 'utf8');
    const { context, generation, scheduleStyle, warnings } = parseDisaggConfigFile(text, { fileName: name });
    expect(warnings).toEqual([]);
    expect(scheduleStyle).toBe('generation_first');
    expect([context.instanceCount, generation.instanceCount]).toEqual(instances);
    expect([context.ranksPerInstance, generation.ranksPerInstance]).toEqual(ranks);
  });
});
