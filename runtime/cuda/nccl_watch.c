#include "runtime/cuda/nccl_state.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { OTHERS_SECONDS = 1 };

double nccl_now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

void nccl_pause_briefly(void) { nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL); }

/* ---- errors ---- */

bool nccl_fail(dtm_rank *rank, dtm_nccl_comm comm, int result, const char *what, const char *on, dtm_status *status) {
    const dtm_nccl *nccl = rank->device->comms->nccl;
    const char *text = nccl->GetErrorString(result), *last = nccl->GetLastError(comm);
    return dtm_status_fail(status, "rank %d, device %d (%s): %s%s%s: NCCL: %s (error %d)%s%s", rank->device->rank, rank->device->ordinal,
                           rank->device->name, what, on ? " on " : "", on ? on : "", text ? text : "?", result, last && *last ? ": " : "", last && *last ? last : "");
}

/* Another rank has gone, or failed: that one knows why, and is given the time to say it. */
static bool fail_call(dtm_rank *rank, dtm_nccl_comm comm, int result, const char *what, const char *on, dtm_status *status) {
    for (double begin = nccl_now(); result == DTM_NCCL_REMOTE_ERROR && nccl_now() - begin < OTHERS_SECONDS; nccl_pause_briefly())
        if (dtm_comm_is_lost(rank->comm)) return dtm_status_echo(status);
    if (dtm_device_has_failed(rank->device, status)) return false;
    return nccl_fail(rank, comm, result, what, on, status);
}

bool nccl_settle(dtm_rank *rank, dtm_nccl_comm comm, int result, const char *what, const char *on, dtm_status *status) {
    const dtm_nccl *nccl = rank->device->comms->nccl;
    double begin = nccl_now(), deadline = rank->options->deadline_given ? rank->options->deadline : 600;
    while (result == DTM_NCCL_IN_PROGRESS) {
        int asked = nccl->CommGetAsyncError(comm, &result);
        if (asked != DTM_NCCL_SUCCESS) result = asked;
        if (result != DTM_NCCL_IN_PROGRESS) break;
        if (deadline > 0 && nccl_now() - begin > deadline)
            return dtm_status_fail(status, "rank %d: hang: %s on %s has not begun for %.0f seconds", rank->device->rank, what, on, deadline);
        nccl_pause_briefly();
    }
    return result == DTM_NCCL_SUCCESS || fail_call(rank, comm, result, what, on, status);
}

void nccl_say_operation(const dtm_rank *rank, uint32_t instruction, char *out, size_t size) {
    const dtm_plan_instruction *at = &rank->plan->instructions[instruction];
    int length = snprintf(out, size, "%s", rank->transfers[instruction].label);
    if (at->line && length > 0 && (size_t)length < size)
        snprintf(out + length, size - (size_t)length, " (%s%sline %u)", at->file ? at->file : "", at->file ? ", " : "", at->line);
}

bool nccl_settle_operation(dtm_rank *rank, uint32_t instruction, const channel *c, int result, dtm_status *status) {
    char what[160];
    if (result == DTM_NCCL_SUCCESS) return true;
    nccl_say_operation(rank, instruction, what, sizeof what);
    return nccl_settle(rank, c->comm, result, what, c->name, status);
}

bool nccl_check(dtm_rank *rank, uint32_t instruction, dtm_cu_result result, dtm_status *status) {
    char what[160];
    if (result == DTM_CU_SUCCESS) return true;
    nccl_say_operation(rank, instruction, what, sizeof what);
    return dtm_device_check(rank->device, result, status, "%s", what);
}

/* ---- the watch ---- */

/* Those of this process: with --local all ranks', so that one can tell who has come. */
static pthread_mutex_t watched_lock = PTHREAD_MUTEX_INITIALIZER;
static dtm_cuda_comms *watched;

static const channel *channel_at(const dtm_cuda_comms *comms, const channel *like) {
    for (size_t c = 0; c < comms->n_channels; c++) {
        const channel *other = &comms->channels[c];
        if (!strcmp(other->name, like->name) && other->n_ranks == like->n_ranks && !memcmp(other->ranks, like->ranks, (size_t)like->n_ranks * sizeof(int)))
            return other;
    }
    return NULL;
}

/* "; arrived: 0, 2; that did not: 1" of the ranks of this process; nothing where others have them. */
static void say_arrived(const channel *c, uint32_t number, char *out, size_t size) {
    char come[200] = "", missing[200] = "";
    int known = 0;
    pthread_mutex_lock(&watched_lock);
    for (int r = 0; r < c->n_ranks; r++) {
        const dtm_cuda_comms *comms = watched;
        while (comms && comms->rank != c->ranks[r]) comms = comms->next;
        const channel *other = comms ? channel_at(comms, c) : NULL;
        if (!other) continue;
        char *list = other->stamps[0] == number ? come : missing;
        size_t length = strlen(list);
        snprintf(list + length, 200 - length, "%s%d", length ? ", " : "", c->ranks[r]);
        known++;
    }
    pthread_mutex_unlock(&watched_lock);
    *out = 0;
    if (known > 1) snprintf(out, size, "; arrived: %s; that did not: %s", come, missing[0] ? missing : "none");
}

