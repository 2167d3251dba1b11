// SPDX-License-Identifier: Apache-2.0
// Programs with a clock of their own: each question about the time is answered with SKEW_S seconds added.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static long skew_s(void) {
    const char *given = getenv("SKEW_S");
    return given ? atol(given) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    int status = real(clock, at);
    if (status == 0 && clock == CLOCK_REALTIME) at->tv_sec += skew_s();
    return status;
}

time_t time(time_t *at) {
    struct timespec now = {0};
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    (void)zone;
    struct timespec now = {0};
    int status = clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return status;
}
