#pragma once

namespace kvt {

// `binary.interface_version` of package.json, as it was at the build. Raised there with every change of a method,
// argument or record that crosses the border: the loader refuses, and the installation replaces, an addon with another
// number.
inline constexpr int kAddonAbiVersion = KVT_INTERFACE_VERSION;

}  // namespace kvt
