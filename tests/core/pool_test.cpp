// SPDX-License-Identifier: MIT
// A context's own threads: every task once, the bits of one thread, whoever calls or forks
// meanwhile, and nothing left behind.
#include <pthread.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cfenv>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "support.hpp"

extern "C" {
#include "cpu/pool.h"
}

/* The library calls __wrap_pthread_atfork instead of pthread_atfork. */
static bool refuse_to_watch_forks;
static int forks_watched;
extern "C" int __real_pthread_atfork(void (*)(), void (*)(), void (*)());
extern "C" int __wrap_pthread_atfork(void (*prepare)(), void (*parent)(), void (*child)())
{
    if (refuse_to_watch_forks)
        return ENOMEM;
    forks_watched++;
    return __real_pthread_atfork(prepare, parent, child);
}

namespace {

using std::chrono::milliseconds;

/* Libraries of a host can have such: every thread's stack must also hold it. */
thread_local volatile char large_static_tls[600 << 10];

using Pool = std::shared_ptr<gsc_pool>;

using Body = std::function<void(uint64_t)>;

void run_on(gsc_pool *pool, uint64_t count, const Body &body)
{
    const auto task = [](void *data, uint64_t i) { (*static_cast<const Body *>(data))(i); };
    gsc_pool_run(pool, task, const_cast<Body *>(&body), count);
}

/* Runs body once on each of the pool's threads; false if they do not all come within seconds. */
bool run_on_each(
    const Pool &pool, uint32_t threads, const std::function<void()> &body = [] {})
{
    std::mutex mutex;
    std::condition_variable all;
    uint32_t here = 0;
    run_on(pool.get(), threads, [&](uint64_t) {
        body();
        std::unique_lock<std::mutex> lock(mutex);
        if (++here == threads)
            all.notify_all();
        all.wait_for(lock, std::chrono::seconds(10), [&] { return here == threads; });
    });
    return here == threads;
}

/* f32 of any bits, as many as threads share and some more, in tensors, many of them small. */
class Gradients {
  public:
    explicit Gradients(uint64_t count = (1u << 20) + 150000) : values(count), results(count)
    {
        Random random = {count};
        for (uint32_t &bits : values)
            bits = static_cast<uint32_t>(random.next());
        for (uint64_t at = 0, size; at < count; at += size) {
            size = std::min(count - at, random.next() % 8 ? random.next() % 100 : 90000);
            in.push_back({&values[at], size, GSC_F32, 0, {}});
            out.push_back({&results[at], size, GSC_F32, 0, {}});
        }
        REQUIRE(gsc_factor_init(3, &factor, nullptr) == GSC_OK);
        unscale(nullptr, report);
        expected = results;
    }
    /* Returns whether a call gives the bytes of one thread. Allocates nothing: children of a fork
     * call it. */
    bool right(const gsc_exec *on)
    {
        gsc_report other;
        std::fill(results.begin(), results.end(), 0);
        return unscale(on, other) == GSC_OK && same(other, report) && results == expected;
    }

