import { type ChildProcess, spawn } from 'node:child_process';
import { copyFileSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { HANG_LIMIT_MS, withDeadline } from '../support/deadline.js';
import { type TranspiledSources, transpileSources } from '../support/transpiled-sources.js';

const CHILD = fileURLToPath(new URL('stage-child.mjs', import.meta.url));
const ADDON = fileURLToPath(new URL('../../build/Release/kv_transceiver.node', import.meta.url));

interface Ended {
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
  readonly stdout: string;
  readonly stderr: string;
}

let sources: TranspiledSources;
beforeAll(() => {
  sources = transpileSources(['agent/native-agent']);
});
afterAll(() => sources.remove());

function start(stage: string, ...more: string[]): { readonly child: ChildProcess; readonly ended: Promise<Ended> } {
  const args = [CHILD, sources.path('agent/native-agent'), stage, ...more];
  const child = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'pipe'] });
  let stdout = '';
  let stderr = '';
  child.stdout.on('data', (chunk: Buffer) => {
    stdout += chunk.toString();
  });
  child.stderr.on('data', (chunk: Buffer) => {
    stderr += chunk.toString();
  });
  const exited = new Promise<Ended>((resolve) => {
    child.on('close', (code, signal) => resolve({ code, signal, stdout, stderr }));
  });
  const ended = withDeadline(exited, HANG_LIMIT_MS, () => {
    child.kill('SIGKILL');
    return `stage ${stage} did not end; stdout: ${stdout}; stderr: ${stderr}`;
  });
  return { child, ended };
}

function firstLine(child: ChildProcess): Promise<string> {
  const line = new Promise<string>((resolve) =>
    child.stdout?.once('data', (chunk: Buffer) => resolve(chunk.toString())),
  );
  return withDeadline(line, HANG_LIMIT_MS, () => 'no output');
}

const DRAINED = { drained: true, outstanding: 0 };

describe('the end of a process that uses agents', () => {
  it.each(['end', 'end-idle'])('comes by itself without close (%s)', async (stage) => {
    expect(await start(stage).ended).toEqual({ code: 0, signal: null, stdout: '', stderr: '' });
  });

  it('comes after close, and every transfer was answered', async () => {
    const { code, stdout, stderr } = await start('end-closed').ended;
    expect(stderr).toBe('');
    const { reports, statuses } = JSON.parse(stdout) as { reports: unknown[]; statuses: string[] };
    expect(reports).toEqual([DRAINED, DRAINED]);
    expect(statuses).toHaveLength(4);
    expect(statuses.filter((status) => status === 'cancelled').length).toBeGreaterThan(0);
    expect(code).toBe(0);
  });

  it('does not wait longer than the deadline of close', async () => {
    const { code, stdout } = await start('close-deadline').ended;
    const { report, statuses } = JSON.parse(stdout) as { report: unknown; statuses: string[] };
    expect(report).toEqual(DRAINED);
    expect(statuses).toHaveLength(4);
    expect(code).toBe(0);
  });

  it.each(['exit', 'exit-while-opening'])('is clean with process.exit (%s)', async (stage) => {
    expect(await start(stage).ended).toEqual({ code: 7, signal: null, stdout: '', stderr: '' });
  });

  it.each([
    ['throw', 'thrown while transfers run'],
    ['listener-throws', 'thrown by the listener'],
  ])('is clean with an uncaught error (%s)', async (stage, message) => {
    const { code, signal, stderr } = await start(stage).ended;
    expect(stderr).toContain(message);
    expect([1, 7]).toContain(code);
    expect(signal).toBeNull();
  });

  it('is clean with SIGTERM', async () => {
    const { child, ended } = start('wait');
    await firstLine(child);
    child.kill('SIGTERM');
    expect(await ended).toMatchObject({ code: null, signal: 'SIGTERM', stderr: '' });
  });

  it('leaves nothing behind after SIGKILL', async () => {
    const before = [readdirSync('/dev/shm'), readdirSync(tmpdir())];
    const { child, ended } = start('wait');
    const { socket } = JSON.parse(await firstLine(child)) as { socket: string };
    expect(readFileSync('/proc/net/unix', 'utf8')).toContain(socket);
    child.kill('SIGKILL');
    expect(await ended).toMatchObject({ signal: 'SIGKILL' });
    expect(readFileSync('/proc/net/unix', 'utf8')).not.toContain(socket);
    const ours = (names: readonly string[], known: readonly string[] | undefined) =>
      names.filter((name) => !known?.includes(name) && /kv.?t|transceiver|memfd/i.test(name));
    expect(ours(readdirSync('/dev/shm'), before[0])).toEqual([]);
    expect(ours(readdirSync(tmpdir()), before[1])).toEqual([]);
  });
});

describe('worker threads', () => {
  it('may be terminated while transfers run, and the process goes on', async () => {
    const { code, stdout, stderr } = await start('worker').ended;
    expect(stderr).toBe('');
    expect(JSON.parse(stdout)).toEqual({ code: 1, reports: [DRAINED, DRAINED] });
    expect(code).toBe(0);
  });

  it('end by themselves without close', async () => {
    const { stdout, stderr } = await start('worker-ends').ended;
    expect(stderr).toBe('');
    expect(JSON.parse(stdout)).toEqual({ code: 0 });
  });
});

describe('two copies of the addon in one process', () => {
  it('do not meet', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'two-copies-'));
    try {
      const copy = join(folder, 'copy.node');
      copyFileSync(ADDON, copy);
      const { code, stdout, stderr } = await start('two-copies', copy).ended;
      expect(stderr).toBe('');
      expect(JSON.parse(stdout)).toEqual({ base: true, report: DRAINED, refused: 1, answered: 4 });
      expect(code).toBe(0);
    } finally {
      rmSync(folder, { recursive: true });
    }
  });
});
