const BITS_PER_ELEMENT: Readonly<Record<string, number>> = {
  float32: 32,
  float16: 16,
  bfloat16: 16,
  float8_e4m3: 8,
  float8_e5m2: 8,
  int8: 8,
  uint8: 8,
  float4_e2m1: 4,
};

/** Names that a page table can be checked and built for. Others travel, but only between ranks that spell them alike. */
export const KNOWN_DTYPES: readonly string[] = Object.keys(BITS_PER_ELEMENT);

/** Bits of one element, or null for a dtype this package does not know. */
export function dtypeBits(dtype: string): number | null {
  return Object.hasOwn(BITS_PER_ELEMENT, dtype) ? (BITS_PER_ELEMENT[dtype] as number) : null;
}
