import type { z } from 'zod';
import { ConfigError } from '../../errors.js';
import type { ConfigFacts, ServerRole } from '../facts.js';
import { isHost } from '../host-address.js';
import { KeySpelling, snakeCase } from '../key-spelling.js';
import { nearestKey } from '../nearest-key.js';
import type { ConfigProblem } from '../problem.js';
import { type ResolvedConfig, resolveCacheTransceiverConfig } from '../resolve.js';
import { checkServerPair } from '../server-pair.js';
import { camelCase, isMap, settingPaths, shownValue } from '../setting-keys.js';
import type { DisaggConfig, DisaggFileOptions, DisaggServerGroup } from './disagg-config.js';
import {
  FILE_KEYS,
  fileSchema,
  MAP_KEYS,
  type ParsedSection,
  ROUTER_KEYS,
  SECTION_KEYS,
  SECTIONS,
  scheduleStyleSchema,
  sectionSchema,
  WORKER_KEYS,
} from './disagg-schema.js';
import { FileProblems } from './file-problems.js';
import { type InheritanceConflict, inherit } from './inherit.js';
import { isListener, serverAddress, urlProblem } from './server-url.js';
import { readYaml, type YamlSource } from './yaml-source.js';

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
  return readDisaggConfigFile(text, options).config;
}

/** A file that was accepted so far, and where its settings are. */
export interface DisaggConfigFile {
  readonly config: DisaggConfig;
  /**
   * What is found wrong with it later, with line and key like everything else.
   * @param problems `setting` counts from the top of the file, `contextServers.engine.seed`; the message says what to change
   */
  rejection(problems: readonly ConfigProblem[]): ConfigError;
}

/** As `parseDisaggConfigFile`, for whoever checks more of the file than can be known here. */
export function readDisaggConfigFile(text: string, options: DisaggFileOptions = {}): DisaggConfigFile {
  const source = readYaml(text);
  return {
    config: new DisaggFile(source, options).parse(),
    rejection: (found) => {
      const problems = newProblems(source, options);
      problems.addOf([], found);
      return problems.rejection();
    },
  };
}

/**
 * Role: one reading of one file. Collects every problem before it gives up, so that an operator mends the file once.
 * Ordering: shape before meaning: rules between settings are checked only when each setting by itself is right.
 */
class DisaggFile {
  readonly #source: YamlSource;
  readonly #options: DisaggFileOptions;
  readonly #problems: FileProblems;

  constructor(source: YamlSource, options: DisaggFileOptions) {
    this.#source = source;
    this.#options = options;
    this.#problems = newProblems(source, options);
  }

  parse(): DisaggConfig {
    const problems = this.#problems;
    for (const fault of this.#source.faults) problems.addFault(fault);
    problems.giveUpIfAny();
    const { value } = this.#source;
    if (value === null || value === undefined)
      problems.add([], 'the file is empty; it needs context_servers and generation_servers');
    else if (!isMap(value)) problems.add([], 'the file must be a map with context_servers and generation_servers');
    problems.giveUpIfAny();

    const file = this.#named(value as Readonly<Record<string, unknown>>, [], TOP_KEYS);
    const { scheduleStyle } = this.#options;
    const head = this.#parsed(fileSchema, pick(file, FILE_KEYS), []);
    const style = scheduleStyle === undefined ? undefined : scheduleStyleSchema.safeParse(scheduleStyle);
    if (style?.success === false)
      problems.addElsewhere(
        'scheduleStyle',
        `the schedule style of the command line ${style.error.issues[0]?.message}, got ${shownValue(scheduleStyle)}`,
      );
    const shared = pick(file, WORKER_KEYS);
    const context = this.#section('context', file, shared);
    const generation = this.#section('generation', file, shared);
    problems.giveUpIfAny();
    if (head === null || context === null || generation === null) throw problems.rejection();

    const chosenStyle = style?.data ?? head.scheduleStyle;
    if (!isHost(head.hostname))
      problems.add(['hostname'], `must be a host name or an IPv4 address, got ${shownValue(head.hostname)}`);
    const port = this.#options.port ?? head.port;
    this.#checkUrls(context, generation, { hostname: head.hostname, port });
    this.#checkSchedule(SECTIONS.context, context);
    this.#checkSchedule(SECTIONS.generation, generation);
    if (context.contextParallelSize > 1 && generation.contextParallelSize > 1)
      problems.add(
        [SECTIONS.generation, 'contextParallelSize'],
        'context parallelism works on one side only; set it to 1 on one of them',
      );
    const resolved = {
      context: this.#resolve('context', context, chosenStyle),
      generation: this.#resolve('generation', generation, chosenStyle),
    };
    problems.giveUpIfAny();
    this.#checkPair(resolved);
    problems.giveUpIfAny();
    return {
      ...head,
      port,
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
      this.#problems.add([], `${snakeCase(key)} is missing: say how many ${role} servers there are, or where they run`);
      return null;
    }
    if (given !== null && !isMap(given)) {
      this.#problems.add([key], `must be a map of settings, got ${shownValue(given)}`);
      return null;
    }
    const own = this.#named(given ?? {}, [key], SECTION_KEYS);
    if (isMap(own['router'])) own['router'] = this.#named(own['router'], [key, 'router'], ROUTER_KEYS)['type'] ?? null;
    const conflicts: InheritanceConflict[] = [];
    const merged = inherit(own, shared, conflicts);
    for (const { path } of conflicts) {
      const top = this.#source.locate(path);
      this.#problems.add(
        [key, ...path],
        `differs from ${top.keys.join('.')} at the top of the file (line ${top.line}), which holds for both sections; remove one`,
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
        const hint = nearest === null ? `known are ${known.join(', ')}` : `did you mean ${nearest}?`;
        this.#problems.add([...path, name], `is not a setting: ${hint}`, key);
      } else if (Object.hasOwn(named, name)) {
        this.#problems.add([...path, name], `is given in two spellings; remove one`, key);
      } else if (value !== null || !MAP_KEYS.includes(name)) named[name] = value;
    }
    return named;
  }

