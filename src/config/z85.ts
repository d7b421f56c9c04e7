const ALPHABET = '0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#';
const DIGITS = new Map([...ALPHABET].map((letter, digit) => [letter, digit]));
const KEY_BYTES = 32;
/** Characters of a CURVE key as text. */
export const KEY_LENGTH = 40;

/** The 32 bytes of a CURVE key written in Z85 (ZeroMQ RFC 32), or null when `text` is none. */
export function decodeKey(text: string): Uint8Array | null {
  if (text.length !== KEY_LENGTH) return null;
  const bytes = new Uint8Array(KEY_BYTES);
  const view = new DataView(bytes.buffer);
  for (let group = 0; group < KEY_BYTES / 4; group++) {
    let value = 0;
    for (let i = 0; i < 5; i++) {
      const digit = DIGITS.get(text[group * 5 + i] as string);
      if (digit === undefined) return null;
      value = value * 85 + digit;
    }
    // Five digits hold a little more than four bytes.
    if (value > 0xffff_ffff) return null;
    view.setUint32(group * 4, value);
  }
  return bytes;
}

/** @param bytes 32 of them */
export function encodeKey(bytes: Uint8Array): string {
  if (bytes.length !== KEY_BYTES) throw new RangeError(`a key has ${KEY_BYTES} bytes, got ${bytes.length}`);
  const view = new DataView(bytes.buffer, bytes.byteOffset, KEY_BYTES);
  let text = '';
  for (let group = 0; group < KEY_BYTES / 4; group++) {
    let value = view.getUint32(group * 4);
    let digits = '';
    for (let i = 0; i < 5; i++) {
      digits = ALPHABET[value % 85] + digits;
      value = Math.floor(value / 85);
    }
    text += digits;
  }
  return text;
}
