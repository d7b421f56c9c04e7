#pragma once

// The only place that includes napi.h. NAPI_VERSION and the exception policy come from CMakeLists.txt, for every file
// alike.
#if !defined(NAPI_VERSION) || !defined(NODE_ADDON_API_CPP_EXCEPTIONS_ALL)
#error "NAPI_VERSION and NODE_ADDON_API_CPP_EXCEPTIONS_ALL must be set by the build"
#endif

#include <napi.h>
