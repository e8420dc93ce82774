// libcudart: memory, copies, streams and events with a clock, graphs, launches. A launch takes time and does nothing.
#include <dlfcn.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <map>
#include <mutex>
#include <set>

#include "device.hpp"

using namespace emulated;

namespace {

constexpr double HOST_COPY_BYTES_PER_S = 25e9;  // PCI Express of the fourth generation, 16 lanes
constexpr double GRAPH_LAUNCH_S = 5e-6;

struct Graph {
    double duration_s = 0;
    size_t num_nodes = 0;
};

struct Capture {
    unsigned long long id;
    Graph* graph;
    struct Stream* origin;
    std::set<struct Stream*> streams;
    bool is_invalid = false;
};

struct Stream {
    int device;
    unsigned flags;
    int priority;
    double busy_until_s = 0;
    Capture* capture = nullptr;
};

struct Event {
    double at_s = 0;
    bool is_recorded = false;
    Capture* capture = nullptr;
};

struct Pool {
    size_t used = 0, most_used = 0;
    size_t reserved = 0, most_reserved = 0;
    size_t release_threshold = 0;
};

// The lock is of all that follows. None is destroyed: threads of PyTorch still call while the process ends.
std::mutex& lock = *new std::mutex();
auto& streams = *new std::set<Stream*>();
auto& variables = *new std::map<const void*, void*>();
auto& host_ranges = *new std::map<char*, size_t>();
auto& pool_blocks = *new std::map<void*, std::pair<Pool*, size_t>>();
thread_local cudaError_t last_error = cudaSuccess;

cudaError_t answer(cudaError_t error) {
    if (error) last_error = error;
    return error;
}

Stream* default_stream(int device) {
    static Stream** defaults = [] {
        static Stream* made[MAX_DEVICES];
        for (int number = 0; number < MAX_DEVICES; ++number) made[number] = new Stream{number, 0, 0};
        return made;
    }();
    return defaults[device];
}

Stream* stream_of(cudaStream_t handle) {
    if (handle == nullptr || handle == cudaStreamLegacy || handle == cudaStreamPerThread)
        return default_stream(current_device());
    return reinterpret_cast<Stream*>(handle);
}

Event* event_of(cudaEvent_t handle) { return reinterpret_cast<Event*>(handle); }
Graph* graph_of(cudaGraph_t handle) { return reinterpret_cast<Graph*>(handle); }
Graph* graph_of(cudaGraphExec_t handle) { return reinterpret_cast<Graph*>(handle); }
Pool* pool_of(cudaMemPool_t handle) { return reinterpret_cast<Pool*>(handle); }

double seconds_per_launch() {
    static const double seconds = number_in_environment("BEXPLORE_EMULATED_NANOSECONDS_PER_LAUNCH", 2000) * 1e-9;
    return seconds;
}

double memory_bytes_per_s() {
    return 2.0 * properties().memory_clock_khz * 1e3 * properties().bus_bits / 8 + 1;
}

// Work on a stream: a node of the graph that it captures, or time that it takes.
void work(Stream* stream, double duration_s) {
    std::lock_guard<std::mutex> guard(lock);
    if (stream->capture) {
        stream->capture->graph->num_nodes += 1;
        stream->capture->graph->duration_s += duration_s;
        return;
    }
    double now = now_s();
    stream->busy_until_s = (stream->busy_until_s > now ? stream->busy_until_s : now) + duration_s;
}

void wait_until(double time_s) {
    double remaining_s = time_s - now_s();
    if (remaining_s <= 0) return;
    timespec duration{static_cast<time_t>(remaining_s),
                      static_cast<long>((remaining_s - static_cast<time_t>(remaining_s)) * 1e9)};
    nanosleep(&duration, nullptr);
}

// What a capture does not permit ends it, as it does on a device.
cudaError_t forbid_in_capture(Stream* stream) {
    std::lock_guard<std::mutex> guard(lock);
    if (!stream->capture) return cudaSuccess;
    stream->capture->is_invalid = true;
    return cudaErrorStreamCaptureUnsupported;
}

cudaError_t copy_on(Stream* stream, void* target, const void* source, size_t bytes) {
    if (cudaError_t error = failure(stream->device)) return answer(error);
    bool is_on_device = find_range(target, nullptr, nullptr, nullptr) && find_range(source, nullptr, nullptr, nullptr);
    if (!stream->capture) copy(target, source, bytes);
    work(stream, seconds_per_launch() + bytes / (is_on_device ? memory_bytes_per_s() / 2 : HOST_COPY_BYTES_PER_S));
    return cudaSuccess;
}

cudaError_t synchronize(Stream* stream) {
    if (cudaError_t error = failure(stream->device)) return answer(error);
    if (cudaError_t error = forbid_in_capture(stream)) return answer(error);
    double until_s;
    {
        std::lock_guard<std::mutex> guard(lock);
        until_s = stream->busy_until_s;
    }
    wait_until(until_s);
    return cudaSuccess;
}

bool is_device(int device) { return device >= 0 && device < device_count(); }

}  // namespace

