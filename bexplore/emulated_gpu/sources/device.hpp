// The state of the emulated devices. libcudart holds it; every other library here links to libcudart.
//
// Memory of a device is address space of the process: pages that nobody writes cost nothing. Kernels do nothing.
// Everything that describes a device comes from environment variables (environment.py), nothing is built in.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>
#include <vector>

// A function that PyTorch calls, and one that the libraries here share.
#define API extern "C" __attribute__((visibility("default")))
#define SHARED __attribute__((visibility("default")))

namespace emulated {

constexpr int MAX_DEVICES = 64;
constexpr size_t PAGE_BYTES = 4096;
constexpr size_t GRANULE_BYTES = 2 << 20;  // in which the driver hands out memory

// Copies up to these sizes are done. Larger ones are not: their bytes would fill the host's memory for nothing, as no
// kernel reads them.
constexpr size_t MOST_HOST_COPY_BYTES = 16 << 20;
constexpr size_t MOST_DEVICE_COPY_BYTES = 1 << 20;

constexpr long LAUNCHES_UNTIL_FORGOTTEN = 64;
constexpr size_t MOST_AGED_BYTES = 64 << 10;  // of what may be read as a whole after that
constexpr size_t MOST_AGED = 4096;

struct Properties {
    std::string name;
    size_t memory_bytes;
    size_t context_bytes;  // what a process takes on a device before its first tensor
    int major, minor;
    int multiprocessors;
    int threads_per_multiprocessor;
    size_t shared_bytes_per_multiprocessor;
    size_t shared_bytes_per_block;  // that a block can opt in to
    size_t l2_bytes;
    int clock_khz;
    int memory_clock_khz;
    int bus_bits;
};

struct Process {
    int id;
    size_t bytes;
};

SHARED const Properties& properties();
SHARED long number_in_environment(const char* name, long otherwise);
SHARED std::string shared_folder();  // empty: no other process shares these devices

// Devices have two numbers: the driver's own, and the one under CUDA_VISIBLE_DEVICES. The second is meant unless said.
SHARED int driver_device_count();
SHARED int device_count();
SHARED int driver_number(int device);
SHARED void write_uuid(int driver_device, unsigned char uuid[16]);
SHARED int attribute(int attribute, int device);
SHARED int& current_device();  // of this thread

// Memory. `charge` counts bytes of a device, over all processes, and says whether they are there.
SHARED bool has_context(int device);  // made if it is not there; false: no memory for it
SHARED bool charge(int device, size_t bytes);
SHARED void discharge(int device, size_t bytes);
SHARED size_t used_bytes(int driver_device);
SHARED std::vector<Process> processes(int driver_device);
SHARED cudaError_t allocate(int device, size_t bytes, void** pointer);
SHARED cudaError_t release(void* pointer);
SHARED void* reserve_addresses(size_t bytes, size_t alignment);
SHARED void add_range(void* start, size_t bytes, int device, size_t charged_bytes);
SHARED bool remove_range(void* start);  // and its addresses
SHARED void forget_range(void* start);  // its addresses stay
SHARED bool find_range(const void* pointer, void** start, size_t* bytes, int* device);

// Contents. What was copied or filled in is known until some kernels have been launched, which might have overwritten
// it. All else reads as zeros: the results of kernels, and what a block of the allocator held before.
SHARED void copy(void* target, const void* source, size_t bytes);
SHARED void fill(void* target, int value, size_t bytes);
SHARED void read(void* target, const void* source, size_t bytes);         // from anywhere to the host
SHARED void write(void* target, const void* source, size_t bytes);        // from the host to anywhere
SHARED void write_lasting(void* target, const void* source, size_t bytes);  // what one kind of kernel alone changes

SHARED bool is_known(const void* start, size_t bytes);  // all of them
SHARED void forget(void* start, size_t bytes);
SHARED void forget_all();

// PyTorch's own kernels (kernels.cpp).
void register_kernel(const void* function, const char* mangled_name);
void do_kernel(const void* function, void** arguments);

// Time and failures.
SHARED double now_s();
SHARED cudaError_t launch(cudaStream_t stream, double duration_s = -1);  // of a kernel, -1: as long as each takes
SHARED void count_launch();
SHARED cudaError_t failure(int device);  // a sticky error, which every later call returns
SHARED bool is_lost(int driver_device);
SHARED const char* error_text(int error);
SHARED const char* error_name(int error);

}  // namespace emulated