void nccl_say_carried(const dtm_rank *rank, const channel *c, uint32_t number, char *out, size_t size) {
    char what[160] = "an operation", microbatch[40] = "", ranks[120] = "";
    if (number > 0 && number <= c->n_carried) {
        const carried *at = &c->carried[number - 1];
        nccl_say_operation(rank, at->instruction, what, sizeof what);
        if (at->microbatch >= 0) snprintf(microbatch, sizeof microbatch, ", microbatch %lld", (long long)at->microbatch);
    }
    for (int r = 0; r < c->n_ranks && r < 16; r++) {
        size_t length = strlen(ranks);
        snprintf(ranks + length, sizeof ranks - length, "%s%d", length ? ", " : "", c->ranks[r]);
    }
    snprintf(out, size, "%s%s on %s (ranks %s%s), operation %u there", what, microbatch, c->name, ranks, c->n_ranks > 16 ? ", .." : "", number);
}

void dtm_cuda_comms_say(const dtm_rank *rank, char *out, size_t size) {
    const dtm_cuda_comms *comms = rank->device->comms;
    *out = 0;
    for (size_t c = 0; comms && c < comms->n_channels; c++) {
        const channel *at = &comms->channels[c];
        size_t length = strlen(out);
        char what[500];
        if (at->stamps[0] == at->stamps[1]) continue;
        nccl_say_carried(rank, at, at->stamps[0], what, sizeof what);
        snprintf(out + length, size - length, "%s%s", length ? ", or " : "", what);
    }
}

static bool watch_channel(dtm_rank *rank, channel *c, double deadline, dtm_status *status) {
    const dtm_nccl *nccl = rank->device->comms->nccl;
    uint32_t begun = c->stamps[0], ended = c->stamps[1];
    char what[500], arrived[440];
    int error = DTM_NCCL_SUCCESS, asked = nccl->CommGetAsyncError(c->comm, &error);
    if (asked != DTM_NCCL_SUCCESS) error = asked;
    nccl_say_carried(rank, c, begun != ended ? begun : ended + 1, what, sizeof what);
    if (error != DTM_NCCL_SUCCESS && error != DTM_NCCL_IN_PROGRESS) return fail_call(rank, c->comm, error, what, NULL, status);
    double time = nccl_now();
    if (begun == ended || c->seen[0] != begun || c->seen[1] != ended) {
        c->seen[0] = begun;
        c->seen[1] = ended;
        c->since = time;
    }
    if (deadline <= 0 || time - c->since <= deadline) return true;
    say_arrived(c, begun, arrived, sizeof arrived);
    return dtm_status_fail(status, "rank %d, device %d (%s): hang: %s, has not ended for %.3g seconds%s", rank->device->rank, rank->device->ordinal,
                           rank->device->name, what, deadline, arrived);
}

static bool watch(dtm_rank *rank, dtm_status *status) {
    dtm_cuda_comms *comms = rank->device->comms;
    double deadline = rank->options->deadline_given ? rank->options->deadline : 600;
    bool ok = true;
    for (size_t c = 0; ok && c < comms->n_channels; c++) ok = watch_channel(rank, &comms->channels[c], deadline, status);
    if (!ok && !comms->failure.failed) comms->failure = *status;
    return ok;
}

void nccl_begin_watch(dtm_rank *rank) {
    dtm_cuda_comms *comms = rank->device->comms;
    pthread_mutex_lock(&watched_lock);
    comms->next = watched;
    watched = comms;
    pthread_mutex_unlock(&watched_lock);
    rank->device->watch = watch;
}

void nccl_end_watch(dtm_cuda_comms *comms) {
    pthread_mutex_lock(&watched_lock);
    dtm_cuda_comms **at = &watched;
    while (*at && *at != comms) at = &(*at)->next;
    if (*at) *at = comms->next;
    pthread_mutex_unlock(&watched_lock);
}

bool nccl_stamp(dtm_rank *rank, uint32_t instruction, const channel *c, int which, dtm_status *status) {
    const dtm_cuda_comms *comms = rank->device->comms;
    dtm_cu_pointer at = comms->stamps_at + (dtm_cu_pointer)((const char *)&c->stamps[which] - (const char *)comms->stamps);
    return nccl_check(rank, instruction, rank->device->driver->StreamWriteValue32(c->stream, at, c->n_carried, 0), status);
}
