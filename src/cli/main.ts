#!/usr/bin/env node
import { ConfigError } from '../errors.js';
import { PACKAGE_VERSION } from '../package-version.js';
import { nearestName } from './nearest-name.js';
import { describeOptions, type OptionTable } from './options.js';
import { endWithoutReaders } from './output-gone.js';
import { UsageError } from './usage-error.js';

interface Command {
  readonly words: readonly string[];
  readonly about: string;
  readonly load: () => Promise<{
    readonly run: (args: readonly string[]) => Promise<number>;
    readonly options: OptionTable;
  }>;
}

// Loaded on use: `--help` and a mistyped command need neither the addon nor ZeroMQ.
const COMMANDS: readonly Command[] = [
  {
    words: ['serve', 'worker'],
    about: 'one context or generation worker, for a front that names its address',
    load: async () => {
      const { serveWorkerCommand } = await import('./serve-worker.js');
      const { SERVE_WORKER_OPTIONS } = await import('./serve-options.js');
      return { run: serveWorkerCommand, options: SERVE_WORKER_OPTIONS };
    },
  },
  {
    words: ['serve'],
    about: 'an OpenAI-compatible server over context and generation workers',
    load: async () => {
      const { serveCommand } = await import('./serve.js');
      const { SERVE_OPTIONS } = await import('./serve-options.js');
      return { run: serveCommand, options: SERVE_OPTIONS };
    },
  },
  {
    words: ['bench', 'ttft'],
    about: 'time to first token, pipelined against monolithic, over real transfers',
    load: async () => {
      const { ttftCommand } = await import('./bench/ttft/ttft-command.js');
      const { TTFT_OPTIONS } = await import('./bench/ttft/ttft-options.js');
      return { run: ttftCommand, options: TTFT_OPTIONS };
    },
  },
  {
    words: ['bench', 'trace'],
    about: 'a request trace under load: real arrivals, lengths and shared prefixes',
    load: async () => {
      const { traceCommand } = await import('./bench/trace/trace-command.js');
      const { TRACE_OPTIONS } = await import('./bench/trace/trace-options.js');
      return { run: traceCommand, options: TRACE_OPTIONS };
    },
  },
  {
    words: ['bench', 'transfer'],
    about: 'scattered pages between two processes, against a plain memcpy',
    load: async () => {
      const { transferCommand } = await import('./bench/transfer/transfer-command.js');
      const { TRANSFER_OPTIONS } = await import('./bench/transfer/transfer-options.js');
      return { run: transferCommand, options: TRANSFER_OPTIONS };
    },
  },
  {
    words: ['bench', 'dispatch'],
    about: 'what one slice costs the JavaScript thread and the native thread',
    load: async () => {
      const { dispatchCommand } = await import('./bench/dispatch/dispatch-command.js');
      const { DISPATCH_OPTIONS } = await import('./bench/dispatch/dispatch-options.js');
      return { run: dispatchCommand, options: DISPATCH_OPTIONS };
    },
  },
  {
    words: ['bench', 'interference'],
    about: 'what transfers cost the prefill that runs beside them on a GPU',
    load: async () => {
      const { interferenceCommand } = await import('./bench/interference/interference-command.js');
      const { INTERFERENCE_OPTIONS } = await import('./bench/interference/interference-options.js');
      return { run: interferenceCommand, options: INTERFERENCE_OPTIONS };
    },
  },
  {
    words: ['bench', 'scale'],
    about: 'what planning one chunk costs in a short and in a long prompt',
    load: async () => {
      const { scaleCommand } = await import('./bench/scale/scale-command.js');
      const { SCALE_OPTIONS } = await import('./bench/scale/scale-options.js');
      return { run: scaleCommand, options: SCALE_OPTIONS };
    },
  },
  {
    words: ['keygen'],
    about: 'a key pair that encrypts and authenticates the control plane',
    load: async () => {
      const { keygenCommand, KEYGEN_OPTIONS } = await import('./keygen.js');
      return { run: keygenCommand, options: KEYGEN_OPTIONS };
    },
  },
  {
    words: ['bench', 'sessions'],
    about: 'what thousands of live requests cost the event loop and the heap',
    load: async () => {
      const { sessionsCommand } = await import('./bench/sessions/sessions-command.js');
      const { SESSIONS_OPTIONS } = await import('./bench/sessions/sessions-options.js');
      return { run: sessionsCommand, options: SESSIONS_OPTIONS };
    },
  },
  {
    words: ['bench', 'serve'],
    about: 'a server under many streaming clients, with workers killed',
    load: async () => {
      const { serveBenchCommand } = await import('./bench/serve/serve-bench-command.js');
      const { SERVE_BENCH_OPTIONS } = await import('./bench/serve/serve-bench-options.js');
      return { run: serveBenchCommand, options: SERVE_BENCH_OPTIONS };
    },
  },
  {
    words: ['bench', 'report'],
    about: 'one HTML page and a Perfetto timeline from the JSON of any bench',
    load: async () => {
      const { reportCommand, REPORT_OPTIONS } = await import('./bench/report/report-command.js');
      return { run: reportCommand, options: REPORT_OPTIONS };
    },
  },
  {
    words: ['doctor'],
    about: 'what this machine and this build can do, and what is missing',
    load: async () => {
      const { doctorCommand, DOCTOR_OPTIONS } = await import('./doctor.js');
      return { run: doctorCommand, options: DOCTOR_OPTIONS };
    },
  },
];

