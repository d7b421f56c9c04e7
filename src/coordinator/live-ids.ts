import { ResourceError } from '../errors.js';
import type { DisaggregatedParams } from '../executor/request.js';

/**
 * Role: the request ids that a server works on, as both of its ends know them.
 * Why: two coordinators that share a server and make the same ids would speak of one transfer and mean two. Who comes second is told so, and tries
 *   again under another id, before sessions and pages of the first one are touched.
 */
export class LiveIds {
  readonly #live = new Set<bigint>();

  /**
   * @returns gives the id up, once the server is done with the request
   * @throws ResourceError (retryable, under another id) when another request has it
   */
  enter({ ctxRequestId, disaggRequestId }: DisaggregatedParams): () => void {
    const id = ctxRequestId ?? disaggRequestId;
    // A request that is nobody else's has an id of this server's own.
    if (id === null) return () => {};
    if (this.#live.has(id))
      throw new ResourceError(
        `another request here has the id ${id}; coordinators that share servers must differ in node_id or process: try again under another id`,
      );
    this.#live.add(id);
    return () => void this.#live.delete(id);
  }
}
