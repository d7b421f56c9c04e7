import { describe, expect, it } from 'vitest';

interface Measured {
  readonly name: string;
  readonly what: string;
  readonly measured: string;
  readonly met: boolean | null;
  readonly cause: string;
  readonly commit: string | null;
}
type Read = (file: string) => object | null;
interface Result {
  readonly machine: string;
  readonly file: string;
  readonly output: object;
}
interface Scripts {
  readonly CAUSES: Record<string, string>;
  barRows(read: Read, causes: Record<string, string>): readonly Measured[];
  bars(read: Read, causes: Record<string, string>): readonly string[];
  turns(read: Read): readonly string[];
  deviceTransferFigures(results: readonly Result[]): readonly string[];
  bounceFigures(results: readonly Result[]): readonly string[];
  gpuTtftFigures(results: readonly Result[]): readonly string[];
}

async function load(name: string): Promise<Scripts> {
  return (await import(new URL(`../../scripts/${name}.mjs`, import.meta.url).href)) as Scripts;
}
const { bars, barRows } = await load('gpu-bars');
const { turns } = await load('gpu-turns');
const { CAUSES } = await load('gpu-bar-causes');
const { bounceFigures, deviceTransferFigures, gpuTtftFigures } = await load('gpu-readme-figures');

const TWO_GPUS = 'device-transfer-two-gpus.json';
const BIG_SLICES = 'device-transfer-big-slices.json';
const COMMIT = '0123456789abcdef0123456789abcdef01234567';
const KIB = 1024;

/** A row as `bench transfer` writes it; `bare` null: as it did before there were bare copies. */
function row(lane: string, kind: string, pageBytes: number, speed: number, bare: number | null): object {
  const bareCopy = {
    bareCopyGigabytesPerSecond: { p50: bare },
    bareCopyDeviceGigabytesPerSecond: { p50: (bare ?? 0) + 4 },
    shareOfBareCopy: speed / (bare ?? 1),
  };
  return {
    lane,
    kind,
    pageBytes,
    bytes: 2 ** 29,
    gigabytesPerSecond: { p50: speed },
    roofGigabytesPerSecond: { p50: 350 },
    shareOfRoof: speed / 350,
    wrongBytes: 0,
    ...(bare === null ? {} : bareCopy),
  };
}

function transfer(results: readonly object[], ratios: object = {}): object {
  return {
    commit: COMMIT,
    settings: { gpus: [0, 1], slicePages: 2048 },
    machine: { gpus: [{ name: 'H' }, { name: 'H' }] },
    results,
    ratios,
    slices: { submitUs: [5, 6, 7], postingUs: [10, 11, 41], eventToPageUs: [21, 22, 23] },
    aborts: null,
    emptyArena: { busyUs: [99, 100, 101], idleUs: [200] },
  };
}

const pages = (lane: string, speed: number, bare: number | null): object => row(lane, 'pages', 32 * KIB, speed, bare);
const only =
  (files: Record<string, object>): Read =>
  (file) =>
    files[file] ?? null;

describe('the bars of the GPU path', () => {
  it('are judged by the bare copy, and say why where one is missed', () => {
    const read = only({
      [TWO_GPUS]: transfer([pages('p2p-32', 330, 390)]),
      [BIG_SLICES]: transfer([pages('p2p-32', 360, 390)]),
    });
    const found = barRows(read, { 'share-32k-32': 'The link.' }).filter(({ name }) => name === 'share-32k-32');
    expect(found.map(({ measured, met, cause }) => [measured, met, cause])).toEqual([
      ['84.6 %', false, 'The link.'],
      ['92.3 %', true, ''],
    ]);
    expect(found[0]?.commit).toBe('commit 0123456');
    const line = bars(read, { 'share-32k-32': 'The link.' }).find((text) => text.includes('32 blocks'));
    expect(line).toContain('512 MiB, p2p-32: **84.6 %**; 512 MiB, p2p-32: 92.3 %');
    expect(line).toContain('| **not met** (1 of 2) | 512 MiB, p2p-32: The link. |');
  });

  it('are not judged by a result from before bare copies, whatever its share of the own copy', () => {
    const found = barRows(only({ [TWO_GPUS]: transfer([pages('p2p-32', 340, null)]) }), {});
    const own = found.find(({ name }) => name === 'share-32k-32');
    expect(own?.met).toBeNull();
    expect(own?.measured).toContain("97.1 % of the agent's own copy; no bare copy in this result");
  });

  it('have a cause that says so where none is known', () => {
    const found = barRows(only({ [TWO_GPUS]: transfer([]) }), {});
    const event = found.find(({ name }) => name === 'event');
    expect([event?.measured, event?.met, event?.cause]).toEqual(['22.0 µs', false, 'Not established.']);
    expect(found.find(({ name }) => name === 'posting')?.met).toBe(true);
  });

  it('show the nixl path against a bare loop', () => {
    const ratios = { nixlOverBareLoop: { 'rdma 16777216': 0.971 } };
    const found = barRows(only({ [BIG_SLICES]: transfer([], ratios) }), {}).find(({ name }) => name === 'bare-loop');
    expect([found?.what, found?.measured, found?.met]).toEqual(['pages of 16 MiB', '97.1 %', false]);
  });

  it('are all shown without any result, none of them as met', () => {
    const found = barRows(() => null, {});
    expect(new Set(found.map(({ met }) => met))).toEqual(new Set([null]));
    expect(new Set(found.map(({ measured }) => measured))).toEqual(new Set(['no result']));
    expect(bars(() => null, {}).filter((line) => line.includes('not judged'))).toHaveLength(
      new Set(found.map(({ name }) => name)).size,
    );
  });

  it('are what every cause is about', () => {
    const names = new Set(barRows(() => null, {}).map(({ name }) => name));
    for (const name of Object.keys(CAUSES)) expect(names).toContain(name.split(':')[0]);
  });
});