cudaError_t emulated::launch(cudaStream_t handle, double duration_s) {
    Stream* stream = stream_of(handle);
    if (cudaError_t error = failure(stream->device)) return answer(error);
    work(stream, duration_s < 0 ? seconds_per_launch() : duration_s);
    count_launch();
    return cudaSuccess;
}

// Errors and versions

API cudaError_t cudaGetLastError() {
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

API cudaError_t cudaPeekAtLastError() { return last_error; }
API const char* cudaGetErrorString(cudaError_t error) { return error_text(error); }
API const char* cudaGetErrorName(cudaError_t error) { return error_name(error); }

API cudaError_t cudaDriverGetVersion(int* version) {
    *version = BEXPLORE_CUDA_VERSION;
    return cudaSuccess;
}

API cudaError_t cudaRuntimeGetVersion(int* version) {
    *version = BEXPLORE_CUDA_VERSION;
    return cudaSuccess;
}

// Devices

API cudaError_t cudaGetDeviceCount(int* count) {
    *count = device_count();
    return *count ? cudaSuccess : answer(cudaErrorNoDevice);
}

API cudaError_t cudaSetDevice(int device) {
    if (!is_device(device)) return answer(cudaErrorInvalidDevice);
    current_device() = device;
    return answer(failure(device));
}

API cudaError_t cudaGetDevice(int* device) {
    *device = current_device();
    return cudaSuccess;
}

API cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr name, int device) {
    if (!is_device(device)) return answer(cudaErrorInvalidDevice);
    *value = attribute(name, device);
    return cudaSuccess;
}

API cudaError_t cudaGetDeviceProperties(cudaDeviceProp* found, int device) {
    if (!is_device(device)) return answer(cudaErrorInvalidDevice);
    const Properties& own = properties();
    auto value = [device](int name) { return attribute(name, device); };
    memset(found, 0, sizeof *found);
    snprintf(found->name, sizeof found->name, "%s", own.name.c_str());
    write_uuid(driver_number(device), reinterpret_cast<unsigned char*>(found->uuid.bytes));
    found->totalGlobalMem = own.memory_bytes;
    found->sharedMemPerBlock = value(cudaDevAttrMaxSharedMemoryPerBlock);
    found->regsPerBlock = value(cudaDevAttrMaxRegistersPerBlock);
    found->warpSize = value(cudaDevAttrWarpSize);
    found->memPitch = value(cudaDevAttrMaxPitch);
    found->maxThreadsPerBlock = value(cudaDevAttrMaxThreadsPerBlock);
    for (int axis = 0; axis < 3; ++axis) {
        found->maxThreadsDim[axis] = value(cudaDevAttrMaxBlockDimX + axis);
        found->maxGridSize[axis] = value(cudaDevAttrMaxGridDimX + axis);
    }
    found->totalConstMem = value(cudaDevAttrTotalConstantMemory);
    found->major = own.major;
    found->minor = own.minor;
    found->textureAlignment = value(cudaDevAttrTextureAlignment);
    found->multiProcessorCount = own.multiprocessors;
    found->canMapHostMemory = 1;
    found->concurrentKernels = 1;
    found->pciBusID = value(cudaDevAttrPciBusId);
    found->asyncEngineCount = value(cudaDevAttrAsyncEngineCount);
    found->unifiedAddressing = 1;
    found->memoryBusWidth = own.bus_bits;
    found->l2CacheSize = own.l2_bytes;
    found->maxThreadsPerMultiProcessor = own.threads_per_multiprocessor;
    found->streamPrioritiesSupported = 1;
    found->globalL1CacheSupported = 1;
    found->localL1CacheSupported = 1;
    found->sharedMemPerMultiprocessor = own.shared_bytes_per_multiprocessor;
    found->regsPerMultiprocessor = value(cudaDevAttrMaxRegistersPerMultiprocessor);
    found->managedMemory = 1;
    found->concurrentManagedAccess = 1;
    found->computePreemptionSupported = 1;
    found->cooperativeLaunch = 1;
    found->sharedMemPerBlockOptin = own.shared_bytes_per_block;
    found->maxBlocksPerMultiProcessor = value(cudaDevAttrMaxBlocksPerMultiprocessor);
    found->reservedSharedMemPerBlock = value(cudaDevAttrReservedSharedMemoryPerBlock);
    found->hostRegisterSupported = 1;
    found->memoryPoolsSupported = 1;
    found->ipcEventSupported = 1;
    found->clusterLaunch = value(CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH);
#if CUDART_VERSION < 13000
    found->clockRate = own.clock_khz;
    found->memoryClockRate = own.memory_clock_khz;
#endif
    return cudaSuccess;
}

