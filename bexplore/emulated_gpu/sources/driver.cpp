// libcuda: what Triton and PyTorch's static launcher ask the driver for, and the memory of expandable segments.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>

#include "device.hpp"

using namespace emulated;

namespace {

// A context is the device's number under CUDA_VISIBLE_DEVICES, plus one, as a pointer.
CUcontext context_of(int device) { return reinterpret_cast<CUcontext>(static_cast<size_t>(device) + 1); }
int device_of(CUcontext context) { return static_cast<int>(reinterpret_cast<size_t>(context)) - 1; }

bool is_device(int device) { return device >= 0 && device < device_count(); }

CUresult result_of(cudaError_t error) { return static_cast<CUresult>(error); }  // the two enumerations share numbers

struct Allocation {
    int device;
    size_t bytes;
    int num_references;
};

std::mutex& lock = *new std::mutex();
auto& allocations = *new std::map<CUmemGenericAllocationHandle, Allocation>();
auto& mappings = *new std::map<CUdeviceptr, std::pair<size_t, CUmemGenericAllocationHandle>>();
CUmemGenericAllocationHandle last_handle = 0;

void drop_reference(CUmemGenericAllocationHandle handle) {
    auto found = allocations.find(handle);
    if (found == allocations.end() || --found->second.num_references) return;
    discharge(found->second.device, found->second.bytes);
    allocations.erase(found);
}

void* pointer_of(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

}  // namespace

API CUresult cuInit(unsigned) { return driver_device_count() ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE; }

API CUresult cuDriverGetVersion(int* version) {
    *version = BEXPLORE_CUDA_VERSION;
    return CUDA_SUCCESS;
}

API CUresult cuGetErrorString(CUresult error, const char** text) {
    *text = error_text(error);
    return CUDA_SUCCESS;
}

API CUresult cuGetErrorName(CUresult error, const char** name) {
    *name = error_name(error);
    return CUDA_SUCCESS;
}

// Devices and contexts

API CUresult cuDeviceGetCount(int* count) {
    *count = device_count();
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGet(CUdevice* device, int number) {
    if (!is_device(number)) return CUDA_ERROR_INVALID_DEVICE;
    *device = number;
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetName(char* name, int size, CUdevice) {
    snprintf(name, size, "%s", properties().name.c_str());
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
    write_uuid(driver_number(device), reinterpret_cast<unsigned char*>(uuid->bytes));
    return CUDA_SUCCESS;
}

API CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice) {
    *bytes = properties().memory_bytes;
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute name, CUdevice device) {
    if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    *value = attribute(name, device);
    return CUDA_SUCCESS;
}

API CUresult cuCtxGetCurrent(CUcontext* context) {
    *context = context_of(current_device());
    return CUDA_SUCCESS;
}

API CUresult cuCtxSetCurrent(CUcontext context) {
    if (context) current_device() = device_of(context);
    return CUDA_SUCCESS;
}

API CUresult cuCtxPushCurrent_v2(CUcontext context) { return cuCtxSetCurrent(context); }
API CUresult cuCtxPopCurrent_v2(CUcontext* context) { return context ? cuCtxGetCurrent(context) : CUDA_SUCCESS; }

API CUresult cuCtxGetDevice(CUdevice* device) {
    *device = current_device();
    return CUDA_SUCCESS;
}

API CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
    if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    *context = context_of(device);
    return has_context(device) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice) { return CUDA_SUCCESS; }

API CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned* flags, int* is_active) {
    *flags = 0;
    *is_active = 1;
    return CUDA_SUCCESS;
}

API CUresult cuCtxGetLimit(size_t* value, CUlimit) {
    *value = 1024;
    return CUDA_SUCCESS;
}

API CUresult cuCtxSetLimit(CUlimit, size_t) { return CUDA_SUCCESS; }
API CUresult cuCtxSynchronize() { return result_of(cudaDeviceSynchronize()); }

// Modules of kernels: a function is its name. What one writes is not known.

namespace {
CUresult launch_unknown(CUstream stream) {
    forget_all();
    return result_of(launch(stream));
}
}  // namespace

API CUresult cuModuleLoadData(CUmodule* module, const void*) {
    *module = reinterpret_cast<CUmodule>(module);
    return result_of(failure(current_device()));
}

API CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned, CUjit_option*, void**) {
    return cuModuleLoadData(module, image);
}

API CUresult cuModuleLoad(CUmodule* module, const char*) { return cuModuleLoadData(module, nullptr); }
API CUresult cuModuleUnload(CUmodule) { return CUDA_SUCCESS; }

API CUresult cuModuleGetFunction(CUfunction* function, CUmodule, const char* name) {
    *function = reinterpret_cast<CUfunction>(strdup(name));
    return CUDA_SUCCESS;
}

