import type { Fragment } from '../mapping/transfer-plan.js';
import type { FragmentTable, PeerHandle } from './transfer-agent.js';

/** Role: which table fragments were prepared as, so that a plan made of them can be explained. Held as long as the peer, as tables are. */
export class PreparedFragments {
  readonly #ofPeer = new Map<PeerHandle, Map<readonly Fragment[], FragmentTable>>();

  add(peer: PeerHandle, fragments: readonly Fragment[], table: FragmentTable): void {
    const known = this.#ofPeer.get(peer);
    if (known === undefined) this.#ofPeer.set(peer, new Map([[fragments, table]]));
    else known.set(fragments, table);
  }

  remove(peer: PeerHandle): void {
    this.#ofPeer.delete(peer);
  }

  /** The same array, or else one that says the same. */
  find(peer: PeerHandle, fragments: readonly Fragment[]): FragmentTable | null {
    const known = this.#ofPeer.get(peer);
    if (known === undefined) return null;
    const same = known.get(fragments);
    if (same !== undefined) return same;
    for (const [prepared, table] of known) if (areEqual(prepared, fragments)) return table;
    return null;
  }
}

function areEqual(left: readonly Fragment[], right: readonly Fragment[]): boolean {
  return left.length === right.length && left.every((one, i) => isEqual(one, right[i] as Fragment));
}

function isEqual(left: Fragment, right: Fragment): boolean {
  return (Object.keys(left) as (keyof Fragment)[]).every((key) => left[key] === right[key]);
}
