import type { BounceOptions } from '../../../agent/bounce.js';
import { GemmWorkload } from '../../../agent/gemm-workload.js';
import { createAgent } from '../../../agent/native-agent.js';
import { createPageContent } from '../../../agent/native-page-content.js';
import type { TransferAgent } from '../../../agent/transfer-agent.js';
import { chainBlockHashes } from '../../../cache/block-hash.js';
import { SystemClock } from '../../../clock.js';
import { ConfigError } from '../../../errors.js';
import { PaceCurve } from '../../../executor/engines/pace-curve.js';
import type { LlmRequest } from '../../../executor/request.js';
import { flatRank, type RankPlaceInDp } from '../../../mapping/rank-place.js';
import { LocalRankGroup } from '../../../rank-group/local-rank-group.js';
import type { TransceiverLog } from '../../../transceiver.js';
import { ZeromqMessenger } from '../../../wire/zeromq-messenger.js';
import { presetNamed } from '../presets/index.js';
import { DENSE_PRESET_NAMES, matrixWidthsOf } from '../presets/matrix-widths.js';
import { bytesPerTokenAndLayer, layerGroupsOf, type ModelPreset } from '../presets/model-preset.js';
import { ranksOf } from '../shape/side-shape.js';
import { BenchRank, type RankSurroundings } from './bench-rank.js';
import { PaddedContent } from './padded-content.js';
import { PathNotes } from './path-notes.js';
import type { WorkerSettings } from './worker-messages.js';

/**
 * Role: one server of the bench: all ranks of its side, in one process.
 * Why: what ranks share is small (a JS thread, a thread pool); what makes them ranks is their own: agent, pools, page table, cache
 *   manager, transceiver, executor.
 * Ownership: owns the ranks; `close` ends them.
 */
export class BenchServer {
  readonly content: PaddedContent;
  /** By flat rank. */
  readonly ranks: readonly BenchRank[];
  readonly #log: ServerLog;
  readonly #gemm: GemmWorkload | null;

  private constructor(content: PaddedContent, ranks: readonly BenchRank[], gemm: GemmWorkload | null, log: ServerLog) {
    this.content = content;
    this.#gemm = gemm;
    this.ranks = ranks;
    this.#log = log;
  }

  /** @throws ConfigError for a port in use, CapabilityError for an agent that is not there */
  static async open(settings: WorkerSettings): Promise<BenchServer> {
    const preset = presetNamed(settings.model);
    const log = new ServerLog();
    const content = new PaddedContent(createPageContent(), settings.shape.tokensPerBlock);
    const gemm = settings.engine === 'gemm' && settings.role === 'context' ? await openGemm(settings, preset) : null;
    const surroundings: RankSurroundings = {
      settings,
      clock: new SystemClock(),
      content,
      // Every rank's forward takes as long as the whole server's: `tflops` is the speed of all its ranks together.
      curve: new PaceCurve(pacedModel(preset), { effectiveFlops: settings.tflops * 1e12 }),
      products:
        gemm === null
          ? null
          : {
              forward: (chunk, before, jobs) =>
                gemm.forward(
                  chunk,
                  before,
                  jobs.map((job) => content.padded(job)),
                ),
            },
      blockHashesOf:
        settings.reusesPrefixes === false
          ? ownBlockHashes(settings.shape.tokensPerBlock)
          : sharedBlockHashes(settings.shape.tokensPerBlock),
      log,
    };
    const ranks: BenchRank[] = [];
    try {
      for (const place of ranksOf(settings.shape)) ranks.push(await openRank(surroundings, place));
      const endpoints = ranks.map((rank) => rank.endpoint);
      const groups = ranks.length === 1 ? [] : LocalRankGroup.of(ranks.length);
      for (const rank of ranks) rank.start(endpoints, groups[rank.rank] ?? null);
    } catch (error) {
      log.silence();
      await Promise.allSettled([...ranks.map((rank) => rank.close(0)), gemm?.close()]);
      throw error;
    }
    return new BenchServer(content, ranks, gemm, log);
  }

  /** Where any rank answers; the first one's. */
  get endpoint(): string {
    return this.ranks[0]?.endpoint ?? '';
  }

  /** Requests whose pages a transfer may still touch, on the rank that has most. */
  get heldRequests(): number {
    return Math.max(...this.ranks.map((rank) => rank.heldRequests));
  }

