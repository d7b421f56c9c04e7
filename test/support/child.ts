import { type ChildProcess, spawn } from 'node:child_process';
import { createInterface } from 'node:readline';
import { HANG_LIMIT_MS, withDeadline } from './deadline.js';

export interface Child {
  readonly process: ChildProcess;
  /** Its first line of output. */
  readonly firstLine: string;
  /** Exit code or signal name. */
  readonly exited: Promise<number | string>;
  /** What it wrote there so far. */
  stderr(): string;
  kill(signal: NodeJS.Signals): void;
}

/**
 * Starts `node ARGS` and waits for its first line. Fails with its stderr when it ends before.
 * @param openFiles its limit of them; null: ours
 */
export async function startChild(
  args: readonly string[],
  env: Readonly<Record<string, string>> = {},
  openFiles: number | null = null,
): Promise<Child> {
  const node = [process.execPath, ...args] as const;
  const [command, ...rest] =
    openFiles === null ? node : (['sh', '-c', `ulimit -n ${openFiles}; exec "$0" "$@"`, ...node] as const);
  const child = spawn(command, rest, { stdio: ['ignore', 'pipe', 'pipe'], env: { ...process.env, ...env } });
  let stderr = '';
  child.stderr.on('data', (chunk: Buffer) => {
    stderr += chunk.toString();
  });
  const exited = new Promise<number | string>((resolve) => {
    child.on('exit', (code, signal) => resolve(code ?? signal ?? 'unknown'));
  });
  const lines = createInterface({ input: child.stdout });
  const firstLine = await withDeadline(
    new Promise<string>((resolve, reject) => {
      lines.once('line', resolve);
      void exited.then((how) => reject(new Error(`child ended with ${how}: ${stderr}`)));
    }),
    HANG_LIMIT_MS,
    () => `child said nothing; stderr: ${stderr}`,
  );
  return { process: child, firstLine, exited, stderr: () => stderr, kill: (signal) => child.kill(signal) };
}
