// SPDX-License-Identifier: Apache-2.0
// A machine that has cgroup v2 only, for a Slurm daemon that is started with this library in LD_PRELOAD: of its own
// cgroups and of pid 1's it reads the line of v2 alone. Slurm refuses to use v2 on a machine that has v1 beside it.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef int opener(const char *, int, ...);

static int open_unified(opener *real, const char *path, int flags, mode_t mode) {
    int found = real(path, flags, mode);
    if (found < 0 || (strcmp(path, "/proc/self/cgroup") && strcmp(path, "/proc/1/cgroup"))) return found;
    char text[65536] = "";
    ssize_t size = read(found, text, sizeof text - 1);
    close(found);
    char *line = size > 0 ? strstr(text, "0::") : NULL;
    int only = memfd_create("cgroup", MFD_CLOEXEC);
    if (line) dprintf(only, "%s", line);
    lseek(only, 0, SEEK_SET);
    return only;
}

#define OPENER(name)                                                                                                   \
    int name(const char *path, int flags, ...) {                                                                       \
        va_list rest;                                                                                                  \
        va_start(rest, flags);                                                                                         \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;                                        \
        va_end(rest);                                                                                                  \
        return open_unified((opener *)dlsym(RTLD_NEXT, #name), path, flags, mode);                                     \
    }

OPENER(open)
OPENER(open64)
