// Every test and bench that runs on a GPU host, and the file of bench/results/<machine> that each one writes: the one
// place that knows these names. scripts/gpu-test.mjs runs them, scripts/readme-figures.mjs reads what they wrote.

const MODELS = ['llama-3.1-8b', 'qwen3-32b'];
// A prefill of 128k tokens: 27 s of an H200 (llama-3.1-8b, 7e15 operations), 110 s (qwen3-32b, 29e15, of which
// 20e15 are attention): one request of the latter is what a machine lent for minutes allows.
const PROMPTS = [
  { prompt: '8k', chunk: '2k', requests: { 'llama-3.1-8b': 9, 'qwen3-32b': 5 }, aboutS: [25, 65] },
  { prompt: '32k', chunk: '8k', requests: { 'llama-3.1-8b': 3, 'qwen3-32b': 3 }, aboutS: [29, 95] },
  { prompt: '128k', chunk: '16k', requests: { 'llama-3.1-8b': 3, 'qwen3-32b': 2 }, aboutS: [105, 260] },
];
/** Short paced prefills: what they show is bytes, not times. */
const BOUNCED_SHAPES = [
  { name: 'deepseek-v3-mla', model: 'deepseek-v3-mla' },
  { name: 'gemma-3-27b', model: 'gemma-3-27b' },
  { name: 'nemotron-h-8b', model: 'nemotron-h-8b' },
  { name: 'llama-3.1-8b-tp2to4', model: 'llama-3.1-8b', more: ['--context-tp', '2', '--generation-tp', '4'] },
];

/**
 * Every kernel: copies by both methods, gather and scatter as the arena launches them, launches that are taken back, and slices of two
 * agents. Without ManyPages*: the same kernels once more, on 48 MiB by every grid, which takes minutes under a tool that looks at each access.
 */
const SANITIZED = 'Kernels.*:DeviceBounce.Chunks*:P2p.SlicesOfAny*:P2p.SlicesUnder*-Kernels.ManyPages*';

export const FILES = {
  nativeTests: 'native-tests.json',
  nodeTests: 'node-tests.json',
  soak: 'soak.json',
  kill: 'kill.json',
  bounceTransfer: 'bounce-transfer.json',
  transfer: {
    oneGpu: 'device-transfer-one-gpu.json',
    twoGpus: 'device-transfer-two-gpus.json',
    bigSlices: 'device-transfer-big-slices.json',
  },
  ttft: MODELS.flatMap((model) => PROMPTS.map(({ prompt }) => `gpu-ttft-${model}-${prompt}.json`)),
  bounceTtft: ['llama-3.1-8b-8k', ...BOUNCED_SHAPES.map(({ name }) => name)].map((name) => `bounce-ttft-${name}.json`),
  interference: ['2k', '2k-saturating', '8k'].map((name) => `gpu-interference-${name}.json`),
  sanitize: ['memcheck', 'racecheck'].map((tool) => `sanitize-${tool}.json`),
  natives: ['single.json', 'pair.json', 'pair-registered.json', 'pair-one-gpu.json'],
  host: 'host.json',
};

const bench = (...args) => ['node', 'dist/cli/main.js', 'bench', ...args];
const benchName = (file) => file.replace(/\.json$/, '');

function tests({ soakSlices }) {
  const reporters = [
    '--test-reporter=spec',
    '--test-reporter-destination=stdout',
    '--test-reporter=./test/gpu/json-reporter.mjs',
  ];
  return [
    {
      part: 'native-tests',
      file: FILES.nativeTests,
      aboutS: 25,
      limitS: 180,
      isTimed: false,
      command: ({ out }) => ['native:kvt_device_tests', '--gtest_brief=1', `--gtest_output=json:${out}`],
    },
    {
      part: 'soak',
      file: FILES.soak,
      aboutS: 95,
      limitS: 420,
      isTimed: false,
      command: () => ['node', '--expose-gc', '--test', '--test-reporter=spec', 'test/gpu/soak.test.mjs'],
      env: ({ out }) => ({ SOAK_SLICES: String(soakSlices), SOAK_JSON: out }),
    },
    ...['memcheck', 'racecheck'].map((tool, i) => ({
      part: 'sanitize',
      file: FILES.sanitize[i],
      aboutS: 60,
      limitS: 300,
      isTimed: false,
      settings: { tool, filter: SANITIZED },
      // --error-exitcode makes a finding a failure.
      command: ({ out }) => [
        'compute-sanitizer',
        '--tool',
        tool,
        '--error-exitcode',
        '9',
        'native:kvt_device_tests',
        '--gtest_brief=1',
        `--gtest_filter=${SANITIZED}`,
        `--gtest_output=json:${out}`,
      ],
    })),
    {
      part: 'node-tests',
      file: FILES.nodeTests,
      aboutS: 80,
      limitS: 300,
      isTimed: true,
      command: ({ out, testFiles }) => [
        'node',
        '--expose-gc',
        '--test',
        '--test-concurrency=1',
        ...reporters,
        `--test-reporter-destination=${out}`,
        ...testFiles,
      ],
    },
  ];
}

