import { ConfigError } from '../../errors.js';
import type { KeySpelling } from '../key-spelling.js';
import type { ConfigProblem } from '../problem.js';
import { camelCase } from '../setting-keys.js';
import { isSectionKey } from './disagg-schema.js';
import { printableKey, type YamlFault, type YamlPlace, type YamlSource } from './yaml-source.js';

/** One problem and its line; 0 for one that is not the file's. */
interface Located extends ConfigProblem {
  readonly line: number;
}

/** Of more, a file of another kind most likely, the rest is only counted. */
const MAX_SHOWN = 50;

/** Role: the problems of one file, each with its line and its key as the file spells them. */
export class FileProblems {
  readonly #fileName: string;
  readonly #source: YamlSource;
  readonly #spelling: KeySpelling;
  readonly #problems: Located[] = [];

  constructor(fileName: string, source: YamlSource, spelling: KeySpelling) {
    this.#fileName = fileName;
    this.#source = source;
    this.#spelling = spelling;
  }

  addFault({ line, column, keyPath, message }: YamlFault): void {
    const place = column === 0 ? '' : keyPath === '' ? `column ${column}` : ` (column ${column})`;
    const where = `${keyPath}${place}`;
    this.#problems.push({ setting: keyPath, line, message: where === '' ? message : `${where}: ${message}` });
  }

  /** Of the command line. */
  addElsewhere(setting: string, message: string): void {
    this.#problems.push({ setting, line: 0, message: this.#spelling.text(message) });
  }

  /**
   * @param path in camelCase, from the top of the file
   * @param message may begin with the name of the setting, which is not repeated
   * @param written the last key as the file spells it, where `path` alone does not tell
   */
  add(path: readonly string[], message: string, written?: string): void {
    this.#problems.push(this.#located(path, message, written));
  }

  /** Problems of one section that somebody else found; `setting` counts from the section on. */
  addOf(prefix: readonly string[], found: readonly ConfigProblem[]): void {
    for (const { setting, message } of found) {
      const path = setting.split('.').filter((key) => key !== '');
      const written = path.map((key) => this.#spelling.of(camelCase(key))).join('.');
      this.add([...prefix, ...path.map(camelCase)], withoutName(withoutName(message, written), setting));
    }
  }

  giveUpIfAny(): void {
    if (this.#problems.length > 0) throw this.rejection();
  }

  rejection(): ConfigError {
    const problems = [...new Map(this.#problems.map((one) => [`${one.line}:${one.message}`, one])).values()];
    const texts = problems
      .slice(0, MAX_SHOWN)
      .map(({ line, message }) => (line === 0 ? message : `${this.#fileName}:${line}: ${message}`));
    if (problems.length > MAX_SHOWN) texts.push(`${this.#fileName}: and ${problems.length - MAX_SHOWN} more`);
    return new ConfigError(texts.join('\n'), { details: { problems } });
  }

  #located(path: readonly string[], message: string, written?: string): Located {
    const { line, keys, isInherited } = this.#placeOf(path, written);
    // A key that is not in the file is named all the same: it is the one to write.
    const missing = path.slice(keys.length + (isInherited ? 1 : 0)).filter((key) => !/^\d+$/.test(key));
    const named = [...keys, ...missing.map((name) => this.#spelling.of(name))];
    if (written !== undefined) named.splice(-1, 1, printableKey(written));
    const text = this.#spelling.text(message);
    return { setting: path.join('.'), line, message: named.length === 0 ? text : `${named.join('.')}: ${text}` };
  }

  /** A section's key that is not in the section was inherited: then the place is the one at the top of the file. */
  #placeOf(path: readonly string[], written?: string): YamlPlace & { readonly isInherited: boolean } {
    const place = this.#source.locate(path, written);
    if (!isSectionKey(path[0]) || place.keys.length === path.length) return { ...place, isInherited: false };
    const top = this.#source.locate(path.slice(1), written);
    return top.keys.length > 0 && top.keys.length + 1 > place.keys.length
      ? { ...top, isInherited: true }
      : { ...place, isInherited: false };
  }
}

/** What is left of a message whose first word is the setting that it is about. */
function withoutName(message: string, setting: string): string {
  if (setting === '' || !message.startsWith(setting)) return message;
  const rest = message.slice(setting.length);
  return /^:? \S/.test(rest) ? rest.replace(/^:? /, '') : message;
}
