// SPDX-License-Identifier: Apache-2.0
/*
 * The part of slurm_colloc that Slurm's own programs load: one source for Slurm 22.05 to 26.05.
 *
 *   sbatch, srun, salloc   --colloc and --gpu-footprint, refused where csub would refuse them
 *   a task, as its user    gets what csub set for its job and loses what is another job's; the first starts the sampler
 *
 * Whatever fails, the job runs: no hook but an option's check ever returns an error, since one of those ends the job.
 * As root it only names its options. `colloc site build-plugin` compiles it; docs/how-to/plugins.md has the words of
 * its line in plugstack.conf.
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
#include <sys/wait.h>
#include <unistd.h>

#include <slurm/slurm.h>
#include <slurm/spank.h>

SPANK_PLUGIN(colloc, 1)

enum { VALUE_BYTES = 256, TEXT_BYTES = 64, LIST_BYTES = 16384 };

/* --- plugstack.conf ----------------------------------------------------------------------------------------------- */

/* What the line says; other words are for 'colloc site doctor' to find, and not for the output of a job. */
struct settings {
    const char *sampler; /* sampler=: the Python that has slurm_colloc, NULL: no sampler */
    const char *site;    /* site=: site.toml for the sampler */
};

static struct settings read_settings(int count, char **words) {
    struct settings found = {NULL, NULL};
    for (int i = 0; i < count; i++) {
        if (!strncmp(words[i], "sampler=/", 9)) found.sampler = strchr(words[i], '/');
        if (!strncmp(words[i], "site=/", 6)) found.site = strchr(words[i], '/');
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
    start_sampler(spank, &settings, job_id, task);
    return ESPANK_SUCCESS;
}