function overview(): string {
  const names = COMMANDS.map((command) => command.words.join(' '));
  const width = Math.max(...names.map((name) => name.length));
  const rows = COMMANDS.map((command, index) => `  ${(names[index] ?? '').padEnd(width)}  ${command.about}`);
  return [
    'usage: kv-transceiver COMMAND [options]',
    '',
    ...rows,
    '',
    'kv-transceiver COMMAND --help lists its options, kv-transceiver --version prints the version',
  ].join('\n');
}

function findCommand(args: readonly string[]): Command {
  const found = COMMANDS.find((command) => command.words.every((word, index) => args[index] === word));
  if (found !== undefined) return found;
  const typed = args.filter((arg) => !arg.startsWith('-')).slice(0, 2);
  const names = COMMANDS.map((command) => command.words.join(' '));
  const nearest = typed.length === 0 ? null : nearestName(typed.join(' '), names);
  const hint = nearest === null ? '' : `did you mean '${nearest}'? `;
  throw new UsageError(
    typed.length === 0
      ? `name a command: ${names.join(', ')}`
      : `unknown command '${typed.join(' ')}'; ${hint}commands are ${names.join(', ')}`,
  );
}

async function main(args: readonly string[]): Promise<number> {
  if (args.length === 0 || args[0] === '--help' || args[0] === '-h' || args[0] === 'help') {
    process.stdout.write(`${overview()}\n`);
    return 0;
  }
  if (args[0] === '--version' || args[0] === '-V' || args[0] === 'version') {
    process.stdout.write(`${PACKAGE_VERSION}\n`);
    return 0;
  }
  const command = findCommand(args);
  const rest = args.slice(command.words.length);
  const { run, options } = await command.load();
  if (rest.includes('--help') || rest.includes('-h')) {
    process.stdout.write(`usage: kv-transceiver ${command.words.join(' ')} [options]\n\n${describeOptions(options)}\n`);
    return 0;
  }
  return run(rest);
}

/** One line for the terminal; the stack only when asked for. */
function complain(error: unknown): void {
  if (process.env['KV_TRANSCEIVER_STACK'] === '1') {
    process.stderr.write(`${error instanceof Error ? error.stack : String(error)}\n`);
    return;
  }
  const code = error instanceof Error && 'code' in error && typeof error.code === 'string' ? ` (${error.code})` : '';
  const text =
    error instanceof Error ? `${error.name === 'UsageError' ? '' : `${error.name}: `}${error.message}` : String(error);
  // Of several problems each has a line of its own.
  const between = error instanceof ConfigError ? '\n  ' : ' ';
  process.stderr.write(`kv-transceiver: ${text.replaceAll(/\s*\n\s*/g, between)}${code}\n`);
}

endWithoutReaders();
try {
  process.exitCode = await main(process.argv.slice(2));
} catch (error) {
  complain(error);
  process.exitCode = error instanceof UsageError ? 2 : 1;
}
