import { fileURLToPath } from 'node:url';
import { afterEach, describe, expect, it } from 'vitest';
import { keyFileText } from '../../../src/wire/curve-key-file.js';
import { generateCurveKeyPair } from '../../../src/wire/curve-keys.js';
import { isAlive, runCli } from '../../support/cli.js';
import { HANG_LIMIT_MS, until, withDeadline } from '../../support/deadline.js';
import { ownAddress } from '../../support/own-address.js';
import { ENGINE, type Front, localConfig, Served } from './served.js';

let served: Served;
afterEach(() => served.end());

const LONG = {
  model: 'kvt-tiny',
  prompt: 'long',
  max_tokens: 200,
  temperature: 0,
  ignore_eos: true,
  stream: true as const,
};

/** A stream whose first token is here. */
async function streaming(front: Front) {
  const stream = await front.client.completions.create({ ...LONG, stream_options: { include_usage: true } });
  const iterator = stream[Symbol.asyncIterator]();
  await iterator.next();
  return {
    rest: async (): Promise<number> => {
      let completed = -1;
      for (let part = await iterator.next(); part.done !== true; part = await iterator.next())
        completed = part.value.usage?.completion_tokens ?? completed;
      return completed;
    },
  };
}

const gone = (pids: readonly number[]): Promise<void> =>
  until(
    () => !pids.some(isAlive),
    () => `still there: ${pids.filter(isAlive).join()}`,
  );

describe('serve', () => {
  it('finishes what runs after SIGTERM, turns the rest away, and ends with 0', async () => {
    served = new Served();
    const { engine, words, open } = served.held();
    const front = await served.front(localConfig({ top: { engine } }), ...words);
    const pids = (await front.workers()).map(({ pid }) => pid);
    const stream = await streaming(front);
    front.child.kill('SIGTERM');
    await front.untilHealth(({ status }) => status === 'draining');
    await expect(front.client.completions.create({ ...LONG, stream: false })).rejects.toMatchObject({ status: 503 });
    open();
    expect(await stream.rest()).toBe(200);
    expect(await withDeadline(front.child.exited, HANG_LIMIT_MS, () => 'serve still runs')).toBe(0);
    await gone(pids);
  });

  it('ends at once at the second SIGTERM', async () => {
    served = new Served();
    const { engine, words } = served.held();
    const front = await served.front(localConfig({ top: { engine } }), ...words);
    const pids = (await front.workers()).map(({ pid }) => pid);
    const stream = await streaming(front);
    front.child.kill('SIGTERM');
    await front.untilHealth(({ status }) => status === 'draining');
    front.child.kill('SIGTERM');
    expect(await withDeadline(front.child.exited, HANG_LIMIT_MS, () => 'serve still runs')).toBe(143);
    await expect(stream.rest()).rejects.toThrow();
    await gone(pids);
  });

  it('leaves no worker behind when it is killed', async () => {
    served = new Served();
    const front = await served.front(localConfig());
    const pids = (await front.workers()).map(({ pid }) => pid);
    front.child.kill('SIGKILL');
    await front.child.exited;
    await gone(pids);
  });

  it('replaces a worker that is asked to end, which first finishes what it has', async () => {
    served = new Served();
    const { engine, words, open } = served.held();
    const front = await served.front(localConfig({ top: { engine } }), ...words);
    const stream = await streaming(front);
    const [before] = (await front.health()).generation;
    process.kill(before?.pid ?? 0, 'SIGTERM');
    await front.untilHealth(({ code }) => code === 503);
    open();
    expect(await stream.rest()).toBe(200);
    await front.untilHealth(({ generation: [now] }) => now?.phase === 'ready' && now.pid !== before?.pid);
    const after = await front.client.completions.create({ ...LONG, stream: false, max_tokens: 2 });
    expect(after.usage?.completion_tokens).toBe(2);
  });

  it('tries a whole answer again whose generation worker is killed after tokens that nobody has seen', async () => {
    served = new Served();
    const { engine, words, open, close } = served.held();
    const front = await served.front(localConfig({ top: { engine }, generation: { num_instances: 2 } }), ...words);
    const ask = { ...LONG, stream: false, max_tokens: 300, temperature: 1, seed: 7 } as const;
    open();
    const undisturbed = await front.client.completions.create(ask);
    close();
    const answer = front.client.completions.create(ask);
    // Its first token is in the front.
    await until(
      async () => (await front.metric('kvt_serve_first_token_seconds_count')) === 2,
      () => 'no token',
    );
    const busy = (await front.health()).generation.filter(({ liveRequests }) => liveRequests > 0);
    expect(busy).toHaveLength(1);
    process.kill(busy[0]?.pid ?? 0, 'SIGKILL');
    open();
    expect((await answer).choices).toEqual(undisturbed.choices);
    expect(await front.metric('kvt_serve_retries_total')).toBe(1);
    expect(await front.metric('kvt_serve_http_requests_total', 'status="200"', 'completions')).toBe(2);
  });

  it('runs an engine of the user’s', async () => {
    served = new Served();
    const module = fileURLToPath(new URL('../../../docs/examples/serve-engine.mjs', import.meta.url));
    const front = await served.front(localConfig(), '--engine', module);
    const answer = await front.client.completions.create({ model: 'echo', prompt: 'abc', max_tokens: 5 });
    expect(answer.choices[0]?.text).toBe('abcab');
  });
});

