// SPDX-License-Identifier: Apache-2.0
// A slow or hung file system, for a program that is started with this library in LD_PRELOAD: each operation that names
// a path under $SLOWFS_UNDER sleeps $SLOWFS_MS milliseconds first, and is written to $SLOWFS_LOG, one line each.
#define _GNU_SOURCE
#undef _FILE_OFFSET_BITS
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

// Sleeps and logs where PATH, taken from the folder DIRFD, lies under $SLOWFS_UNDER.
static void pass(const char *what, int dirfd, const char *path) {
    const char *under = getenv("SLOWFS_UNDER"), *log = getenv("SLOWFS_LOG"), *ms = getenv("SLOWFS_MS");
    char whole[8192], link[64], folder[4096] = "";
    if (!under || !path) return;
    if (path[0] != '/') {
        snprintf(link, sizeof link, dirfd == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", dirfd);
        ssize_t size = REAL(readlink)(link, folder, sizeof folder - 1);
        folder[size < 0 ? 0 : size] = 0;
    }
    snprintf(whole, sizeof whole, "%s%s%s", folder, path[0] == '/' ? "" : "/", path);
    if (strncmp(whole, under, strlen(under))) return;
    if (log) {
        char line[8300];
        int size = snprintf(line, sizeof line, "%s %s\n", what, whole);
        int fd = REAL(open)(log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
        if (fd >= 0) {
            if (write(fd, line, size) != size) abort();
            close(fd);
        }
    }
    if (ms) {
        struct timespec time = {atol(ms) / 1000, atol(ms) % 1000 * 1000000L};
        nanosleep(&time, NULL);
    }
}

#define MODE(last) \
    mode_t mode = 0; \
    if (flags & (O_CREAT | __O_TMPFILE)) { va_list more; va_start(more, last); mode = va_arg(more, mode_t); va_end(more); }
#define OPEN(name) \
    int name(const char *path, int flags, ...) { MODE(flags) pass("open", AT_FDCWD, path); return REAL(name)(path, flags, mode); }
#define OPENAT(name) \
    int name(int dir, const char *path, int flags, ...) { MODE(flags) pass("open", dir, path); return REAL(name)(dir, path, flags, mode); }
OPEN(open) OPEN(open64) OPENAT(openat) OPENAT(openat64)

#define STAT(name, kind) \
    int name(const char *path, struct kind *out) { pass("stat", AT_FDCWD, path); return REAL(name)(path, out); }
STAT(stat, stat) STAT(stat64, stat64) STAT(lstat, stat) STAT(lstat64, stat64)
#define FSTATAT(name, kind) \
    int name(int dir, const char *path, struct kind *out, int flags) { \
        if (*path) pass("stat", dir, path); \
        return REAL(name)(dir, path, out, flags); \
    }
FSTATAT(fstatat, stat) FSTATAT(fstatat64, stat64)

FILE *fopen64(const char *path, const char *mode) { pass("open", AT_FDCWD, path); return REAL(fopen64)(path, mode); }
FILE *fopen(const char *path, const char *mode) { pass("open", AT_FDCWD, path); return REAL(fopen)(path, mode); }
struct __dirstream *opendir(const char *path) {
    struct __dirstream *(*real)(const char *) = dlsym(RTLD_NEXT, "opendir");
    pass("opendir", AT_FDCWD, path);
    return real(path);
}
int access(const char *path, int mode) { pass("access", AT_FDCWD, path); return REAL(access)(path, mode); }
int mkdir(const char *path, mode_t mode) { pass("mkdir", AT_FDCWD, path); return REAL(mkdir)(path, mode); }
int rename(const char *from, const char *to) { pass("rename", AT_FDCWD, to); return REAL(rename)(from, to); }
int unlink(const char *path) { pass("unlink", AT_FDCWD, path); return REAL(unlink)(path); }
ssize_t readlink(const char *path, char *out, size_t size) { pass("readlink", AT_FDCWD, path); return REAL(readlink)(path, out, size); }
int renameat(int dir, const char *from, int to_dir, const char *to) {
    pass("rename", to_dir, to);
    return REAL(renameat)(dir, from, to_dir, to);
}
