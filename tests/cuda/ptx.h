/* SPDX-License-Identifier: MIT */
/*
 * The machine on which ptx_to_c.py's C runs, a block at a time: its threads go on one after the
 * other, each to the next barrier. What is undefined or a fault on a device ends the program, and
 * what starts with any value starts with garbage. Shared and local memory have addresses of their
 * own, from FIRST on; as generic addresses they are the host's.
 */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "emulation.h"

typedef uint8_t u8;
typedef int8_t s8;
typedef uint16_t u16, b16;
typedef int16_t s16;
typedef uint32_t u32, b32;
typedef int32_t s32;
typedef uint64_t u64, b64;
typedef int64_t s64;
typedef bool pred;

enum { SHARED_END = FIRST + 48 * 1024, MOST_THREADS = 256 };

/* Goes on from there; returns the next, or 0 at the end, or less than 0 at a shuffle. */
typedef int kernel(int barrier);

typedef struct thread {
    _Alignas(16) u8 local[LOCAL_END], registers[REGISTER_BYTES];
    u32 index, shuffles, words[2]; /* what it gives to a shuffle, and to the next one */
    int barrier;
} thread;

static struct {
    thread threads[MOST_THREADS];
    _Alignas(16) u8 shared[SHARED_END];
} block;
static thread *self;
static _Alignas(16) const u8 constants[] = {CONSTANTS};
static const u8 *parameter;
static u64 parameter_bytes, shared_end;
static u32 phase, block_start, launch_start; /* a phase ends at a barrier; those that began these */

/*
 * What a block wrote is released if the thread that fences wrote it before, or others before the
 * last barrier, and if an atomic addition of that thread follows, at one address for all blocks. If
 * all blocks before have released, a fence of that thread after its addition acquires all, for the
 * phases that follow. Blocks run one after the other, so a compare-and-swap never loses here.
 */
static struct {
    u32 blocks, released;           /* of the launch: that ran before, that released */
    u32 writes[MOST_THREADS];       /* phase of a thread's last write */
    u32 phase;                      /* of the fence; 0: none */
    u32 thread;                     /* that fences */
    u64 *at;                        /* the address of the launch */
    bool is_late, is_counted, ends; /* wrote after it; did the operation; acquires */
} order;

_Noreturn static __attribute__((noinline)) void fail(int line, const char *what, u64 number)
{
    fprintf(stderr, "ptx.c:%d: thread %u of block %u: %s: %#llx\n", line, self->index,
            emulated.block, what, (unsigned long long)number);
    abort();
}

/* ---- numbers: the NaN that arithmetic returns has no payload, and is not the host's ---- */

#define f32_value gsc_float
#define f64_value gsc_double
#define f16_value f16_load

static inline u32 f32_result(float x)
{
    return x != x ? 0x7fffffff : gsc_float_bits(x);
}

static inline u64 f64_result(double x)
{
    return x != x ? 0x7fffffffffffffff : gsc_double_bits(x);
}

static inline u16 f16_result(float x)
{
    return x != x ? 0x7fff : f16_from_float(x);
}

#define f32_sqrt sqrtf
#define f64_sqrt sqrt
#define f32_fma  fmaf
#define f64_fma  fma
#define f32_abs  fabsf
#define f64_abs  fabs

static inline u64 extract(u64 x, u32 from, u32 bits)
{
    x = from < 64 ? x >> from : 0;
    return bits < 64 ? x & (((u64)1 << bits) - 1) : x;
}

static inline u64 insert(u64 x, u64 into, u32 at, u32 bits)
{
    const u64 mask = bits < 64 ? ((u64)1 << bits) - 1 : ~(u64)0;
    return at < 64 ? (into & ~(mask << at)) | (x & mask) << at : into;
}

