import { describe, expect, it } from 'vitest';
import { parseDisaggConfigFile } from '../../../src/config/index.js';
import { ConfigError } from '../../../src/errors.js';
import { ServeFront } from '../../../src/serve/front/serve-front.js';

describe('what serve does not run', () => {
  it.each([
    ['context', 'context_servers: { pipeline_parallel_size: 2 }\ngeneration_servers: {}'],
    ['generation', 'context_servers: {}\ngeneration_servers: { context_parallel_size: 2 }'],
    ['context', 'enable_attention_dp: true\ncontext_servers: {}\ngeneration_servers: {}'],
  ])('is refused before a worker is started (%s)', async (role, text) => {
    const warnings: string[] = [];
    const opening = ServeFront.open({
      config: { ...parseDisaggConfigFile(text), port: 0 },
      engineModule: null,
      controlHost: null,
      maxLive: 1,
      maxQueued: 0,
      queueTimeoutMs: 1000,
      maxConnections: 1,
      headersTimeoutMs: 1000,
      requestTimeoutMs: 1000,
      stallLimitMs: 1000,
      maxBodyBytes: 1000,
      log: { logger: null, warn: (message) => warnings.push(message), error: (message) => warnings.push(message) },
      logLevel: 'silent',
    });
    const error = await opening.catch((one: unknown) => one);
    expect(error).toBeInstanceOf(ConfigError);
    // What a worker says begins with its name.
    expect((error as Error).message).toMatch(new RegExp(`^${role}_servers: serve runs tensor parallel ranks`));
    expect(warnings).toEqual([]);
  });
});