API cudaError_t cudaDeviceGetPCIBusId(char* text, int size, int device) {
    if (!is_device(device)) return answer(cudaErrorInvalidDevice);
    snprintf(text, size, "0000:%02X:00.0", attribute(cudaDevAttrPciBusId, device));
    return cudaSuccess;
}

API cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

API cudaError_t cudaDeviceSynchronize() {
    int device = current_device();
    if (cudaError_t error = failure(device)) return answer(error);
    double until_s = default_stream(device)->busy_until_s;
    {
        std::lock_guard<std::mutex> guard(lock);
        for (Stream* stream : streams) {
            if (stream->device != device) continue;
            if (stream->capture) {
                stream->capture->is_invalid = true;
                return answer(cudaErrorStreamCaptureUnsupported);
            }
            if (stream->busy_until_s > until_s) until_s = stream->busy_until_s;
        }
    }
    wait_until(until_s);
    return cudaSuccess;
}

API cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
    *can = device != peer;
    return cudaSuccess;
}

// Memory

API cudaError_t cudaMalloc(void** pointer, size_t bytes) { return answer(allocate(current_device(), bytes, pointer)); }

API cudaError_t cudaFree(void* pointer) {
    if (cudaError_t error = failure(current_device())) return answer(error);
    return answer(release(pointer));
}

API cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
    int device = current_device();
    if (cudaError_t error = failure(device)) return answer(error);
    if (!has_context(device)) return answer(cudaErrorMemoryAllocation);
    size_t used = used_bytes(driver_number(device));
    *total = properties().memory_bytes;
    *free = *total > used ? *total - used : 0;
    return cudaSuccess;
}

API cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned) {
    if (posix_memalign(pointer, PAGE_BYTES, bytes ? bytes : 1)) return answer(cudaErrorMemoryAllocation);
    std::lock_guard<std::mutex> guard(lock);
    host_ranges[static_cast<char*>(*pointer)] = bytes;
    return cudaSuccess;
}

API cudaError_t cudaMallocHost(void** pointer, size_t bytes) { return cudaHostAlloc(pointer, bytes, 0); }

API cudaError_t cudaFreeHost(void* pointer) {
    {
        std::lock_guard<std::mutex> guard(lock);
        host_ranges.erase(static_cast<char*>(pointer));
    }
    free(pointer);
    return cudaSuccess;
}

API cudaError_t cudaHostRegister(void* pointer, size_t bytes, unsigned) {
    std::lock_guard<std::mutex> guard(lock);
    host_ranges[static_cast<char*>(pointer)] = bytes;
    return cudaSuccess;
}

API cudaError_t cudaHostUnregister(void* pointer) {
    std::lock_guard<std::mutex> guard(lock);
    host_ranges.erase(static_cast<char*>(pointer));
    return cudaSuccess;
}

API cudaError_t cudaHostGetDevicePointer(void** on_device, void* pointer, unsigned) {
    *on_device = pointer;
    return cudaSuccess;
}

API cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* found, const void* pointer) {
    memset(found, 0, sizeof *found);
    void* address = const_cast<void*>(pointer);
    if (find_range(pointer, nullptr, nullptr, &found->device)) {
        found->type = cudaMemoryTypeDevice;
        found->devicePointer = address;
        return cudaSuccess;
    }
    std::lock_guard<std::mutex> guard(lock);
    auto after = host_ranges.upper_bound(static_cast<char*>(address));
    bool is_pinned = after != host_ranges.begin() &&
                     static_cast<char*>(address) < std::prev(after)->first + std::prev(after)->second;
    found->type = is_pinned ? cudaMemoryTypeHost : cudaMemoryTypeUnregistered;
    found->device = is_pinned ? current_device() : -2;  // -2: cudaInvalidDeviceId
    found->devicePointer = is_pinned ? address : nullptr;
    found->hostPointer = address;
    return cudaSuccess;
}