API CUresult cuModuleGetGlobal_v2(CUdeviceptr*, size_t*, CUmodule, const char*) { return CUDA_ERROR_NOT_FOUND; }

API CUresult cuFuncGetAttribute(int* value, CUfunction_attribute name, CUfunction) {
    *value = name == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : name == CU_FUNC_ATTRIBUTE_NUM_REGS ? 64 : 0;
    return CUDA_SUCCESS;
}

API CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) { return CUDA_SUCCESS; }
API CUresult cuFuncSetCacheConfig(CUfunction, CUfunc_cache) { return CUDA_SUCCESS; }

API CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                            CUstream stream, void**, void**) {
    return launch_unknown(stream);
}

API CUresult cuLaunchKernelEx(const CUlaunchConfig* configuration, CUfunction, void**, void**) {
    return launch_unknown(configuration->hStream);
}

API CUresult cuLaunchCooperativeKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                                       unsigned, CUstream stream, void**) {
    return launch_unknown(stream);
}

API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* count, CUfunction, int block_threads, size_t bytes) {
    return result_of(cudaOccupancyMaxActiveBlocksPerMultiprocessor(count, nullptr, block_threads, bytes));
}

API CUresult cuOccupancyMaxActiveClusters(int* count, CUfunction, const CUlaunchConfig*) {
    *count = 8;
    return CUDA_SUCCESS;
}

API CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                                    const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                                    CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
    memset(map, 0, sizeof *map);
    return CUDA_SUCCESS;
}

API CUresult cuLinkCreate_v2(unsigned, CUjit_option*, void**, CUlinkState* state) {
    *state = reinterpret_cast<CUlinkState>(state);
    return CUDA_SUCCESS;
}

API CUresult cuLinkComplete(CUlinkState, void** binary, size_t* bytes) {
    static char nothing[1];
    *binary = nothing;
    *bytes = sizeof nothing;
    return CUDA_SUCCESS;
}

// Pointers and copies

API CUresult cuPointerGetAttribute(void* value, CUpointer_attribute name, CUdeviceptr address) {
    int device;
    void* start;
    size_t bytes;
    cudaPointerAttributes found;
    cudaPointerGetAttributes(&found, pointer_of(address));
    if (found.type == cudaMemoryTypeUnregistered) return CUDA_ERROR_INVALID_VALUE;
    bool is_on_device = find_range(pointer_of(address), &start, &bytes, &device);
    switch (name) {
        case CU_POINTER_ATTRIBUTE_CONTEXT:
            *static_cast<CUcontext*>(value) = context_of(found.device);
            return CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
            *static_cast<unsigned*>(value) = is_on_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
            return CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        case CU_POINTER_ATTRIBUTE_HOST_POINTER:
            *static_cast<CUdeviceptr*>(value) = address;
            return CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
            *static_cast<int*>(value) = found.device;
            return CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
            if (!is_on_device) return CUDA_ERROR_INVALID_VALUE;
            *static_cast<CUdeviceptr*>(value) = reinterpret_cast<CUdeviceptr>(start);
            return CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
            if (!is_on_device) return CUDA_ERROR_INVALID_VALUE;
            *static_cast<size_t*>(value) = bytes;
            return CUDA_SUCCESS;
        default:
            memset(value, 0, sizeof(int));
            return CUDA_SUCCESS;
    }
}

API CUresult cuMemGetAddressRange_v2(CUdeviceptr* start_address, size_t* bytes, CUdeviceptr address) {
    void* start;
    if (!find_range(pointer_of(address), &start, bytes, nullptr)) return CUDA_ERROR_NOT_FOUND;
    *start_address = reinterpret_cast<CUdeviceptr>(start);
    return CUDA_SUCCESS;
}

API CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t bytes) {
    void* pointer;
    cudaError_t error = allocate(current_device(), bytes, &pointer);
    *address = reinterpret_cast<CUdeviceptr>(pointer);
    return result_of(error);
}

API CUresult cuMemFree_v2(CUdeviceptr address) { return result_of(release(pointer_of(address))); }

API CUresult cuMemcpyDtoH_v2(void* target, CUdeviceptr source, size_t bytes) {
    return result_of(cudaMemcpy(target, pointer_of(source), bytes, cudaMemcpyDeviceToHost));
}

API CUresult cuMemcpyHtoD_v2(CUdeviceptr target, const void* source, size_t bytes) {
    return result_of(cudaMemcpy(pointer_of(target), source, bytes, cudaMemcpyHostToDevice));
}

