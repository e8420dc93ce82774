// libnvidia-ml: which devices there are and who uses their memory. Idle and cool, always.
#include <cstdio>
#include <cstring>

#include "device.hpp"

using namespace emulated;

namespace {

constexpr int SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, LOST = 15;

// A device's handle is the driver's number of it, plus one, as a pointer.
using Device = void*;
Device handle_of(int number) { return reinterpret_cast<Device>(static_cast<size_t>(number) + 1); }
int number_of(Device device) { return static_cast<int>(reinterpret_cast<size_t>(device)) - 1; }

struct Memory {
    unsigned long long total, free, used;
};
struct MemoryVersion2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};
struct Utilization {
    unsigned device, memory;
};
struct ProcessInfo {
    unsigned id;
    unsigned long long used_bytes;
    unsigned gpu_instance, compute_instance;
};
struct Pci {
    char old_bus_id[16];
    unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
};

int write(char* target, unsigned size, const char* text) {
    if (strlen(text) >= size) return INSUFFICIENT_SIZE;
    strcpy(target, text);
    return SUCCESS;
}

int status(Device device) { return is_lost(number_of(device)) ? LOST : SUCCESS; }

int clock(unsigned type, unsigned* megahertz) {  // 2: the memory's
    *megahertz = (type == 2 ? properties().memory_clock_khz : properties().clock_khz) / 1000;
    return SUCCESS;
}

}  // namespace

API int nvmlInit_v2() { return SUCCESS; }
API int nvmlInit() { return SUCCESS; }
API int nvmlInitWithFlags(unsigned) { return SUCCESS; }
API int nvmlShutdown() { return SUCCESS; }
API const char* nvmlErrorString(int status) { return status == LOST ? "GPU is lost" : status ? "error" : "success"; }

API int nvmlSystemGetDriverVersion(char* text, unsigned size) { return write(text, size, "emulated"); }
API int nvmlSystemGetNVMLVersion(char* text, unsigned size) { return write(text, size, "emulated"); }

API int nvmlSystemGetCudaDriverVersion_v2(int* version) {
    *version = BEXPLORE_CUDA_VERSION;
    return SUCCESS;
}

API int nvmlSystemGetCudaDriverVersion(int* version) { return nvmlSystemGetCudaDriverVersion_v2(version); }

API int nvmlDeviceGetCount_v2(unsigned* count) {
    *count = driver_device_count();
    return SUCCESS;
}

API int nvmlDeviceGetCount(unsigned* count) { return nvmlDeviceGetCount_v2(count); }

API int nvmlDeviceGetHandleByIndex_v2(unsigned number, Device* device) {
    if (static_cast<int>(number) >= driver_device_count()) return INVALID_ARGUMENT;
    *device = handle_of(number);
    return status(*device);
}

API int nvmlDeviceGetHandleByIndex(unsigned number, Device* device) {
    return nvmlDeviceGetHandleByIndex_v2(number, device);
}

API int nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, Device* device) {
    unsigned domain, bus, slot;
    if (sscanf(bus_id, "%x:%x:%x", &domain, &bus, &slot) != 3 || bus < 1) return INVALID_ARGUMENT;
    return nvmlDeviceGetHandleByIndex_v2(bus - 1, device);
}

API int nvmlDeviceGetUUID(Device device, char* text, unsigned size) {
    unsigned char uuid[16];
    write_uuid(number_of(device), uuid);
    char written[48] = "GPU-";
    for (int at = 0; at < 16; ++at)
        snprintf(written + strlen(written), 4, at == 4 || at == 6 || at == 8 || at == 10 ? "-%02x" : "%02x", uuid[at]);
    return write(text, size, written);
}

API int nvmlDeviceGetHandleByUUID(const char* wanted, Device* device) {
    for (int number = 0; number < driver_device_count(); ++number) {
        char text[48];
        nvmlDeviceGetUUID(handle_of(number), text, sizeof text);
        if (strcmp(text, wanted) == 0) return nvmlDeviceGetHandleByIndex_v2(number, device);
    }
    return NOT_FOUND;
}

