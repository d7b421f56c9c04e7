import { existsSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { fileURLToPath } from 'node:url';
import { CapabilityError } from '../errors.js';

const PACKAGE_ROOT = packageRoot();
const REMEDY = 'run `npm run build` in the package folder (it needs cmake and a C++20 compiler)';

/** One engine with its progress thread. Errors it throws carry `status`, see native-error.ts. */
export interface NativeAgent {
  open(): Promise<void>;
  /** Resolves with the base address. @param device a GPU's number, or -1 for host memory */
  allocateRegion(sizeBytes: number, device: number): Promise<number>;
  /** Device memory that the caller owns. */
  registerRegion(address: number, sizeBytes: number, device: number): Promise<void>;
  metadata(): Promise<Uint8Array>;
  /** @param name what advice about the peer calls it */
  addPeer(metadata: Uint8Array, name: string): Promise<number>;
  removePeer(peer: number): Promise<void>;
  /** @param records see fragment-records.ts */
  prepareFragments(peer: number, records: Float64Array): number;
  /** As prepareFragments, with the peer's pools as sources and this agent's as destinations. */
  prepareInbound(peer: number, records: Float64Array): number;
  /** @param records key, table, slot count of each group; see bounce.ts */
  expectInbound(peer: number, ticket: bigint, records: Float64Array, slots: Int32Array): Promise<void>;
  endInbound(peer: number, ticket: bigint): Promise<void>;
  /** @param groups table and count of slot numbers of each group of a slice */
  explain(
    peer: number,
    groups: Float64Array,
    slotPairs: Int32Array,
  ): {
    readonly isDevice: boolean;
    /** Which path the slice takes under a ticket, in the order of `DataPath`. */
    readonly path: number;
    /** (1 when it can be taken, estimated microseconds) of each path, in the order of `DataPath` of native/core/path_cost.h. */
    readonly costs: Float64Array;
    readonly reasons: readonly string[];
    /** How fast host memory was found to move to the peer, in words; empty when it was not measured. */
    readonly hostSpeed: string;
    /** By what its bytes are moved there; absent for a slice without slots. */
    readonly copy?: {
      /** In the order of `CopyMeans` of native/core/copy_explanation.h. */
      readonly means: number;
      readonly reason: string;
      /** Empty: nothing would make it faster. */
      readonly remedy: string;
    };
  };
  /** A notice of kind 2 with this number follows when the process that published the metadata has ended. */
  watchProcess(watch: number, metadata: Uint8Array): Promise<void>;
  unwatchProcess(watch: number): void;
  flushInbound(): Promise<void>;
  createEvent(): number;
  signalEvent(event: number): void;
  failEvent(event: number, message: string): void;
  releaseEvent(event: number): void;
  /**
   * @param head id, peer, flow, event (0: none, negative: a device's), group count, then (fragment table, slot numbers) for each group;
   *   may be longer
   * @param note with `also` or not at all
   */
  submit(
    head: Float64Array,
    slotPairs: Int32Array,
    ticket?: bigint,
    keys?: Float64Array,
    note?: Uint8Array,
    also?: Float64Array,
  ): void;
  cancel(submission: number): void;
  /** See bounce-stats.ts; null without an arena. */
  bounceStats(): Float64Array | null;
  /** See note-stats.ts. */
  noteStats(): Float64Array;
  read(address: number, length: number): Uint8Array;
  readInto(address: number, bytes: Uint8Array): void;
  write(address: number, bytes: Uint8Array): void;
  close(deadlineMs: number): Promise<{ readonly drained: boolean; readonly outstanding: number }>;
}

/** Products of a model's prefill, see gemm-workload.ts. */
export interface NativeGemm {
  open(): Promise<{ readonly library: string; readonly version: number }>;
  /** @param jobs entries, slots, numbers and token seeds of each content job, one after another */
  forward(
    chunk: number,
    before: number,
    ...jobs: (Float64Array | Int32Array | BigUint64Array)[]
  ): Promise<{ readonly event: number; readonly bytes: number; readonly done: Promise<void> }>;
  close(): Promise<void>;
}

/** See bare-copy.ts. */
export interface NativeBareCopy {
  open(): Promise<void>;
  /** Resolves with nanoseconds of the host's clock and microseconds of the GPU's. */
  time(bytes: number): Promise<readonly [number, number]>;
  close(): Promise<void>;
}

/** See nixl-loop.ts. */
export interface NativeNixlLoop {
  open(base: number, sizeBytes: number, metadata: Uint8Array): Promise<void>;
  /** Resolves with nanoseconds. */
  time(srcBase: number, dstBase: number, slotBytes: number, slotPairs: Int32Array): Promise<number>;
  close(): Promise<void>;
}

/** What a notice says beyond numbers: the text of an error, or a peer's note. */
export type NoticeText = string | Uint8Array | undefined;

/** Called with notice records and one text for each that has one, see notice-records.ts. */
export type NativeDispatch = (records: Float64Array, messages: readonly NoticeText[] | undefined) => void;

/** One GPU, as the driver describes it. */
export interface CudaDeviceFacts {
  readonly name: string;
  /** 32 hexadecimal digits. */
  readonly uuid: string;
  readonly computeCapability: number;
  readonly multiprocessorCount: number;
  readonly memoryBytes: number;
  /** Ordinals of the other GPUs whose memory its kernels can write. */
  readonly peerAccess: readonly number[];
  /** What joins each of those to this GPU, in the order of `GPU_LINKS`. */
  readonly peerLinks: readonly number[];
  /** What a network card wrote may be seen late by this GPU's kernels unless it is flushed. */
  readonly inboundWritesNeedFlush: boolean;
}

/** By number, as `GpuLink` of native/core/path_cost.h. */
export const GPU_LINKS = ['an unknown link', 'NVLink', 'PCIe', 'the same GPU'] as const;

/** What this machine and build can do; `reason` says why not, with the remedy. */
export interface Capabilities {
  readonly addon: { readonly abiVersion: number; readonly napiVersion: number; readonly version: string };
  readonly host: { readonly available: boolean; readonly reason: string | null };
  readonly cuda: {
    readonly available: boolean;
    readonly reason: string | null;
    readonly library: string | null;
    /** 1000 * major + 10 * minor. */
    readonly driverVersion: number | null;
    readonly deviceCount: number;
    /** False: this build can allocate device memory and nothing can copy its pages. */
    readonly hasKernels: boolean;
    /** By ordinal, as CUDA_VISIBLE_DEVICES has it. */
    readonly devices: readonly CudaDeviceFacts[];
  };
  readonly nixl: {
    readonly available: boolean;
    readonly reason: string | null;
    readonly path: string | null;
    readonly version: string | null;
    /** Each place that was looked at and what happened there. */
    readonly tried: readonly string[];
    readonly notes: readonly string[];
  };
}

/** Everything the addon exports. The one place where TypeScript and C++ meet. */
export interface NativeModule {
  readonly abiVersion: number;
  readonly NativeAgent: new (
    kind: string,
    name: string,
    /** NaN: no link is modelled. */
    linkGbps: number,
    /** Empty: search. */
    nixlLibrary: string,
    nixlPackageTree: string,
    path: string,
    /** -1: none until the first device pool. */
    device: number,
    /** 0: default. */
    copyBlocks: number,
    /** See bounce.ts; empty: no bounce path. */
    bounce: Float64Array,
    dispatch: NativeDispatch,
  ) => NativeAgent;
  /** @param shape layers, hidden, heads, kvHeads, headDim, intermediate, maxChunk, maxContext */
  readonly GemmWorkload: new (
    device: number,
    library: string,
    shape: Float64Array,
  ) => NativeGemm;
  readonly BareCopy: new (from: number, to: number, sizeBytes: number) => NativeBareCopy;
  readonly NixlLoop: new (name: string, nixlLibrary: string, nixlPackageTree: string) => NativeNixlLoop;
  capabilities(nixlLibrary: string, nixlPackageTree: string): Promise<Capabilities>;
  chainTokenSeeds(tokens: Uint32Array): BigUint64Array;
  fillContent(
    entries: Float64Array,
    slots: Int32Array,
    numbers: Float64Array,
    tokenSeeds: BigUint64Array,
  ): Promise<number>;
  verifyContent(
    entries: Float64Array,
    slots: Int32Array,
    numbers: Float64Array,
    tokenSeeds: BigUint64Array,
  ): Promise<Float64Array>;
  plainCopyNs(
    srcBase: number,
    dstBase: number,
    pageBytes: number,
    slotStride: number,
    slotPairs: Int32Array,
  ): Promise<number>;
  openDevice(ordinal: number): Promise<void>;
  /** Resolves with the CUstream. */
  createStream(ordinal: number, isHigh: number): Promise<number>;
  closeStream(stream: number): void;
  clearMemory(stream: number, address: number, length: number, rounds: number): void;
  recordDeviceEvent(ordinal: number, stream: number): number;
  /** 0 pending, 1 reached, or why it failed. */
  queryDeviceEvent(event: number): number | string;
  failDeviceEvent(event: number, message: string): void;
  releaseDeviceEvent(event: number): void;
  readMemory(address: number, length: number): Promise<Uint8Array>;
  writeMemory(address: number, bytes: Uint8Array): Promise<void>;
  /**
   * Absent in an addon that was built before there was a host tier.
   * @param ranges base, bytes of each stretch of memory that is named
   * @param moves from range, offset, to range, offset, bytes of each copy
   */
  movePages?(ranges: Float64Array, moves: Float64Array): Promise<void>;
  /** @param groups numbers of fragment records and slot numbers of each group, see expand-plan.ts */
  expandPlan(
    records: Float64Array,
    groups: Float64Array,
    slotPairs: Int32Array,
    maxRuns: number,
    maxBytes: number,
  ): Float64Array;
}

/** The folder that holds build/ and prebuilds/: two levels up, or further where a tool moved the compiled files. */
function packageRoot(): string {
  const home = new URL('../../', import.meta.url);
  for (let at = home; ; at = new URL('../', at)) {
    if (existsSync(new URL('binding.gyp', at))) return fileURLToPath(at);
    if (at.pathname === '/') return fileURLToPath(home);
  }
}

let loaded: NativeModule | undefined;

/**
 * The addon, loaded at the first call: importing this package works on machines it cannot run on.
 * @throws CapabilityError listing what was tried
 */
export function loadNative(): NativeModule {
  loaded ??= load();
  return loaded;
}

function load(): NativeModule {
  const require = createRequire(import.meta.url);
  let file = `${PACKAGE_ROOT}build/Release, ${PACKAGE_ROOT}prebuilds`;
  let found: NativeModule;
  try {
    const locate = require('node-gyp-build') as { path(root: string): string };
    file = locate.path(PACKAGE_ROOT);
    found = require(file) as NativeModule;
  } catch (cause) {
    const what = cause instanceof Error ? (cause.message.split('\n')[0] ?? '') : String(cause);
    throw new CapabilityError(`the native addon cannot be loaded (looked in ${file}): ${what}; ${REMEDY}`, { cause });
  }
  const expected = interfaceVersion();
  if (found.abiVersion !== expected) {
    throw new CapabilityError(
      `the native addon ${file} was built from other sources (interface ${found.abiVersion}, expected ${expected}); ${REMEDY}`,
    );
  }
  return found;
}

/** The number that the build gave the addon, from the one place where it is written. */
function interfaceVersion(): number {
  const { binary } = JSON.parse(readFileSync(`${PACKAGE_ROOT}package.json`, 'utf8')) as {
    readonly binary: { readonly interface_version: number };
  };
  return binary.interface_version;
}

/** Where `npm run nixl` puts NIXL, or empty when it is not there. */
export function nixlPackageTree(): string {
  const tree = `${PACKAGE_ROOT}.nixl`;
  return existsSync(tree) ? tree : '';
}

/**
 * What this machine and build can do, and why not what they cannot.
 * @param nixlLibrary path of libnixl_capi.so to use instead of searching
 * @throws CapabilityError when the addon itself cannot be loaded
 */
export async function capabilities(nixlLibrary = ''): Promise<Capabilities> {
  return loadNative().capabilities(nixlLibrary, nixlPackageTree());
}
