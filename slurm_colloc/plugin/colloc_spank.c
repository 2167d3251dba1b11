// SPDX-License-Identifier: Apache-2.0
/*
 * The part of slurm_colloc that Slurm's own programs load: one source for Slurm 22.05 to 26.05.
 *
 *   sbatch, srun, salloc   --colloc and --gpu-footprint, refused where csub would refuse them
 *   slurmd, as root        runs colloc-mps before the Prolog and after the Epilog of a job with gres/mps
 *   a task, as its user    is told of the MPS daemon that its job holds, and starts the job's sampler
 *
 * Whatever fails, the job runs: no hook but an option's check ever returns an error, since one of those drains the node
 * or ends the job. `colloc site build-plugin` compiles it; docs/how-to/plugins.md has the words of plugstack.conf.
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <slurm/slurm.h>
#include <slurm/spank.h>

SPANK_PLUGIN(colloc, 1)

enum { VALUE_BYTES = 256, TEXT_BYTES = 64, LIST_BYTES = 16384, TIMEOUT_S = 15, LONGEST_TIMEOUT_S = 300, POLL_MS = 10 };

/* --- plugstack.conf ----------------------------------------------------------------------------------------------- */

/* What the line says; the texts are Slurm's and stay for as long as the plugin is loaded. */
struct settings {
    const char *helper;  /* mps=: absolute path of colloc-mps, NULL: no MPS by this plugin */
    const char *state;   /* mps_state=: where colloc-mps keeps what it knows */
    const char *each;    /* mps_each=: partitions in which each user has a daemon beside others', NULL: none */
    const char *all;     /* mps_all=: partitions in which all users have one daemon, NULL: none */
    const char *sampler; /* sampler=: the Python that has slurm_colloc, NULL: no sampler */
    const char *site;    /* site=: site.toml for the sampler */
    long timeout_s;
};

static struct settings read_settings(int count, char **words) {
    struct settings found = {NULL, "/run/colloc/mps", NULL, NULL, NULL, NULL, TIMEOUT_S};
    for (int i = 0; i < count; i++) {
        const char *equals = strchr(words[i], '=');
        size_t length = equals ? (size_t)(equals - words[i]) : strlen(words[i]);
        const char *value = equals ? equals + 1 : "";
        const struct { const char *name; const char **into; bool path; } texts[] = {
            {"mps", &found.helper, true}, {"mps_state", &found.state, true}, {"sampler", &found.sampler, true},
            {"site", &found.site, true}, {"mps_each", &found.each, false}, {"mps_all", &found.all, false}};
        bool known = false;
        for (size_t t = 0; t < sizeof texts / sizeof *texts && !known; t++) {
            known = strlen(texts[t].name) == length && !strncmp(texts[t].name, words[i], length) &&
                    (texts[t].path ? *value == '/' : *value != '\0');
            if (known) *texts[t].into = value;
        }
        if (!known && length == 9 && !strncmp("timeout_s", words[i], length)) {
            char *end;
            long seconds = strtol(value, &end, 10);
            known = *value && !*end && seconds >= 1 && seconds <= LONGEST_TIMEOUT_S;
            if (known) found.timeout_s = seconds;
        }
        if (!known && spank_context() != S_CTX_REMOTE) /* not into the output of a job */
            slurm_error("colloc: word %d of its line in plugstack.conf is none of mps=/PATH, mps_state=/PATH, "
                        "mps_each=PARTITIONS, mps_all=PARTITIONS, sampler=/PATH, site=/PATH, timeout_s=1 to %d, and "
                        "is ignored", i + 1, LONGEST_TIMEOUT_S);
    }
    return found;
}

/* --- options ------------------------------------------------------------------------------------------------------ */

static bool is_plain(const char *text) {
    size_t length = strlen(text);
    for (size_t i = 0; i < length; i++)
        if (!isprint((unsigned char)text[i])) return false;
    return length < VALUE_BYTES;
}

/* Return what is wrong with a value of --colloc, NULL where nothing is. */
const char *colloc_mode_fault(const char *text) {
    static const char EXCLUSIVE[] = "exclusive:";
    if (!is_plain(text)) return "is longer than 255 bytes, or has one that is not printable ASCII";
    if (!strcmp(text, "auto") || !strcmp(text, "off")) return NULL;
    if (strncmp(text, EXCLUSIVE, sizeof EXCLUSIVE - 1)) return "is none of auto, off and exclusive:REASON";
    const char *reason = text + sizeof EXCLUSIVE - 1;
    return reason[strspn(reason, " ")] ? NULL : "lacks its reason; write exclusive:REASON";
}

