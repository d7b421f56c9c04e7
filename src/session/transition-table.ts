import { InternalError } from '../errors.js';

/** What each event does in each state; a pair that is not listed is illegal. */
export type Transitions<State extends string, Event extends string> = Readonly<
  Record<State, Readonly<Partial<Record<Event, State>>>>
>;

/** A state machine as data, so that a test can walk every (state, event). */
export class TransitionTable<State extends string, Event extends string> {
  readonly name: string;
  readonly transitions: Transitions<State, Event>;

  constructor(name: string, transitions: Transitions<State, Event>) {
    this.name = name;
    this.transitions = transitions;
  }

  allows(state: State, event: Event): boolean {
    return this.transitions[state][event] !== undefined;
  }

  /** @throws InternalError for a pair that is not in the table */
  next(state: State, event: Event): State {
    const next = this.transitions[state][event];
    if (next === undefined) throw new InternalError(`${this.name}: '${event}' is illegal in state '${state}'`);
    return next;
  }
}
