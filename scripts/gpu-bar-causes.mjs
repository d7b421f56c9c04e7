/**
 * Why a bar of the GPU path is not met, and what was tried: one sentence or two by the bar's `name`, or by `name: what` where one
 * measurement has a cause of its own. Shown by scripts/gpu-bars.mjs beside a bar that a result does not meet, and nowhere else.
 */
export const CAUSES = {
  'share-32k-32':
    'What each turn costs once (docs/gpu.md, "Where a turn goes"): the JS thread hands over the first slice with all of its slots, a thread that was asleep takes it up and prepares it, the GPU fetches its slots and starts, and the end is seen. From one slice’s end to the next the kernels are above the bar, where they stay below the copy engines, also without an agent (`pair.json`, and 832 shapes of kernels in `kernel-shapes.txt`). Tiles handed out while a kernel runs instead of dealt out beforehand, and two streams in turns, came out of the search.',
  'share-32k-16': 'The same as with 32 blocks.',
  'share-split':
    'What each turn costs once (docs/gpu.md, "Where a turn goes") is as much here as with eight times the bytes. From one slice’s end to the next the pieces move fast enough.',
  'bounce-share':
    'Gather, write and scatter of the first and the last chunk stand alone, and each chunk is waited for by a thread.',
  'bounce-share: pages of one layer':
    'A frame names at most 896 slots, here 3.5 MiB: each is a chunk of its own, which the writer’s thread needs longer for than the link (docs/gpu.md, below). Slots of a real pool hold pieces of many layers.',
  'bounce-empty':
    'After a pause both progress threads are asleep, and on cores that were asleep each launch, creation and post takes several times as long. Threads stay awake for 200 µs after a slice; longer would cost a core.',
  'slow-down: rdma':
    'Not established. UCX makes a copy and an event of each descriptor, but it is not their number alone: more of them, that wait for no event (`gpu-interference-2k-saturating.json`), cost less each. Tried, without a result that is kept: other batches, fewer in flight, rarer polling, `NIXL_UCX_SGL_ENABLE`. Where p2p reaches the peer it is taken instead.',
};
