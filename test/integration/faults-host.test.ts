import { faultSuite } from './faults/fault-suite.js';

faultSuite('host');