API cudaError_t cudaMemcpy(void* target, const void* source, size_t bytes, cudaMemcpyKind) {
    if (cudaError_t error = forbid_in_capture(stream_of(nullptr))) return answer(error);
    if (cudaError_t error = copy_on(stream_of(nullptr), target, source, bytes)) return error;
    return synchronize(stream_of(nullptr));
}

API cudaError_t cudaMemcpyAsync(void* target, const void* source, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
    return copy_on(stream_of(stream), target, source, bytes);
}

API cudaError_t cudaMemcpyPeerAsync(void* target, int, const void* source, int, size_t bytes, cudaStream_t stream) {
    return copy_on(stream_of(stream), target, source, bytes);
}

API cudaError_t cudaMemcpy2DAsync(void* target, size_t target_pitch, const void* source, size_t source_pitch,
                                  size_t width, size_t height, cudaMemcpyKind, cudaStream_t handle) {
    Stream* stream = stream_of(handle);
    if (cudaError_t error = failure(stream->device)) return answer(error);
    if (!stream->capture && width * height <= MOST_HOST_COPY_BYTES)
        for (size_t row = 0; row < height; ++row)
            copy(static_cast<char*>(target) + row * target_pitch,
                 static_cast<const char*>(source) + row * source_pitch, width);
    work(stream, seconds_per_launch() + width * height / HOST_COPY_BYTES_PER_S);
    return cudaSuccess;
}

API cudaError_t cudaMemsetAsync(void* target, int value, size_t bytes, cudaStream_t handle) {
    Stream* stream = stream_of(handle);
    if (cudaError_t error = failure(stream->device)) return answer(error);
    if (!stream->capture) fill(target, value, bytes);
    work(stream, seconds_per_launch() + bytes / memory_bytes_per_s());
    return cudaSuccess;
}

API cudaError_t cudaMemset(void* target, int value, size_t bytes) {
    return cudaMemsetAsync(target, value, bytes, nullptr);
}

// Variables of kernels

API void __cudaRegisterVar(void**, char* variable, char*, const char*, int, size_t bytes, int, int) {
    std::lock_guard<std::mutex> guard(lock);
    variables[variable] = calloc(1, bytes ? bytes : 1);
}

API cudaError_t cudaGetSymbolAddress(void** pointer, const void* variable) {
    std::lock_guard<std::mutex> guard(lock);
    auto found = variables.find(variable);
    *pointer = found == variables.end() ? nullptr : found->second;
    return *pointer ? cudaSuccess : answer(cudaErrorSymbolNotFound);
}

API cudaError_t cudaMemcpyToSymbol(const void* variable, const void* source, size_t bytes, size_t offset,
                                   cudaMemcpyKind) {
    void* pointer;
    if (cudaError_t error = cudaGetSymbolAddress(&pointer, variable)) return error;
    memcpy(static_cast<char*>(pointer) + offset, source, bytes);
    return cudaSuccess;
}

// Memory in the order of a stream. A pool keeps what is given back, up to its threshold; it is not fragmented.

API cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
    static Pool pools[MAX_DEVICES];
    if (!is_device(device)) return answer(cudaErrorInvalidDevice);
    *pool = reinterpret_cast<cudaMemPool_t>(&pools[device]);
    return cudaSuccess;
}

API cudaError_t cudaMallocAsync(void** pointer, size_t bytes, cudaStream_t handle) {
    Stream* stream = stream_of(handle);
    *pointer = nullptr;
    if (cudaError_t error = failure(stream->device)) return answer(error);
    cudaMemPool_t pool_handle;
    cudaDeviceGetDefaultMemPool(&pool_handle, stream->device);
    Pool* pool = pool_of(pool_handle);
    std::lock_guard<std::mutex> guard(lock);
    size_t unused = pool->reserved - pool->used;
    if (bytes > unused) {
        if (!charge(stream->device, bytes - unused)) return answer(cudaErrorMemoryAllocation);
        size_t added = (bytes - unused + GRANULE_BYTES - 1) / GRANULE_BYTES * GRANULE_BYTES;
        pool->reserved += added;
    }
    void* start = reserve_addresses(bytes, 0);
    if (!start) return answer(cudaErrorMemoryAllocation);
    add_range(start, bytes, stream->device, 0);
    pool_blocks[start] = {pool, bytes};
    pool->used += bytes;
    if (pool->used > pool->most_used) pool->most_used = pool->used;
    if (pool->reserved > pool->most_reserved) pool->most_reserved = pool->reserved;
    *pointer = start;
    return cudaSuccess;
}

