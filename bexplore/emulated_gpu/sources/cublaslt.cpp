// libcublasLt: one algorithm for every product, which needs no workspace beyond what PyTorch gives it.
#include <cstdint>
#include <cstring>

#include "device.hpp"

using namespace emulated;

namespace {
// cublasLtMatmulHeuristicResult_t
struct HeuristicResult {
    uint64_t algorithm[8];
    size_t workspace_bytes;
    int status;
    float waves;
    int reserved[4];
};
}  // namespace

API int cublasLtCreate(void** handle) {
    static int any;
    *handle = &any;
    return 0;
}

API size_t cublasLtGetVersion() { return BEXPLORE_CUDA_VERSION / 1000 * 10000; }

API int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*, int, HeuristicResult* results,
                                       int* num_results) {
    memset(results, 0, sizeof *results);
    results->waves = 1;
    *num_results = 1;
    return 0;
}

API int cublasLtMatmul(void*, void*, const void*, const void*, void*, const void*, void*, const void*, const void*,
                       void*, void*, void*, const void*, void*, size_t, cudaStream_t stream) {
    return launch(stream) ? 14 : 0;  // 14: CUBLAS_STATUS_INTERNAL_ERROR
}
