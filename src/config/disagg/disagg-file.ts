import type { z } from 'zod';
import { ConfigError } from '../../errors.js';
import type { ConfigFacts, ServerRole } from '../facts.js';
import { nearestKey } from '../nearest-key.js';
import type { ConfigProblem, ConfigWarning } from '../problem.js';
import { type ResolvedConfig, resolveCacheTransceiverConfig } from '../resolve.js';
import { checkServerPair } from '../server-pair.js';
import { camelCase, isMap } from '../setting-keys.js';
import {
  FILE_KEYS,
  fileSchema,
  type ParsedSection,
  type RouterName,
  SECTION_KEYS,
  SECTIONS,
  scheduleStyleSchema,
  sectionSchema,
  WORKER_KEYS,
} from './disagg-schema.js';
import { type InheritanceConflict, inherit } from './inherit.js';
import { serverAddress, urlProblem } from './server-url.js';
import { readYaml, type YamlSource } from './yaml-source.js';

/** The servers of one role. */
export interface DisaggServerGroup {
  readonly role: 'context' | 'generation';
  /** `host:port` of servers that run already; empty when they are started from this file. */
  readonly urls: readonly string[];
  readonly instanceCount: number;
  /** `tensorParallelSize * pipelineParallelSize * contextParallelSize`. */
  readonly ranksPerInstance: number;
  readonly router: RouterName;
  readonly tensorParallelSize: number;
  readonly pipelineParallelSize: number;
  readonly contextParallelSize: number;
  readonly enableAttentionDp: boolean;
  readonly enableChunkedPrefill: boolean;
  /** Tokens of one forward step. Default 2048. */
  readonly maxNumTokens: number;
  readonly maxBeamWidth: number;
  /** Of its executors. Default plain. `disable_overlap_scheduler: false` is another way to say overlap. */
  readonly schedule: 'plain' | 'overlap';
  /** Settings of the engine, passed on as they are. */
  readonly engine: Readonly<Record<string, unknown>>;
  /** What `resolveCacheTransceiverConfig` is given on the machine of the server, which knows what it has. It was accepted here. */
  readonly cacheTransceiverConfig: Readonly<Record<string, unknown>>;
}

/** A disaggregation file with every default applied. */
export interface DisaggConfig {
  /** Where the coordinator listens. Default 127.0.0.1:8000. */
  readonly hostname: string;
  readonly port: number;
  readonly scheduleStyle: 'context_first' | 'generation_first';
  /** Further tries of a request that failed for a reason that may pass. Default 1. */
  readonly maxRetries: number;
  /** Of the request ids. 0 .. 255, default 0. */
  readonly nodeId: number;
  readonly context: DisaggServerGroup;
  readonly generation: DisaggServerGroup;
  readonly warnings: readonly ConfigWarning[];
}

/** What a disaggregation file is read with. */
export interface DisaggFileOptions {
  /** For messages. Default `disagg.yaml`. */
  readonly fileName?: string;
  /** From the command line; wins over the file, and is checked like it. */
  readonly scheduleStyle?: string;
  /** What is known of the machines; left out: what every machine could have. */
  readonly facts?: Pick<ConfigFacts, 'nixlAvailable' | 'nixlReason'>;
}

/** One problem and its line. */
interface Located extends ConfigProblem {
  readonly line: number;
}

/**
 * Reads a disaggregation file (YAML text, not a path). camelCase and snake_case keys mean the same. Keys of workers at the top of the file
 * hold for both sections.
 *
 * @example
 * const { context, generation } = parseDisaggConfigFile(`
 * schedule_style: generation_first
 * cache_transceiver_config: { enable_pipelined_transfer: true }
 * context_servers: { num_instances: 1 }
 * generation_servers: { num_instances: 2, router: least_loaded }
 * `);
 * // generation.instanceCount === 2
 *
 * @throws ConfigError with every problem, each with its line and key; `details.problems` lists them
 */
export function parseDisaggConfigFile(text: string, options: DisaggFileOptions = {}): DisaggConfig {
  return new DisaggFile(readYaml(text), options).parse();
}

/**
 * Role: one reading of one file. Collects every problem before it gives up, so that an operator mends the file once.
 * Ordering: shape before meaning: rules between settings are checked only when each setting by itself is right.
 */
class DisaggFile {
  readonly #source: YamlSource;
  readonly #options: DisaggFileOptions;
  readonly #problems: Located[] = [];

  constructor(source: YamlSource, options: DisaggFileOptions) {
    this.#source = source;
    this.#options = options;
  }

