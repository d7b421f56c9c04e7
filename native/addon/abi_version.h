#pragma once

namespace kvt {

// What src/agent/native.ts expects of this addon. Raised with every change of a method, argument or record that crosses
// the border; the loader refuses an addon that was built from other sources.
inline constexpr int kAddonAbiVersion = 2;

}  // namespace kvt
