/* SPDX-License-Identifier: MIT */
/*
 * The library's own threads. They sleep on a condition variable. A call posts its work, does part
 * of it, and waits only for the threads that joined. After a fork, the child has the pool without
 * threads and in an unknown state: the child's first call makes the threads again.
 */
#include <pthread.h>
#if !defined(_WIN32)
#include <signal.h>
#endif
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#if defined(__linux__)
#include <sys/prctl.h>
#endif

#include "pool.h"

/*
 * Many times what a task needs: the thread-local storage of all libraries in the process is also
 * on this stack. Only touched pages take memory.
 */
enum { STACK_BYTES = 4 << 20 };

/* The work of a call; it is on the stack of the calling thread. */
struct work {
    gsc_task *task;
    void *data;
    uint64_t count;
    _Atomic uint64_t next;
};

struct gsc_pool {
    _Atomic uint64_t holder; /* process number of the call that has the threads; 0: none */
    uint64_t process;        /* process number when the threads were made */
    pthread_mutex_t mutex;   /* guards work, active, stopping */
    pthread_cond_t posted, finished;
    struct work *work; /* NULL: no work to join */
    uint32_t active;   /* number of workers that joined */
    bool stopping;
    uint32_t wanted, made;
    pthread_t workers[];
};

/* The process number: each forked child adds 1, and so detects a pool of its parent. */
static _Atomic uint64_t this_process = 1;

#if defined(_WIN32) /* nothing forks */
static bool watch_forks(void)
{
    return true;
}
#else
static _Atomic bool watches;

static void forked(void)
{
    this_process++;
}

/* Registers the fork handler. If memory is out, the next context tries again. Twice is harmless. */
static bool watch_forks(void)
{
    if (!watches)
        watches = pthread_atfork(NULL, NULL, forked) == 0;
    return watches;
}
#endif

static void run_tasks(struct work *work)
{
    for (uint64_t i; (i = work->next++) < work->count;)
        work->task(work->data, i);
}

static void *worker(void *argument)
{
    gsc_pool *pool = argument;
#if defined(__linux__)
    prctl(PR_SET_NAME, "gradscaler");
#endif
    pthread_mutex_lock(&pool->mutex);
    for (;;) {
        while (!pool->work && !pool->stopping)
            pthread_cond_wait(&pool->posted, &pool->mutex);
        if (pool->stopping)
            break;
        struct work *work = pool->work;
        pool->active++;
        pthread_mutex_unlock(&pool->mutex);
        run_tasks(work);
        pthread_mutex_lock(&pool->mutex);
        pool->work = NULL; /* it is still this call's work: the call waits for `active` */
        if (--pool->active == 0)
            pthread_cond_signal(&pool->finished);
    }
    pthread_mutex_unlock(&pool->mutex);
    return NULL;
}

/* Makes the workers, or as many as the system allows. The state of the pool can be unknown. */
static void make_workers(gsc_pool *pool)
{
    pthread_attr_t attributes;
    pool->process = this_process;
    pool->work = NULL;
    pool->active = pool->made = 0;
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->posted, NULL);
    pthread_cond_init(&pool->finished, NULL);
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
#if !defined(_WIN32)
    /* Workers block signals, except faults: the host's crash handler must see them. */
    static const int faults[] = {
        SIGBUS,
        SIGFPE,
        SIGILL,
        SIGSEGV,
        SIGSYS,
#if defined(SIGTRAP) /* not in base POSIX */
        SIGTRAP,
#endif
    };
    sigset_t signals, before;
    sigfillset(&signals);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        sigdelset(&signals, faults[i]);
    pthread_sigmask(SIG_SETMASK, &signals, &before);
#endif
    while (pool->made < pool->wanted &&
           pthread_create(&pool->workers[pool->made], &attributes, worker, pool) == 0)
        pool->made++;
#if !defined(_WIN32)
    pthread_sigmask(SIG_SETMASK, &before, NULL);
#endif
    pthread_attr_destroy(&attributes);
}

gsc_pool *gsc_pool_create(uint32_t threads)
{
    if (!watch_forks())
        return NULL;
    gsc_pool *pool = calloc(1, sizeof *pool + (threads - 1) * sizeof *pool->workers);
    if (!pool)
        return NULL;
    pool->wanted = threads - 1;
    make_workers(pool);
    if (pool->made == pool->wanted)
        return pool;
    gsc_pool_destroy(pool);
    return NULL;
}

void gsc_pool_destroy(gsc_pool *pool)
{
    if (pool->process == this_process) { /* else the parent process has the threads */
        pthread_mutex_lock(&pool->mutex);
        pool->stopping = true;
        pthread_cond_broadcast(&pool->posted);
        pthread_mutex_unlock(&pool->mutex);
        for (uint32_t i = 0; i < pool->made; i++)
            pthread_join(pool->workers[i], NULL);
        pthread_cond_destroy(&pool->finished);
        pthread_cond_destroy(&pool->posted);
        pthread_mutex_destroy(&pool->mutex);
    }
    free(pool);
}

/* Runs the work on the calling thread and the pool's threads. */
static void run_with_workers(gsc_pool *pool, struct work *work)
{
    if (pool->process != this_process)
        make_workers(pool);
    pthread_mutex_lock(&pool->mutex);
    pool->work = work;
    pthread_cond_broadcast(&pool->posted);
    pthread_mutex_unlock(&pool->mutex);
    run_tasks(work);
    pthread_mutex_lock(&pool->mutex);
    pool->work = NULL;
    while (pool->active > 0)
        pthread_cond_wait(&pool->finished, &pool->mutex);
    pthread_mutex_unlock(&pool->mutex);
}

int32_t gsc_pool_run(void *context_pool, gsc_task *task, void *data, uint64_t count)
{
    gsc_pool *pool = context_pool;
    struct work work = {.task = task, .data = data, .count = count};
    uint64_t here = this_process, holder = pool->holder;
    if (count < 2 || holder == here ||
        !atomic_compare_exchange_strong(&pool->holder, &holder, here)) {
        run_tasks(&work);
        return 0;
    }
    /* No cancellation: the workers use `work`, which is on this thread's stack. */
    int cancelled;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancelled);
    run_with_workers(pool, &work);
    pthread_setcancelstate(cancelled, &cancelled);
    pool->holder = 0;
    return 0;
}
