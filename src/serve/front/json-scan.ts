import { badRequest } from './openai-error.js';

/** No parameter is nested deeper: messages, their parts, and what users note in `metadata`. */
const MAX_DEPTH = 64;
/** Of one map. */
const MAX_KEYS = 256;

const [QUOTE, BACKSLASH, COMMA, COLON] = [0x22, 0x5c, 0x2c, 0x3a];
const [OPEN_LIST, CLOSE_LIST, OPEN_MAP, CLOSE_MAP] = [0x5b, 0x5d, 0x7b, 0x7d];

/**
 * Role: bounds what `JSON.parse` is asked to build, from the bytes alone, piece by piece.
 * Why: it builds a whole text in one turn of the event loop, and the megabyte that is one text costs a thousandth of the one that is nested brackets.
 *   What is no JSON is not found here.
 */
export class JsonScan {
  readonly #maxValues: number;
  /** Keys of each map that is open; lists count none. */
  readonly #keys: number[] = [];
  #values = 1;
  #place: 'outside' | 'in text' | 'behind a backslash' = 'outside';

  /** @param maxValues entries of all lists and maps together */
  constructor(maxValues: number) {
    this.#maxValues = maxValues;
  }

  /** @throws ApiError 400 for what is nested too deeply or has too many entries */
  push(bytes: Uint8Array): void {
    let place = this.#place;
    for (let at = 0; at < bytes.length; at++) {
      const byte = bytes[at] as number;
      if (place !== 'outside') {
        if (place === 'behind a backslash') place = 'in text';
        else if (byte === QUOTE) place = 'outside';
        else if (byte === BACKSLASH) place = 'behind a backslash';
      } else if (byte === QUOTE) place = 'in text';
      else if (byte === OPEN_LIST || byte === OPEN_MAP) this.#opened();
      else if (byte === CLOSE_LIST || byte === CLOSE_MAP) this.#keys.pop();
      else if (byte === COMMA) this.#counted();
      else if (byte === COLON) this.#named();
    }
    this.#place = place;
  }

  #opened(): void {
    if (this.#keys.push(0) > MAX_DEPTH) throw badRequest(`the body is nested more than ${MAX_DEPTH} deep`);
    this.#counted();
  }

  #counted(): void {
    if (++this.#values > this.#maxValues)
      throw badRequest(`the body has more than ${this.#maxValues} entries in its lists and maps`);
  }

  #named(): void {
    const count = (this.#keys.pop() ?? 0) + 1;
    if (count > MAX_KEYS) throw badRequest(`a map of the body has more than ${MAX_KEYS} keys`);
    this.#keys.push(count);
  }
}