API cudaError_t cudaFreeAsync(void* pointer, cudaStream_t) {
    if (!pointer) return cudaSuccess;
    {
        std::lock_guard<std::mutex> guard(lock);
        auto found = pool_blocks.find(pointer);
        if (found != pool_blocks.end()) {
            found->second.first->used -= found->second.second;
            pool_blocks.erase(found);
        }
    }
    return answer(release(pointer));
}

API cudaError_t cudaMemPoolTrimTo(cudaMemPool_t handle, size_t kept_bytes) {
    Pool* pool = pool_of(handle);
    std::lock_guard<std::mutex> guard(lock);
    size_t kept = pool->used > kept_bytes ? pool->used : kept_bytes;
    kept = (kept + GRANULE_BYTES - 1) / GRANULE_BYTES * GRANULE_BYTES;
    if (pool->reserved > kept) {
        for (int device = 0; device < device_count(); ++device) {
            cudaMemPool_t own;
            cudaDeviceGetDefaultMemPool(&own, device);
            if (own == handle) discharge(device, pool->reserved - kept);
        }
        pool->reserved = kept;
    }
    return cudaSuccess;
}

API cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t handle, cudaMemPoolAttr name, void* value) {
    Pool* pool = pool_of(handle);
    std::lock_guard<std::mutex> guard(lock);
    auto write = [value](size_t number) { *static_cast<cuuint64_t*>(value) = number; };
    switch (name) {
        case cudaMemPoolAttrReleaseThreshold: write(pool->release_threshold); break;
        case cudaMemPoolAttrReservedMemCurrent: write(pool->reserved); break;
        case cudaMemPoolAttrReservedMemHigh: write(pool->most_reserved); break;
        case cudaMemPoolAttrUsedMemCurrent: write(pool->used); break;
        case cudaMemPoolAttrUsedMemHigh: write(pool->most_used); break;
        default: *static_cast<int*>(value) = 1;
    }
    return cudaSuccess;
}

API cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t handle, cudaMemPoolAttr name, void* value) {
    Pool* pool = pool_of(handle);
    std::lock_guard<std::mutex> guard(lock);
    if (name == cudaMemPoolAttrReleaseThreshold) pool->release_threshold = *static_cast<cuuint64_t*>(value);
    if (name == cudaMemPoolAttrReservedMemHigh) pool->most_reserved = pool->reserved;
    if (name == cudaMemPoolAttrUsedMemHigh) pool->most_used = pool->used;
    return cudaSuccess;
}

// Memory of another process: an address range of the same size, with what stands in the other's first megabytes now.

namespace {
struct MemoryHandle {
    int process;
    int driver_device;
    void* start;
    size_t bytes;
};
}  // namespace

API cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* pointer) {
    MemoryHandle own{};
    int device;
    if (!find_range(pointer, &own.start, &own.bytes, &device)) return answer(cudaErrorInvalidValue);
    own.process = getpid();
    own.driver_device = driver_number(device);
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &own, sizeof own);
    return cudaSuccess;
}

API cudaError_t cudaIpcOpenMemHandle(void** pointer, cudaIpcMemHandle_t handle, unsigned) {
    MemoryHandle other;
    memcpy(&other, &handle, sizeof other);
    *pointer = reserve_addresses(other.bytes, 0);
    if (!*pointer) return answer(cudaErrorMemoryAllocation);
    add_range(*pointer, other.bytes, current_device(), 0);
    std::vector<char> contents(other.bytes < MOST_HOST_COPY_BYTES ? other.bytes : MOST_HOST_COPY_BYTES);
    iovec target{contents.data(), contents.size()}, source{other.start, contents.size()};
    // Where the kernel does not permit it, the memory holds zeros.
    ssize_t num_read = process_vm_readv(other.process, &target, 1, &source, 1, 0);
    if (num_read > 0) write(*pointer, contents.data(), num_read);
    return cudaSuccess;
}

API cudaError_t cudaIpcCloseMemHandle(void* pointer) { return answer(release(pointer)); }

API cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t* handle, cudaEvent_t) {
    memset(handle, 0, sizeof *handle);
    return cudaSuccess;
}

API cudaError_t cudaIpcOpenEventHandle(cudaEvent_t* event, cudaIpcEventHandle_t) {
    *event = reinterpret_cast<cudaEvent_t>(new Event());
    return cudaSuccess;
}

