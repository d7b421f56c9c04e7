import { UsageError } from '../usage-error.js';
import type { MachineInfo } from './output-contract.js';