API int nvmlDeviceGetIndex(Device device, unsigned* number) {
    *number = number_of(device);
    return SUCCESS;
}

API int nvmlDeviceGetName(Device, char* text, unsigned size) { return write(text, size, properties().name.c_str()); }

API int nvmlDeviceGetPciInfo_v3(Device device, Pci* pci) {
    memset(pci, 0, sizeof *pci);
    pci->bus = number_of(device) + 1;
    snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", pci->bus);
    snprintf(pci->old_bus_id, sizeof pci->old_bus_id, "0000:%02X:00.0", pci->bus);
    return SUCCESS;
}

API int nvmlDeviceGetCudaComputeCapability(Device, int* major, int* minor) {
    *major = properties().major;
    *minor = properties().minor;
    return SUCCESS;
}

API int nvmlDeviceGetMemoryInfo(Device device, Memory* memory) {
    memory->total = properties().memory_bytes;
    memory->used = used_bytes(number_of(device));
    memory->free = memory->total - memory->used;
    return status(device);
}

API int nvmlDeviceGetMemoryInfo_v2(Device device, MemoryVersion2* memory) {
    Memory found;
    int result = nvmlDeviceGetMemoryInfo(device, &found);
    memory->total = found.total;
    memory->reserved = 0;
    memory->free = found.free;
    memory->used = found.used;
    return result;
}

API int nvmlDeviceGetUtilizationRates(Device device, Utilization* found) {
    *found = {0, 0};
    return status(device);
}

API int nvmlDeviceGetComputeRunningProcesses_v3(Device device, unsigned* count, ProcessInfo* found) {
    std::vector<Process> running = processes(number_of(device));
    unsigned room = *count;
    *count = running.size();
    if (running.size() > room) return INSUFFICIENT_SIZE;
    for (size_t at = 0; at < running.size(); ++at)
        found[at] = {static_cast<unsigned>(running[at].id), running[at].bytes, 0xffffffffu, 0xffffffffu};
    return status(device);
}

API int nvmlDeviceGetComputeRunningProcesses_v2(Device device, unsigned* count, ProcessInfo* found) {
    return nvmlDeviceGetComputeRunningProcesses_v3(device, count, found);
}

// The first version of the structure has no instances.
API int nvmlDeviceGetComputeRunningProcesses(Device device, unsigned* count, void* found) {
    struct ProcessInfoVersion1 {
        unsigned id;
        unsigned long long used_bytes;
    };
    ProcessInfo all[512];
    unsigned room = *count;
    *count = 512;
    int result = nvmlDeviceGetComputeRunningProcesses_v3(device, count, all);
    if (result) return result;
    if (*count > room) return INSUFFICIENT_SIZE;
    for (unsigned at = 0; at < *count; ++at)
        static_cast<ProcessInfoVersion1*>(found)[at] = {all[at].id, all[at].used_bytes};
    return SUCCESS;
}

API int nvmlDeviceGetClockInfo(Device, unsigned type, unsigned* megahertz) { return clock(type, megahertz); }
API int nvmlDeviceGetMaxClockInfo(Device, unsigned type, unsigned* megahertz) { return clock(type, megahertz); }

API int nvmlDeviceGetTemperature(Device, unsigned, unsigned* celsius) {
    *celsius = 30;
    return SUCCESS;
}

API int nvmlDeviceGetPowerUsage(Device, unsigned* milliwatts) {
    *milliwatts = 0;
    return SUCCESS;
}

API int nvmlDeviceGetPersistenceMode(Device, unsigned* mode) {
    *mode = 1;
    return SUCCESS;
}

API int nvmlDeviceGetCurrentClocksThrottleReasons(Device, unsigned long long* reasons) {
    *reasons = 1;  // idle
    return SUCCESS;
}

API int nvmlDeviceGetCurrentClocksEventReasons(Device device, unsigned long long* reasons) {
    return nvmlDeviceGetCurrentClocksThrottleReasons(device, reasons);
}

API int nvmlDeviceGetClock(Device, unsigned type, unsigned, unsigned* megahertz) { return clock(type, megahertz); }
API int nvmlDeviceGetApplicationsClock(Device, unsigned type, unsigned* found) { return clock(type, found); }