  private:
    gsc_status unscale(const gsc_exec *on, gsc_report &to)
    {
        const gsc_tensor_options options = wanting(want_all);
        return gsc_unscale(on, &factor, in.data(), out.data(), in.size(), &options, &to, nullptr);
    }
    std::vector<uint32_t> values, results, expected;
    std::vector<gsc_tensor> in, out;
    gsc_factor factor;
    gsc_report report;
};

/* Returns whether `body` is true in a forked process, which has seconds for it. */
template <class Check> bool in_child(Check body)
{
    const pid_t child = fork();
    if (child == 0) {
        alarm(20);
        _exit(body() ? 0 : 1);
    }
    int status = -1;
    return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

std::ptrdiff_t count_threads()
{
    using std::filesystem::directory_iterator;
    return std::distance(directory_iterator("/proc/self/task"), directory_iterator());
}

/* A joined thread may still be listed for a moment, also when `count` was taken. */
bool threads_become(std::ptrdiff_t count)
{
    for (int tries = 0; tries < 10000 && count_threads() > count; tries++)
        std::this_thread::sleep_for(milliseconds(1));
    return count_threads() <= count;
}

} // namespace

TEST_CASE("every task runs once, and all threads take part, again and again", "[pool][threads]")
{
    for (uint32_t threads : {2u, 3u, 16u}) {
        const Pool pool(gsc_pool_create(threads), gsc_pool_destroy);
        REQUIRE(pool);
        for (uint64_t count : {0u, 1u, 2u, 3u, 64u, 10000u}) {
            std::vector<std::atomic<int>> runs(count);
            run_on(pool.get(), count, [&](uint64_t i) { runs[i]++; });
            CAPTURE(threads, count);
            CHECK(std::all_of(runs.begin(), runs.end(), [](int n) { return n == 1; }));
        }
        for (int call = 0; call < 40; call++)
            REQUIRE(run_on_each(pool, threads));
    }
}

TEST_CASE("a thread of a pool has stack enough, no signals, and a name", "[pool][threads]")
{
    const Pool pool(gsc_pool_create(3), gsc_pool_destroy);
    const pthread_t caller = pthread_self();
    std::atomic<int> deep{0}, blocks_signals{0}, sees_faults{0}, named{0};
    const bool all = run_on_each(pool, 3, [&] {
        large_static_tls[0] = 1;
        volatile char stack[120 << 10];
        for (size_t i = 0; i < sizeof stack; i += 1024)
            stack[i] = 1;
        deep += stack[0];
        if (pthread_equal(pthread_self(), caller))
            return;
        sigset_t blocked;
        char name[16];
        pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
        blocks_signals += sigismember(&blocked, SIGINT) && sigismember(&blocked, SIGCHLD);
        sees_faults += !sigismember(&blocked, SIGSEGV);
        pthread_getname_np(pthread_self(), name, sizeof name);
        named += std::string(name) == "gradscaler";
    });
    REQUIRE(all);
    CHECK(deep == 3);
    CHECK(blocks_signals == 2);
    CHECK(sees_faults == 2);
    CHECK(named == 2);
}

TEST_CASE("a call computes in its caller's floating-point environment, whoever runs it",
          "[pool][threads]")
{
    const Context context(3);
    Gradients usual(1u << 21);
    std::fenv_t before;
    std::fegetenv(&before);
    std::fesetround(FE_UPWARD);
#if defined(__x86_64__)
    _mm_setcsr(_mm_getcsr() | 0x8000); // flush to zero
#endif
    Gradients unusual(1u << 21);
    int right = 0;
    for (int call = 0; call < 20; call++)
        right += unusual.right(&context.on);
    const bool is_usual = usual.right(&context.on);
    std::fesetenv(&before);
    CHECK(right == 20);
    CHECK(!is_usual);
    CHECK(usual.right(&context.on));
}

TEST_CASE("who calls while a pool is busy runs the tasks itself", "[pool][threads]")
{
    const Pool pool(gsc_pool_create(3), gsc_pool_destroy); // one of them idle
    std::atomic<int> own{0};
    const auto call = [&] {
        const auto self = std::this_thread::get_id();
        run_on(pool.get(), 10, [&](uint64_t) {
            own += std::this_thread::get_id() == self;
            std::this_thread::sleep_for(milliseconds(1));
        });
    };
    run_on(pool.get(), 2, [&](uint64_t) {
        call();
        std::thread(call).join();
    });
    CHECK(own == 40);
    CHECK(run_on_each(pool, 3));
}

TEST_CASE("a context's own threads give the bytes of one thread", "[pool][threads]")
{
    for (uint32_t threads : {1u, 2u, 3u, 8u, 100u}) {
        const Context context(threads);
        for (uint64_t count : {0u, 1u, (1u << 20) - 1, 1u << 20, (1u << 20) + 1, 2800000u}) {
            CAPTURE(threads, count);
            CHECK(Gradients(count).right(&context.on));
        }
    }
}

TEST_CASE("every comparison of a device with the host finds a pool's bits right", "[pool][threads]")
{
    const Context context(2);
    gsc_error err;
    uint64_t size = 0;
    for (uint32_t i = 0; gsc_comparison_name(i); i++)
        for (uint64_t round = 0; round < 5; round++) {
            REQUIRE(gsc_exec_compare(&context.on, i, round, &size, &err) == GSC_OK);
            REQUIRE(size > 0);
        }
    CHECK(gsc_exec_compare(&context.on, 99, 0, &size, &err) == GSC_ERROR_VALUE);
    CHECK(gsc_exec_compare(&context.on, 0, 1001, &size, &err) == GSC_ERROR_VALUE);
}

TEST_CASE("many threads may call on a context with threads of its own", "[pool][threads]")
{
    const Context context(3);
    std::vector<Gradients> gradients(4);
    std::vector<std::thread> callers;
    std::atomic<int> right{0};
    for (Gradients &g : gradients)
        callers.emplace_back([&] {
            for (int call = 0; call < 20; call++)
                right += g.right(&context.on);
        });
    for (std::thread &caller : callers)
        caller.join();
    CHECK(right == 80);
}

TEST_CASE("a thread that is cancelled in the middle of a call leaves a context that works",
          "[pool]")
{
    struct Caller {
        Context context{3};
        Gradients gradients{1u << 21};
        std::atomic<int> calls{0};
    } caller;
    const auto call_forever = [](void *data) -> void * {
        Caller &c = *static_cast<Caller *>(data);
        for (;;) {
            c.calls += c.gradients.right(&c.context.on);
            pthread_testcancel();
        }
    };
    for (int i = 0; i < 20; i++) {
        pthread_t thread;
        const int before = caller.calls;
        REQUIRE(pthread_create(&thread, nullptr, call_forever, &caller) == 0);
        while (caller.calls == before)
            std::this_thread::yield();
        std::this_thread::sleep_for(std::chrono::microseconds(137 * i));
        pthread_cancel(thread);
        pthread_join(thread, nullptr);
        CHECK(caller.gradients.right(&caller.context.on));
    }
}

TEST_CASE("a destroyed context leaves no threads, and one just made can be destroyed",
          "[pool][threads]")
{
    const std::ptrdiff_t before = count_threads();
    for (int i = 0; i < 1000; i++)
        Context(3);
    CHECK(threads_become(before));
    const Context serial(1);
    CHECK(threads_become(before));
}

TEST_CASE("threads without work use no time", "[pool]")
{
    const Context context(4);
    CHECK(Gradients().right(&context.on));
    const std::clock_t before = std::clock(); // of all threads
    std::this_thread::sleep_for(milliseconds(50));
    CHECK(std::clock() - before < CLOCKS_PER_SEC / 40);
}

/* ---- forks: not for the thread sanitizer, which knows no threads in a forked process ---- */

#ifndef __has_feature
#define __has_feature(name) 0
#endif
#if !__has_feature(address_sanitizer) // which ends the process if its own memory is refused
gsc_status create(uint32_t threads, gsc_context **out, gsc_error *err)
{
    const gsc_cpu_options options = {GSC_CPU_OPTIONS_SIZE, threads, nullptr, nullptr};
    return gsc_context_create_cpu(&options, out, err);
}

TEST_CASE("running out of memory is an error", "[pool]")
{
    void *none = nullptr;
    CHECK(gsc_memory_create(nullptr, GSC_MEMORY_DEVICE, UINT64_C(1) << 60, &none, nullptr) ==
          GSC_ERROR_MEMORY);
    CHECK(none == nullptr);
}

TEST_CASE("forks that cannot be watched for lack of memory are an error, and the next context "
          "tries again",
          "[.][first_context]")
{
    REQUIRE(forks_watched == 0);
    gsc_context *context = nullptr;
    gsc_error err;
    refuse_to_watch_forks = true;
    CHECK(create(2, &context, &err) == GSC_ERROR_MEMORY);
    refuse_to_watch_forks = false;
    CHECK(context == nullptr);
    CHECK(forks_watched == 0);
    for (int i = 0; i < 2; i++) {
        const Context works(2);
        CHECK(Gradients().right(&works.on));
    }
    CHECK(forks_watched == 1);
}

TEST_CASE("threads that cannot all be made are an error, and none stay", "[pool]")
{
    CHECK(in_child([] {
        const std::ptrdiff_t before = count_threads();
        rlim_t pages;
        std::ifstream("/proc/self/statm") >> pages;
        const rlim_t bytes = pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + (64 << 20);
        const rlimit some = {bytes, bytes};
        gsc_context *context = nullptr;
        gsc_error err;
        const bool refused =
            setrlimit(RLIMIT_AS, &some) == 0 && create(1000, &context, &err) == GSC_ERROR_MEMORY;
        return refused && !context && std::string(err.field) == "threads" && threads_become(before);
    }));
}
#endif

TEST_CASE("a forked process makes its own threads", "[pool]")
{
    Pool pool(gsc_pool_create(3), gsc_pool_destroy);
    REQUIRE(run_on_each(pool, 3));
    CHECK(in_child([&] {
        const bool parents = run_on_each(pool, 3) && run_on_each(pool, 3);
        const bool grandchilds = in_child([&] { return run_on_each(pool, 3); });
        pool.reset();
        return parents && grandchilds && threads_become(1);
    }));
    CHECK(in_child([&] { return pool.reset(), true; })); // unused in that process
    CHECK(run_on_each(pool, 3));
}

TEST_CASE("a forked process that may have no threads calls all the same", "[pool]")
{
    const Context context(3);
    Gradients gradients;
    CHECK(in_child([&] {
        const rlimit none = {0, 0};
        pthread_t thread;
        // Only ordinary users are held to the limit.
        return setrlimit(RLIMIT_NPROC, &none) == 0 && (getuid() || setuid(65534) == 0) &&
               pthread_create(
                   &thread, nullptr, [](void *p) { return p; }, nullptr) != 0 &&
               gradients.right(&context.on) && gradients.right(&context.on);
    }));
}

TEST_CASE("a fork in the middle of a call leaves the child a context that works", "[pool]")
{
    const Pool pool(gsc_pool_create(3), [](gsc_pool *) {});
    Context context(3, gsc_pool_run, pool.get()); // destroys the pool
    Gradients parents, childs;
    std::atomic<bool> stop{false};
    std::atomic<int> calls{0}, wrong{0};
    /* A thread that starts can hold a lock of a sanitizer, which a child would wait for. */
    REQUIRE(run_on_each(pool, 3));
    std::thread caller([&] {
        for (; !stop; calls++)
            wrong += !parents.right(&context.on);
    });
    while (calls == 0)
        std::this_thread::yield();
    int good = 0;
    for (int i = 0; i < 60; i++)
        good += in_child([&] {
            const bool same = childs.right(&context.on) && childs.right(&context.on);
            context.owner.reset();
            return same;
        });
    stop = true;
    caller.join();
    CHECK(good == 60);
    CHECK(wrong == 0);
}