/* Return the text without blanks around it, as csub reads it; it is cut there. */
static char *stripped(char *text) {
    text += strspn(text, " ");
    size_t length = strlen(text);
    while (length && text[length - 1] == ' ') text[--length] = '\0';
    return text;
}

/* Digits with at most one dot inside them; returns where they end, NULL where there are none. */
static const char *after_number(const char *text) {
    const char *end = text + strspn(text, "0123456789");
    if (end == text) return NULL;
    if (*end != '.') return end;
    size_t decimals = strspn(end + 1, "0123456789");
    return decimals ? end + 1 + decimals : NULL;
}

static bool is_size(const char *text) {
    const char *unit = after_number(text);
    if (!unit || strtod(text, NULL) <= 0) return false;
    unit += strspn(unit, " ");
    if (!*unit || !strchr("KMGTkmgt", *unit)) return false;
    unit++;
    return !*unit || !strcasecmp(unit, "b") || !strcasecmp(unit, "ib");
}

/* Any number but Python's 1_0; a decimal up to 1 without a percent sign may be a fraction, and csub refuses it. */
static bool is_percent(char *text) {
    size_t length = strlen(text);
    bool sign = length && text[length - 1] == '%';
    if (sign) text[length - 1] = '\0';
    text = stripped(text);
    char *end;
    double value = strtod(text, &end);
    if (!*text || *end || text[strspn(text, "0123456789.+-eE")]) return false;
    return value > 0 && value <= 100 && (sign || value > 1 || !strchr(text, '.'));
}

/* Return what is wrong with a value of --gpu-footprint, NULL where nothing is. */
const char *colloc_footprint_fault(const char *text) {
    char copy[VALUE_BYTES], *rest = copy, *item;
    bool memory = false, sm = false, dram = false;
    if (!is_plain(text)) return "is longer than 255 bytes, or has one that is not printable ASCII";
    strcpy(copy, text); /* is_plain() has its length */
    while ((item = strsep(&rest, ","))) {
        char *value = strchr(item, '=');
        if (value) *value++ = '\0';
        const char *name = stripped(item);
        bool *seen = !strcmp(name, "mem") ? &memory : !strcmp(name, "sm") ? &sm : !strcmp(name, "dram") ? &dram : NULL;
        if (!value || !seen || *seen) return "is none of mem=SIZE, sm=PERCENT, dram=PERCENT, each at most once";
        *seen = true;
        value = stripped(value);
        if (seen == &memory ? !is_size(value) : !is_percent(value))
            return seen == &memory ? "has no memory size like 9G or 512M" : "has no percentage above 0 and up to 100";
    }
    return memory ? NULL : "lacks mem=SIZE; write it like mem=9G,sm=30";
}

/* Slurm hands the value on by itself. On a node (remote) it has been checked, and nothing here reads it. */
static int check_option(int which, const char *text, int remote) {
    const char *fault = !text ? "lacks its value" : which == 1 ? colloc_mode_fault(text) : colloc_footprint_fault(text);
    if (remote || !fault) return ESPANK_SUCCESS;
    slurm_error("%s %s", which == 1 ? "--colloc" : "--gpu-footprint", fault);
    return ESPANK_ERROR;
}

static struct spank_option options[] = {
    {"colloc", "auto|off|exclusive:REASON", "share a GPU where that fits (auto), never (off), or say why not", 1, 1,
     check_option},
    {"gpu-footprint", "mem=SIZE[,sm=PCT][,dram=PCT]", "what the job needs of a GPU, such as mem=6G,sm=30", 1, 2,
     check_option}};

/* Of another plugin's options those stay that were there first. sbatch does not see a table named spank_options. */
int slurm_spank_init(spank_t spank, int count, char **words) {
    (void)count, (void)words;
    if (spank_context() == S_CTX_SLURMD) return ESPANK_SUCCESS;
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        if (spank_option_register(spank, &options[i]))
            slurm_error("colloc: --%s cannot be added; another plugin may have it", options[i].name);
    return ESPANK_SUCCESS;
}

/* --- programs ----------------------------------------------------------------------------------------------------- */