describe('workers by address', () => {
  const curve = (file: string) => ({ security: { curve: { secretKeyFile: file } } });

  it('serve fronts that come and go, over encrypted links', async () => {
    served = new Served();
    const key = served.file('cluster.key_secret', keyFileText(generateCurveKeyPair()), 0o600);
    const shared = {
      engine: ENGINE,
      schedule_style: 'generation_first',
      cache_transceiver_config: { backend: 'HOST', ...curve(key) },
    };
    const pipelined = { cache_transceiver_config: { enable_pipelined_transfer: true } };
    const file = served.file('workers.yaml', { ...shared, context_servers: pipelined, generation_servers: {} });
    const [context, generation] = await Promise.all(
      ['context', 'generation'].map((role) => served.run('serve', 'worker', '--role', role, '--config', file)),
    );
    const urlOf = (line = ''): string => /127\.0\.0\.1:\d+$/.exec(line)?.[0] ?? '';
    const urls = [urlOf(context?.firstLine), urlOf(generation?.firstLine)];
    const config = {
      ...shared,
      context_servers: { ...pipelined, urls: [urls[0]] },
      generation_servers: { urls: [urls[1]] },
    };
    const first = await served.front(config);
    await first.untilHealth(({ code }) => code === 200);
    await streaming(first);
    first.child.kill('SIGKILL');
    await first.child.exited;

    // A front without the key gets no answer, and says so.
    const stranger = await served.front({ ...config, cache_transceiver_config: { backend: 'HOST' } });
    const second = await served.front(config);
    await second.untilHealth(({ code }) => code === 200);
    expect((await stranger.health()).code).toBe(503);
    const answer = await second.client.completions.create({ ...LONG, stream: false, max_tokens: 4 });
    expect(answer.usage?.completion_tokens).toBe(4);
    // What the killed front had asked for is gone: nothing is live but what nobody waits for.
    const live = (worker: string): Promise<number> =>
      second.metric(
        `kv_transceiver_executor_requests{`,
        `worker="${worker}-${worker === 'context' ? urls[0] : urls[1]}"`,
      );
    const both = (): Promise<number[]> => Promise.all([live('context'), live('generation')]);
    let counts: readonly number[] = [];
    await until(
      async () => {
        counts = await both();
        return counts.every((count) => count === 0);
      },
      () => `${counts} are live`,
    );

    for (const worker of [context, generation]) worker?.kill('SIGTERM');
    expect(await Promise.all([context?.exited, generation?.exited])).toEqual([0, 0]);
    await second.untilHealth(({ code }) => code === 503);
    second.child.kill('SIGTERM');
    expect(await second.child.exited).toBe(0);
  });

  it('are used again when they were killed and started anew at their address', async () => {
    served = new Served();
    const { engine, words, open } = served.held();
    const side = { cache_transceiver_config: {} };
    const top = { schedule_style: 'context_first', engine };
    const file = served.file('workers.yaml', localConfig({ top, context: side }));
    const start = (role: string, at: string) =>
      served.run('serve', 'worker', '--role', role, '--config', file, '--listen', at, ...words);
    const { host } = await ownAddress();
    const [context, generation] = await Promise.all([start('context', `${host}:0`), start('generation', `${host}:0`)]);
    const urlOf = ({ firstLine }: { readonly firstLine: string }) =>
      /127\.\d+\.\d+\.\d+:\d+$/.exec(firstLine)?.[0] ?? '';
    const urls = { context: { ...side, urls: [urlOf(context)] }, generation: { urls: [urlOf(generation)] } };
    const front = await served.front(localConfig({ top, ...urls }), ...words);
    await front.untilHealth(({ code }) => code === 200);
    const [before] = (await front.health()).generation;
    const stream = await streaming(front);
    generation.kill('SIGKILL');
    await expect(stream.rest()).rejects.toMatchObject({ code: 'ERR_KVT_PEER_LOST' });
    await generation.exited;
    await front.untilHealth(({ code }) => code === 503);
    open();
    await start('generation', urlOf(generation));
    await front.untilHealth(({ code, generation: [now] }) => code === 200 && now?.pid !== before?.pid);
    const answer = await front.client.completions.create({ ...LONG, stream: false, max_tokens: 4 });
    expect(answer.usage?.completion_tokens).toBe(4);
  });

  it('refuse a front of another model, which says why', async () => {
    served = new Served();
    const side = { cache_transceiver_config: { backend: 'HOST' } };
    const file = served.file('workers.yaml', { engine: { seed: 2 }, context_servers: side, generation_servers: side });
    const worker = await served.run('serve', 'worker', '--role', 'context', '--config', file);
    const url = /127\.0\.0\.1:\d+$/.exec(worker.firstLine)?.[0];
    const front = await served.front(
      localConfig({ context: { urls: [url], cache_transceiver_config: {} }, top: { schedule_style: 'context_first' } }),
    );
    await front.untilHealth(({ context: [one] }) => /was asked for kvt-tiny, 512 tokens/.test(one?.reason ?? ''));
    expect((await front.health()).code).toBe(503);
  });
});