// Streams

API cudaError_t cudaStreamCreateWithPriority(cudaStream_t* handle, unsigned flags, int priority) {
    if (cudaError_t error = failure(current_device())) return answer(error);
    std::lock_guard<std::mutex> guard(lock);
    Stream* stream = new Stream{current_device(), flags, priority};
    streams.insert(stream);
    *handle = reinterpret_cast<cudaStream_t>(stream);
    return cudaSuccess;
}

API cudaError_t cudaStreamCreateWithFlags(cudaStream_t* handle, unsigned flags) {
    return cudaStreamCreateWithPriority(handle, flags, 0);
}

API cudaError_t cudaStreamCreate(cudaStream_t* handle) { return cudaStreamCreateWithPriority(handle, 0, 0); }

API cudaError_t cudaStreamDestroy(cudaStream_t handle) {
    std::lock_guard<std::mutex> guard(lock);
    Stream* stream = stream_of(handle);
    streams.erase(stream);
    delete stream;
    return cudaSuccess;
}

API cudaError_t cudaStreamGetPriority(cudaStream_t handle, int* priority) {
    std::lock_guard<std::mutex> guard(lock);
    *priority = stream_of(handle)->priority;
    return cudaSuccess;
}

API cudaError_t cudaStreamSynchronize(cudaStream_t handle) { return synchronize(stream_of(handle)); }

API cudaError_t cudaStreamQuery(cudaStream_t handle) {
    Stream* stream = stream_of(handle);
    if (cudaError_t error = failure(stream->device)) return answer(error);
    std::lock_guard<std::mutex> guard(lock);
    return now_s() >= stream->busy_until_s ? cudaSuccess : cudaErrorNotReady;
}

API cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event_handle, unsigned) {
    std::lock_guard<std::mutex> guard(lock);
    Stream* stream = stream_of(handle);
    Event* event = event_of(event_handle);
    if (event->capture && !stream->capture) {
        stream->capture = event->capture;
        event->capture->streams.insert(stream);
    }
    if (event->at_s > stream->busy_until_s) stream->busy_until_s = event->at_s;
    return cudaSuccess;
}

API cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void* data) {
    Stream* stream = stream_of(handle);
    if (!stream->capture) function(data);
    work(stream, seconds_per_launch());
    return cudaSuccess;
}

API cudaError_t cudaStreamAddCallback(cudaStream_t handle, cudaStreamCallback_t function, void* data, unsigned) {
    function(handle, failure(stream_of(handle)->device), data);
    return cudaSuccess;
}

// Events

API cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
    if (cudaError_t error = failure(current_device())) return answer(error);
    *event = reinterpret_cast<cudaEvent_t>(new Event());
    return cudaSuccess;
}

API cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }

API cudaError_t cudaEventDestroy(cudaEvent_t event) {
    delete event_of(event);
    return cudaSuccess;
}

API cudaError_t cudaEventRecordWithFlags(cudaEvent_t handle, cudaStream_t stream_handle, unsigned) {
    std::lock_guard<std::mutex> guard(lock);
    Stream* stream = stream_of(stream_handle);
    Event* event = event_of(handle);
    double now = now_s();
    event->at_s = stream->busy_until_s > now ? stream->busy_until_s : now;
    event->is_recorded = true;
    event->capture = stream->capture;
    return cudaSuccess;
}

API cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    return cudaEventRecordWithFlags(event, stream, 0);
}

API cudaError_t cudaEventQuery(cudaEvent_t event) {
    if (cudaError_t error = failure(current_device())) return answer(error);
    std::lock_guard<std::mutex> guard(lock);
    return now_s() >= event_of(event)->at_s ? cudaSuccess : cudaErrorNotReady;
}

API cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    if (cudaError_t error = failure(current_device())) return answer(error);
    double until_s;
    {
        std::lock_guard<std::mutex> guard(lock);
        until_s = event_of(event)->at_s;
    }
    wait_until(until_s);
    return cudaSuccess;
}

API cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
    std::lock_guard<std::mutex> guard(lock);
    if (!event_of(start)->is_recorded || !event_of(end)->is_recorded) return answer(cudaErrorInvalidResourceHandle);
    double now = now_s();
    if (now < event_of(start)->at_s || now < event_of(end)->at_s) return cudaErrorNotReady;
    *milliseconds = (event_of(end)->at_s - event_of(start)->at_s) * 1e3;
    return cudaSuccess;
}

// Graphs

API cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t handle, cudaGraph_t graph, const cudaGraphNode_t*,
                                              const cudaGraphEdgeData*, size_t, cudaStreamCaptureMode) {
    static unsigned long long num_begun = 0;
    std::lock_guard<std::mutex> guard(lock);
    Stream* stream = stream_of(handle);
    if (stream->capture) return answer(cudaErrorInvalidValue);
    stream->capture = new Capture{++num_begun, graph_of(graph), stream, {stream}};
    return cudaSuccess;
}

API cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
    cudaGraph_t graph = reinterpret_cast<cudaGraph_t>(new Graph());
    return cudaStreamBeginCaptureToGraph(stream, graph, nullptr, nullptr, 0, mode);
}

API cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
    std::lock_guard<std::mutex> guard(lock);
    Capture* capture = stream_of(handle)->capture;
    *graph = nullptr;
    if (!capture) return answer(cudaErrorInvalidValue);
    for (Stream* stream : capture->streams)
        if (streams.count(stream)) stream->capture = nullptr;
    // The capture stays: events that were recorded in it still name it.
    if (capture->is_invalid) return answer(cudaErrorStreamCaptureInvalidated);
    *graph = reinterpret_cast<cudaGraph_t>(capture->graph);
    return cudaSuccess;
}

API cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
    std::lock_guard<std::mutex> guard(lock);
    Capture* capture = stream_of(handle)->capture;
    *status = !capture              ? cudaStreamCaptureStatusNone
              : capture->is_invalid ? cudaStreamCaptureStatusInvalidated
                                    : cudaStreamCaptureStatusActive;
    return cudaSuccess;
}

namespace {
cudaError_t capture_info(cudaStream_t handle, cudaStreamCaptureStatus* status, unsigned long long* id,
                         cudaGraph_t* graph, const cudaGraphNode_t** nodes, size_t* num_nodes) {
    cudaStreamIsCapturing(handle, status);
    std::lock_guard<std::mutex> guard(lock);
    Capture* capture = stream_of(handle)->capture;
    if (id) *id = capture ? capture->id : 0;
    if (graph) *graph = capture ? reinterpret_cast<cudaGraph_t>(capture->graph) : nullptr;
    if (nodes) *nodes = nullptr;
    if (num_nodes) *num_nodes = 0;
    return cudaSuccess;
}
}  // namespace

#if CUDART_VERSION >= 13000
API cudaError_t cudaStreamGetCaptureInfo(
#else
API cudaError_t cudaStreamGetCaptureInfo_v2(cudaStream_t handle, cudaStreamCaptureStatus* status,
                                            unsigned long long* id, cudaGraph_t* graph, const cudaGraphNode_t** nodes,
                                            size_t* num_nodes) {
    return capture_info(handle, status, id, graph, nodes, num_nodes);
}

API cudaError_t cudaStreamGetCaptureInfo_v3(
#endif
    cudaStream_t handle, cudaStreamCaptureStatus* status, unsigned long long* id, cudaGraph_t* graph,
    const cudaGraphNode_t** nodes, const cudaGraphEdgeData** edges, size_t* num_nodes) {
    if (edges) *edges = nullptr;
    return capture_info(handle, status, id, graph, nodes, num_nodes);
}

API cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
    static thread_local cudaStreamCaptureMode own = cudaStreamCaptureModeGlobal;
    std::swap(own, *mode);
    return cudaSuccess;
}

API cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
    *executable = reinterpret_cast<cudaGraphExec_t>(new Graph(*graph_of(graph)));
    return cudaSuccess;
}

API cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long flags) {
    return cudaGraphInstantiateWithFlags(executable, graph, flags);
}

API cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
    return launch(stream, GRAPH_LAUNCH_S + graph_of(executable)->duration_s);
}

API cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    delete graph_of(graph);
    return cudaSuccess;
}

API cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
    delete graph_of(executable);
    return cudaSuccess;
}

API cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* num_nodes) {
    size_t all = graph_of(graph)->num_nodes;
    for (size_t at = 0; nodes && at < *num_nodes && at < all; ++at)
        nodes[at] = reinterpret_cast<cudaGraphNode_t>(at + 1);
    *num_nodes = all;
    return cudaSuccess;
}

API cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t, cudaGraphNode_t*,
#if CUDART_VERSION >= 13000
                                             cudaGraphEdgeData*,
#endif
                                             size_t* count) {
    *count = 0;
    return cudaSuccess;
}

API cudaError_t cudaGraphAddNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t*,
#if CUDART_VERSION >= 13000
                                 const cudaGraphEdgeData*,