/* Each four bits of `select` choose a byte of the eight, or what its sign fills one with. */
static inline u32 permuted(u32 a, u32 b, u32 select)
{
    const u64 bytes = (u64)b << 32 | a;
    u32 result = 0;
    for (u32 i = 0; i < 4; i++) {
        const u32 which = select >> 4 * i & 15;
        const u32 byte = (u32)(bytes >> 8 * (which & 7)) & 255;
        result |= (which & 8 ? (byte & 128 ? 255 : 0) : byte) << 8 * i;
    }
    return result;
}

/* Converts a double to s32. */
static inline s32 truncated(double x)
{
    return x <= INT32_MIN ? INT32_MIN : x >= INT32_MAX ? INT32_MAX : x == x ? (s32)x : 0;
}

/* The other one if one is NaN; -0 is less than 0. */
static inline double f64_min(double a, double b)
{
    return b != b || a < b || (a == b && signbit(a)) ? a : b;
}

static inline float f32_min(float a, float b)
{
    return (float)f64_min(a, b);
}

/* ---- memory ---- */

#define INLINE static inline __attribute__((always_inline))

INLINE void *reach(const u8 *memory, u64 first, u64 end, u64 address, u32 bytes, int line)
{
    if (address < first || address > end || end - address < bytes)
        fail(line, "an address out of range", address);
    if ((address & (bytes - 1)) != 0)
        fail(line, "an address that is not aligned", address);
    return (void *)((uintptr_t)memory + address);
}

/* Generic addresses that are not global. */
INLINE bool is_shared(u64 address)
{
    return address - (u64)(uintptr_t)block.shared < sizeof block.shared;
}

INLINE bool is_in_block(u64 address)
{
    return address - (u64)(uintptr_t)&block < sizeof block;
}

/* An access to an address, and whether several threads made it. ATOM orders what others see. */
enum { READ = 1, WRITE = 2, RED = 4, SEVERAL = 8, ATOM = 16 | RED };

typedef struct access { /* to a byte */
    u32 phase;          /* of the last one */
    u8 thread;          /* likewise */
    u8 in_phase, in_launch;
} access;

/* Returns whether accesses race: no other thread may touch what one writes, and red is for all or
 * none, as any thread could be the first. */
static bool is_race(u32 accesses)
{
    return (accesses & SEVERAL) && accesses != (SEVERAL | READ) && accesses != (SEVERAL | RED);
}

static void fence(void)
{
    order.ends |= order.is_counted && order.thread == self->index && order.released == order.blocks;
    if (!order.is_counted) {
        order.phase = phase;
        order.thread = self->index;
    }
}

static void atom(u64 *at)
{
    order.at = order.blocks == 0 ? at : order.at;
    order.is_counted |= order.phase != 0 && order.thread == self->index && order.at == at;
}

static void order_write(void)
{
    order.writes[self->index] = phase;
    order.is_late |= order.phase != 0 && order.thread == self->index && !order.ends;
}

static void end_block(void)
{
    bool released = order.is_counted && !order.is_late;
    for (u32 i = 0; i < emulated.thread_count; i++)
        released &= i == order.thread || order.writes[i] < order.phase || order.ends;
    order.blocks++;
    order.released += released;
}

/* `seen` is of the bytes, and begins at the phase `start`. */
static __attribute__((noinline)) void touch(access *seen, u32 start, u64 address, u32 bytes,
                                            u32 how, int line)
{
    for (access *a = seen; a < seen + bytes; a++) {
        const u32 others = a->thread == self->index ? 0 : SEVERAL;
        if (a->phase == phase && others == 0 && (a->in_phase & how))
            continue;
        if (a->phase == phase) {
            a->in_phase |= how | others;
            a->in_launch |= how;
        } else {
            a->in_launch = a->phase < start         ? how
                           : a->phase < block_start ? a->in_launch | how | SEVERAL
                                                    : a->in_launch | how;
            a->in_phase = how;
            a->phase = phase;
        }
        a->thread = self->index;
        if (is_race(a->in_phase))
            fail(line, "no barrier between two threads at an address", address);
        if (is_race(a->in_launch))
            fail(line, "two blocks at an address", address);
    }
}