  parse(): DisaggConfig {
    for (const { line, message } of this.#source.faults) this.#problems.push({ setting: '', line, message });
    this.#giveUpIfWrong();
    const { value } = this.#source;
    if (value === null || value === undefined)
      this.#add([], 'the file is empty; it needs context_servers and generation_servers');
    else if (!isMap(value)) this.#add([], 'the file must be a map with context_servers and generation_servers');
    this.#giveUpIfWrong();

    const file = this.#named(value as Readonly<Record<string, unknown>>, [], TOP_KEYS);
    const { scheduleStyle } = this.#options;
    const head = this.#parsed(fileSchema, pick(file, FILE_KEYS), []);
    const style = scheduleStyle === undefined ? undefined : scheduleStyleSchema.safeParse(scheduleStyle);
    if (style?.success === false)
      this.#problems.push({
        setting: 'scheduleStyle',
        line: 0,
        message: `the schedule style of the command line ${style.error.issues[0]?.message}, got ${JSON.stringify(scheduleStyle)}`,
      });
    const shared = pick(file, WORKER_KEYS);
    const context = this.#section('context', file, shared);
    const generation = this.#section('generation', file, shared);
    this.#giveUpIfWrong();
    if (head === null || context === null || generation === null) throw this.#rejection();

    const chosenStyle = style?.data ?? head.scheduleStyle;
    this.#checkUrls(context, generation);
    this.#checkSchedule(SECTIONS.context, context);
    this.#checkSchedule(SECTIONS.generation, generation);
    if (context.contextParallelSize > 1 && generation.contextParallelSize > 1)
      this.#add(
        [SECTIONS.generation, 'contextParallelSize'],
        'context parallelism works on one side only; set it to 1 on one of them',
      );
    const resolved = {
      context: this.#resolve('context', context, chosenStyle),
      generation: this.#resolve('generation', generation, chosenStyle),
    };
    this.#giveUpIfWrong();
    this.#checkPair(resolved);
    this.#giveUpIfWrong();
    return {
      ...head,
      scheduleStyle: chosenStyle,
      context: groupOf('context', context),
      generation: groupOf('generation', generation),
      warnings: [...(resolved.context?.warnings ?? []), ...(resolved.generation?.warnings ?? [])],
    };
  }

  #section(
    role: 'context' | 'generation',
    file: Readonly<Record<string, unknown>>,
    shared: Readonly<Record<string, unknown>>,
  ): ParsedSection | null {
    const key = SECTIONS[role];
    const given = file[key];
    if (given === undefined) {
      this.#add([], `${snakeCase(key)} is missing: say how many ${role} servers there are, or where they run`);
      return null;
    }
    if (given !== null && !isMap(given)) {
      this.#add([key], 'must be a map of settings');
      return null;
    }
    const own = this.#named(given ?? {}, [key], SECTION_KEYS);
    const conflicts: InheritanceConflict[] = [];
    const merged = inherit(own, shared, conflicts);
    for (const { path } of conflicts) {
      const top = this.#source.locate(path);
      this.#add(
        [key, ...path],
        `differs from ${top.keyPath} at the top of the file (line ${top.line}), which holds for both sections; remove one`,
      );
    }
    return this.#parsed(sectionSchema, merged, [key]);
  }

  /** Keys in camelCase; unknown ones and those given in both spellings become problems. */
  #named(
    map: Readonly<Record<string, unknown>>,
    path: readonly string[],
    known: readonly string[],
  ): Record<string, unknown> {
    const named: Record<string, unknown> = {};
    for (const [key, value] of Object.entries(map)) {
      const name = camelCase(key);
      if (!known.includes(name)) {
        const nearest = nearestKey(key, known);
        const hint =
          nearest === null ? `known are ${known.map(snakeCase).join(', ')}` : `did you mean ${snakeCase(nearest)}?`;
        this.#add([...path, name], `is not a setting: ${hint}`, key);
      } else if (Object.hasOwn(named, name)) {
        this.#add([...path, name], `is given in two spellings; remove one`, key);
      } else named[name] = value;
    }
    return named;
  }

  #parsed<T extends z.ZodType>(schema: T, value: unknown, path: readonly string[]): z.output<T> | null {
    const parsed = schema.safeParse(value);
    if (parsed.success) return parsed.data;
    for (const issue of parsed.error.issues) {
      let got: unknown = value;
      for (const key of issue.path) got = isMap(got) || Array.isArray(got) ? Reflect.get(got, key) : undefined;
      this.#add([...path, ...issue.path.map(String)], `${issue.message}, got ${shown(got)}`);
    }
    return null;
  }

  #checkSchedule(key: string, { schedule, disableOverlapScheduler }: ParsedSection): void {
    if (schedule === null || disableOverlapScheduler === null) return;
    if ((schedule === 'plain') === disableOverlapScheduler) return;
    this.#add(
      [key, 'disableOverlapScheduler'],
      `is ${disableOverlapScheduler}, but schedule is ${schedule}; remove one of them`,
    );
  }

  #checkUrls(context: ParsedSection, generation: ParsedSection): void {
    const seen = new Map<string, string>();
    for (const [key, { urls, numInstances }] of [
      [SECTIONS.context, context],
      [SECTIONS.generation, generation],
    ] as const) {
      if (urls.length > 0 && numInstances !== null && numInstances !== urls.length)
        this.#add(
          [key, 'numInstances'],
          `is ${numInstances}, but urls lists ${urls.length} servers; remove one of them`,
        );
      urls.forEach((url, index) => {
        const path = [key, 'urls', String(index)];
        const wrong = urlProblem(url);
        if (wrong !== null) {
          this.#add(path, `${JSON.stringify(url)} ${wrong}`);
          return;
        }
        const address = serverAddress(url);
        const earlier = seen.get(address);
        if (earlier === undefined) seen.set(address, snakeCase(key));
        else if (earlier === snakeCase(key)) this.#add(path, `${url} is listed twice; remove one`);
        else this.#add(path, `${url} is listed in ${earlier} too; a server has one role`);
      });
    }
  }

  #resolve(role: ServerRole & keyof typeof SECTIONS, section: ParsedSection, style: string): ResolvedConfig | null {
    try {
      return resolveCacheTransceiverConfig(section.cacheTransceiverConfig, {
        nixlAvailable: true,
        ...this.#options.facts,
        role,
        scheduleStyle: style as ConfigFacts['scheduleStyle'] & string,
        chunkedPrefillEffective: section.enableChunkedPrefill,
        beamWidth: section.maxBeamWidth,
      });
    } catch (error) {
      if (!(error instanceof ConfigError)) throw error;
      for (const { setting, message } of error.details['problems'] as readonly ConfigProblem[])
        this.#add(
          [SECTIONS[role], 'cacheTransceiverConfig', ...setting.split('.').filter((key) => key !== '')],
          message,
        );
      return null;
    }
  }

  #checkPair({ context, generation }: { context: ResolvedConfig | null; generation: ResolvedConfig | null }): void {
    if (context === null || generation === null) return;
    try {
      checkServerPair(context.config, generation.config);
    } catch (error) {
      if (!(error instanceof ConfigError)) throw error;
      for (const { setting, message } of error.details['problems'] as readonly ConfigProblem[])
        this.#add([SECTIONS.generation, 'cacheTransceiverConfig', ...setting.split('.')], message);
    }
  }

  #add(path: readonly string[], message: string, spelled?: string): void {
    const place = this.#placeOf(path);
    const keyPath = spelled === undefined || place.keyPath.endsWith(spelled) ? place.keyPath : spelled;
    const text = keyPath === '' ? message : `${keyPath}: ${message}`;
    this.#problems.push({ setting: path.join('.'), line: place.line, message: text });
  }

  /** A section's key that is not in the section was inherited: then the line is the one at the top of the file. */
  #placeOf(path: readonly string[]) {
    const place = this.#source.locate(path);
    const [section, key] = path;
    const isSection = section === SECTIONS.context || section === SECTIONS.generation;
    if (!isSection || key === undefined || place.keyPath.includes('.')) return place;
    const top = this.#source.locate(path.slice(1));
    return top.keyPath === '' ? place : top;
  }

  #giveUpIfWrong(): void {
    if (this.#problems.length > 0) throw this.#rejection();
  }

  #rejection(): ConfigError {
    const name = this.#options.fileName ?? 'disagg.yaml';
    const problems = [...new Map(this.#problems.map((one) => [`${one.line}:${one.message}`, one])).values()];
    const texts = problems.map(({ line, message }) => (line === 0 ? message : `${name}:${line}: ${message}`));
    return new ConfigError(texts.join('\n'), { details: { problems } });
  }
}

const TOP_KEYS = [...FILE_KEYS, ...Object.values(SECTIONS), ...WORKER_KEYS];

function groupOf(role: 'context' | 'generation', section: ParsedSection): DisaggServerGroup {
  const { numInstances, router, schedule, disableOverlapScheduler, ...worker } = section;
  return {
    role,
    ...worker,
    schedule: schedule ?? (disableOverlapScheduler === false ? 'overlap' : 'plain'),
    router: typeof router === 'string' ? router : router.type,
    instanceCount: section.urls.length > 0 ? section.urls.length : (numInstances ?? 1),
    ranksPerInstance: section.tensorParallelSize * section.pipelineParallelSize * section.contextParallelSize,
  };
}

function pick(map: Readonly<Record<string, unknown>>, keys: readonly string[]): Record<string, unknown> {
  return Object.fromEntries(Object.entries(map).filter(([key]) => keys.includes(key)));
}

function snakeCase(name: string): string {
  return name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
}

function shown(value: unknown): string {
  if (typeof value === 'string') return JSON.stringify(value.slice(0, 64));
  if (typeof value === 'object' && value !== null) return Array.isArray(value) ? 'a list' : 'a map';
  return value === undefined ? 'nothing' : String(value);
}
