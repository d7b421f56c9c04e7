import type { Clock } from '../clock.js';
import { type CurveOptions, type HandshakeRefusal, ZeromqMessenger } from '../wire/index.js';

/** What the socket of a rank needs to know. */
export interface GroupMessengerOptions {
  readonly clock: Clock;
  readonly host: string;
  readonly port: number;
  readonly advertiseHost?: string;
  readonly allowPlaintext: boolean;
  readonly curve: CurveOptions | null;
  readonly onWarning: (message: string) => void;
  /** Whom this rank asks to be let in; null on rank 0. */
  readonly hubEndpoint: string | null;
}

export interface GroupMessenger {
  readonly messenger: ZeromqMessenger;
  /** Why there is no coming together: the keys of this rank and of another do not fit. Null: nothing says so. */
  readonly refusal: () => string | null;
}

/** A handshake that ends without a word may be that of a process that just ended; one that does so again and again is not. */
const SILENT_REFUSALS = 3;
const TOLD_REFUSALS: readonly HandshakeRefusal[] = ['peer-refused-key', 'peer-mechanism', 'peer-protocol'];

/**
 * @throws ConfigError for keys that are none, an address in use, or one that other machines reach without keys or `allowPlaintext`
 * @throws CapabilityError when ZeroMQ was built without CURVE
 */
export async function openGroupMessenger(options: GroupMessengerOptions): Promise<GroupMessenger> {
  const { clock, host, port, advertiseHost, allowPlaintext, curve, hubEndpoint } = options;
  /** The last word about rank 0, and, which says more, the last reason that it gave. */
  let lastWord: string | null = null;
  let lastReason: string | null = null;
  let reasonsSeen = 0;
  const reasons = (): number => {
    const { handshakesRefused } = messenger.counts();
    return TOLD_REFUSALS.reduce((sum, cause) => sum + handshakesRefused[cause], 0);
  };
  const messenger = await ZeromqMessenger.open({
    clock,
    host,
    port,
    ...(advertiseHost === undefined ? {} : { advertiseHost }),
    allowPlaintext,
    curve,
    onWarning: (message) => {
      options.onWarning(message);
      // A stranger at this rank's own socket says nothing about rank 0.
      if (hubEndpoint !== null && !message.startsWith(hubEndpoint)) return;
      lastWord = message;
      if (reasons() > reasonsSeen) lastReason = message;
      reasonsSeen = reasons();
    },
  });
  const refusal = (): string | null => {
    if (hubEndpoint === null) return lastWord;
    if (lastReason !== null) return lastReason;
    const isSilent = curve !== null && messenger.counts().handshakesRefused['peer-closed'] >= SILENT_REFUSALS;
    return isSilent ? lastWord : null;
  };
  return { messenger, refusal };
}
