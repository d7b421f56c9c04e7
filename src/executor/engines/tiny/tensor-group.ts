import { ArgumentError, InternalError, type KvTransceiverError, PeerLostError } from '../../../errors.js';

/** One forward as the ranks of a tensor parallel group go through it together. */
export interface TensorForward {
  /**
   * Hands over this rank's part and resolves to those of all ranks, by rank. Called in the same order on all ranks.
   * @throws the error of the first rank that left the forward early
   */
  gather(part: Float32Array): Promise<readonly Float32Array[]>;
  /** This rank is done with the forward; with an error, the forward fails on the others too. */
  leave(error: KvTransceiverError | null): void;
}

/** Ranks that share the heads of one model. */
export interface TensorGroup {
  readonly rank: number;
  readonly size: number;
  /** The next forward. @param content what is computed; it must be the same on all ranks */
  begin(content: string): TensorForward;
  /** This rank is gone: what the others wait for, now or later, fails. Idempotent. */
  close(): void;
}

/**
 * Role: the ranks of a tensor parallel group in one process.
 * Why: parts are only ever laid side by side, never summed: a sum's rounding would depend on how many ranks there are.
 * Ordering: a rank's n-th forward meets the n-th of the others.
 */
export class LocalTensorGroup implements TensorGroup {
  readonly rank: number;
  readonly #room: Room;
  #forwards = 0;

  /** @throws ArgumentError for a size that is no positive integer */
  static of(size: number): readonly LocalTensorGroup[] {
    if (!Number.isSafeInteger(size) || size < 1) {
      throw new ArgumentError(`a tensor parallel group has ${size} ranks; it must be an integer of at least 1`);
    }
    const room = new Room(size);
    return Array.from({ length: size }, (_, rank) => new LocalTensorGroup(rank, room));
  }

  private constructor(rank: number, room: Room) {
    this.rank = rank;
    this.#room = room;
  }

  get size(): number {
    return this.#room.size;
  }

  begin(content: string): TensorForward {
    const meeting = this.#room.meeting(this.#forwards++, content);
    return {
      gather: (part) => meeting.gather(this.rank, part),
      leave: (error) => meeting.leave(error),
    };
  }

  close(): void {
    this.#room.close(new PeerLostError(`tensor parallel rank ${this.rank} is gone`, { drained: true }));
  }
}

class Room {
  readonly size: number;
  readonly #meetings = new Map<number, Meeting>();
  #closed: KvTransceiverError | null = null;

  constructor(size: number) {
    this.size = size;
  }

  meeting(ordinal: number, content: string): Meeting {
    let meeting = this.#meetings.get(ordinal);
    if (meeting === undefined) {
      meeting = new Meeting(this.size, content, () => this.#meetings.delete(ordinal));
      this.#meetings.set(ordinal, meeting);
      if (this.#closed !== null) meeting.fail(this.#closed);
    } else if (meeting.content !== content) {
      meeting.fail(
        new InternalError(`tensor parallel ranks run different forwards: ${meeting.content}, and ${content}`),
      );
    }
    return meeting;
  }

  close(error: KvTransceiverError): void {
    this.#closed ??= error;
    for (const meeting of this.#meetings.values()) meeting.fail(this.#closed);
  }
}

interface Waiting {
  readonly resolve: (parts: readonly Float32Array[]) => void;
  readonly reject: (error: KvTransceiverError) => void;
}

/** One forward of all ranks. */
class Meeting {
  readonly content: string;
  readonly #size: number;
  readonly #onEmpty: () => void;
  #parts = new Map<number, Float32Array>();
  #waiting: Waiting[] = [];
  #left = 0;
  #failure: KvTransceiverError | null = null;

  constructor(size: number, content: string, onEmpty: () => void) {
    this.#size = size;
    this.content = content;
    this.#onEmpty = onEmpty;
  }

  gather(rank: number, part: Float32Array): Promise<readonly Float32Array[]> {
    if (this.#failure !== null) return Promise.reject(this.#failure);
    this.#parts.set(rank, part);
    const gathered = new Promise<readonly Float32Array[]>((resolve, reject) => this.#waiting.push({ resolve, reject }));
    if (this.#parts.size === this.#size) {
      const parts = [...this.#parts.entries()].sort(([a], [b]) => a - b).map(([, values]) => values);
      this.#parts = new Map();
      for (const { resolve } of this.#waiting.splice(0)) resolve(parts);
    }
    return gathered;
  }

  leave(error: KvTransceiverError | null): void {
    if (error !== null) this.fail(error);
    this.#left += 1;
    if (this.#left === this.#size) this.#onEmpty();
  }

  fail(error: KvTransceiverError): void {
    this.#failure ??= error;
    for (const { reject } of this.#waiting.splice(0)) reject(this.#failure);
  }
}