API CUresult cuMemsetD32Async(CUdeviceptr target, unsigned value, size_t count, CUstream stream) {
    std::vector<unsigned> contents(count * sizeof value <= MOST_DEVICE_COPY_BYTES ? count : 0, value);
    write(pointer_of(target), contents.data(), contents.size() * sizeof value);
    return result_of(launch(stream));
}

API CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr target, cuuint32_t value, unsigned) {
    write(pointer_of(target), &value, sizeof value);
    return result_of(launch(stream));
}

API CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
    return result_of(cudaStreamIsCapturing(stream, reinterpret_cast<cudaStreamCaptureStatus*>(status)));
}

API CUresult cuStreamSynchronize(CUstream stream) { return result_of(cudaStreamSynchronize(stream)); }

// Virtual memory: addresses are reserved, memory is made and counted, and then mapped. All addresses can be written
// from the start; what is unmapped gives its pages back.

API CUresult cuMemGetAllocationGranularity(size_t* bytes, const CUmemAllocationProp*,
                                           CUmemAllocationGranularity_flags) {
    *bytes = GRANULE_BYTES;
    return CUDA_SUCCESS;
}

API CUresult cuMemAddressReserve(CUdeviceptr* address, size_t bytes, size_t alignment, CUdeviceptr,
                                 unsigned long long) {
    void* start = reserve_addresses(bytes, alignment > GRANULE_BYTES ? alignment : GRANULE_BYTES);
    *address = reinterpret_cast<CUdeviceptr>(start);
    return start ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

API CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
    munmap(pointer_of(address), bytes);
    return CUDA_SUCCESS;
}

API CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes, const CUmemAllocationProp* properties,
                         unsigned long long) {
    int device = properties->location.id;
    if (cudaError_t error = failure(device)) return result_of(error);
    if (!charge(device, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    std::lock_guard<std::mutex> guard(lock);
    *handle = ++last_handle;
    allocations[*handle] = {device, bytes, 1};
    return CUDA_SUCCESS;
}

API CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    std::lock_guard<std::mutex> guard(lock);
    drop_reference(handle);
    return CUDA_SUCCESS;
}

API CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t, CUmemGenericAllocationHandle handle,
                      unsigned long long) {
    std::lock_guard<std::mutex> guard(lock);
    auto found = allocations.find(handle);
    if (found == allocations.end()) return CUDA_ERROR_INVALID_VALUE;
    found->second.num_references += 1;
    mappings[address] = {bytes, handle};
    add_range(pointer_of(address), bytes, found->second.device, 0);
    return CUDA_SUCCESS;
}

API CUresult cuMemSetAccess(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t) { return CUDA_SUCCESS; }

API CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
    std::lock_guard<std::mutex> guard(lock);
    for (auto found = mappings.lower_bound(address); found != mappings.end() && found->first < address + bytes;) {
        forget_range(pointer_of(found->first));
        madvise(pointer_of(found->first), found->second.first, MADV_DONTNEED);
        drop_reference(found->second.second);
        found = mappings.erase(found);
    }
    return CUDA_SUCCESS;
}

API CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* pointer) {
    std::lock_guard<std::mutex> guard(lock);
    auto after = mappings.upper_bound(reinterpret_cast<CUdeviceptr>(pointer));
    if (after == mappings.begin()) return CUDA_ERROR_INVALID_VALUE;
    *handle = std::prev(after)->second.second;
    allocations[*handle].num_references += 1;
    return CUDA_SUCCESS;
}

API CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* found, CUmemGenericAllocationHandle handle) {
    std::lock_guard<std::mutex> guard(lock);
    memset(found, 0, sizeof *found);
    found->type = CU_MEM_ALLOCATION_TYPE_PINNED;
    found->location = {CU_MEM_LOCATION_TYPE_DEVICE, {allocations[handle].device}};
    return CUDA_SUCCESS;
}

// Another process gets a file of the size alone; it maps memory of its own, which nobody counts twice.

API CUresult cuMemExportToShareableHandle(void* shareable, CUmemGenericAllocationHandle handle,
                                          CUmemAllocationHandleType, unsigned long long) {
    std::lock_guard<std::mutex> guard(lock);
    int file = memfd_create("emulated device memory", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, allocations[handle].bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    *static_cast<int*>(shareable) = file;
    return CUDA_SUCCESS;
}

API CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void*, CUmemAllocationHandleType) {
    std::lock_guard<std::mutex> guard(lock);
    *handle = ++last_handle;
    allocations[*handle] = {current_device(), 0, 1};
    return CUDA_SUCCESS;
}

// Another way to these functions

API CUresult cuGetProcAddress_v2(const char* name, void** function, int version, cuuint64_t flags,
                                 CUdriverProcAddressQueryResult*) {
    cudaDriverEntryPointQueryResult result;
    cudaGetDriverEntryPointByVersion(name, function, version, flags, &result);
    return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
