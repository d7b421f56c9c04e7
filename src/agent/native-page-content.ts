import { contentRecords } from './content-records.js';
import { loadNative, type NativeModule } from './native.js';
import { typedError } from './native-error.js';
import type { ContentJob, PageContent, VerifyResult } from './page-content.js';

/**
 * Page content in pools of this thread's agents.
 * @throws CapabilityError when the addon is missing
 */
export function createPageContent(): PageContent {
  return new NativePageContent(loadNative());
}

/** Agents may close while a job runs: their memory stays until it has ended. */
class NativePageContent implements PageContent {
  readonly #native: NativeModule;

  constructor(native: NativeModule) {
    this.#native = native;
  }

  chainTokenSeeds(tokens: Uint32Array): BigUint64Array {
    try {
      return this.#native.chainTokenSeeds(tokens);
    } catch (error) {
      throw typedError(error);
    }
  }

  async fill(job: ContentJob): Promise<{ readonly bytesWritten: number }> {
    const { entries, slots, numbers, tokenSeeds } = contentRecords(job);
    try {
      return { bytesWritten: await this.#native.fillContent(entries, slots, numbers, tokenSeeds) };
    } catch (error) {
      throw typedError(error);
    }
  }

  async verify(job: ContentJob): Promise<VerifyResult> {
    const { entries, slots, numbers, tokenSeeds, places, firstToken } = contentRecords(job);
    try {
      const found = await this.#native.verifyContent(entries, slots, numbers, tokenSeeds);
      const [bytesChecked = 0, wrongBytes = 0, entry = -1, head = 0, token = 0] = found;
      const place = places[entry];
      const firstWrong = place === undefined ? null : { ...place, head, token: firstToken + token };
      return { bytesChecked, wrongBytes, firstWrong };
    } catch (error) {
      throw typedError(error);
    }
  }
}