function transfers({ rounds }) {
  const device = ['--memory', 'device', '--rounds', String(rounds)];
  const run = (part, file, aboutS, gpus, more) => ({
    part,
    file,
    aboutS,
    limitS: 120,
    isTimed: true,
    needsGpus: gpus === '0:1' ? 2 : 1,
    command: ({ out }) => bench('transfer', ...device, '--gpus', gpus, ...more, '--json', out),
  });
  return [
    run('bench', FILES.transfer.oneGpu, 12, '0:0', ['--page-bytes', '4k,32k', '--blocks', '16,32', '--aborts', '40']),
    run('bench', FILES.transfer.twoGpus, 12, '0:1', [
      '--page-bytes',
      '4k,32k,512k',
      '--blocks',
      '16,32',
      '--aborts',
      '100',
    ]),
    run('big-slices', FILES.transfer.bigSlices, 28, '0:1', [
      '--page-bytes',
      '4k,32k,16Mi',
      '--total-bytes',
      '2Gi',
      '--slice-pages',
      '32k',
      '--blocks',
      '16,32',
      '--aborts',
      '0',
    ]),
    run('bounce', FILES.bounceTransfer, 12, '0:1', [
      '--path',
      'bounce',
      '--page-bytes',
      '4k,32k',
      '--total-bytes',
      '256Mi',
      '--slice-pages',
      '64k',
      '--blocks',
      '16,32',
      '--aborts',
      '40',
    ]),
  ];
}

function bouncedRequests() {
  const common = ['--memory', 'device', '--agent', 'nixl', '--bounce-mb', '256', '--gpus', '0:1'];
  const run = (name, more, aboutS) => ({
    part: 'bounce-ttft',
    file: `bounce-ttft-${name}.json`,
    aboutS,
    limitS: 60,
    isTimed: true,
    needsGpus: 2,
    command: ({ out }) => bench('ttft', ...common, ...more, '--json', out),
  });
  return [
    run(
      'llama-3.1-8b-8k',
      [
        '--engine',
        'gemm',
        '--model',
        'llama-3.1-8b',
        '--prompt-tokens',
        '8k',
        '--chunk',
        '2k',
        '--prefix-hit',
        '0.5',
        '--requests',
        '3',
        '--warm-up',
        '50',
        '--variants',
        'monolithic,pipelined,pipelined-early-prefix',
      ],
      6,
    ),
    ...BOUNCED_SHAPES.map(({ name, model, more = [] }) =>
      run(
        name,
        [
          '--model',
          model,
          '--prompt-tokens',
          '4k',
          '--chunk',
          '1k',
          '--requests',
          '2',
          '--warm-up',
          '5',
          '--variants',
          'pipelined',
          '--tflops',
          '3000',
          ...more,
        ],
        3,
      ),
    ),
  ];
}

function prefills() {
  return MODELS.flatMap((model, m) =>
    PROMPTS.map(({ prompt, chunk, requests, aboutS }) => ({
      part: 'ttft',
      file: `gpu-ttft-${model}-${prompt}.json`,
      aboutS: aboutS[m],
      limitS: 60 + 3 * aboutS[m],
      isTimed: true,
      needsGpus: 2,
      command: ({ out }) =>
        bench(
          'ttft',
          '--engine',
          'gemm',
          '--memory',
          'device',
          '--gpus',
          '0:1',
          '--model',
          model,
          '--prompt-tokens',
          prompt,
          '--chunk',
          chunk,
          '--requests',
          String(requests[model]),
          '--variants',
          'pipelined',
          '--warm-up',
          // Until what runs once per request is compiled, as in a server that runs.
          '2000',
          '--json',
          out,
        ),
    })),
  );
}

function interferences({ rounds }) {
  const run = (file, aboutS, more) => ({
    part: 'interference',
    file,
    aboutS,
    limitS: 60 + 3 * aboutS,
    isTimed: true,
    needsGpus: 2,
    command: ({ out }) => bench('interference', '--gpus', '0:1', ...more, '--json', out),
  });
  const [own, saturating, long] = FILES.interference;
  return [
    run(own, 35, ['--blocks', '16,32', '--chunk', '2k', '--loads', 'own', '--rounds', String(rounds + 4)]),
    run(saturating, 20, ['--blocks', '16,32', '--chunk', '2k', '--loads', 'saturating', '--rounds', '3']),
    run(long, 50, ['--blocks', '16', '--chunk', '8k', '--loads', 'own', '--rounds', '3']),
  ];
}

function natives() {
  const run = (file, aboutS, needsGpus, args) => ({
    part: 'native-bench',
    file,
    aboutS,
    limitS: 120,
    isTimed: true,
    needsGpus,
    settings: { args },
    command: ({ out }) => ['native:kvt_device_bench', ...args, out],
  });
  return [
    run('single.json', 15, 1, ['single']),
    run('pair-one-gpu.json', 15, 1, ['pair', '0', '0']),
    run('pair.json', 15, 2, ['pair', '0', '1']),
    run('pair-registered.json', 15, 2, ['pair-registered', '0', '1']),
    // Between two GPUs where there are two.
    { ...run(FILES.kill, 12, 2, ['kill', '0', '1', '16']) },
    { ...run(FILES.kill, 12, 1, ['kill', '0', '0', '16']), mostGpus: 1 },
  ];
}

/**
 * What runs on a host with so many GPUs, in the order in which it runs. `isTimed`: its figures are times, so that nothing
 * may run beside it. `command` begins with `node`, `native:NAME` or a program of the PATH.
 */
export function gpuRuns({ gpus = 2, rounds = 7, soakSlices = 100_000 } = {}) {
  const settings = { rounds, soakSlices };
  return [
    ...tests(settings),
    ...transfers(settings),
    ...bouncedRequests(),
    ...natives(),
    ...prefills(),
    ...interferences(settings),
  ]
    .filter(({ needsGpus = 1, mostGpus = Number.POSITIVE_INFINITY }) => needsGpus <= gpus && gpus <= mostGpus)
    .map((run) => ({ ...run, name: benchName(run.file) }));
}
