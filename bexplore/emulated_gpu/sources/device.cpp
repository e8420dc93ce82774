// What the devices are, who uses their memory, and how they fail.
#include "device.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <map>
#include <mutex>

namespace emulated {
namespace {

constexpr int MAX_PROCESSES = 512;

// What one process takes of each device, in a file that all processes of an exploration map.
struct Usage {
    std::atomic<int> process;
    std::atomic<size_t> bytes[MAX_DEVICES];
};

struct SharedState {
    std::atomic<int> is_lost[MAX_DEVICES];
    Usage usages[MAX_PROCESSES];
};

struct Range {
    size_t bytes;
    size_t charged_bytes;
    int device;
};

// Never destroyed, as all containers here: threads of PyTorch still call while the process ends.
std::mutex& ranges_lock = *new std::mutex();
std::map<char*, Range>& ranges = *new std::map<char*, Range>();
std::atomic<long> num_allocations{0};
std::atomic<long> num_launches{0};
std::atomic<int> sticky_error{cudaSuccess};

std::string text_in_environment(const char* name) {
    const char* value = getenv(name);
    return value ? value : "";
}

SharedState* map_shared_state() {
    std::string folder = shared_folder();
    if (!folder.empty()) {
        int file = open((folder + "/devices").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (file >= 0 && ftruncate(file, sizeof(SharedState)) == 0) {
            void* state = mmap(nullptr, sizeof(SharedState), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
            close(file);
            if (state != MAP_FAILED) return static_cast<SharedState*>(state);
        }
    }
    return new SharedState();
}

SharedState& shared_state() {
    static SharedState* state = map_shared_state();
    return *state;
}

bool is_alive(int process) { return kill(process, 0) == 0 || errno == EPERM; }

void forget_ended_processes() {
    for (Usage& usage : shared_state().usages) {
        int process = usage.process;
        if (process <= 0 || is_alive(process)) continue;
        if (!usage.process.compare_exchange_strong(process, -1)) continue;  // -1: nobody else takes it meanwhile
        for (auto& bytes : usage.bytes) bytes = 0;
        usage.process = 0;
    }
}

Usage* take_usage() {
    for (int attempt = 0; attempt < 2; ++attempt) {
        for (Usage& usage : shared_state().usages) {
            int nobody = 0;
            if (usage.process.compare_exchange_strong(nobody, getpid())) return &usage;
        }
        forget_ended_processes();
    }
    return new Usage();  // more processes than places: this one is counted alone
}

Usage& own_usage() {
    static Usage* usage = take_usage();
    return *usage;
}

size_t sum_of_usages(int driver_device) {
    size_t sum = 0;
    for (const Usage& usage : shared_state().usages)
        if (usage.process > 0) sum += usage.bytes[driver_device];
    return sum;
}

bool add_usage(int driver_device, size_t bytes) {
    auto& own = own_usage().bytes[driver_device];
    own += bytes;
    if (sum_of_usages(driver_device) <= properties().memory_bytes) return true;
    forget_ended_processes();
    if (sum_of_usages(driver_device) <= properties().memory_bytes) return true;
    own -= bytes;
    return false;
}

bool make_context(int driver_device) {
    static std::mutex lock;
    static bool is_made[MAX_DEVICES];
    std::lock_guard<std::mutex> guard(lock);
    if (is_made[driver_device]) return true;
    is_made[driver_device] = add_usage(driver_device, properties().context_bytes);
    return is_made[driver_device];
}

size_t rounded_up(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

Properties read_properties() {
    auto number = [](const char* name) { return number_in_environment(name, 0); };
    Properties read;
    read.name = text_in_environment("BEXPLORE_EMULATED_NAME");
    read.memory_bytes = number("BEXPLORE_EMULATED_MEMORY_BYTES");
    read.context_bytes = number("BEXPLORE_EMULATED_CONTEXT_BYTES");
    read.major = number("BEXPLORE_EMULATED_CAPABILITY_MAJOR");
    read.minor = number("BEXPLORE_EMULATED_CAPABILITY_MINOR");
    read.multiprocessors = number("BEXPLORE_EMULATED_MULTIPROCESSORS");
    read.threads_per_multiprocessor = number("BEXPLORE_EMULATED_THREADS_PER_MULTIPROCESSOR");
    read.shared_bytes_per_multiprocessor = number("BEXPLORE_EMULATED_SHARED_BYTES_PER_MULTIPROCESSOR");
    read.shared_bytes_per_block = number("BEXPLORE_EMULATED_SHARED_BYTES_PER_BLOCK");
    read.l2_bytes = number("BEXPLORE_EMULATED_L2_BYTES");
    read.clock_khz = number("BEXPLORE_EMULATED_CLOCK_KHZ");
    read.memory_clock_khz = number("BEXPLORE_EMULATED_MEMORY_CLOCK_KHZ");
    read.bus_bits = number("BEXPLORE_EMULATED_BUS_BITS");
    return read;
}

std::string uuid_text(int driver_device) {
    unsigned char uuid[16];
    write_uuid(driver_device, uuid);
    std::string text = "GPU-";
    for (int at = 0; at < 16; ++at) {
        char digits[4];
        snprintf(digits, sizeof digits, "%02x", uuid[at]);
        if (at == 4 || at == 6 || at == 8 || at == 10) text += "-";
        text += digits;
    }
    return text;
}

// CUDA_VISIBLE_DEVICES holds numbers or beginnings of UUIDs; the first that is none ends the list.
std::vector<int> read_visible_devices() {
    std::vector<int> visible;
    const char* listed = getenv("CUDA_VISIBLE_DEVICES");
    if (!listed) {
        for (int device = 0; device < driver_device_count(); ++device) visible.push_back(device);
        return visible;
    }
    std::string text = std::string(listed) + ",";
    for (size_t start = 0, end; (end = text.find(',', start)) != std::string::npos; start = end + 1) {
        std::string entry = text.substr(start, end - start);
        while (!entry.empty() && entry.front() == ' ') entry.erase(0, 1);
        while (!entry.empty() && entry.back() == ' ') entry.pop_back();
        int found = -1;
        if (entry.rfind("GPU-", 0) == 0) {
            for (int device = 0; device < driver_device_count(); ++device)
                if (uuid_text(device).rfind(entry, 0) == 0) found = device;
        } else if (!entry.empty()) {
            char* rest = nullptr;
            long number = strtol(entry.c_str(), &rest, 10);
            if (*rest == 0 && number >= 0 && number < driver_device_count()) found = number;
        }
        if (found < 0) break;
        visible.push_back(found);
    }
    return visible;
}

const std::vector<int>& visible_devices() {
    static const auto& visible = *new std::vector<int>(read_visible_devices());
    return visible;
}

}  // namespace

long number_in_environment(const char* name, long otherwise) {
    const char* value = getenv(name);
    return value && *value ? strtol(value, nullptr, 10) : otherwise;
}

std::string shared_folder() { return text_in_environment("BEXPLORE_EMULATED_SHARED_FOLDER"); }

const Properties& properties() {
    static const Properties& read = *new Properties(read_properties());
    return read;
}

int driver_device_count() {
    static const int count = number_in_environment("BEXPLORE_EMULATED_DEVICES", 0);
    return count < MAX_DEVICES ? count : MAX_DEVICES;
}

int device_count() { return visible_devices().size(); }

int driver_number(int device) { return visible_devices().at(device); }

void write_uuid(int driver_device, unsigned char uuid[16]) {
    memset(uuid, 0, 16);
    memcpy(uuid, "bexplore", 8);
    uuid[15] = driver_device;
}

int& current_device() {
    static thread_local int device = 0;
    return device;
}

int attribute(int attribute, int device) {
    const Properties& own = properties();
    switch (attribute) {
        case cudaDevAttrMaxThreadsPerBlock: return 1024;
        case cudaDevAttrMaxBlockDimX: return 1024;
        case cudaDevAttrMaxBlockDimY: return 1024;
        case cudaDevAttrMaxBlockDimZ: return 64;
        case cudaDevAttrMaxGridDimX: return 2147483647;
        case cudaDevAttrMaxGridDimY: return 65535;
        case cudaDevAttrMaxGridDimZ: return 65535;
        case cudaDevAttrMaxSharedMemoryPerBlock: return 48 << 10;
        case cudaDevAttrTotalConstantMemory: return 64 << 10;
        case cudaDevAttrWarpSize: return 32;
        case cudaDevAttrMaxPitch: return 2147483647;
        case cudaDevAttrMaxRegistersPerBlock: return 65536;
        case cudaDevAttrMaxRegistersPerMultiprocessor: return 65536;
        case cudaDevAttrClockRate: return own.clock_khz;
        case cudaDevAttrTextureAlignment: return 512;
        case cudaDevAttrGpuOverlap: return 1;
        case cudaDevAttrMultiProcessorCount: return own.multiprocessors;
        case cudaDevAttrCanMapHostMemory: return 1;
        case cudaDevAttrConcurrentKernels: return 1;
        case cudaDevAttrPciBusId: return driver_number(device) + 1;
        case cudaDevAttrMemoryClockRate: return own.memory_clock_khz;
        case cudaDevAttrGlobalMemoryBusWidth: return own.bus_bits;
        case cudaDevAttrL2CacheSize: return own.l2_bytes;
        case cudaDevAttrMaxThreadsPerMultiProcessor: return own.threads_per_multiprocessor;
        case cudaDevAttrAsyncEngineCount: return 3;
        case cudaDevAttrUnifiedAddressing: return 1;
        case cudaDevAttrComputeCapabilityMajor: return own.major;
        case cudaDevAttrComputeCapabilityMinor: return own.minor;
        case cudaDevAttrStreamPrioritiesSupported: return 1;
        case cudaDevAttrGlobalL1CacheSupported: return 1;
        case cudaDevAttrLocalL1CacheSupported: return 1;
        case cudaDevAttrMaxSharedMemoryPerMultiprocessor: return own.shared_bytes_per_multiprocessor;
        case cudaDevAttrManagedMemory: return 1;
        case cudaDevAttrConcurrentManagedAccess: return 1;
        case cudaDevAttrComputePreemptionSupported: return 1;
        case cudaDevAttrCooperativeLaunch: return 1;
        case cudaDevAttrMaxSharedMemoryPerBlockOptin: return own.shared_bytes_per_block;
        case cudaDevAttrHostRegisterSupported: return 1;
        case cudaDevAttrMaxBlocksPerMultiprocessor: return 32;
        case cudaDevAttrReservedSharedMemoryPerBlock: return own.major >= 8 ? 1024 : 0;
        case cudaDevAttrMemoryPoolsSupported: return 1;
        case cudaDevAttrIpcEventSupport: return 1;
        case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED: return 1;
        case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED: return 1;
        case CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH: return own.major >= 9;
        default: return 0;
    }
}

namespace {

// The allocation that shall fail, and the one by which PyTorch tries it again.
bool is_refused(size_t bytes) {
    static const long refused = number_in_environment("BEXPLORE_EMULATED_OUT_OF_MEMORY_AT_ALLOCATION", 0);
    static std::atomic<size_t> refused_bytes{0};
    long nth = ++num_allocations;
    if (nth == refused) refused_bytes = bytes;
    return nth == refused || (nth == refused + 1 && bytes == refused_bytes);
}

}  // namespace

bool has_context(int device) { return make_context(driver_number(device)); }

bool charge(int device, size_t bytes) {
    if (is_refused(bytes)) return false;
    int number = driver_number(device);
    return make_context(number) && add_usage(number, rounded_up(bytes, GRANULE_BYTES));
}

void discharge(int device, size_t bytes) {
    own_usage().bytes[driver_number(device)] -= rounded_up(bytes, GRANULE_BYTES);
}

size_t used_bytes(int driver_device) {
    forget_ended_processes();
    return sum_of_usages(driver_device);
}

std::vector<Process> processes(int driver_device) {
    forget_ended_processes();
    std::vector<Process> found;
    for (const Usage& usage : shared_state().usages)
        if (usage.process > 0 && usage.bytes[driver_device] > 0)
            found.push_back({usage.process, usage.bytes[driver_device]});
    return found;
}

void* reserve_addresses(size_t bytes, size_t alignment) {
    size_t whole = rounded_up(bytes ? bytes : 1, PAGE_BYTES);
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void* found = mmap(nullptr, whole + alignment, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (found == MAP_FAILED) return nullptr;
    char* start = reinterpret_cast<char*>(rounded_up(reinterpret_cast<size_t>(found), alignment ? alignment : 1));
    size_t before = start - static_cast<char*>(found);
    if (before) munmap(found, before);
    if (alignment > before) munmap(start + whole, alignment - before);
    return start;
}

void add_range(void* start, size_t bytes, int device, size_t charged_bytes) {
    std::lock_guard<std::mutex> guard(ranges_lock);
    ranges[static_cast<char*>(start)] = {bytes, charged_bytes, device};
}

void forget_range(void* start) {
    std::lock_guard<std::mutex> guard(ranges_lock);
    ranges.erase(static_cast<char*>(start));
}

bool remove_range(void* start) {
    Range range;
    {
        std::lock_guard<std::mutex> guard(ranges_lock);
        auto found = ranges.find(static_cast<char*>(start));
        if (found == ranges.end()) return false;
        range = found->second;
        ranges.erase(found);
    }
    munmap(start, rounded_up(range.bytes ? range.bytes : 1, PAGE_BYTES));
    if (range.charged_bytes) discharge(range.device, range.charged_bytes);
    return true;
}

bool find_range(const void* pointer, void** start, size_t* bytes, int* device) {
    std::lock_guard<std::mutex> guard(ranges_lock);
    char* address = static_cast<char*>(const_cast<void*>(pointer));
    auto after = ranges.upper_bound(address);
    if (after == ranges.begin()) return false;
    auto found = std::prev(after);
    if (address >= found->first + found->second.bytes) return false;
    if (start) *start = found->first;
    if (bytes) *bytes = found->second.bytes;
    if (device) *device = found->second.device;
    return true;
}

cudaError_t allocate(int device, size_t bytes, void** pointer) {
    *pointer = nullptr;
    if (cudaError_t error = failure(device)) return error;
    if (!charge(device, bytes)) return cudaErrorMemoryAllocation;
    void* start = reserve_addresses(bytes, 0);
    if (!start) {
        discharge(device, bytes);
        return cudaErrorMemoryAllocation;
    }
    add_range(start, bytes, device, bytes);
    *pointer = start;
    return cudaSuccess;
}

cudaError_t release(void* pointer) {
    if (!pointer) return cudaSuccess;
    return remove_range(pointer) ? cudaSuccess : cudaErrorInvalidValue;
}

namespace {

struct Known {
    size_t bytes;
    long at_launch;
};

constexpr long LASTING = LONG_MAX;  // as the launch at which something was known: never forgotten

std::mutex& known_lock = *new std::mutex();
std::map<char*, Known>& known = *new std::map<char*, Known>();  // disjoint
// What a copy or a kernel wrote some time ago, by its start: bytes. A kernel that is not done may have overwritten it,
// so that it is read as a whole or not at all, as lengths of samples are long after their batch came.
std::map<char*, size_t>& aged = *new std::map<char*, size_t>();  // disjoint, and apart from what is known

char* page_after(char* address) {
    return reinterpret_cast<char*>(rounded_up(reinterpret_cast<size_t>(address), PAGE_BYTES));
}

char* page_before(char* address) {
    return reinterpret_cast<char*>(reinterpret_cast<size_t>(address) / PAGE_BYTES * PAGE_BYTES);
}

void give_pages_back(char* start, size_t bytes) {
    char* first = page_after(start);
    char* last = page_before(start + bytes);
    if (first < last) madvise(first, last - first, MADV_DONTNEED);
}

template <typename Condition>
void forget_where(Condition holds) {
    for (auto entry = known.begin(); entry != known.end();) {
        if (!holds(entry->second)) {
            ++entry;
            continue;
        }
        if (entry->second.bytes <= MOST_AGED_BYTES && aged.size() < MOST_AGED)
            aged[entry->first] = entry->second.bytes;
        else if (find_range(entry->first, nullptr, nullptr, nullptr))
            give_pages_back(entry->first, entry->second.bytes);
        entry = known.erase(entry);
    }
}

void forget_old() {
    static long last_launch = 0;
    if (num_launches == last_launch) return;
    last_launch = num_launches;
    forget_where([](const Known& one) { return num_launches - one.at_launch > LAUNCHES_UNTIL_FORGOTTEN; });
}

bool is_aged(const void* start, size_t bytes) {
    auto entry = aged.find(static_cast<char*>(const_cast<void*>(start)));
    return entry != aged.end() && entry->second == bytes && find_range(start, nullptr, nullptr, nullptr);
}

void forget_aged(char* start, size_t bytes) {
    auto entry = aged.upper_bound(start);
    if (entry != aged.begin() && std::prev(entry)->first + std::prev(entry)->second > start) --entry;
    while (entry != aged.end() && entry->first < start + bytes) entry = aged.erase(entry);
}

// Cuts a range out of what is known.
void cut_out(char* start, size_t bytes) {
    forget_aged(start, bytes);
    char* end = start + bytes;
    auto entry = known.upper_bound(start);
    if (entry != known.begin()) --entry;
    while (entry != known.end() && entry->first < end) {
        char* own_start = entry->first;
        char* own_end = own_start + entry->second.bytes;
        long at_launch = entry->second.at_launch;
        if (own_end <= start) {
            ++entry;
            continue;
        }
        entry = known.erase(entry);
        if (own_start < start) known[own_start] = {static_cast<size_t>(start - own_start), at_launch};
        if (own_end > end) known[end] = {static_cast<size_t>(own_end - end), at_launch};
    }
}

bool is_on_device(const void* pointer) { return find_range(pointer, nullptr, nullptr, nullptr); }

}  // namespace

void read(void* target, const void* source, size_t bytes) {
    if (!is_on_device(source)) {
        memmove(target, source, bytes);
        return;
    }
    std::lock_guard<std::mutex> guard(known_lock);
    forget_old();
    char* start = static_cast<char*>(const_cast<void*>(source));
    char* end = start + bytes;
    if (is_aged(source, bytes)) {
        memcpy(target, source, bytes);
        return;
    }
    memset(target, 0, bytes);
    auto entry = known.upper_bound(start);
    if (entry != known.begin()) --entry;
    for (; entry != known.end() && entry->first < end; ++entry) {
        char* from = entry->first > start ? entry->first : start;
        char* to = entry->first + entry->second.bytes < end ? entry->first + entry->second.bytes : end;
        if (from < to) memcpy(static_cast<char*>(target) + (from - start), from, to - from);
    }
}

void write(void* target, const void* source, size_t bytes) {
    if (!is_on_device(target)) {
        memmove(target, source, bytes);
        return;
    }
    std::lock_guard<std::mutex> guard(known_lock);
    forget_old();
    char* start = static_cast<char*>(target);
    cut_out(start, bytes);
    if (bytes > MOST_HOST_COPY_BYTES) return;
    memcpy(start, source, bytes);
    known[start] = {bytes, num_launches};
}

void write_lasting(void* target, const void* source, size_t bytes) {
    write(target, source, bytes);
    std::lock_guard<std::mutex> guard(known_lock);
    auto entry = known.find(static_cast<char*>(target));
    if (entry != known.end()) entry->second.at_launch = LASTING;
}

bool is_known(const void* start, size_t bytes) {
    std::lock_guard<std::mutex> guard(known_lock);
    forget_old();
    if (is_aged(start, bytes)) return true;
    char* address = static_cast<char*>(const_cast<void*>(start));
    auto entry = known.upper_bound(address);
    if (entry == known.begin()) return false;
    --entry;
    char* until = entry->first + entry->second.bytes;  // what several ranks wrote lies side by side
    while (++entry != known.end() && entry->first == until) until += entry->second.bytes;
    return address < until && address + bytes <= until;
}

void forget(void* start, size_t bytes) {
    std::lock_guard<std::mutex> guard(known_lock);
    cut_out(static_cast<char*>(start), bytes);
}

void forget_all() {
    std::lock_guard<std::mutex> guard(known_lock);
    forget_where([](const Known& one) { return one.at_launch != LASTING; });
    aged.clear();
}

void copy(void* target, const void* source, size_t bytes) {
    if (!bytes || target == source) return;
    if (!is_on_device(target)) return read(target, source, bytes);
    if (!is_on_device(source)) return write(target, source, bytes);
    if (bytes <= MOST_DEVICE_COPY_BYTES) {
        std::vector<char> contents(bytes);
        read(contents.data(), source, bytes);
        write(target, contents.data(), bytes);
    } else {
        forget(target, bytes);
    }
}

void fill(void* target, int value, size_t bytes) {
    if (bytes <= MOST_DEVICE_COPY_BYTES) {
        std::vector<char> contents(bytes, static_cast<char>(value));
        write(target, contents.data(), bytes);
    } else if (is_on_device(target)) {
        forget(target, bytes);
    } else {
        memset(target, value, bytes);
    }
}

double now_s() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

// An error of a kernel shows at the calls after its launch, as it does on a device.
void count_launch() {
    struct Fault {
        const char* variable;
        cudaError_t error;
    };
    static const Fault faults[] = {
        {"BEXPLORE_EMULATED_ILLEGAL_ACCESS_AT_LAUNCH", cudaErrorIllegalAddress},
        {"BEXPLORE_EMULATED_UNCORRECTABLE_ECC_AT_LAUNCH", cudaErrorECCUncorrectable},
        {"BEXPLORE_EMULATED_DEVICE_LOST_AT_LAUNCH", cudaErrorUnknown},
    };
    static const bool has_faults = [] {
        for (const Fault& fault : faults)
            if (getenv(fault.variable)) return true;
        return false;
    }();
    long nth = ++num_launches;
    if (!has_faults) return;
    for (const Fault& fault : faults) {
        if (nth != number_in_environment(fault.variable, 0)) continue;
        if (fault.error == cudaErrorUnknown)
            shared_state().is_lost[driver_number(current_device())] = 1;
        else
            sticky_error = fault.error;
    }
}

bool is_lost(int driver_device) { return shared_state().is_lost[driver_device]; }

cudaError_t failure(int device) {
    if (is_lost(driver_number(device))) return cudaErrorUnknown;
    return static_cast<cudaError_t>(sticky_error.load());
}

namespace {

struct ErrorText {
    int error;
    const char* name;
    const char* text;
};

const ErrorText ERROR_TEXTS[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInitializationError, "cudaErrorInitializationError", "initialization error"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorECCUncorrectable, "cudaErrorECCUncorrectable", "uncorrectable ECC error encountered"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorSymbolNotFound, "cudaErrorSymbolNotFound", "named symbol not found"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {cudaErrorPeerAccessAlreadyEnabled, "cudaErrorPeerAccessAlreadyEnabled", "peer access is already enabled"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"},
};

}  // namespace

const char* error_text(int error) {
    for (const ErrorText& known : ERROR_TEXTS)
        if (known.error == error) return known.text;
    return "unrecognized error code";
}

const char* error_name(int error) {
    for (const ErrorText& known : ERROR_TEXTS)
        if (known.error == error) return known.name;
    return "unrecognized error code";
}

}  // namespace emulated

// Whether a process that finds this function has emulated devices, and not the libraries alone (host/emulation.py).
API int bexplore_is_emulated(void) { return emulated::driver_device_count() > 0; }