describe('what cannot be started', () => {
  it.each<[string, object | string, RegExp]>([
    ['empty', '', /the file is empty/],
    ['an unknown key', { ...localConfig(), context_server: {} }, /did you mean context_servers\?/],
    [
      'pipelining, context first',
      { ...localConfig(), schedule_style: 'context_first' },
      /bad\.yaml:\d+: .*enable_pipelined_transfer: needs the destination pages/,
    ],
    [
      'pages of no use',
      { ...localConfig(), engine: { ...ENGINE, cache_token: 3 } },
      /bad\.yaml:\d+: engine\.cache_token: is not a setting of the tiny engine: did you mean cache_tokens\?/,
    ],
    [
      'a split that cannot be',
      localConfig({ context: { tensor_parallel_size: 3 } }),
      /bad\.yaml:\d+: context_servers\.tensor_parallel_size: is 3/,
    ],
    [
      'two models',
      localConfig({ top: { engine: {} }, generation: { engine: { seed: 5 } } }),
      /the engines of both sides must be the same/,
    ],
    ['workers that cannot answer', localConfig({ generation: { urls: ['10.0.0.1:9100'] } }), /--control-host/],
    ['stages', localConfig({ context: { pipeline_parallel_size: 2 } }), /serve runs tensor parallel ranks/],
  ])('%s', async (_, config, message) => {
    served = new Served();
    const result = await runCli(['serve', '--config', served.file('bad.yaml', config), '--port', '0']);
    expect([result.code, result.stdout]).toEqual([1, '']);
    expect(result.stderr).toMatch(message);
    expect(result.stderr).not.toMatch(/\n\s+at /);
  });

  it('each problem on a line of its own', async () => {
    served = new Served();
    const file = served.file(
      'bad.yaml',
      'port: x\ncontext_servers: { num_instances: 0, rooter: y }\ngeneration_servers: {}\n',
    );
    const { code, stderr } = await runCli(['serve', '--config', file]);
    expect(code).toBe(1);
    expect(stderr.replaceAll(file, 'FILE').trimEnd().split('\n')).toEqual([
      'kv-transceiver: ConfigError: FILE:1: port: must be a whole number from 0 to 65535, got "x"',
      '  FILE:2: context_servers.rooter: is not a setting: did you mean router?',
      '  FILE:2: context_servers.num_instances: must be a whole number from 1 to 1024, got 0 (ERR_KVT_CONFIG)',
    ]);
  });

  it('the overlap schedule with an engine that cannot feed itself', async () => {
    served = new Served();
    const module = fileURLToPath(new URL('../../../docs/examples/serve-engine.mjs', import.meta.url));
    const config = served.file('bad.yaml', localConfig({ generation: { schedule: 'overlap' } }));
    const result = await runCli(['serve', '--config', config, '--port', '0', '--engine', module]);
    expect([result.code, result.stdout]).toEqual([1, '']);
    expect(result.stderr).toMatch(
      /bad\.yaml:\d+: generation_servers\.schedule: schedule 'overlap' enqueues a decode step before/,
    );
  });

  it.each<[readonly string[], RegExp]>([
    [['--config', '/nonexistent.yaml'], /cannot read \/nonexistent\.yaml \(there is no such file\)/],
    [['--config', '/'], /cannot read \/ \(it is a folder\)/],
    [['--config', '/dev/zero'], /\/dev\/zero has more than 4194304 bytes; is it the right file/],
    [['--config', process.execPath], /has more than 4194304 bytes|is not text in UTF-8/],
    [['--port', '70000'], /--port/],
    [['--conifg', 'x'], /did you mean --config\?/],
  ])('%j', async (args, message) => {
    served = new Served();
    const result = await runCli(['serve', ...args]);
    expect(result.code).toBe(2);
    expect(result.stderr).toMatch(message);
  });

  it('a port in use', async () => {
    served = new Served();
    const front = await served.front(localConfig());
    const port = new URL(front.url).port;
    const result = await runCli(['serve', '--port', port]);
    expect(result.code).toBe(1);
    expect(result.stderr).toMatch(/cannot listen on 127\.0\.0\.1:\d+ \(EADDRINUSE\)/);
  });
});

describe('under traffic', () => {
  it('answers each request once, through killed workers and clients that leave', async () => {
    served = new Served();
    const result = await runCli(['bench', 'serve', '--clients', '10', '--seconds', '6']);
    expect(result.stderr).not.toMatch(/NOT MET/);
    expect(result.code).toBe(0);
    expect(result.stdout).toMatch(
      /^serve: 10 clients, 6 s \| \d+ requests \| [1-9]\d* right .* 0 wrong \| context-0 killed, replaced in \d+ ms/,
    );
  });
});
