/** What a module given to `kv-transceiver serve --engine` is made of. */
export type { ServeEngine, ServeEngineFactory, ServeRank, ServeRankParts } from './engine/serve-engine.js';
export { tinyServeEngine } from './engine/tiny-serve-engine.js';
export { BYTE_VOCABULARY, ByteCodec } from './text/byte-codec.js';
export type { ChatMessage, ChatRole, TextCodec, TokenDecoder } from './text/text-codec.js';