  /** @returns whether nothing can touch the pools any more */
  async close(deadlineMs: number): Promise<boolean> {
    this.#log.silence();
    const drained = await Promise.all(this.ranks.map((rank) => rank.close(deadlineMs)));
    await this.#gemm?.close();
    return drained.every(Boolean);
  }
}

async function openRank(surroundings: RankSurroundings, place: RankPlaceInDp): Promise<BenchRank> {
  const { agent: kind, listenPort, linkGbps, bounceMb, role, device, path, copyBlocks } = surroundings.settings;
  const rank = flatRank(place);
  // The port first: it is what most often cannot be had, and costs nothing to give back.
  const messenger = await ZeromqMessenger.open({ port: listenPort === 0 ? 0 : listenPort + rank });
  let agent: TransferAgent;
  try {
    const name = rank === 0 ? role : `${role}-${rank}`;
    agent = await createAgent({
      kind,
      name,
      ...(linkGbps === null ? {} : { linkGbps }),
      ...(device === undefined ? {} : { device }),
      ...(path === undefined ? {} : { path }),
      ...(copyBlocks === undefined ? {} : { copyBlocks }),
      ...(bounceMb === null ? {} : { path: 'bounce', bounce: arenaOf(bounceMb) }),
    });
  } catch (error) {
    await messenger.close(0);
    throw error;
  }
  return BenchRank.open(surroundings, place, new PathNotes(agent), messenger);
}

/** The largest chunks of which it holds two, up to the default. */
function arenaOf(sizeMb: number): BounceOptions {
  const MIB = 1024 * 1024;
  return { sizeBytes: sizeMb * MIB, maxChunkSize: Math.min(32 * MIB, (2 ** Math.floor(Math.log2(sizeMb)) * MIB) / 2) };
}

function openGemm(
  { device = 0, chunkTokens, maxPromptTokens }: WorkerSettings,
  preset: ModelPreset,
): Promise<GemmWorkload> {
  const widths = matrixWidthsOf(preset);
  if (widths === null || preset.cache.kind !== 'attention') {
    throw new ConfigError(`${preset.name} is no dense model; choose one of ${DENSE_PRESET_NAMES.join(', ')}`);
  }
  return GemmWorkload.open(device, {
    ...widths,
    layers: preset.layerCount,
    heads: preset.attentionHeads,
    kvHeads: preset.cache.kvHeads,
    headDim: preset.cache.headDim,
    maxChunkTokens: Math.min(chunkTokens, maxPromptTokens),
    maxContextTokens: maxPromptTokens,
  });
}

/** Names that no other request has, so that nothing is found again. */
function ownBlockHashes(tokensPerBlock: number): (request: LlmRequest) => readonly string[] {
  return ({ id, promptTokens }) =>
    Array.from({ length: Math.floor(promptTokens.length / tokensPerBlock) }, (_, block) => `${id}/${block}`);
}

/** The ranks of a side name the blocks of a prompt alike; it is hashed once. */
function sharedBlockHashes(tokensPerBlock: number): (request: LlmRequest) => readonly string[] {
  const known = new WeakMap<Uint32Array, readonly string[]>();
  return ({ promptTokens }) => {
    const hashes = known.get(promptTokens) ?? chainBlockHashes(promptTokens, tokensPerBlock);
    known.set(promptTokens, hashes);
    return hashes;
  };
}

function pacedModel(preset: ModelPreset): ConstructorParameters<typeof PaceCurve>[0] {
  return {
    activeParameters: preset.activeParameterCount,
    attentionHeads: preset.attentionHeads,
    headDim: preset.attentionHeadDim,
    // Recurrent layers cost what their parameters cost.
    layers: layerGroupsOf(preset)
      .filter(({ kind }) => kind !== 'state')
      .map(({ windowSize, layers }) => ({ windowSize, count: layers.length })),
    kvBytesPerTokenAndLayer: bytesPerTokenAndLayer(preset),
  };
}

/** Warnings on standard error, until the server is asked to end: both servers end together, and losing the other one is then no news. */
class ServerLog implements TransceiverLog {
  #isSilent = false;

  silence(): void {
    this.#isSilent = true;
  }

  warn(message: string): void {
    if (!this.#isSilent) process.stderr.write(`${message}\n`);
  }

  info(): void {}
}
