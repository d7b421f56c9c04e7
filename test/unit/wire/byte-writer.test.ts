import { describe, expect, it } from 'vitest';
import { ByteReader } from '../../../src/wire/byte-reader.js';
import { ByteWriter } from '../../../src/wire/byte-writer.js';

describe('ByteWriter', () => {
  it('grows under any field: what was written before and after is read back', () => {
    for (let capacity = 1; capacity <= 24; capacity++) {
      const writer = new ByteWriter(capacity);
      writer.u8(0xa1, 'a');
      writer.u16(0xb2b2, 'b');
      writer.u32(0xc3c3c3c3, 'c');
      writer.i32(-4, 'd');
      writer.u64(0xe5e5e5e5e5e5e5e5n, 'e');
      writer.bool(true);
      writer.string('kv', 10, 'f');
      const reader = new ByteReader(writer.finish());
      expect([reader.u8('a'), reader.u16('b'), reader.u32('c'), reader.i32('d')]).toEqual([
        0xa1, 0xb2b2, 0xc3c3c3c3, -4,
      ]);
      expect([reader.u64('e'), reader.bool('f'), reader.string(10, 'g')]).toEqual([0xe5e5e5e5e5e5e5e5n, true, 'kv']);
      expect(reader.remaining).toBe(0);
    }
  });
});