/* Accesses to the devices' memory, from `pages` on, and the block that was reached last. */
static access *seen_global;
static u64 pages, block_begin, block_end;

INLINE void *reach_global(u64 address, u32 bytes, u32 how, int line)
{
    const bool is_device = address - pages < STANDIN_MEMORY;
    const bool is_known = (address >= block_begin && address < block_end) ||
                          standin_block(address, &block_begin, &block_end);
    if (!is_known && is_device)
        fail(line, "an address of nothing that was allocated", address);
    u8 *at = reach(NULL, is_known ? block_begin : 0, is_known ? block_end : UINT64_MAX, address,
                   bytes, line);
    if (is_in_block(address))
        fail(line, "an address that is not global", address);
    if ((how & (WRITE | RED)) && how != ATOM)
        order_write();
    if (is_device && how != 0)
        touch(seen_global + (address - pages), launch_start, address, bytes,
              how == ATOM ? RED : how, line);
    return at;
}

static void *reach_shared(u64 address, u32 bytes, u32 how, int line)
{
    static access seen[SHARED_END];
    void *at = reach(block.shared, FIRST, shared_end, address, bytes, line);
    touch(seen + address, block_start, address, bytes, how, line);
    return at;
}

/* Local memory is a thread's own. */
static void *reach_block(u64 address, u32 bytes, u32 how, int line)
{
    if (is_shared(address))
        return reach_shared(address - (u64)(uintptr_t)block.shared, bytes, how, line);
    return reach(self->local, FIRST, LOCAL_END, address - (u64)(uintptr_t)self->local, bytes, line);
}

INLINE void *reach_generic(u64 address, u32 bytes, u32 how, int line)
{
    return is_in_block(address) ? reach_block(address, bytes, how, line)
                                : reach_global(address, bytes, how, line);
}

#define at_shared(address, bytes, how)  reach_shared(address, bytes, how, __LINE__)
#define at_generic(address, bytes, how) reach_generic(address, bytes, how, __LINE__)
#define at_global(address, bytes, how)  reach_global(address, bytes, how, __LINE__)
#define at_local(address, bytes, how)   reach(self->local, FIRST, LOCAL_END, address, bytes, __LINE__)
#define at_const(address, bytes, how)                                                              \
    reach(constants, 0, sizeof constants, address, bytes, __LINE__)
#define at_param(address, bytes, how) reach(parameter, 0, parameter_bytes, address, bytes, __LINE__)

/* An address outside that space is lost: NULL does not come back as NULL from all devices. */
static inline u64 from_generic(const u8 *memory, u64 end, u64 address, int line)
{
    const u64 offset = address - (u64)(uintptr_t)memory;
    if (offset < FIRST || offset > end)
        fail(line, "not a generic address of this space", address);
    return offset;
}

static inline u64 global_from_generic(u64 address, int line)
{
    if (is_in_block(address))
        fail(line, "not a generic address of this space", address);
    return address;
}

#define shared_to_generic(address) ((address) + (u64)(uintptr_t)block.shared)
#define local_to_generic(address)  ((address) + (u64)(uintptr_t)self->local)
#define global_to_generic(address) (address)
#define to_shared(address)         from_generic(block.shared, shared_end, address, __LINE__)
#define to_local(address)          from_generic(self->local, LOCAL_END, address, __LINE__)
#define to_global(address)         global_from_generic(address, __LINE__)

static inline u64 atom_add(u64 *to, u64 x)
{
    const u64 old = *to;
    atom(to);
    *to += x;
    return old;
}

static inline u64 atom_cas(u64 *to, u64 from, u64 x)
{
    const u64 old = *to;
    if (old == from)
        *to = x;
    return old;
}

static const char *removed; /* a barrier, or a step of arithmetic, by barriers.py; NULL: none */

static bool is_kept(const char *name)
{
    return !removed || strcmp(removed, name) != 0;
}

