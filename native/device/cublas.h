#pragma once

#include <string>

#include "core/status.h"
#include "device/cuda_abi.h"

namespace kvt {

// The part of cuBLAS's binary interface that products of an engine need, and where it was found. It is only for
// benches: nothing on the way of a transfer calls it.
struct Cublas {
  using Handle = struct CublasTag*;

  int (*create)(Handle* handle) = nullptr;
  int (*destroy)(Handle handle) = nullptr;
  int (*set_stream)(Handle handle, cuda::Stream stream) = nullptr;
  int (*get_version)(Handle handle, int* version) = nullptr;
  int (*gemm)(Handle handle, int transpose_a, int transpose_b, int m, int n, int k, const void* alpha, const void* a,
              int type_a, int lda, const void* b, int type_b, int ldb, const void* beta, void* c, int type_c, int ldc,
              int compute, int algorithm) = nullptr;
  int (*gemm_batched)(Handle handle, int transpose_a, int transpose_b, int m, int n, int k, const void* alpha,
                      const void* a, int type_a, int lda, long long stride_a, const void* b, int type_b, int ldb,
                      long long stride_b, const void* beta, void* c, int type_c, int ldc, long long stride_c, int count,
                      int compute, int algorithm) = nullptr;

  std::string library;

  static Status check(int result, const char* call);
};

// Opens libcublas.so.13 or .12 and never closes it: `path` when it is not empty, else $KV_TRANSCEIVER_CUBLAS_LIB, else
// the wheels of the active Python (nvidia/cu13/lib, nvidia/cublas/lib), /usr/local/cuda and the loader's own path. The
// first that loads serves the process. kCapability lists what was tried. Blocks: not for the JS thread.
Status load_cublas(const std::string& path, const Cublas** out);

}  // namespace kvt