  #parsed<T extends z.ZodType>(schema: T, value: unknown, path: readonly string[]): z.output<T> | null {
    const parsed = schema.safeParse(value);
    if (parsed.success) return parsed.data;
    for (const issue of parsed.error.issues) {
      let got: unknown = value;
      for (const key of issue.path) got = isMap(got) || Array.isArray(got) ? Reflect.get(got, key) : undefined;
      this.#problems.add([...path, ...issue.path.map(String)], `${issue.message}, got ${shownValue(got)}`);
    }
    return null;
  }

  #checkSchedule(key: string, { schedule, disableOverlapScheduler }: ParsedSection): void {
    if (schedule === null || disableOverlapScheduler === null) return;
    if ((schedule === 'plain') === disableOverlapScheduler) return;
    this.#problems.add(
      [key, 'disableOverlapScheduler'],
      `is ${disableOverlapScheduler}, but schedule is ${schedule}; remove one of them`,
    );
  }

  #checkUrls(
    context: ParsedSection,
    generation: ParsedSection,
    { hostname, port }: Pick<DisaggConfig, 'hostname' | 'port'>,
  ): void {
    const seen = new Map<string, string>();
    for (const [key, { urls: given, numInstances }] of [
      [SECTIONS.context, context],
      [SECTIONS.generation, generation],
    ] as const) {
      const urls = given ?? [];
      if (urls.length > 0 && numInstances !== null && numInstances !== urls.length)
        this.#problems.add(
          [key, 'numInstances'],
          `is ${numInstances}, but urls lists ${urls.length} servers; remove one of them`,
        );
      if (given?.length === 0)
        this.#problems.add([key, 'urls'], 'lists no server; remove it to start servers here, or name those that run');
      urls.forEach((url, index) => {
        const path = [key, 'urls', String(index)];
        const wrong = urlProblem(url);
        if (wrong !== null) {
          this.#problems.add(path, `${JSON.stringify(url)} ${wrong}`);
          return;
        }
        if (isListener(url, hostname, port)) {
          this.#problems.add(path, `${url} is where this file's own server listens (hostname, port); name a worker`);
          return;
        }
        const address = serverAddress(url);
        const earlier = seen.get(address);
        if (earlier === undefined) seen.set(address, snakeCase(key));
        else if (earlier === snakeCase(key)) this.#problems.add(path, `${url} is listed twice; remove one`);
        else this.#problems.add(path, `${url} is listed in ${earlier} too; a server has one role`);
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
      const found = error.details['problems'] as readonly ConfigProblem[];
      this.#problems.addOf([SECTIONS[role], 'cacheTransceiverConfig'], found.map(inTermsOfTheFile));
      return null;
    }
  }

  #checkPair({ context, generation }: { context: ResolvedConfig | null; generation: ResolvedConfig | null }): void {
    if (context === null || generation === null) return;
    try {
      checkServerPair(context.config, generation.config);
    } catch (error) {
      if (!(error instanceof ConfigError)) throw error;
      const found = error.details['problems'] as readonly ConfigProblem[];
      this.#problems.addOf([SECTIONS.generation, 'cacheTransceiverConfig'], found);
    }
  }
}

const TOP_KEYS = [...FILE_KEYS, ...Object.values(SECTIONS), ...WORKER_KEYS];
const KNOWN_NAMES = [...TOP_KEYS, ...SECTION_KEYS, ...settingPaths().flatMap((path) => path.split('.'))];

function newProblems(source: YamlSource, { fileName = 'disagg.yaml' }: DisaggFileOptions): FileProblems {
  return new FileProblems(fileName, source, new KeySpelling(source.value, KNOWN_NAMES, 'snake_case'));
}

/** What the library calls a fact of the server is a setting here. */
function inTermsOfTheFile({ setting, message }: ConfigProblem): ConfigProblem {
  return { setting, message: message.replaceAll(/\bbeam(?:W|_w)idth\b/g, 'maxBeamWidth') };
}

function groupOf(role: 'context' | 'generation', section: ParsedSection): DisaggServerGroup {
  const { urls = [], numInstances, router, schedule, disableOverlapScheduler, ...worker } = section;
  return {
    role,
    ...worker,
    schedule: schedule ?? (disableOverlapScheduler === false ? 'overlap' : 'plain'),
    router,
    urls,
    instanceCount: urls.length > 0 ? urls.length : (numInstances ?? 1),
    ranksPerInstance: section.tensorParallelSize * section.pipelineParallelSize * section.contextParallelSize,
  };
}

function pick(map: Readonly<Record<string, unknown>>, keys: readonly string[]): Record<string, unknown> {
  return Object.fromEntries(Object.entries(map).filter(([key]) => keys.includes(key)));
}
