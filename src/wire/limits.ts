/** Caps of the control plane. A frame beyond one of them is refused before anything is allocated for it. */
export const MAX_FRAME_BYTES = 16 * 1024 * 1024;
/** The same on an encrypted connection, which adds command name, nonce and authenticator. */
export const MAX_ENCRYPTED_FRAME_BYTES = MAX_FRAME_BYTES + 64;
export const MAX_LAYER_GROUPS = 256;
/** Ranks of one instance, and so the writers one receiver may have to wait for. */
export const MAX_WRITERS = 64 * 1024;
export const MAX_LAYERS = 64 * 1024;
/** An answer on the connection of the question; whoever made that connection reads nothing larger on it. */
export const MAX_REPLY_BYTES = 64 * 1024;
/** Peers at once: whoever can send a HELLO decides how many there are, and each costs a connection and a mapping in the agent. */
export const MAX_PEERS = 4096;
/** Connections at once: those of all peers, and of ranks that are being greeted or refused when there is no room for one more peer. */
export const MAX_CONNECTIONS = MAX_PEERS + 1024;
export const MAX_FINDINGS = 256;
export const MAX_MAJORS = 16;
/**
 * Values in one HELLO body, and entries of one map in it. A page table of 64 Ki layer entries has some 600,000 values; building an object
 * for each of 16 million one-byte values would hold up the JS thread for ten seconds.
 */
export const MAX_HELLO_VALUES = 768 * 1024;
export const MAX_HELLO_MAP_ENTRIES = 1024;
export const MAX_AGENT_METADATA_BYTES = 8 * 1024 * 1024;

/** Bytes of UTF-8. */
export const MAX_ENDPOINT_BYTES = 262;
export const MAX_TRACEPARENT_BYTES = 128;
export const MAX_CODE_BYTES = 64;
export const MAX_NAME_BYTES = 256;
export const MAX_TEXT_BYTES = 2048;

/** Slots and block ordinals are 32-bit signed in the cache manager, so that HOLE fits. */
export const MAX_ORDINAL = 0x7fff_ffff;

/**
 * Who waits for a socket looks at it by himself again after this. ZeroMQ tells once that a socket can be read or written, and whoever asks it
 * anything in that instant takes the news away. A receive and a send wait at one socket of ours: should the binding miss such news, the connection
 * would stand still until its peer is taken for dead.
 */
export const LOOK_AGAIN_MS = 250;
