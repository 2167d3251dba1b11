// SPDX-License-Identifier: Apache-2.0
// A crowd of processes for tests.bench_agent: KIND and COUNT in the environment, since the arguments are those that the
// bench gives. Says the pid of the last one when all are there, and ends them when its standard input is closed, when it
// is killed, or after LASTS_S.
#define _GNU_SOURCE
#include <errno.h>
#include <grp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { GROUPS = 65536, THREADS = 10, NOBODY = 65534, LASTS_S = 300 };

static struct { int there; pid_t last; } *shared;

static void fail(const char *what)
{
    fprintf(stderr, "crowd: %s: %s\n", what, strerror(errno));
    kill(0, SIGKILL);
}

static void *waits(void *unused)
{
    for (;;)
        pause();
    return unused;
}

static void lives(const char *name)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(LASTS_S);
    prctl(PR_SET_NAME, name);
    shared->last = getpid();
    __atomic_add_fetch(&shared->there, 1, __ATOMIC_SEQ_CST);
}

int main(void)
{
    const char *kind = getenv("KIND"), *name = getenv("NAME");
    int count = atoi(getenv("COUNT"));
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (!strcmp(kind, "groups")) {
        static gid_t groups[GROUPS];
        for (int number = 0; number < GROUPS; number++)
            groups[number] = 1000000000 + number;
        if (setgroups(GROUPS, groups))
            fail("setgroups");
    }
    if (strcmp(kind, "job") && !getuid() && (setgid(NOBODY) || setuid(NOBODY)))
        fail("setuid");
    if (!strcmp(kind, "groups") && unshare(CLONE_NEWUSER))
        fail("unshare");
    prctl(PR_SET_DUMPABLE, strcmp(kind, "closed") != 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(LASTS_S);
    if (!strcmp(kind, "job"))
        prctl(PR_SET_NAME, "slurmstepd");
    int in_line = !strcmp(kind, "line") || !strcmp(kind, "job"), threads = strcmp(kind, "threads") ? 0 : THREADS - 1;
    for (int number = 0; number < count; number++) {
        pid_t child = fork();
        if (child < 0)
            fail("fork");
        // In a line each starts the next one.
        if ((child == 0) == !in_line) {
            if (child && number) // of a line, and has started the next one
                waits(NULL);
            if (child)
                break;
            lives(name);
            for (int thread = 0; thread < threads; thread++) {
                pthread_attr_t attributes;
                pthread_t made;
                pthread_attr_init(&attributes);
                pthread_attr_setstacksize(&attributes, 16384);
                if (pthread_create(&made, &attributes, waits, NULL))
                    fail("pthread_create");
            }
            waits(NULL);
        } else if (in_line) {
            lives(name);
            if (number == count - 1)
                waits(NULL);
        }
    }
    while (__atomic_load_n(&shared->there, __ATOMIC_SEQ_CST) < count)
        usleep(10000);
    printf("%d\n", shared->last);
    fflush(stdout);
    return getchar() == EOF ? 0 : 1;
}
