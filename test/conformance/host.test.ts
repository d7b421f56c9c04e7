import { createAgent } from '../../src/agent/native-agent.js';
import { agentSuite } from './agent-suite.js';
import { notesSuite } from './notes-suite.js';
import { processSuite } from './process-suite.js';

agentSuite('host', (name) => createAgent({ kind: 'host', name }));
processSuite('host', (name) => createAgent({ kind: 'host', name }));
notesSuite('host', (name) => createAgent({ kind: 'host', name }));
