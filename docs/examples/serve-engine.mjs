// kv-transceiver serve --engine docs/examples/serve-engine.mjs: an engine that answers with the prompt, one token a step.
// It computes nothing and reads no pages; what a real one does is between `forward` and the tokens.
import { BYTE_VOCABULARY, ByteCodec, buildPageTable } from 'kv-transceiver';

export default function createEngine({ max_model_tokens: maxModelTokens = 1024 }) {
  const tokensPerBlock = 16;
  const slotCount = 4096;
  return {
    model: 'echo',
    maxModelTokens,
    vocabularySize: BYTE_VOCABULARY,
    tokensPerBlock,
    codec: new ByteCodec(),
    ranks({ tensorParallelSize }) {
      if (tensorParallelSize !== 1) throw new Error('echo has one rank; set tensor_parallel_size to 1');
      const layerGroups = [{ kind: 'attention', windowSize: null, tokensPerBlock, layers: [0, 1], slotCount }];
      const layout = buildPageTable({
        groups: layerGroups,
        kvHeads: 2,
        headDim: 64,
        dtype: 'bfloat16',
        poolLayout: 'per-layer',
        blockLayout: 'HND',
      });
      return [{ layerGroups, layout, createEngine: () => ({ forward }) }];
    },
  };
}

/** Every finished prompt and every decode step gives the token of the prompt that is next. */
async function forward({ context, generation }) {
  const finished = context.filter(({ request, chunkEnd }) => chunkEnd === request.promptTokens.length);
  const tokens = new Map();
  for (const { request } of [...finished, ...generation]) {
    const { promptTokens, outputTokens } = request;
    tokens.set(request, promptTokens[outputTokens.length % promptTokens.length]);
  }
  // The pages are as good as written: nothing has to be waited for.
  return { event: null, tokens: Promise.resolve(tokens) };
}