describe('where a turn goes', () => {
  it('is shown as medians, with the share that the slices between have of the bare copy', () => {
    const turn = (firstSliceUs: number): object => ({ slices: 8, beforePostUs: 60, firstSliceUs, betweenEndsUs: 200, postingUs: 240 }); // biome-ignore format: one line
    const samples = { elapsedMs: [1.7, 1.66, 1.6], turns: [turn(260), turn(270), turn(250)] };
    const output = transfer([{ ...pages('p2p-32', 330, 390), path: 'p2p', samples }]);
    const lines = turns(only({ [TWO_GPUS]: output }));
    expect(lines).toHaveLength(3);
    expect(lines[2]).toContain('| 32 KiB pages, 512 MiB | p2p-32 | 8 | 60 | 260 | 200 | 30 | 1660 | 1377 | 86.0 % |');
    expect(turns(() => null)).toEqual([]);
  });
});

describe("the README's tables of GPU runs", () => {
  const shown = (output: object): Result[] => [{ machine: 'm', file: TWO_GPUS, output }];

  it('show both shares, and the bar met or not', () => {
    const output = transfer([pages('p2p-16', 330, 390), pages('p2p-32', 330, 390)], {
      nixlOverBareLoop: { 'rdma 16777216': 1.008 },
    });
    const text = deviceTransferFigures(shown(output)).join('\n');
    expect(text).toContain('| 32 KiB pages | 512 MiB | 390 | 350 | 330.0 (84.6 %, 94.3 %) | 330.0 (84.6 %, 94.3 %) |');
    expect(text).toContain('p2p-16 >= 80 %: met; p2p-32 >= 90 %: **not met** |');
    expect(text).toContain('a bare copy moves 512 MiB 394 GB/s');
    expect(text).toContain('pages of 16384 KiB at 100.8 % of a raw loop over the same NIXL (>= 98 %: met)');
    expect(text).toContain('commit 0123456:');
  });

  it('still render results from before bare copies', () => {
    const text = deviceTransferFigures(shown(transfer([pages('p2p-32', 330, null)]))).join('\n');
    expect(text).toContain('| 32 KiB pages | 512 MiB | - | 350 | 330.0 (-, 94.3 %) | p2p-32 >= 90 %: no bare copy |');
    expect(text).toContain('from before bare copies were measured');
  });

  it('judge the arena by the bare copy and by its fixed cost', () => {
    const layers = (speed: number): object => row('bounce-16', 'layers', 4 * KIB, speed, 390);
    const met = bounceFigures(shown(transfer([layers(280)]))).join('\n');
    expect(met).toContain('280.0 (71.8 %, 80.0 %) | bounce-16 >= 70 %: met | 0 |');
    expect(met).toContain('100 µs right after another (<= 100 µs: met)');
    const missed = bounceFigures(shown(transfer([layers(260)]))).join('\n');
    expect(missed).toContain('bounce-16 >= 70 %: **not met**');
  });

  it('name the commit of each row of several results', () => {
    const result = (file: string, commit: string, tail: number): Result => {
      const times = { prefillMs: { p50: 250 }, lastSliceMs: { p50: 1 }, exposedTailMs: { p50: tail } };
      const promptTokens = 8192 * Number(file);
      const own = { variant: 'pipelined', model: 'm', promptTokens, chunkTokens: 2048, requests: 1, wrongBytes: 0 };
      return { machine: 'm', file, output: { commit, results: [{ ...own, ...times }] } };
    };
    const lines = gpuTtftFigures([result('1', COMMIT, 1.2), result('2', `${'f'.repeat(40)}-dirty`, 1.3)]);
    expect(lines.find((line) => line.includes('0123456'))).toContain('| 1.20 | met |');
    expect(lines.find((line) => line.includes('| fffffff-dirty |'))).toContain('| 1.30 | **not met** |');
  });
});
