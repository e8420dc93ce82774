// libnvrtc: every source compiles to a program of one byte.
#include "device.hpp"

API int nvrtcVersion(int* major, int* minor) {
    *major = BEXPLORE_CUDA_VERSION / 1000;
    *minor = BEXPLORE_CUDA_VERSION % 1000 / 10;
    return 0;
}

API int nvrtcCreateProgram(void** program, const char*, const char*, int, const char* const*, const char* const*) {
    *program = program;
    return 0;
}

namespace {
int write_one(size_t* bytes) {
    *bytes = 1;
    return 0;
}
int write_end(char* text) {
    *text = 0;
    return 0;
}
}  // namespace

API const char* nvrtcGetErrorString(int) { return "emulated NVRTC"; }
API int nvrtcGetPTXSize(void*, size_t* bytes) { return write_one(bytes); }
API int nvrtcGetPTX(void*, char* text) { return write_end(text); }
API int nvrtcGetCUBINSize(void*, size_t* bytes) { return write_one(bytes); }
API int nvrtcGetCUBIN(void*, char* text) { return write_end(text); }
API int nvrtcGetProgramLogSize(void*, size_t* bytes) { return write_one(bytes); }
API int nvrtcGetProgramLog(void*, char* text) { return write_end(text); }

API int nvrtcGetLoweredName(void*, const char*, const char** name) {
    *name = "kernel";
    return 0;
}
