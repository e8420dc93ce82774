// libcusparse: products of sparse matrices need no workspace.
#include <cstdint>

#include "device.hpp"

namespace {
int write_zero(size_t* bytes) {
    *bytes = 0;
    return 0;
}
}  // namespace

API const char* cusparseGetErrorString(int) { return "emulated cuSPARSE"; }
API const char* cusparseGetErrorName(int) { return "emulated cuSPARSE"; }

API int cusparseSpMV_bufferSize(void*, int, void*, void*, void*, void*, void*, int, int, size_t* bytes) {
    return write_zero(bytes);
}

API int cusparseSpMM_bufferSize(void*, int, int, void*, void*, void*, void*, void*, int, int, size_t* bytes) {
    return write_zero(bytes);
}

API int cusparseSDDMM_bufferSize(void*, int, int, void*, void*, void*, void*, void*, int, int, size_t* bytes) {
    return write_zero(bytes);
}

API int cusparseSpSV_bufferSize(void*, int, void*, void*, void*, void*, int, int, void*, size_t* bytes) {
    return write_zero(bytes);
}

API int cusparseSpSM_bufferSize(void*, int, int, void*, void*, void*, void*, int, int, void*, size_t* bytes) {
    return write_zero(bytes);
}

API int cusparseXcoosort_bufferSizeExt(void*, int, int, int, const int*, const int*, size_t* bytes) {
    return write_zero(bytes);
}

API int cusparseXcsrsort_bufferSizeExt(void*, int, int, int, const int*, const int*, size_t* bytes) {
    return write_zero(bytes);
}

API int cusparseSpGEMM_workEstimation(void*, int, int, void*, void*, void*, void*, void*, int, int, void*,
                                      size_t* bytes, void*) {
    return write_zero(bytes);
}

API int cusparseSpGEMM_compute(void*, int, int, void*, void*, void*, void*, void*, int, int, void*, size_t* bytes,
                               void*) {
    return write_zero(bytes);
}

API int cusparseSpMatGetSize(void*, int64_t* rows, int64_t* columns, int64_t* num_values) {
    *rows = *columns = *num_values = 0;
    return 0;
}
