import { MAX_HELLO_MAP_ENTRIES, MAX_HELLO_VALUES } from './limits.js';
import { wireError } from './wire-reason.js';

const MAX_DEPTH = 12;

/**
 * Walks a msgpack value without building it. A decoder allocates arrays by their claimed length; after this walk every claimed element
 * is known to be there, so what decoding allocates is bounded by the bytes received, and by a cap on the number of values: an object costs
 * many times the byte it may be written in. Extension types are refused: no message has one.
 * @returns where the keys and values of an outermost map, or the items of an outermost array, begin
 * @throws WireError bad-msgpack, truncated, trailing-bytes, count-over-cap
 */
export function checkMsgpackShape(bytes: Uint8Array): readonly number[] {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  /** Values still to come on each open level. */
  const pending: number[] = [1];
  const begins: number[] = [];
  let at = 0;
  let valuesLeft = MAX_HELLO_VALUES;

  const need = (sizeBytes: number): number => {
    if (sizeBytes > bytes.length - at) throw wireError('truncated', `msgpack body ends early at byte ${at}`);
    const start = at;
    at += sizeBytes;
    return start;
  };
  const open = (count: number): void => {
    if (count > bytes.length - at)
      throw wireError('truncated', `msgpack claims ${count} values, ${bytes.length - at} bytes left`);
    valuesLeft -= count;
    if (valuesLeft < 0) throw wireError('count-over-cap', `more than ${MAX_HELLO_VALUES} values in one msgpack body`);
    if (pending.length > MAX_DEPTH) throw wireError('bad-msgpack', `msgpack nested deeper than ${MAX_DEPTH}`);
    pending.push(count);
  };

  const openMap = (entries: number): void => {
    open(entries * 2);
    if (entries > MAX_HELLO_MAP_ENTRIES)
      throw wireError('count-over-cap', `a msgpack map of ${entries} entries; at most ${MAX_HELLO_MAP_ENTRIES}`);
  };

  while (pending.length > 0) {
    const level = pending.length - 1;
    const left = pending[level] as number;
    if (left === 0) {
      pending.pop();
      continue;
    }
    pending[level] = left - 1;
    if (level === 1) begins.push(at);
    const head = view.getUint8(need(1));
    if (head < 0x80 || head >= 0xe0) continue;
    if (head < 0x90) openMap(head & 0x0f);
    else if (head < 0xa0) open(head & 0x0f);
    else if (head < 0xc0) need(head & 0x1f);
    else {
      switch (head) {
        case 0xc0: // nil
        case 0xc2: // false
        case 0xc3: // true
          break;
        case 0xc4: // bin 8
        case 0xd9: // str 8
          need(view.getUint8(need(1)));
          break;
        case 0xc5: // bin 16
        case 0xda: // str 16
          need(view.getUint16(need(2)));
          break;
        case 0xc6: // bin 32
        case 0xdb: // str 32
          need(view.getUint32(need(4)));
          break;
        case 0xcc: // uint 8
        case 0xd0: // int 8
          need(1);
          break;
        case 0xcd: // uint 16
        case 0xd1: // int 16
          need(2);
          break;
        case 0xca: // float 32
        case 0xce: // uint 32
        case 0xd2: // int 32
          need(4);
          break;
        case 0xcb: // float 64
        case 0xcf: // uint 64
        case 0xd3: // int 64
          need(8);
          break;
        case 0xdc: // array 16
          open(view.getUint16(need(2)));
          break;
        case 0xdd: // array 32
          open(view.getUint32(need(4)));
          break;
        case 0xde: // map 16
          openMap(view.getUint16(need(2)));
          break;
        case 0xdf: // map 32
          openMap(view.getUint32(need(4)));
          break;
        default:
          throw wireError('bad-msgpack', `msgpack type 0x${head.toString(16)} has no place here`);
      }
    }
  }
  if (at !== bytes.length) throw wireError('trailing-bytes', `${bytes.length - at} bytes after the msgpack body`);
  return begins;
}
