#include "device/kernel_image.h"

#ifdef KVT_KERNEL_IMAGE
// Embedded by the assembler, so that the build needs neither a CUDA language nor a generated source.
asm(R"(
  .pushsection .rodata.kvt_kernel_image, "a", @progbits
  .balign 64
  .hidden kvt_kernel_image_begin
  .global kvt_kernel_image_begin
kvt_kernel_image_begin:
  .incbin ")" KVT_KERNEL_IMAGE R"("
  .hidden kvt_kernel_image_end
  .global kvt_kernel_image_end
kvt_kernel_image_end:
  .popsection
)");
extern "C" const std::byte kvt_kernel_image_begin[] __attribute__((visibility("hidden")));
extern "C" const std::byte kvt_kernel_image_end[] __attribute__((visibility("hidden")));
#endif

namespace kvt {

std::span<const std::byte> kernel_image() {
#ifdef KVT_KERNEL_IMAGE
  return {kvt_kernel_image_begin, kvt_kernel_image_end};
#else
  return {};
#endif
}

}  // namespace kvt