API int nvmlDeviceGetTotalEnergyConsumption(Device, unsigned long long* millijoules) {
    *millijoules = 0;
    return SUCCESS;
}

API int nvmlDeviceGetMinorNumber(Device device, unsigned* number) { return nvmlDeviceGetIndex(device, number); }
API int nvmlDeviceGetVbiosVersion(Device, char* text, unsigned size) { return write(text, size, "emulated"); }

API int nvmlDeviceGetMemoryBusWidth(Device, unsigned* bits) {
    *bits = properties().bus_bits;
    return SUCCESS;
}

// nvmlDeviceArchitecture_t: 5 is Volta, and each generation one more.
API int nvmlDeviceGetArchitecture(Device, unsigned* architecture) {
    int major = properties().major, minor = properties().minor;
    *architecture = major >= 10 ? 10 : major == 9 ? 9 : major == 8 ? (minor == 9 ? 8 : 7) : minor >= 5 ? 6 : 5;
    return SUCCESS;
}

// Nothing but what trains is here: no graphics, no other process server, no error of the memory, no display, no power
// state but the highest, and all devices reach each other.
#define NONE(name, ...)                             \
    API int name(__VA_ARGS__, unsigned* found) {    \
        *found = 0;                                 \
        return SUCCESS;                             \
    }
NONE(nvmlDeviceGetComputeMode, Device)
NONE(nvmlDeviceGetPerformanceState, Device)
NONE(nvmlDeviceGetPowerState, Device)
NONE(nvmlDeviceGetDisplayActive, Device)
NONE(nvmlDeviceGetDisplayMode, Device)
NONE(nvmlDeviceGetMultiGpuBoard, Device)
NONE(nvmlDeviceIsMigDeviceHandle, Device)
NONE(nvmlDeviceGetPcieThroughput, Device, unsigned)
NONE(nvmlDeviceGetP2PStatus, Device, Device, unsigned)

API int nvmlDeviceGetGraphicsRunningProcesses(Device, unsigned* count, void*) {
    *count = 0;
    return SUCCESS;
}

API int nvmlDeviceGetGraphicsRunningProcesses_v2(Device device, unsigned* count, void* found) {
    return nvmlDeviceGetGraphicsRunningProcesses(device, count, found);
}

API int nvmlDeviceGetGraphicsRunningProcesses_v3(Device device, unsigned* count, void* found) {
    return nvmlDeviceGetGraphicsRunningProcesses(device, count, found);
}

API int nvmlDeviceGetMPSComputeRunningProcesses_v3(Device device, unsigned* count, void* found) {
    return nvmlDeviceGetGraphicsRunningProcesses(device, count, found);
}

API int nvmlDeviceGetEccMode(Device, unsigned* current, unsigned* pending) {
    *current = *pending = 1;
    return SUCCESS;
}

API int nvmlDeviceGetTotalEccErrors(Device, unsigned, unsigned, unsigned long long* count) {
    *count = 0;
    return SUCCESS;
}

API int nvmlDeviceGetMemoryErrorCounter(Device, unsigned, unsigned, unsigned, unsigned long long* count) {
    *count = 0;
    return SUCCESS;
}

API int nvmlDeviceGetRemappedRows(Device, unsigned* corrected, unsigned* uncorrected, unsigned* pending,
                                  unsigned* failed) {
    *corrected = *uncorrected = *pending = *failed = 0;
    return SUCCESS;
}

API int nvmlSystemGetProcessName(unsigned process, char* text, unsigned size) {
    char path[32], name[64] = "";
    snprintf(path, sizeof path, "/proc/%u/comm", process);
    FILE* file = fopen(path, "r");
    if (!file) return NOT_FOUND;
    fscanf(file, "%63[^\n]", name);
    fclose(file);
    return write(text, size, name);
}

API int nvmlUnitGetCount(unsigned* count) {
    *count = 0;
    return SUCCESS;
}

