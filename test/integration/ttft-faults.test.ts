import { mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { Cli, isAlive } from '../support/cli.js';
import { until } from '../support/deadline.js';

/** UCX keeps segments of other test processes there. */
const sharedMemoryFiles = (): readonly string[] =>
  readdirSync('/dev/shm').filter((name) => !name.startsWith('ucx_shm'));

describe('a run that does not end as planned', () => {
  let cli: Cli | null = null;
  let folder = '';
  beforeAll(() => {
    folder = mkdtempSync(join(tmpdir(), 'ttft-faults-'));
    // All arrive at once, four are served at a time, and those four differ in length: when one has ended, the others still move their pages.
    const lines = Array.from({ length: 500 }, (_, request) => {
      const blocks = 2 + 2 * (request % 4);
      const hash_ids = Array.from({ length: blocks }, (_, block) => request * 8 + block);
      return JSON.stringify({ timestamp: 0, input_length: 512 * blocks, output_length: 1, hash_ids });
    });
    writeFileSync(join(folder, 'trace.jsonl'), lines.join('\n'));
  });
  afterAll(() => rmSync(folder, { recursive: true }));
  afterEach(() => {
    cli?.process.kill('SIGKILL');
  });

  async function start(): Promise<{ readonly cli: Cli; readonly context: number; readonly generation: number }> {
    const trace = [
      '--trace',
      join(folder, 'trace.jsonl'),
      '--requests',
      '500',
      '--concurrency',
      '4',
      '--variants',
      'pipelined',
    ];
    cli = new Cli(['bench', 'ttft', '--model', 'gemma-3-1b', '--chunk', '512', '--link-gbps', '1', ...trace]);
    await cli.untilStderr(/^1\/\d+ /m);
    const pidOf = (role: string): number => {
      const child = cli?.children().find(({ words }) => words.includes(role));
      if (child === undefined) throw new Error(`no ${role} process among ${JSON.stringify(cli?.children())}`);
      return child.pid;
    };
    return { cli, context: pidOf('context'), generation: pidOf('generation') };
  }

  it('Ctrl-C ends both servers and prints what was measured', async () => {
    const shmBefore = sharedMemoryFiles();
    const run = await start();
    run.cli.process.kill('SIGINT');
    const { code, stdout } = await run.cli.result();
    expect(code).toBe(130);
    expect(stdout).toMatch(/^pipelined +trace /m);
    expect(stdout).toMatch(/interrupted: the figures above are what was measured until then/);
    expect([run.context, run.generation].filter(isAlive)).toEqual([]);
    expect(sharedMemoryFiles()).toEqual(shmBefore);
  });

  it.each([
    ['context', 'generation'],
    ['generation', 'context'],
  ] as const)('a killed %s server ends the %s server, which names its peer', async (victim, survivor) => {
    const run = await start();
    process.kill(run[victim], 'SIGKILL');
    const { code, stderr } = await run.cli.result();
    expect(code).toBe(1);
    const last = stderr.trimEnd().split('\n').at(-1) ?? '';
    expect(last).toContain(`PeerLostError: the ${victim} process (pid ${run[victim]}) was ended by SIGKILL`);
    expect(last).toMatch(new RegExp(`${survivor}: (PeerLostError|TransportError): .*${victim}`));
    expect(last).toContain('(ERR_KVT_PEER_LOST)');
    expect(isAlive(run[survivor])).toBe(false);
  });

  it('servers end when the driver is killed', async () => {
    const run = await start();
    run.cli.process.kill('SIGKILL');
    await run.cli.result();
    await until(
      () => ![run.context, run.generation].some(isAlive),
      () => 'a server outlives its driver',
    );
  });
});