static inline float rounded(double number)
{
    return (float)(is_kept("rounding") ? number : number * (1 + 0x1p-24));
}

#define red_add_u64(to, x) ((void)(*(u64 *)(to) += (x)))
#define red_add_u32(to, x) ((void)(*(u32 *)(to) += (x) - !is_kept("count")))

static inline void red_min_u32(u32 *to, u32 x)
{
    *to = x < *to ? x : *to;
}

static inline void red_max_u32(u32 *to, u32 x)
{
    *to = x > *to ? x : *to;
}

/* ---- threads ---- */

enum { WARP = 32 };

static inline void shuffle(u32 word)
{
    self->words[self->shuffles++ % 2] = word;
}

/* Lanes of a warp go on in any order, so that another one may be at the next shuffle. */
static inline u32 shuffled_down(u32 by, u32 clamp, u32 lanes)
{
    const u32 segment = clamp >> 8 & 31, lane = self->index % WARP;
    const u32 last = (lane & segment) | (clamp & 31 & ~segment);
    const u32 from = lane + by <= last ? self->index + by : self->index;
    if (lanes != ~(u32)0 || from >= emulated.thread_count)
        fail(0, "a shuffle of lanes that are not there", lanes);
    return block.threads[from].words[(self->shuffles - 1) % 2];
}

/* Before a block runs. */
static void start_block(void)
{
    static u64 launch;
    static u32 start;
    block_start = phase + 1;
    order.phase = 0;
    order.is_late = order.is_counted = order.ends = false;
    memset(order.writes, 0, sizeof order.writes);
    launch_start = launch == emulated.launches ? start : block_start;
    if (launch == emulated.launches)
        return;
    launch = emulated.launches;
    start = launch_start;
    order.blocks = order.released = 0;
    removed = getenv("GSC_REMOVED");
    block_begin = block_end = 0;
    if (!seen_global && (pages = standin_pages()) != 0)
        seen_global = mmap(NULL, STANDIN_MEMORY * sizeof *seen_global, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (seen_global == MAP_FAILED)
        fail(0, "no memory for what is done at so many bytes", STANDIN_MEMORY);
}

static void run(kernel *run_thread, const void *p, u64 bytes, u64 end_of_shared, u32 most_threads)
{
    static kernel *last;
    const u32 n = emulated.thread_count;
    parameter = p;
    parameter_bytes = bytes;
    shared_end = end_of_shared;
    self = block.threads;
    if (n > most_threads || n > MOST_THREADS || shared_end > SHARED_END)
        fail(0, "too many threads or too much shared memory", n);
    start_block();
    if (run_thread != last) /* what another block of a kernel left is as good */
        memset(block.threads, 0xa5, sizeof block.threads);
    last = run_thread;
    memset(block.shared, 0xa5, sizeof block.shared);
    for (u32 i = 0; i < n; i++) {
        block.threads[i].index = i;
        block.threads[i].barrier = 0;
        block.threads[i].shuffles = 0;
    }
    for (u32 ended = 0; ended == 0;) {
        bool waits[MOST_THREADS] = {false};
        phase++;
        if (order.ends)
            launch_start = phase;
        for (u32 waiting = 0; waiting < n;) {
            for (u32 k = 0; k < n; k++) {
                const u32 i = emulated_thread(k);
                self = &block.threads[i];
                if (waits[i])
                    continue;
                self->barrier = run_thread(self->barrier);
                waits[i] = self->barrier >= 0;
                waiting += waits[i];
                ended += self->barrier == 0;
            }
            for (u32 i = 0; i < n; i++) {
                const int at = block.threads[i].barrier,
                          first = block.threads[i / WARP * WARP].barrier;
                if ((at < 0 || first < 0) && at != first)
                    fail(0, "a shuffle that not all lanes of a warp reach: lane", i % WARP);
            }
        }
        if (ended != 0 && ended != n)
            fail(0, "a barrier that not all threads reach: so many do not", ended);
    }
    end_block();
}