// No sample of the use by processes was taken yet.
API int nvmlDeviceGetProcessUtilization(Device, void*, unsigned* count, unsigned long long) {
    *count = 0;
    return NOT_FOUND;
}

API int nvmlDeviceGetSamples(Device, unsigned, unsigned long long, unsigned*, unsigned*, void*) { return NOT_FOUND; }

// What the table of devices does not say, in the answer of devices that lack it, for which programs are prepared.
#define NOT_KNOWN(name) \
    API int name(void) { return NOT_SUPPORTED; }
NOT_KNOWN(nvmlDeviceGetEnforcedPowerLimit)
NOT_KNOWN(nvmlDeviceGetPowerManagementLimit)
NOT_KNOWN(nvmlDeviceGetPowerManagementDefaultLimit)
NOT_KNOWN(nvmlDeviceGetPowerManagementLimitConstraints)
NOT_KNOWN(nvmlDeviceGetPowerManagementMode)
NOT_KNOWN(nvmlDeviceGetSerial)
NOT_KNOWN(nvmlDeviceGetBrand)
NOT_KNOWN(nvmlDeviceGetBoardId)
NOT_KNOWN(nvmlDeviceGetNumGpuCores)
NOT_KNOWN(nvmlDeviceGetFanSpeed)
NOT_KNOWN(nvmlDeviceGetFanSpeed_v2)
NOT_KNOWN(nvmlDeviceGetNumFans)
NOT_KNOWN(nvmlDeviceGetEncoderUtilization)
NOT_KNOWN(nvmlDeviceGetDecoderUtilization)
NOT_KNOWN(nvmlDeviceGetBAR1MemoryInfo)
NOT_KNOWN(nvmlDeviceGetTemperatureThreshold)
NOT_KNOWN(nvmlDeviceGetCurrPcieLinkGeneration)
NOT_KNOWN(nvmlDeviceGetCurrPcieLinkWidth)
NOT_KNOWN(nvmlDeviceGetMaxPcieLinkGeneration)
NOT_KNOWN(nvmlDeviceGetMaxPcieLinkWidth)
NOT_KNOWN(nvmlDeviceGetPcieReplayCounter)
NOT_KNOWN(nvmlDeviceGetSupportedClocksThrottleReasons)
NOT_KNOWN(nvmlDeviceGetSupportedMemoryClocks)
NOT_KNOWN(nvmlDeviceGetSupportedGraphicsClocks)
NOT_KNOWN(nvmlDeviceGetRetiredPages)
NOT_KNOWN(nvmlDeviceGetFieldValues)
NOT_KNOWN(nvmlDeviceGetTopologyCommonAncestor)
NOT_KNOWN(nvmlDeviceGetTopologyNearestGpus)
NOT_KNOWN(nvmlDeviceGetCpuAffinity)
NOT_KNOWN(nvmlDeviceGetMemoryAffinity)
NOT_KNOWN(nvmlDeviceSetCpuAffinity)
NOT_KNOWN(nvmlDeviceGetNvLinkState)
NOT_KNOWN(nvmlDeviceGetNvLinkVersion)
NOT_KNOWN(nvmlDeviceGetNvLinkCapability)
NOT_KNOWN(nvmlDeviceGetNvLinkErrorCounter)
NOT_KNOWN(nvmlDeviceGetNvLinkUtilizationCounter)
NOT_KNOWN(nvmlDeviceGetMaxMigDeviceCount)
NOT_KNOWN(nvmlDeviceGetMigDeviceHandleByIndex)

API int nvmlDeviceGetMigMode(Device, unsigned*, unsigned*) { return NOT_SUPPORTED; }
API int nvmlDeviceGetNvLinkRemoteDeviceType(Device, unsigned, unsigned*) { return NOT_SUPPORTED; }
API int nvmlDeviceGetNvLinkRemotePciInfo_v2(Device, unsigned, Pci*) { return NOT_SUPPORTED; }

// No fabric between hosts. The structure begins with its version, whose lower bits are its size.
API int nvmlDeviceGetGpuFabricInfoV(Device device, unsigned* info) {
    memset(info + 1, 0, (*info & 0xffffff) - sizeof *info);
    return status(device);
}