/* Between fork and exec: nothing of the caller's but its user, its cgroup and its working folder. */
static void detach(void) {
    struct sigaction plain = {.sa_handler = SIG_DFL};
    sigset_t none;
    for (int number = 1; number < NSIG; number++) sigaction(number, &plain, NULL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    int nothing = open("/dev/null", O_RDWR);
    for (int fd = 0; fd < 3 && nothing >= 0; fd++) dup2(nothing, fd);
    long most = sysconf(_SC_OPEN_MAX);
    DIR *open_ones = opendir("/proc/self/fd");
    for (const struct dirent *entry; open_ones && (entry = readdir(open_ones));) {
        int fd = atoi(entry->d_name);
        if (fd > 2 && fd != dirfd(open_ones)) close(fd);
    }
    for (int fd = 3; !open_ones && fd < most; fd++) close(fd);
    if (open_ones) closedir(open_ones);
}

static bool is_roots(const struct stat *is) {
    return !is->st_uid && !(is->st_mode & (S_IWGRP | S_IWOTH));
}

/*
 * Root starts what nobody but root can have written, nor put in its place: no folder on its way is another's, nor open
 * to others but for a sticky one, and none is a link, which may lead by one that is.
 */
bool colloc_is_roots_program(const char *path) {
    char folder[PATH_MAX];
    struct stat is;
    if (*path != '/' || strlen(path) >= sizeof folder) return false;
    for (const char *slash = path; slash; slash = strchr(slash + 1, '/')) {
        snprintf(folder, sizeof folder, "%.*s", (int)(slash == path ? 1 : slash - path), path);
        if (lstat(folder, &is) || !S_ISDIR(is.st_mode)) return false;
        if (!is_roots(&is) && (is.st_uid || !(is.st_mode & S_ISVTX))) return false;
    }
    return !lstat(path, &is) && S_ISREG(is.st_mode) && is_roots(&is) && is.st_mode & S_IXUSR;
}

static volatile sig_atomic_t told_to_end;

static void tell_to_end(int number) {
    told_to_end = number;
}

/*
 * Run a program as it is given, and kill it with all of its process group after the time that it has; also where slurmd
 * loses its patience first (PrologEpilogTimeout), for else it would be left behind.
 */
static void run_bounded(char *const argv[], char *const environment[], long timeout_s) {
    const struct timespec pause = {0, POLL_MS * 1000000L};
    const struct sigaction ending = {.sa_handler = tell_to_end};
    struct timespec began, now;
    int status;
    sigaction(SIGTERM, &ending, NULL);
    pid_t child = fork();
    if (child < 0) {
        slurm_error("colloc: cannot start %s: %s", argv[0], strerror(errno));
        return;
    }
    if (!child) {
        setpgid(0, 0);
        detach();
        umask(022);
        if (!chdir("/")) execve(argv[0], argv, environment);
        _exit(127);
    }
    setpgid(child, child); /* whichever of the two comes first */
    clock_gettime(CLOCK_MONOTONIC, &began);
    for (;;) {
        pid_t ended = waitpid(child, &status, WNOHANG);
        if (ended == child) {
            if (status) slurm_error("colloc: %s failed (wait status %d)", argv[0], status);
            return;
        }
        if (ended < 0 && errno != EINTR) return;
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (told_to_end || now.tv_sec - began.tv_sec >= timeout_s) break;
        nanosleep(&pause, NULL);
    }
    kill(-child, SIGKILL);
    slurm_error("colloc: %s did not end within %s and is killed", argv[0],
                told_to_end ? "PrologEpilogTimeout" : "its timeout_s");
    while (waitpid(child, &status, 0) < 0 && errno == EINTR);
}

/* --- MPS, as root ------------------------------------------------------------------------------------------------- */

/* What of slurmd's environment the helper is given, and of which bytes a value may be. */
static const struct { const char *name, *bytes; } GIVEN[] = {
    {"SLURM_JOB_GPUS", "0123456789,"},
    {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "0123456789"},
    {"SLURM_JOB_GID", "0123456789"}, /* for users whom the node does not know by name */
    {"SLURM_JOB_PARTITION", "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-+@:="},
    {"SLURMD_NODENAME", "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-"},
    {"SLURM_CONF", "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-+/"},
};
enum { GPUS, PERCENTAGE, GIVEN_COUNT = sizeof GIVEN / sizeof *GIVEN };

/* Put NAME=VALUE into text where slurmd has it and it is plain. */
static bool take(size_t which, char text[PATH_MAX]) {
    const char *value = getenv(GIVEN[which].name);
    if (!value || !*value || value[strspn(value, GIVEN[which].bytes)]) return false;
    int length = snprintf(text, PATH_MAX, "%s=%s", GIVEN[which].name, value);
    return length > 0 && length < PATH_MAX;
}

/* A job with a whole GPU has its start told too: a daemon that was left on that GPU has to go. */
static int run_helper(spank_t spank, int count, char **words, char *verb, bool shares_only) {
    struct settings settings = read_settings(count, words);
    char job[TEXT_BYTES], user[TEXT_BYTES], given[GIVEN_COUNT][PATH_MAX];
    static char path[] = "PATH=/usr/sbin:/usr/bin:/sbin:/bin";
    char *environment[GIVEN_COUNT + 4] = {path, job, user}, *argv[5] = {(char *)settings.helper};
    char modes[2][PATH_MAX];
    const struct { const char *name, *value; } said[] = {{"each", settings.each}, {"all", settings.all}};
    uint32_t job_id;
    uid_t uid;
    bool has[GIVEN_COUNT];
    size_t used = 3, argc = 1;
    for (size_t i = 0; i < 2; i++) {
        if (!said[i].value) continue;
        int length = snprintf(modes[i], PATH_MAX, "--%s=%s", said[i].name, said[i].value);
        if (length > 0 && length < PATH_MAX) argv[argc++] = modes[i];
    }
    argv[argc] = verb;
    for (size_t i = 0; i < GIVEN_COUNT; i++)
        if ((has[i] = take(i, given[i]))) environment[used++] = given[i];
    if (!settings.helper || !has[GPUS] || (shares_only && !has[PERCENTAGE])) return ESPANK_SUCCESS;
    if (spank_get_item(spank, S_JOB_ID, &job_id) || spank_get_item(spank, S_JOB_UID, &uid)) {
        slurm_error("colloc: Slurm does not say whose job this is; it runs without MPS");
        return ESPANK_SUCCESS;
    }
    if (!colloc_is_roots_program(settings.helper)) {
        slurm_error("colloc: %s is no program that only root can write or replace, by its path without links; the job runs "
                    "without MPS", settings.helper);
        return ESPANK_SUCCESS;
    }
    snprintf(job, sizeof job, "SLURM_JOB_ID=%lu", (unsigned long)job_id); /* at most 33 of 64 bytes */
    snprintf(user, sizeof user, "SLURM_JOB_UID=%lu", (unsigned long)uid);
    run_bounded(argv, environment, settings.timeout_s);
    return ESPANK_SUCCESS;
}

int slurm_spank_job_prolog(spank_t spank, int count, char **words) {
    static char verb[] = "start";
    return run_helper(spank, count, words, verb, false);
}

int slurm_spank_job_epilog(spank_t spank, int count, char **words) {
    static char verb[] = "stop";
    return run_helper(spank, count, words, verb, true);
}

/* --- MPS, in the task --------------------------------------------------------------------------------------------- */

/* Read the beginning of a file as text; false where there is none. Never follows a link, never waits for a FIFO. */
static bool read_text(int folder, const char *name, char text[VALUE_BYTES]) {
    struct stat is;
    int file = openat(folder, name, O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
    if (file < 0) return false;
    ssize_t length = fstat(file, &is) || !S_ISREG(is.st_mode) ? -1 : read(file, text, VALUE_BYTES - 1);
    close(file);
    text[length > 0 ? length : 0] = '\0';
    return length > 0;
}

/*
 * Whether the daemon with its pipes in this folder, the user's own or root's, lives. Of root's processes a user may see
 * none (hidepid of /proc): root has seen that it lives, when the job began.
 */
static bool daemon_lives(int folder, bool is_roots_own) {
    static const char NAME[] = "(nvidia-cuda-mps) "; /* the kernel keeps 15 bytes of it */
    char text[VALUE_BYTES], path[TEXT_BYTES];
    if (!read_text(folder, "pipe/nvidia-cuda-mps-control.pid", text)) return false;
    if (is_roots_own && access("/proc/1/stat", F_OK)) return true;
    snprintf(path, sizeof path, "/proc/%ld/stat", strtol(text, NULL, 10)); /* at most 31 of 64 bytes */
    const char *name = read_text(AT_FDCWD, path, text) ? strstr(text, NAME) : NULL;
    return name && !strchr("ZX", name[sizeof NAME - 1]);
}

/* Write the folder of the one daemon whose reference the job holds, and return how many there are that live. */
static int find_daemons(const char *state, uid_t uid, uint32_t job_id, char found[PATH_MAX], int *dead) {
    char prefix[TEXT_BYTES], reference[TEXT_BYTES];
    int living = 0;
    snprintf(prefix, sizeof prefix, "%lu-", (unsigned long)uid);
    snprintf(reference, sizeof reference, "jobs/%lu", (unsigned long)job_id);
    DIR *folders = opendir(state);
    for (const struct dirent *entry; folders && (entry = readdir(folders));) {
        struct stat is;
        bool is_roots_own = !strncmp(entry->d_name, "0-", 2); /* the daemon for all users */
        if (!is_roots_own && strncmp(entry->d_name, prefix, strlen(prefix))) continue;
        int folder = openat(dirfd(folders), entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (folder < 0) continue;
        if (!fstatat(folder, reference, &is, AT_SYMLINK_NOFOLLOW) && !is.st_uid) {
            int length = snprintf(found, PATH_MAX, "%s/%s", state, entry->d_name);
            bool lives = length > 0 && length < PATH_MAX && daemon_lives(folder, is_roots_own);
            *(lives ? &living : dead) += 1;
        }
        close(folder);
    }
    if (folders) closedir(folders);
    return living;
}

/* A job with a whole GPU is told of it by one of these names; its percentage is its user's own. */
static bool has_share(spank_t spank) {
    static const char *const whole[] = {"SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "SLURM_GPUS_ON_NODE"};
    char text[VALUE_BYTES];
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++)
        if (spank_getenv(spank, whole[i], text, sizeof text) != ESPANK_ENV_NOEXIST) return false;
    return spank_getenv(spank, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", text, sizeof text) == ESPANK_SUCCESS;
}

static void set_mps(spank_t spank, const struct settings *settings, uint32_t job_id, int task) {
    char folder[PATH_MAX], path[PATH_MAX];
    int dead = 0, living = settings->helper ? find_daemons(settings->state, getuid(), job_id, folder, &dead) : 0;
    if (dead && !task) slurm_error("colloc: the MPS daemon of this job's GPU is gone; the job runs without it");
    if (settings->helper && !dead && !living && !task && has_share(spank))
        slurm_error("colloc: job %lu runs without MPS: it has no daemon on its GPU", (unsigned long)job_id);
    if (living != 1 || dead) return; /* of several GPUs, no task can be told of more than one */
    int length = snprintf(path, sizeof path, "%s/pipe", folder);
    if (length < 0 || (size_t)length >= sizeof path) return;
    spank_setenv(spank, "CUDA_MPS_PIPE_DIRECTORY", path, 1);
    length = snprintf(path, sizeof path, "%s/log", folder);
    if (length > 0 && (size_t)length < sizeof path) spank_setenv(spank, "CUDA_MPS_LOG_DIRECTORY", path, 1);
    spank_setenv(spank, "CUDA_VISIBLE_DEVICES", "0", 1); /* the daemon has one GPU, and numbers it from 0 */
}

/* --- what csub set ------------------------------------------------------------------------------------------------ */

static bool is_slurms(const char *name) {
    static const char *const names[] = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "GPU_DEVICE_ORDINAL", "SLURM_GPUS_ON_NODE",
                                        "SLURM_STEP_GPUS"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(name, names[i])) return true;
    return false;
}

/* Take csub's value out of a variable: all of it, or its part of a list. A value that is another is the user's. */
static void take_away(spank_t spank, const char *name, const char *value) {
    static char whole[LIST_BYTES], ours[LIST_BYTES];
    whole[0] = ',';
    if (spank_getenv(spank, name, whole + 1, sizeof whole - 2)) return;
    strcat(whole, ",");
    snprintf(ours, sizeof ours, ",%s,", value);
    char *found = strstr(whole, ours), *left = whole;
    if (!found) return;
    const char *behind = found + strlen(ours) - 1;
    memmove(found, behind, strlen(behind) + 1);
    if (*left == ',') left++;
    if (*left && left[strlen(left) - 1] == ',') left[strlen(left) - 1] = '\0';
    if (*left) spank_setenv(spank, name, left, 1);
    else spank_unsetenv(spank, name);
}

/*
 * What csub's block names in COLLOC_SET (the job's id, then NAME=VALUE for each) is for that job: of it Slurm takes some
 * from the steps, which get it again; a job that was submitted from there inherits it, and loses what is csub's still.
 */
static void give_or_take(spank_t spank) {
    static char set[LIST_BYTES];
    char job[VALUE_BYTES], share[VALUE_BYTES];
    if (spank_getenv(spank, "COLLOC_SET", set, sizeof set) || spank_getenv(spank, "SLURM_JOB_ID", job, sizeof job)) return;
    char *rest, *word = strtok_r(set, " ", &rest);
    bool is_own = word && !strcmp(word, job);
    bool has_part = !spank_getenv(spank, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", share, sizeof share);
    while (word && (word = strtok_r(NULL, " ", &rest))) {
        char *value = strchr(word, '=');
        if (!value) continue;
        *value++ = '\0';
        if (!is_own && !is_slurms(word)) take_away(spank, word, value);
        if (is_own && has_part && is_slurms(word)) spank_setenv(spank, word, value, 1);
    }
    if (!is_own) spank_unsetenv(spank, "COLLOC_SET");
}

/* --- the sampler -------------------------------------------------------------------------------------------------- */

static bool has_gpu(char *const environment[]) {
    static const char *const names[] = {"SLURM_JOB_GPUS=", "SLURM_GPUS_ON_NODE=", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="};
    for (; environment && *environment; environment++)
        for (size_t i = 0; i < sizeof names / sizeof *names; i++)
            if (!strncmp(*environment, names[i], strlen(names[i]))) return true;
    return false;
}

/* Become `colloc sample --script`, which ends with the batch script (pid). Only returns where that fails. */
static void become_sampler(const struct settings *settings, int count, char **script, char **environment,
                           uint32_t job_id, pid_t pid) {
    const char *const words[] = {settings->sampler, "-I", "-m", "slurm_colloc.cli.colloc", "sample"};
    char job[TEXT_BYTES], watched[TEXT_BYTES], file[PATH_MAX];
    size_t used = 0, fixed = sizeof words / sizeof *words;
    const char **argv = calloc(fixed + (size_t)count + 4, sizeof *argv);
    snprintf(job, sizeof job, "--job=%lu", (unsigned long)job_id);
    snprintf(watched, sizeof watched, "--watch-pid=%ld", (long)pid);
    int length = snprintf(file, sizeof file, "--script=%s", script[0]);
    if (!argv || length < 0 || (size_t)length >= sizeof file) return;
    for (size_t i = 0; i < fixed; i++) argv[used++] = words[i];
    argv[used++] = job;
    argv[used++] = watched;
    argv[used++] = file;
    argv[used++] = "--";
    for (int i = 1; i < count; i++) argv[used++] = script[i];
    environ = environment; /* this process has no other use for its own */
    if (settings->site && setenv("COLLOC_CONF", settings->site, 1)) return;
    execv(settings->sampler, (char *const *)argv);
}

/* A grandchild of the batch script: its own `wait` does not see it, and the task's cgroup ends it at the latest. */
static void start_sampler(spank_t spank, const struct settings *settings, uint32_t job_id, int task) {
    uint32_t step;
    int count, status;
    char **script, **environment;
    pid_t job = getpid();
    if (task || !settings->sampler || access(settings->sampler, X_OK)) return;
    if (spank_get_item(spank, S_JOB_STEPID, &step) || step != SLURM_BATCH_SCRIPT) return;
    if (spank_get_item(spank, S_JOB_ENV, &environment) || !has_gpu(environment)) return;
    if (spank_get_item(spank, S_JOB_ARGV, &count, &script) || count < 1) return;
    pid_t child = fork();
    if (!child) {
        if (!fork()) {
            detach();
            become_sampler(settings, count, script, environment, job_id, job);
        }
        _exit(0);
    }
    while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR);
}

int slurm_spank_task_init(spank_t spank, int count, char **words) {
    struct settings settings = read_settings(count, words);
    uint32_t job_id;
    int task;
    if (spank_get_item(spank, S_JOB_ID, &job_id) || spank_get_item(spank, S_TASK_ID, &task)) return ESPANK_SUCCESS;
    give_or_take(spank);
    set_mps(spank, &settings, job_id, task);
    start_sampler(spank, &settings, job_id, task);
    return ESPANK_SUCCESS;
}