#endif
                                 size_t, cudaGraphNodeParams*) {
    *node = reinterpret_cast<cudaGraphNode_t>(++graph_of(graph)->num_nodes);
    return cudaSuccess;
}

API cudaError_t cudaGraphDebugDotPrint(cudaGraph_t, const char* path, unsigned) {
    FILE* file = fopen(path, "w");
    if (!file) return answer(cudaErrorInvalidValue);
    fputs("digraph emulated {}\n", file);
    fclose(file);
    return cudaSuccess;
}

// Launches

namespace {
struct LaunchConfiguration {
    dim3 grid, block;
    size_t shared_bytes;
    cudaStream_t stream;
};
thread_local LaunchConfiguration pushed;
}  // namespace

API unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream) {
    pushed = {grid, block, shared_bytes, stream};
    return 0;
}

API cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared_bytes, void* stream) {
    *grid = pushed.grid;
    *block = pushed.block;
    *shared_bytes = pushed.shared_bytes;
    *static_cast<cudaStream_t*>(stream) = pushed.stream;
    return cudaSuccess;
}

API void** __cudaRegisterFatBinary(void*) {
    static void* binary[1];
    return binary;
}

API cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
    *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(function));
    return cudaSuccess;
}

API char __cudaInitModule(void**) { return 1; }

API void __cudaRegisterFunction(void**, const char* function, char*, const char* name, int, void*, void*, void*, void*,
                                int*) {
    register_kernel(function, name);
}

API cudaError_t cudaLaunchKernel(const void* function, dim3, dim3, void** arguments, size_t, cudaStream_t stream) {
    if (!stream_of(stream)->capture) do_kernel(function, arguments);
    return launch(stream);
}

API cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, size_t shared_bytes,
                                   cudaStream_t stream) {
    return cudaLaunchKernel(kernel, grid, block, arguments, shared_bytes, stream);
}

API cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* configuration, const void*, void**) {
    return launch(configuration->stream);
}

API cudaError_t cudaLaunchCooperativeKernel(const void*, dim3, dim3, void**, size_t, cudaStream_t stream) {
    return launch(stream);
}

namespace {
// The architecture that a kernel is compiled for. PyTorch's wheels hold code for 7.5, 8.0, 8.6, 9.0, 10.0 and 12.0
// (those of CUDA 12 for 7.0 too), and a device takes the nearest before it; CUB refuses one that it has no code for.
int code_version() {
    int major = properties().major, minor = properties().minor;
    if (major == 7) return major * 10 + minor;
    return major * 10 + (major == 8 && minor >= 6 ? 6 : 0);
}
}  // namespace

API cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* found, const void*) {
    memset(found, 0, sizeof *found);
    found->maxThreadsPerBlock = 1024;
    found->numRegs = 32;
    found->binaryVersion = found->ptxVersion = code_version();
    found->maxDynamicSharedSizeBytes = 48 << 10;
    return cudaSuccess;
}

API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* count, const void*, int block_threads,
                                                                       size_t, unsigned) {
    int fitting = block_threads > 0 ? properties().threads_per_multiprocessor / block_threads : 1;
    *count = fitting < 1 ? 1 : fitting > 32 ? 32 : fitting;
    return cudaSuccess;
}

API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* count, const void* function, int block_threads,
                                                              size_t shared_bytes) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(count, function, block_threads, shared_bytes, 0);
}

// Libraries of kernels, and the driver

API cudaError_t cudaLibraryLoadData(cudaLibrary_t* library, const void*, cudaJitOption*, void**, unsigned,
                                    cudaLibraryOption*, void**, unsigned) {
    *library = reinterpret_cast<cudaLibrary_t>(library);
    return cudaSuccess;
}

API cudaError_t cudaLibraryGetKernel(cudaKernel_t* kernel, cudaLibrary_t library, const char*) {
    *kernel = reinterpret_cast<cudaKernel_t>(library);
    return cudaSuccess;
}

API cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                                 cudaDriverEntryPointQueryResult* result) {
    static void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    *function = driver ? dlsym(driver, (std::string(name) + "_v2").c_str()) : nullptr;
    if (driver && !*function) *function = dlsym(driver, name);
    if (result) *result = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}

API cudaError_t cudaGetDriverEntryPoint(const char* name, void** function, unsigned long long flags,
                                        cudaDriverEntryPointQueryResult* result) {
    return cudaGetDriverEntryPointByVersion(name, function, BEXPLORE_CUDA_VERSION, flags, result);
}
